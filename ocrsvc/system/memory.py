"""Reads the memory of a process, and that of the machine or container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ocrsvc.system.cgroup import read_limits, read_text

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_OWN: Final = Path("/proc/self/statm")


def read_rss_bytes(statm: Path = _OWN) -> int:
    """Resident memory of the process; 0 where the kernel does not report it."""
    return _read_statm(statm)[0]


def read_private_bytes(statm: Path = _OWN) -> int:
    """Resident memory that is the process's own: without shared memory, and without files that are mapped."""
    resident_bytes, shared_bytes = _read_statm(statm)
    return resident_bytes - shared_bytes


def read_memory_bytes(root: Path = Path("/")) -> int:
    """What this process and its siblings may use together: the smaller of the machine's memory and the cgroups' limits.

    Args:
        root: Folder that holds proc and sys/fs/cgroup.
    """
    lines = map(str.split, read_text(root / "proc/meminfo").splitlines())
    machine = [int(words[1]) * 1024 for words in lines if words[0] == "MemTotal:"]
    limits = read_limits(root, "memory", "memory.max", "memory.limit_in_bytes")
    return min([*machine, *(int(words[0]) for words in limits if words and words[0].isdigit())], default=0)


def _read_statm(statm: Path) -> tuple[int, int]:
    """Bytes that are resident, and those of them that are shared or of files."""
    _, resident, shared, *_ = (*map(int, read_text(statm).split()), 0, 0, 0)
    return resident * _PAGE_BYTES, shared * _PAGE_BYTES
