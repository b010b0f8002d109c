"""Time from a fresh clone to the first page read.

    python benchmarks/cold_start.py [--wheels FOLDER]

Clones this repository (committed files only), downloads every package into a folder, and then, offline, runs `make
install` and `make serve`, waits until /readyz answers 200, and posts a page. Prints the seconds of each step. With
--wheels the packages in that folder are used, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, ask, form_with_file, free_port, wait_until_ready

PAGE = ROOT / "tests" / "pages" / "notice.png"
WORD = "Notice"
READY_LIMIT_S = 300.0
STOP_LIMIT_S = 30.0
# pip needs these to build the package itself; `make install` does not list them.
BUILD_PACKAGES = ("setuptools>=77", "wheel")


class Steps:
    """The seconds of each step, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time the block, and print its seconds."""
        began_s = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - began_s, 1)
        print(f"{name}: {self.seconds[name]:.1f} s", flush=True)


def run(command: list[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command; exits with its output if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout.decode('utf-8', 'replace')[-3000:]}")


def download(clone: Path, wheels: Path) -> None:
    """Download every package that `make install` needs into the folder."""
    extras = "cpu,openvino,tr,dev" if os.uname().machine == "x86_64" else "cpu,dev"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "-d", str(wheels)]
    run([*command, *BUILD_PACKAGES, "-c", "constraints.txt", f".[{extras}]"], clone)


@contextlib.contextmanager
def serving(clone: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Run `make serve` on a free port; yields its URL. Ends its process group afterwards."""
    port = free_port()
    command = ["make", "serve", f"ARGS=-b 127.0.0.1:{port}"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command, cwd=clone, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", server, READY_LIMIT_S)
            yield f"http://127.0.0.1:{port}"
        except SystemExit:
            log.seek(0)
            print(log.read().decode("utf-8", "replace")[-3000:])
            raise
        finally:
            end_group(server)


def end_group(server: subprocess.Popen[bytes]) -> None:
    """Ask make and its children to end; kill those that do not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_LIMIT_S)


def read_page(url: str) -> None:
    """Post the first page; exits if its text is not in the answer."""
    body, content_type = form_with_file(PAGE.read_bytes(), PAGE.name, "image/png")
    answer = ask(url, "POST", "/v1/ocr", body, content_type)
    if answer.status != 200 or WORD not in json.loads(answer.text)["pages"][0]["text"]:
        sys.exit(f"The first page got {answer.status}: {answer.text[:300]}")


def check(scratch: Path, wheels: Path | None, steps: Steps) -> None:
    """Run all steps in order."""
    clone = scratch / "clone"
    # The caller's environment and settings must not affect the clone.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OCRSVC_", "PYTHON", "VIRTUAL_"))}
    with steps.timed("git clone"):
        run(["git", "clone", "--quiet", str(ROOT), str(clone)], scratch)
    if wheels is None:
        wheels = scratch / "wheels"
        with steps.timed("downloads"):
            download(clone, wheels)
    env |= {"PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1", "PIP_FIND_LINKS": str(wheels.resolve())}
    with steps.timed("make install"):
        run(["make", "install"], clone, env)
    with contextlib.ExitStack() as stack:
        with steps.timed("make serve to /readyz"):
            url = stack.enter_context(serving(clone, env))
        with steps.timed("first page"):
            read_page(url)


def main() -> int:
    """Run the benchmark; returns 0 if the first page was read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, help="a folder with every package; nothing is downloaded")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/cold_start.json")
    args = parser.parse_args()
    print_machine()
    steps = Steps()
    with tempfile.TemporaryDirectory() as scratch:
        check(Path(scratch), args.wheels, steps)
    total_s = sum(seconds for name, seconds in steps.seconds.items() if name != "downloads")
    print(f"from the clone to the first page, without downloads: {total_s:.1f} s")
    write_result("cold_start", {"steps_s": steps.seconds, "total_without_downloads_s": round(total_s, 1)}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
