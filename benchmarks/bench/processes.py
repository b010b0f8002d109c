"""Memory and processor time of a service's processes, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Processes:
    """A service's first process and all below it; empty without a pid."""

    def __init__(self, arbiter: int | None) -> None:
        self._arbiter = arbiter

    def workers(self) -> list[int]:
        """Process ids of the arbiter's children, in order."""
        if self._arbiter is None:
            return []
        return sorted(children_of(self._arbiter))

    def rss_mb(self) -> float:
        """Resident memory of all of them now."""
        return self._sum_mb("VmRSS")

    def peak_mb(self) -> float:
        """Highest resident memory since `forget_peak`, each process's own peak added up."""
        return self._sum_mb("VmHWM")

    def forget_peak(self) -> None:
        """Begin a new peak; see clear_refs in proc(5)."""
        for pid in self._all():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """Processor seconds, user and system, that all of them and the children that they waited for have used."""
        return sum(map(_cpu_s, self._all()))

    def _all(self) -> list[int]:
        return [] if self._arbiter is None else list(family_of(self._arbiter))

    def _sum_mb(self, field: str) -> float:
        total_kb = 0
        for pid in self._all():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{pid}/status").read_text()
                found = re.search(rf"{field}:\s+(\d+) kB", status)
                total_kb += int(found[1]) if found and not self._lives_in_its_parent(pid, status) else 0
        return total_kb / 1024

    def _lives_in_its_parent(self, pid: int, status: str) -> bool:
        """Between vfork and exec a worker's child is in the worker's own memory, which would count twice."""
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
    """Of all its threads, since the kernel notes a child with the thread that forked it; none when it is gone."""
    found: list[int] = []
    # The process may go before its threads are listed, and each of them before it is read.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    """utime, stime, cutime and cstime of proc(5); the name before them may hold blanks, so it is cut off first."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS_PER_S
    return 0.0
