"""Counted pages that the store has not recorded (settled) yet, in shared memory, so that a worker's crash loses none.

The arbiter creates the memory before any fork. Each worker's slot is a block of series, one per key and day. The one
process that writes a block holds a lock, which the kernel releases when the process ends; the next holder settles the
rest. A series only grows, and the store receives its id and total, so that sending it again does not count twice.
"""

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
"""Series (pairs of key and day) in one block."""


class _Series(ctypes.Structure):
    """One series of page counts: its key's name, its day and its id; free if the name is empty."""

    _fields_ = (("name", ctypes.c_char * 64), ("day", ctypes.c_char * 16), ("id", ctypes.c_int64))


class Unsettled(NamedTuple):
    """The pages of one key and day that the store has not recorded yet."""

    name: str
    day: str
    series: int  # the id of the series
    total: int  # all pages of the series
    pages: int  # those not recorded
    place: int  # index of the series' entry


class PageCounts:
    """The page counts of all workers of a service, whose name in the store is `service`. Create it before any fork.

    Only slots that count pages take memory.
    """

    def __init__(self, service: str = "service", slots: int = 1) -> None:
        self.service, self._slots = service, slots
        self.series = shared_array(_Series, slots * SERIES)
        # Total pages of each series (key and day), and how many of these the store has recorded.
        self.counted, self.settled = (memoryview(mmap.mmap(-1, slots * SERIES * 8)).cast("q") for _ in "12")
        # The process that writes a block locks the byte with its slot's number.
        self.lock_file = open_memory("ocrsvc-page-counts")

    def unsettled_slots(self) -> list[int]:
        """Slots of workers whose counted pages are not in the store yet."""
        blocks = [slice(slot * SERIES, (slot + 1) * SERIES) for slot in range(self._slots)]
        return [slot for slot, places in enumerate(blocks) if self.counted[places] != self.settled[places]]

    def settle_abandoned(self, store: KeyStore, except_slot: int = -1) -> None:
        """Send the page counts of dead workers, whose slots are unlocked, to the store. Raises KeysUnavailable."""
        for slot in self.unsettled_slots():
            block = CountBlock(self, slot)
            if slot != except_slot and block.claim():
                try:
                    block.settle_all(store)
                finally:
                    block.give_up()

    def close(self) -> None:
        """Close the lock file, which releases this process's locks."""
        os.close(self.lock_file)


class CountBlock:
    """The page counts in one worker slot. A process must `claim` it before use; then any of its threads may use it."""

    def __init__(self, counts: PageCounts, slot: int) -> None:
        self.worker = f"{counts.service}:{slot}"
        self._counts, self._slot = counts, slot
        self._lock = threading.Lock()
        # Index of each entry in use, by key and day.
        self._places: dict[tuple[str, str], int] = {}

    def claim(self) -> bool:
        """Lock the block, to become the only process that writes it; False if another process has the lock."""
        try:
            fcntl.lockf(self._counts.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._slot)
        except OSError:
            return False
        self._places = {self._key_at(place): place for place in self._all() if self._counts.series[place].name}
        return True

    def give_up(self) -> None:
        """Unlock the block, so that another process can claim it."""
        fcntl.lockf(self._counts.lock_file, fcntl.LOCK_UN, 1, self._slot)

    def add(self, name: str, day: str, pages: int) -> bool:
        """Add pages to a key's count of the day; False, with nothing counted, if the shared memory block is full."""
        with self._lock:
            place = self._places.get((name, day))
            if place is None:
                place = self._begin(name, day)
            if place is None:
                return False
            self._counts.counted[place] += pages
            return True

    def unsettled(self, name: str | None = None) -> list[Unsettled]:
        """Counts, per key and day, that the store has not fully recorded; of one key, or of all keys."""
        counted, settled, series = self._counts.counted, self._counts.settled, self._counts.series
        with self._lock:
            return [
                Unsettled(*key, series[place].id, counted[place], counted[place] - settled[place], place)
                for key, place in self._places.items()
                if name in (None, key[0]) and counted[place] != settled[place]
            ]

    def note_settled(self, series: Unsettled) -> None:
        """Note that the store has recorded all pages of a series."""
        self._counts.settled[series.place] = series.total

    def settle_all(self, store: KeyStore) -> None:
        """Send this block's unrecorded counts to the store, and release its reservations. Raises KeysUnavailable."""
        for each in self.unsettled():
            store.settle(each.name, self.worker, Hold(), each.series, each.total, each.day)
            self.note_settled(each)

    def _begin(self, name: str, day: str) -> int | None:
        """Take an entry that is free, or whose pages the store has recorded; None if the block is full."""
        counted, settled, series = self._counts.counted, self._counts.settled, self._counts.series
        places = sorted(self._all(), key=lambda place: bool(series[place].name))
        place = next((each for each in places if not series[each].name or counted[each] == settled[each]), None)
        if place is None:
            return None
        self._places.pop(self._key_at(place), None)
        row = series[place]
        # Clear the name now and write it last, so that a process that dies in between leaves the entry free.
        row.name = b""
        counted[place] = settled[place] = 0
        row.day, row.id = day.encode(), secrets.randbits(62)
        row.name = name.encode()
        self._places[name, day] = place
        return place

    def _all(self) -> range:
        return range(self._slot * SERIES, (self._slot + 1) * SERIES)

    def _key_at(self, place: int) -> tuple[str, str]:
        series = self._counts.series[place]
        return series.name.decode(), series.day.decode()
