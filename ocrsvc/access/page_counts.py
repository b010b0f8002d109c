"""Pages that were counted and are not in the store yet, in shared memory: the death of a worker loses none of them.

The arbiter makes the memory before any fork. Each worker's slot has a block, which one process at a time writes: it
holds a lock of the block, which the kernel takes back when the process ends, however it ends. Whoever has the lock then
brings the rest of the block to the store.

Each settlement has a number, which is written down before it is sent. Sent again after a failure, or by another process
after a death, it has the same number and as many pages, and the store counts it once.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ocrsvc.access.store import Period
from ocrsvc.system.shared_memory import open_memory, shared_array

SERIES: Final = 512
"""Keys and days of which one block can hold pages at once."""

_NAME_BYTES: Final = 64
_DAY_BYTES: Final = 16
_NOWHERE: Final[Mapping[str, int]] = {}


class _Series(ctypes.Structure):
    """Pages of one key on one day: all, those that the store has, and those that it may have; free without a name."""

    _fields_ = (
        ("name", ctypes.c_char * _NAME_BYTES),
        ("day", ctypes.c_char * _DAY_BYTES),
        *((field, ctypes.c_int64) for field in ("counted", "settled", "sent", "number")),
    )


class _Head(ctypes.Structure):
    """Of a block: the last number that was given, and whether any of its pages may not be in the store."""

    _fields_ = (("number", ctypes.c_int64), ("is_unsettled", ctypes.c_int64))


@dataclass(frozen=True, slots=True)
class Settlement:
    """Pages of a key to be counted in the store, once for this number of this worker."""

    name: str
    period: Period
    number: int
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
        self._heads = shared_array(_Head, slots)
        self._series = shared_array(_Series, slots * SERIES)
        self._lock_file = open_memory("ocrsvc-page-counts")
        self._slots = slots

    def block(self, slot: int) -> CountBlock:
        """A worker's block, which has to be claimed before it is used."""
        series = [self._series[slot * SERIES + place] for place in range(SERIES)]
        return CountBlock(f"{self.service}:{slot}", self._heads[slot], series, self._lock_file, slot)

    def unsettled_slots(self) -> list[int]:
        """Of whose blocks pages may not be in the store."""
        return [slot for slot in range(self._slots) if self._heads[slot].is_unsettled]

    def close(self) -> None:
        """Close the file of the locks, with which this process gives up all of them."""
        os.close(self._lock_file)


class CountBlock:
    """One block, and its only writer. Any thread of that process may call.

    Attributes:
        worker: The name in the store of the worker that has this slot.
    """

    def __init__(self, worker: str, head: _Head, series: list[_Series], lock_file: int, slot: int) -> None:
        self.worker = worker
        self._head, self._series, self._lock_file, self._slot = head, series, lock_file, slot
        self._lock = threading.Lock()
        # By key and day.
        self._places: dict[str, dict[str, int]] = {}

    def claim(self) -> bool:
        """Become its writer; False while another process is."""
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._slot)
        except OSError:
            return False
        self._places = {}
        for place, series in enumerate(self._series):
            if series.name:
                self._places.setdefault(series.name.decode(), {})[series.day.decode()] = place
        return True

    def give_up(self) -> None:
        """Let another process become its writer."""
        fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, self._slot)

    def add(self, name: str, day: str, pages: int) -> bool:
        """Count pages of a key; False when the block is full, and they are not counted."""
        with self._lock:
            place = self._places.get(name, _NOWHERE).get(day)
            if place is None:
                place = self._begin(name, day)
            if place < 0:
                return False
            self._head.is_unsettled = 1
            self._series[place].counted += pages
            return True

    def unsettled(self, name: str = "") -> Iterator[Settlement]:
        """What is to be settled of one key, or of all; each is to be settled before the next is asked for.

        What may have been sent before comes first, since a store counts no lower number after a higher one.
        """
        with self._lock:
            known = [self._places.get(name, _NOWHERE)] if name else self._places.values()
            places = [place for days in known for place in days.values()]
        for place in sorted(places, key=self._is_new) if len(places) > 1 else places:
            if settlement := self._settlement(place):
                yield settlement

    def note(self, settlement: Settlement) -> None:
        """This settlement is in the store."""
        series = self._series[settlement.place]
        series.settled = series.sent

    def tidy(self) -> None:
        """Free the places of keys and days of which everything is settled."""
        with self._lock:
            for name, day, place in [(name, *at) for name, days in self._places.items() for at in days.items()]:
                series = self._series[place]
                if series.counted == series.settled:
                    del self._places[name][day]
                    series.name = b""
            self._places = {name: days for name, days in self._places.items() if days}
            self._head.is_unsettled = int(bool(self._places))

    def _begin(self, name: str, day: str) -> int:
        """A free place, for this key and day; -1 where there is none."""
        taken = {place for days in self._places.values() for place in days.values()}
        place = next((place for place in range(SERIES) if place not in taken), -1)
        if place >= 0:
            series = self._series[place]
            series.counted = series.settled = series.sent = 0
            series.day = day.encode()
            # Last: a place counts from the moment on when it has a name.
            series.name = name.encode()
            self._places.setdefault(name, {})[day] = place
        return place

    def _is_new(self, place: int) -> bool:
        """Whether nothing of it may have been sent that is not settled."""
        return bool(self._series[place].sent <= self._series[place].settled)

    def _settlement(self, place: int) -> Settlement | None:
        series = self._series[place]
        with self._lock:
            if series.sent <= series.settled:
                if series.counted == series.settled:
                    return None
                self._head.number += 1
                series.number = self._head.number
                # Last: from here on this number stands for these pages.
                series.sent = series.counted
        day = series.day.decode()
        pages = series.sent - series.settled
        return Settlement(series.name.decode(), Period(day, day[:7]), series.number, pages, place)
