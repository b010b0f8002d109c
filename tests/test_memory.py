"""Memory use as read from made-up /proc and cgroup folders, and glibc's arenas."""

import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import data_of

from ocrsvc.system.memory import MemoryUse, read_memory_bytes, read_memory_use, read_rss_bytes


def test_statm_counts_pages(tmp_path: Path) -> None:
    (tmp_path / "statm").write_text("1000 25 7 1 0 90 0\n")
    assert read_rss_bytes(tmp_path / "statm") == 25 * resource.getpagesize()


@pytest.mark.parametrize("case", data_of("memory_files"), ids=lambda case: case["name"])
def test_smaller_limit_counts_without_reclaimable_memory(tmp_path: Path, case: dict[str, Any]) -> None:
    write(tmp_path, case["files"])
    found = MemoryUse(case["used"], case["limit"])
    assert read_memory_use(tmp_path) == found
    assert read_memory_bytes(tmp_path) == found.limit_bytes


def write(root: Path, files: dict[str, str]) -> None:
    """Write the kernel's files of a machine with 16 GB, 1 GB of which is free or reclaimable."""
    meminfo = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    1000000 kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


# Each thread allocates while all threads are alive: an unlimited malloc gives every thread an arena.
ARENAS = data_of("programs")["arenas"]


def arenas(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", ARENAS, mode], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tests arenas of glibc")
def test_many_threads_share_two_arenas() -> None:
    assert arenas("limited") == 2
    assert arenas("unlimited") > 2


# The heap does not shrink by itself when a block between two live ones is freed.
RELEASE = data_of("programs")["giving_back"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tests the heap of glibc")
def test_free_memory_returns_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", RELEASE], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 40_000_000
