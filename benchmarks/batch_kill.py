"""Kills a batch run repeatedly, fills its disk, and checks that every page is in the output once.

    python benchmarks/batch_kill.py [--pages 200000] [--kills 5] [--seed 1] [--out FILE]

Generated pages are read with the engine `fake` in child processes. SIGKILL ends all processes of the command at random
moments: first while it plans, later at random numbers of pages. Once the work folder is removed. Once the destination,
a tmpfs, is shrunk until it is full (needs root; skipped without): the command must end with exit code 74, and continue
once there is space. Finally `--verify` compares plan, manifests and output, and this program counts the lines. Prints
missing and repeated pages, the seconds from each start to the first page, the peak memory of the command's first
process, and its working time.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.batch_command import (
    BatchProcess,
    check_once,
    known_pages,
    link_pages,
    wait_for_first_page,
)
from bench.machine import print_machine
from bench.results import write_result

FULL = 74
GOAL_RESTART_S = 30.0
GOAL_PEAK_MB = 500.0
ROOM_BYTES = 4 * 2**30
FULL_AFTER_BYTES = 400_000
SETTINGS = {"OCRSVC_ENGINE": "fake"}


@contextmanager
def destination(folder: Path) -> Iterator[Path]:
    """A folder for the output; as root, a tmpfs that can be resized."""
    out = folder / "out"
    out.mkdir()
    if os.geteuid() != 0:
        yield out
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "none", str(out)], check=True)
    try:
        yield out
    finally:
        subprocess.run(["umount", "-l", str(out)], check=True)


def resize(out: Path, size_bytes: int) -> None:
    """Resize the destination."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(out)], check=True)


def used_bytes(out: Path) -> int:
    """Bytes used in the destination."""
    found = os.statvfs(out)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


class Trial:
    """The batch run that is killed and restarted.

    Args:
        pages: Folder of the sources.
        out: The destination.
        log: File for the command's messages.
    """

    def __init__(self, pages: Path, out: Path, log: Path) -> None:
        self._arguments, self.out, self._log = [str(pages), "--out", str(out)], out, log
        self.restarts_s: list[float] = []
        self.peak_mb = 0.0
        self.work_s = 0.0

    def known(self) -> int:
        """Number of pages with a result."""
        return known_pages(self.out)

    def kill_while_planning(self, after_s: float) -> None:
        """Start the command, and kill it after `after_s` seconds."""
        process = self._start()
        time.sleep(after_s)
        self._end(process)

    def kill_at(self, pages: int) -> int:
        """Restart the command, and kill it at `pages` known pages or at its end; returns the number of known pages."""
        process = self._restart()
        while process.is_running() and self.known() < pages:
            time.sleep(random.random() * 0.3)
        self._end(process)
        return self.known()

    def fill(self, pages: int) -> int:
        """Restart the command, and fill the disk at `pages` known pages; returns the exit code."""
        process = self._restart()
        while process.is_running() and self.known() < pages:
            time.sleep(0.1)
        resize(self.out, used_bytes(self.out) + FULL_AFTER_BYTES)
        code = process.wait()
        self._note(process)
        again = self._start()
        still = again.wait()
        self._note(again)
        resize(self.out, ROOM_BYTES)
        return code if still == FULL else still

    def finish(self) -> int:
        """Restart the command, and wait for its end; returns the exit code."""
        process = self._restart()
        code = process.wait()
        self._note(process)
        return code

    def verify(self) -> tuple[int, float]:
        """Run --verify; returns its exit code and seconds."""
        process = BatchProcess(["--verify", *self._arguments[1:]], SETTINGS, self._log)
        return process.wait(), time.monotonic() - process.began_s

    def _start(self) -> BatchProcess:
        return BatchProcess(self._arguments, SETTINGS, self._log)

    def _restart(self) -> BatchProcess:
        before = self.known()
        process = self._start()
        self.restarts_s.append(wait_for_first_page(process, self.out, before))
        print(f"  {self.known()} pages known {self.restarts_s[-1]:.2f} s after the start", flush=True)
        return process

    def _end(self, process: BatchProcess) -> None:
        process.kill()
        self._note(process)

    def _note(self, process: BatchProcess) -> None:
        self.peak_mb = max(self.peak_mb, process.peak_mb)
        self.work_s += time.monotonic() - process.began_s


def run(trial: Trial, args: argparse.Namespace) -> dict[str, object]:
    """Kill, fill the disk, finish and verify; returns the figures."""
    rng = random.Random(args.seed)
    trial.kill_while_planning(rng.uniform(0.1, 2.0))
    moments = sorted(rng.uniform(0.02, 0.9) for _ in range(args.kills - 1))
    filled = None
    for number, moment in enumerate(moments):
        print(f"killed at {trial.kill_at(int(moment * args.pages))} pages", flush=True)
        if number == 0:
            # The work folder is lost, so its unfinished parts are read again.
            shutil.rmtree(trial.out / "_ocrsvc/work")
            print("work folder lost", flush=True)
        if number == len(moments) // 2 and os.geteuid() == 0:
            filled = trial.fill(int(moment * args.pages) + 100)
            print(f"exit code {filled} on the full disk (expected: {FULL})", flush=True)
    code = trial.finish()
    verified, verify_s = trial.verify()
    return {"exit": code, "full_exit": filled, "verify_exit": verified, "verify_s": round(verify_s, 2)}


def main() -> int:
    """Run the benchmark; returns 1 if a page is missing or repeated, or a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/batch_kill.json")
    args = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as name, destination(Path(name)) as out:
        pages = link_pages(Path(name), args.pages)
        trial = Trial(pages, out, Path(name, "messages"))
        figures = run(trial, args)
        counts = check_once(out, sorted(pages.rglob("*.png")))
        figures |= {"pages": args.pages, "kills": args.kills, **counts}
        figures |= {"restarts_s": [round(one, 2) for one in trial.restarts_s], "peak_mb": round(trial.peak_mb, 1)}
        figures |= {"work_s": round(trial.work_s, 1)}
        messages = Path(name, "messages").read_text("utf-8", "replace")
    for key, value in figures.items():
        print(f"{key:14} {value}")
    write_result("batch_kill", figures, args.out)
    is_once = (counts["lines"], sum(counts.values())) == (args.pages, args.pages)
    is_right = is_once and figures["exit"] == figures["verify_exit"] == 0 and figures["full_exit"] in (FULL, None)
    if not is_right:
        print(messages[-4000:])
    return 0 if is_right and max(trial.restarts_s) <= GOAL_RESTART_S and trial.peak_mb <= GOAL_PEAK_MB else 1


if __name__ == "__main__":
    sys.exit(main())
