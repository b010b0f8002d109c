"""Counted pages that the store does not have yet, in shared memory: no worker's death loses any.

The arbiter makes the memory before any fork. Each worker's slot is a block of series, one per key and day. One process
at a time writes a block: it holds a lock that the kernel releases when the process ends, however it ends; the next
holder brings the rest to the store. A series only grows, and the store is sent its id and its total, so that whatever
is sent again, by the same process or by another, is counted once.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import threading
from typing import Final, NamedTuple

from ocrsvc.access.key_store import Hold, KeyStore
from ocrsvc.system.shared_memory import open_memory, shared_array

SERIES: Final = 512
"""Keys and days for which one block has room at once."""


class _Series(ctypes.Structure):
    """Pages of one key on one day; free while it has no name."""

    _fields_ = (("name", ctypes.c_char * 64), ("day", ctypes.c_char * 16), ("id", ctypes.c_int64))


class Unsettled(NamedTuple):
    """A series of which the store does not have the last `pages` of its `total` pages."""

    name: str
    day: str
    series: int
    total: int
    pages: int
    place: int


class PageCounts:
    """The blocks of all workers of one service, by its name among those that share a store. Make it before any fork.

    Memory is taken only for slots that count something.
    """

    def __init__(self, service: str = "service", slots: int = 1) -> None:
        self.service, self._slots = service, slots
        self.series = shared_array(_Series, slots * SERIES)
        # All pages of each series, and those that the store has.
        self.counted, self.settled = (memoryview(mmap.mmap(-1, slots * SERIES * 8)).cast("q") for _ in "12")
        # Each slot's byte of it is locked by the process that writes its block.
        self.lock_file = open_memory("ocrsvc-page-counts")

    def unsettled_slots(self) -> list[int]:
        """Slots with pages that the store may not have."""
        blocks = [slice(slot * SERIES, (slot + 1) * SERIES) for slot in range(self._slots)]
        return [slot for slot, places in enumerate(blocks) if self.counted[places] != self.settled[places]]

    def settle_abandoned(self, store: KeyStore, besides: int = -1) -> None:
        """Bring to the store what is in blocks that no process holds, but for one slot's. Raises KeysUnavailable."""
        for slot in self.unsettled_slots():
            block = CountBlock(self, slot)
            if slot != besides and block.claim():
                try:
                    block.settle_all(store)
                finally:
                    block.give_up()

    def close(self) -> None:
        """Close the file of the locks, which releases those of this process."""
        os.close(self.lock_file)


class CountBlock:
    """The block of the worker of a slot, to be claimed before use; any thread of the process that did may call."""

    def __init__(self, counts: PageCounts, slot: int) -> None:
        self.worker = f"{counts.service}:{slot}"
        self._counts, self._slot = counts, slot
        self._lock = threading.Lock()
        # Those in use.
        self._places: dict[tuple[str, str], int] = {}

    def claim(self) -> bool:
        """Become its writer; False while another process is."""
        try:
            fcntl.lockf(self._counts.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._slot)
        except OSError:
            return False
        self._places = {self._key_at(place): place for place in self._all() if self._counts.series[place].name}
        return True

    def give_up(self) -> None:
        """Let another process become its writer."""
        fcntl.lockf(self._counts.lock_file, fcntl.LOCK_UN, 1, self._slot)

    def add(self, name: str, day: str, pages: int) -> bool:
        """Count pages of a key; False, and nothing counted, when the block is full."""
        with self._lock:
            place = self._places.get((name, day))
            if place is None:
                place = self._begin(name, day)
            if place is None:
                return False
            self._counts.counted[place] += pages
            return True

    def unsettled(self, name: str | None = None) -> list[Unsettled]:
        """What the store has to be sent, for one key or for all."""
        counted, settled, series = self._counts.counted, self._counts.settled, self._counts.series
        with self._lock:
            return [
                Unsettled(*key, series[place].id, counted[place], counted[place] - settled[place], place)
                for key, place in self._places.items()
                if name in (None, key[0]) and counted[place] != settled[place]
            ]

    def note_settled(self, one: Unsettled) -> None:
        """The store has these pages."""
        self._counts.settled[one.place] = one.total

    def settle_all(self, store: KeyStore) -> None:
        """Bring to the store what an earlier holder has left, which holds nothing any more. Raises KeysUnavailable."""
        for one in self.unsettled():
            store.settle(one.name, self.worker, Hold(), one.series, one.total, one.day)
            self.note_settled(one)

    def _begin(self, name: str, day: str) -> int | None:
        """The place of a new series, that of a settled one if need be; None where there is none."""
        counted, settled, series = self._counts.counted, self._counts.settled, self._counts.series
        places = sorted(self._all(), key=lambda place: bool(series[place].name))
        place = next((one for one in places if not series[one].name or counted[one] == settled[one]), None)
        if place is None:
            return None
        self._places.pop(self._key_at(place), None)
        made = series[place]
        # Free until the name is written, last: a process that dies in between leaves nothing behind.
        made.name = b""
        counted[place] = settled[place] = 0
        made.day, made.id = day.encode(), secrets.randbits(62)
        made.name = name.encode()
        self._places[name, day] = place
        return place

    def _all(self) -> range:
        return range(self._slot * SERIES, (self._slot + 1) * SERIES)

    def _key_at(self, place: int) -> tuple[str, str]:
        series = self._counts.series[place]
        return series.name.decode(), series.day.decode()
