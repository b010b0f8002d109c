"""What a process knows of the jobs in the store, so that it does not open all of them each time.

Nothing is kept but in memory: any process may change a job at any time, and may be killed at any time. Whether what
is known of a job still holds is seen at the time of its folder, which changes with each name that comes or goes in it.
Where that does not suffice, because a job is being read or its folder has just changed, it is looked at again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ocrsvc.jobs.eviction import Stored
from ocrsvc.jobs.job import BEGUN, DONE, Job, Taken

# Two changes may have the same time, where they are closer than the file system's clock ticks.
_TICK_S: Final = 0.1
_COARSE_TICK_S: Final = 2.0
_COARSE_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job, as it was when it was looked at.

    Attributes:
        job, taken: Itself; when it came, and whose it is.
        stored: What it takes of the store.
        changed_ns: The time of its folder.
        seen_s: When that time was first seen, in monotonic seconds.
        is_settled: Whether all this holds for as long as the folder has that time.
    """

    job: Job
    taken: Taken
    stored: Stored
    changed_ns: int
    seen_s: float
    is_settled: bool


class JobIndex:
    """The jobs that were seen last; for any thread. A process that was forked goes on with what it has by then.

    Args:
        make_job: Makes a job of its folder.
        clock: Monotonic seconds.
    """

    def __init__(self, make_job: Callable[[Path], Job], clock: Callable[[], float]) -> None:
        self._make_job, self._clock = make_job, clock
        self._entries: dict[str, JobEntry] = {}

    def look_at(self, folders: Iterable[os.DirEntry[str]]) -> list[JobEntry]:
        """What is known of the jobs in these folders, which are all that there are, but for those cleared meanwhile.

        Raises OSError, and ValueError for one that is damaged.
        """
        known, found = self._entries, {}
        for folder in folders:
            with suppress(FileNotFoundError):
                found[folder.name] = self._entry(folder, known.get(folder.name))
        # Another thread may have done the same meanwhile: each is right.
        self._entries = found
        return list(found.values())

    def forget(self) -> None:
        """Look at all of them again."""
        self._entries = {}

    def _entry(self, folder: os.DirEntry[str], known: JobEntry | None) -> JobEntry:
        changed_ns, now_s = folder.stat(follow_symlinks=False).st_mtime_ns, self._clock()
        seen_s = now_s
        if known is not None and known.changed_ns == changed_ns:
            if known.is_settled:
                return known
            seen_s = known.seen_s
        # No other job ever has this id, and when it came changes at the start of a service only.
        job = self._make_job(Path(folder)) if known is None else known.job
        taken = job.taken() if known is None else known.taken
        names, size = _measure(folder)
        is_done = DONE in names
        tick_s = _TICK_S if changed_ns % _COARSE_NS else _COARSE_TICK_S
        # What is being written grows without another name: the pages of a job that is read, and files of results.
        is_growing = (BEGUN in names and not is_done) or any(name.startswith(".") for name in names)
        stored = Stored(folder.name, taken.caller, size, taken.came_s, is_done, taken.pages)
        return JobEntry(job, taken, stored, changed_ns, seen_s, now_s - seen_s > tick_s and not is_growing)


def _measure(folder: str | os.PathLike[str]) -> tuple[set[str], int]:
    """The names in a folder, and the bytes of all files in it and below it."""
    names, size = set(), 0
    with os.scandir(folder) as entries:
        for entry in entries:
            names.add(entry.name)
            # One that was renamed meanwhile counts no more.
            with suppress(FileNotFoundError):
                is_folder = entry.is_dir(follow_symlinks=False)
                size += _measure(entry)[1] if is_folder else entry.stat(follow_symlinks=False).st_size
    return names, size
