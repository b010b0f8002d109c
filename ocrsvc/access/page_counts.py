"""Counted pages that the store does not have yet, in shared memory: no worker's death loses any.

The arbiter makes the memory before any fork. Each worker's slot is a block of series, one per key and day. One process
at a time writes a block: it holds a lock that the kernel releases when the process ends, however it ends; the next
holder brings the rest to the store. A series only grows, and the store is sent its id and its total, so that whatever
is sent again, by the same process or by another, is counted once.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import threading
from typing import Final, NamedTuple

from ocrsvc.access.key_store import Period
from ocrsvc.system.shared_memory import open_memory, shared_array

SERIES: Final = 512
"""Keys and days for which one block has room at once."""


class _Series(ctypes.Structure):
    """Pages of one key on one day; free while it has no name."""

    _fields_ = (("name", ctypes.c_char * 64), ("day", ctypes.c_char * 16), ("id", ctypes.c_int64))


class _Count(ctypes.Structure):
    _fields_ = (("pages", ctypes.c_int64),)


class Unsettled(NamedTuple):
    """A series of which the store does not have the last `pages` of its `total` pages."""

    name: str
    period: Period
    series: int
    total: int
    pages: int
    place: int


class PageCounts:
    """The blocks of all workers of one service. Make it before any fork.

    Args:
        service: Its name among those that share a store.
        slots: How many workers may live at once. Memory is taken only for those that count something.
    """

    def __init__(self, service: str, slots: int = 1) -> None:
        self.service = service
        self._series = shared_array(_Series, slots * SERIES)
        # All pages of each series, and those that the store has.
        self._counted, self._settled = (
            memoryview(shared_array(_Count, slots * SERIES)).cast("B").cast("q") for _ in "12"
        )
        self._slots = slots
        self._lock_file = open_memory("ocrsvc-page-counts")

    def block(self, slot: int) -> CountBlock:
        """A worker's block, which has to be claimed before it is used."""
        places = _places_of(slot)
        series = [self._series[place] for place in range(places.start, places.stop)]
        return CountBlock(
            f"{self.service}:{slot}", series, self._counted[places], self._settled[places], self._lock_file, slot
        )

    def unsettled_slots(self) -> list[int]:
        """Slots with pages that the store may not have."""
        slots = map(_places_of, range(self._slots))
        return [slot for slot, places in enumerate(slots) if self._counted[places] != self._settled[places]]

    def close(self) -> None:
        """Close the file of the locks, which releases those of this process."""
        os.close(self._lock_file)


class CountBlock:
    """One block, for its only writer; any thread of that process may call.

    Attributes:
        worker: The name in the store of the worker that has this slot.
    """

    def __init__(
        self, worker: str, series: list[_Series], counted: memoryview, settled: memoryview, lock_file: int, slot: int
    ) -> None:
        self.worker = worker
        self._series, self._counted, self._settled = series, counted, settled
        self._lock_file, self._slot = lock_file, slot
        self._lock = threading.Lock()
        self._places: dict[tuple[str, str], int] = {}

    def claim(self) -> bool:
        """Become its writer; False while another process is."""
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._slot)
        except OSError:
            return False
        taken = [place for place, series in enumerate(self._series) if series.name]
        self._places = {self._key_at(place): place for place in taken}
        return True

    def give_up(self) -> None:
        """Let another process become its writer."""
        fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, self._slot)

    def add(self, name: str, day: str, pages: int) -> bool:
        """Count pages of a key; False, and nothing counted, when the block is full."""
        with self._lock:
            place = self._places.get((name, day))
            if place is None:
                place = self._begin(name, day)
            if place is None:
                return False
            self._counted[place] += pages
            return True

    def unsettled(self, name: str | None = None) -> list[Unsettled]:
        """What the store has to be sent, for one key or for all."""
        with self._lock:
            places = [place for key, place in self._places.items() if name in (None, key[0])]
            return [self._unsettled(place) for place in places if self._counted[place] != self._settled[place]]

    def settled(self, one: Unsettled) -> None:
        """The store has these pages."""
        self._settled[one.place] = one.total

    def _begin(self, name: str, day: str) -> int | None:
        """The place of a new series, that of a settled one if need be; None where there is none."""
        place = next((place for place, series in enumerate(self._series) if not series.name), None)
        if place is None:
            settled = (place for place in self._places.values() if self._counted[place] == self._settled[place])
            place = next(settled, None)
            if place is None:
                return None
            del self._places[self._key_at(place)]
        series = self._series[place]
        # Free until the name is written, last: a process that dies in between leaves nothing behind.
        series.name = b""
        self._counted[place] = self._settled[place] = 0
        series.day, series.id = day.encode(), secrets.randbits(62)
        series.name = name.encode()
        self._places[name, day] = place
        return place

    def _unsettled(self, place: int) -> Unsettled:
        name, day = self._key_at(place)
        counted, settled = self._counted[place], self._settled[place]
        return Unsettled(name, Period(day, day[:7]), self._series[place].id, counted, counted - settled, place)

    def _key_at(self, place: int) -> tuple[str, str]:
        series = self._series[place]
        return series.name.decode(), series.day.decode()


def _places_of(slot: int) -> slice:
    return slice(slot * SERIES, (slot + 1) * SERIES)
