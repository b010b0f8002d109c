"""The machine and the versions behind a benchmark's figures."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

LIBRARIES = ("flask", "gunicorn", "numpy", "onnxruntime", "onnxruntime-gpu", "opencv-python-headless", "rapidocr", "tr")


def processor() -> str:
    """The processor's name."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    return found[1] if found else platform.machine()


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> str:
    """The processor, its usable cores and the operating system, in one line."""
    return f"{processor()}, {cores()} cores usable, {platform.platform()}"


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that affect the figures."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checkout's commit, followed by "changed" if files differ from it; "unknown" outside a checkout."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--exclude=*", "--dirty= changed"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def describe() -> dict[str, object]:
    """Commit, machine, versions and the current load average (load_1min) as a JSON-ready dict."""
    return {"commit": commit(), "machine": machine(), "versions": versions(), "load_1min": round(os.getloadavg()[0], 2)}


def print_machine() -> None:
    """Print the machine and the versions, the first lines of every benchmark."""
    print(f"machine: {machine()}; load average before the start {os.getloadavg()[0]:.2f}")
    print("versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()))
