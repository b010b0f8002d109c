"""Pages that are being read, noted in the destination: what kills this process is found by the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import orjson

from ocrsvc.batch.destination import Destination

_FOLDER: Final = "_ocrsvc/begun"


class Deaths(NamedTuple):
    """Processes that died while they read a page: all, and those that read nothing else."""

    all: int
    alone: int


class BegunPages:
    """The note of one shard; for one thread. `deaths` has the pages over which processes died.

    Where a note costs a request, pages are noted every few seconds, and suspects at once.
    """

    def __init__(
        self, destination: Destination, shard: str, run_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._destination, self._name, self._run_id, self._clock = destination, f"{_FOLDER}/{shard}.json", run_id, clock
        self._noted_s = -1e9
        self.deaths = self._read()

    def note(self, pages: Iterable[int], *, is_apart: bool = False) -> None:
        """These pages, and no others, are being read from now on. Raises OSError."""
        if not is_apart and self._clock() - self._noted_s < self._destination.note_s:
            return
        self._noted_s = self._clock()
        deaths = [[page, *counts] for page, counts in self.deaths.items()]
        note = {"run": self._run_id, "begun": list(pages), "deaths": deaths}
        self._destination.note(self._name, orjson.dumps(note))

    def forget(self, pages: Iterable[int]) -> None:
        """Count deaths over these pages anew."""
        for page in pages:
            self.deaths.pop(page, None)

    def end(self) -> None:
        """This process ends in order. Raises OSError."""
        if self.deaths:
            self.note((), is_apart=True)
        else:
            self._destination.delete(self._name)

    def _read(self) -> dict[int, Deaths]:
        """What earlier processes noted; none where the note is cut off or of another run."""
        try:
            note: Any = orjson.loads(self._destination.read(self._name))
            if note["run"] != self._run_id:
                return {}
            deaths = {page: Deaths(*counts) for page, *counts in note["deaths"]}
            for page in note["begun"]:
                had = deaths.get(page, Deaths(0, 0))
                deaths[page] = Deaths(had.all + 1, had.alone + (len(note["begun"]) == 1))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}
        return deaths
