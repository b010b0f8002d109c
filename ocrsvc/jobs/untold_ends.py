"""What is left of jobs that expired, or made room for others, before their callbacks were told of it.

Each is the job's own folder, moved in one step, without the document and what was read of it. There is a bounded number
of them; once all places are taken, who has the most makes room for who has fewer.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ocrsvc.jobs.job import CALLBACK, Job, Taken
from ocrsvc.jobs.page_log import LINES

MOST_UNTOLD: Final = 1000
UNTOLD_S: Final = 86_400.0
"""How long they are kept beside the time of a job: tries end before, where anything tries."""

_LARGE: Final = ("file", LINES, "out")


class UntoldEnds:
    """Those in one folder, which is made with the first of them; for any thread of any process.

    Args:
        folder: Beside the jobs.
        make_job: Makes a job of its folder.
    """

    def __init__(self, folder: Path, make_job: Callable[[Path], Job]) -> None:
        self._folder, self._make_job = folder, make_job
        self._taken: dict[str, Taken] = {}

    def keep(self, job: Job) -> bool:
        """Take a job out of the store, so that its callback is told; False where none is to be, or no room is left."""
        try:
            if job.get(CALLBACK).get("state", "waiting") != "waiting" or not self._has_room(job):
                return False
            self._folder.mkdir(0o700, exist_ok=True)
            left = self._make_job(job.folder.rename(self._folder / job.id))
        # What is damaged is told to nobody, and keeps no other from being cleared.
        except (OSError, ValueError, TypeError, AttributeError):
            return False
        self._strip(left)
        return True

    def _has_room(self, job: Job) -> bool:
        """Whether one more may be kept, for which the oldest of the caller who has the most may have to go."""
        if len(self.all()) < MOST_UNTOLD:
            return True
        caller, kept = job.taken().caller, self._taken_of_all()
        counts = Counter(taken.caller for taken in kept.values())
        ((first, most),) = counts.most_common(1) or [("", 0)]
        # Who has one fewer would have the most in his turn.
        if counts[caller] >= most - 1:
            return False
        theirs = [id_ for id_, taken in kept.items() if taken.caller == first]
        self.remove(self._make_job(self._folder / min(theirs, key=lambda id_: kept[id_].came_s)))
        return True

    def _taken_of_all(self) -> dict[str, Taken]:
        """Whose each is, by its id. Read once: no other job ever has this id."""
        known, found = self._taken, dict[str, Taken]()
        for job in self.all():
            # What is damaged or just removed is nobody's.
            with suppress(OSError, ValueError, TypeError):
                found[job.id] = known.get(job.id) or job.taken()
        self._taken = found
        return found

    def has(self, job: Job) -> bool:
        """Whether a job is one of these."""
        return job.folder.parent == self._folder

    def all(self) -> list[Job]:
        """All of them."""
        with suppress(FileNotFoundError):
            return [self._make_job(folder) for folder in self._folder.iterdir()]
        return []

    def remove(self, job: Job) -> None:
        """It is told."""
        shutil.rmtree(job.folder, ignore_errors=True)

    def sweep(self, oldest_s: float) -> None:
        """Remove those of jobs that came before this, and what a process left that ended while it kept one."""
        self.remove_damaged()
        for job in self.all():
            self._strip(job)
            with suppress(FileNotFoundError):
                if job.came_s() < oldest_s:
                    self.remove(job)

    def remove_damaged(self) -> None:
        """Remove those that a loss of power left so that they cannot be understood."""
        for job in self.all():
            try:
                for look in (Job.taken, Job.about, Job.end):
                    look(job)
            except (FileNotFoundError, TypeError, ValueError):
                self.remove(job)

    def _strip(self, job: Job) -> None:
        """Remove what may be large, also what is being made while it is moved: that is not found again by its maker."""
        for path in (*(job.folder / name for name in _LARGE), *job.unfinished_files()):
            with suppress(FileNotFoundError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
