"""Memory and processor time of a service's processes, from /proc."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Processes:
    """A service's arbiter and all its descendants; empty without a pid."""

    def __init__(self, arbiter: int | None) -> None:
        self._arbiter = arbiter

    def workers(self) -> list[int]:
        """Process ids of the arbiter's children, in ascending order."""
        if self._arbiter is None:
            return []
        return sorted(children_of(self._arbiter))

    def rss_mb(self) -> float:
        """Current resident memory of all processes."""
        return self._sum_mb("VmRSS")

    def peak_mb(self) -> float:
        """Sum of each process's peak resident memory since `forget_peak`."""
        return self._sum_mb("VmHWM")

    def forget_peak(self) -> None:
        """Reset the peaks; see clear_refs in proc(5)."""
        for pid in self._all():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """Processor seconds (user and system) of all processes and of their children that have ended."""
        return sum(map(_cpu_s, self._all()))

    def _all(self) -> list[int]:
        return [] if self._arbiter is None else list(family_of(self._arbiter))

    def _sum_mb(self, field: str) -> float:
        total_kb = 0
        for pid in self._all():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{pid}/status").read_text()
                found = re.search(rf"{field}:\s+(\d+) kB", status)
                total_kb += int(found[1]) if found and not self._shares_parent_memory(pid, status) else 0
        return total_kb / 1024

    def _shares_parent_memory(self, pid: int, status: str) -> bool:
        """Between vfork and exec a worker's child shares the worker's memory, which must not count twice."""
        found = re.search(r"PPid:\s+(\d+)", status)
        if found is None or int(found[1]) not in self.workers():
            return False
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{found[1]}/cmdline").read_bytes()


def family_of(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    for child in children_of(pid):
        yield from family_of(child)


def children_of(pid: int) -> list[int]:
    """Children of all threads of a process, because the kernel lists a child under the thread that forked it."""
    found: list[int] = []
    # The process or a thread may end while it is read.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    """utime, stime, cutime and cstime of proc(5); the process name before them may contain spaces, so cut it off."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS_PER_S
    return 0.0
