"""Reads the resident memory of this process, and the memory of the machine or container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def read_rss_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Resident memory of the process; 0 where the kernel does not report it."""
    fields = _read(statm).split()
    return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0


def read_memory_bytes(root: Path = Path("/")) -> int:
    """What this process and its siblings may use together: the smaller of the machine's memory and the cgroups' limits.

    Args:
        root: Folder that holds proc and sys/fs/cgroup.
    """
    machine = next((int(line.split()[1]) * 1024 for line in _lines(root / "proc/meminfo") if "MemTotal:" in line), 0)
    limits = [limit for limit in (*_cgroup_limits(root), machine) if limit]
    return min(limits, default=0)


def _cgroup_limits(root: Path) -> Iterator[int]:
    """The memory limits, in bytes, of this process's cgroup and of those around it (v1 and v2)."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # In a container the path may be the host's and only the mount's own root exists, so every parent is tried.
        inner = PurePosixPath(path.lstrip("/"))
        for part in (inner, *inner.parents):
            if not controllers:
                yield _limit(mounts / part / "memory.max")
            elif "memory" in controllers.split(","):
                yield _limit(mounts / "memory" / part / "memory.limit_in_bytes")


def _limit(file: Path) -> int:
    """The number in a limit's file; 0 for "max" and for no file."""
    text = _read(file).strip()
    return int(text) if text.isdigit() else 0


def _lines(file: Path) -> list[str]:
    return _read(file).splitlines()


def _read(file: Path) -> str:
    """The file's text; empty when there is none."""
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
