"""Reads the memory use of a process, and of the machine or container."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from ocrsvc.system.cgroup import read_limits, read_text

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_OWN: Final = Path("/proc/self/statm")
_OWN_STATUS: Final = Path("/proc/self/status")
# Page cache that the kernel reclaims first; the names are those of cgroups v2 and v1.
_RECLAIMED: Final = ("inactive_file", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of the machine or the container; 0 if the kernel does not report it."""

    # excludes memory that the kernel can reclaim
    used_bytes: int
    limit_bytes: int


def read_rss_bytes(statm: Path = _OWN) -> int:
    """Resident memory of this process; 0 if the kernel does not report it."""
    return _read_statm(statm)[0]


def read_private_bytes(statm: Path = _OWN) -> int:
    """Resident memory of this process, excluding shared memory and mapped files."""
    resident_bytes, shared_bytes = _read_statm(statm)
    return resident_bytes - shared_bytes


def read_peak_rss_bytes(status: Path = _OWN_STATUS) -> int:
    """Peak resident memory of this process since its start or the last `forget_peak_rss`; 0 if unknown.

    `getrusage` is no alternative: it includes the peak of the process that forked this one.
    """
    return 1024 * _value_after(_words(status), "VmHWM")


def forget_peak_rss(clear_refs: Path = Path("/proc/self/clear_refs")) -> None:
    """Start measuring the peak of this process's resident memory again, if the kernel permits."""
    with suppress(OSError):
        clear_refs.write_text("5", "ascii")


def read_process_bytes(pid: int, root: Path = Path("/proc")) -> int:
    """Anonymous memory of a process, with its proportional share of pages shared by fork (Pss_Anon); 0 if unknown.

    The kernel needs milliseconds for it, and blocks the process's memory mapping meanwhile.
    """
    return 1024 * _value_after(_words(root / str(pid) / "smaps_rollup"), "Pss_Anon")


def read_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that the service may use: the machine's total or, if smaller, the smallest limit of its cgroups."""
    return read_memory_use(root).limit_bytes


def read_memory_use(root: Path = Path("/")) -> MemoryUse:
    """Memory use of the container or the machine, whichever is smaller; `root` contains proc and sys/fs/cgroup."""
    words = _words(root / "proc/meminfo")
    total, available = (1024 * _value_after(words, name) for name in ("MemTotal", "MemAvailable"))
    uses = [MemoryUse(total - available, total)] if total else []
    files = (("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes"), ("memory.stat",) * 2)
    for limit, used, stat in zip(*(read_limits(root, "memory", *names) for names in files), strict=True):
        if limit and limit[0].isdigit():
            used_bytes = int(used[0]) if used else 0
            reclaimed = max(_value_after(stat, name) for name in _RECLAIMED)
            uses.append(MemoryUse(max(0, used_bytes - reclaimed), int(limit[0])))
    return min(uses, key=lambda use: use.limit_bytes, default=MemoryUse(0, 0))


def _words(file: Path) -> Sequence[str]:
    return read_text(file).replace(":", "").split()


def _value_after(words: Sequence[str], name: str) -> int:
    """The number that follows a name in a list of words; 0 if the name is missing."""
    return next((int(value) for word, value in pairwise(words) if word == name), 0)


def _read_statm(statm: Path) -> tuple[int, int]:
    # The second number is resident memory, the third its shared or file-backed part; both in pages.
    _, resident, shared, *_ = (*map(int, read_text(statm).split()), 0, 0, 0)
    return resident * _PAGE_BYTES, shared * _PAGE_BYTES
