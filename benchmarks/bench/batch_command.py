"""Runs `ocrsvc batch` as a child process on generated pages, and watches, kills and checks it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from bench.service import ROOT

DISTINCT: Final = 50
_PER_FOLDER: Final = 1000
_POLL_S: Final = 0.1


def link_pages(folder: Path, count: int) -> Path:
    """Create a folder of `count` images: 50 distinct files under many names (hard links), 1,000 to a subfolder."""
    images, pages = folder / "images", folder / "pages"
    images.mkdir(parents=True)
    for number in range(DISTINCT):
        cv2.imwrite(str(images / f"{number}.png"), np.full((20 + number, 64, 3), 255 - number, np.uint8))
    for number in range(count):
        inner = pages / f"{number // _PER_FOLDER:05d}"
        if number % _PER_FOLDER == 0:
            inner.mkdir(parents=True)
        os.link(images / f"{number % DISTINCT}.png", inner / f"{number:07d}.png")
    return pages


class BatchProcess:
    """A running `ocrsvc batch` in its own process group.

    Args:
        arguments: Command-line arguments of `ocrsvc batch`.
        environment: OCRSVC_… settings to add to this process's environment.
        log: File that receives the command's messages.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        command = [sys.executable, "-m", "ocrsvc", "batch", *arguments]
        self.began_s = time.monotonic()
        with log.open("ab") as messages:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | dict(environment),
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.peak_mb = 0.0

    def is_running(self) -> bool:
        """Whether the command still runs; records the peak memory of its first process, without engine processes."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
            self.peak_mb = max(self.peak_mb, int(found[1]) / 1024 if found else 0.0)
        return self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the process group, and wait for the first process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, limit_s: float = 36_000.0) -> int:
        """Wait for the command's end, and return its exit code; exit the benchmark after `limit_s` seconds."""
        end_s = time.monotonic() + limit_s
        while self.is_running():
            if time.monotonic() > end_s:
                self.kill()
                sys.exit("FAILED: the command did not end")
            time.sleep(_POLL_S)
        return self._process.wait()


def known_pages(out: Path) -> int:
    """Count pages with a result, in finished parts of the output and in work files."""
    known = 0
    for manifest in out.glob("_ocrsvc/parts/*.json"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            known += len(json.loads(manifest.read_bytes())["pages"])
    for work in out.glob("_ocrsvc/work/*.sqlite"):
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{work}?mode=ro", uri=True)) as db,
        ):
            known += db.execute("SELECT count(*) FROM page").fetchone()[0]
    return known


def wait_for_first_page(process: BatchProcess, out: Path, before: int) -> float:
    """Seconds from the command's start until it has added a page to the `before` known ones, or has ended."""
    while process.is_running() and known_pages(out) <= before:
        time.sleep(_POLL_S)
    return time.monotonic() - process.began_s


def read_sources(out: Path) -> Iterator[str]:
    """The source of each output line, in order."""
    for file in sorted(out.glob("*.jsonl")):
        with file.open("rb") as lines:
            for line in lines:
                yield json.loads(line)["source"]


def check_once(out: Path, expected: Sequence[Path]) -> dict[str, int]:
    """Counts of missing, repeated, foreign and misordered lines in the output."""
    found = list(read_sources(out))
    counts = Counter(found)
    wanted = [str(path) for path in expected]
    return {
        "lines": len(found),
        "missing": len(set(wanted) - counts.keys()),
        "repeated": sum(count > 1 for count in counts.values()),
        "foreign": len(counts.keys() - set(wanted)),
        "out_of_order": sum(one != other for one, other in zip(found, wanted, strict=False)),
    }
