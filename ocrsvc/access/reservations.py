"""What one worker has reserved of the keys: taken from the store in blocks while much is left, singly when little is.

A request that finds what it needs in the worker's block makes no call of the store. A block is taken only while four
times as much would be left, and what is unused of it goes back within a quarter of a second: a block never exceeds a
limit, nor withholds from other workers what they would miss. Where less is left the key is scarce for a second: each
request reserves exactly what it needs, and gives it back at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from ocrsvc.access.api_keys import KeyLimits
from ocrsvc.access.key_store import Hold, KeyStore, LimitName, LimitReached, Need, Period
from ocrsvc.access.page_counts import CountBlock, PageCounts
from ocrsvc.errors import KeysUnavailable

LOGGER: Final = logging.getLogger("ocrsvc.access")

BLOCK: Final = 16
"""Requests, and pages, that a worker takes at once."""

SPARE: Final = 4
"""How many times as much must be left as is taken."""

_PLACE_IN_NEED: Final[Mapping[LimitName, int]] = {"concurrency": 0, "rate": 1, "day": 2, "month": 2}
_SCARCE_S: Final = 1.0
# As long as one call of a store may take.
_LIMIT_S: Final = 1.0


class KeyReservation:
    """One key in one worker. Any thread may call; calls of the store are made one at a time."""

    def __init__(self, store: KeyStore, block: CountBlock, name: str, monotonic: Callable[[], float]) -> None:
        self._store, self._block, self._name, self._monotonic = store, block, name, monotonic
        self._lock = threading.Lock()
        # What the store has reserved for this worker; what requests under way use of it, and what is counted but not
        # settled. The rest is ready for the next request.
        self._held = Hold()
        self._requests = self._pages = self._counted = 0
        self._tokens = 0
        # Until when each part of a Need is taken singly, and until when every request asks the store.
        self._single_until_s = [-_SCARCE_S] * len(Need())
        self._scarce_until_s = -_SCARCE_S

    def take(self, limits: KeyLimits, period: Period, need: Need, *, in_blocks: bool) -> bool:
        """Reserve what a request needs; returns whether it is scarce, and so to be settled at once.

        Raises:
            LimitReached: A limit is reached; nothing is reserved.
            KeysUnavailable: The store does not answer.
        """
        self._acquire()
        try:
            missing = self._missing(limits, need)
            is_scarce = not in_blocks or self._monotonic() < self._scarce_until_s
            if any(missing):
                is_scarce = is_scarce or not self._take_block(limits, period, missing)
                if is_scarce:
                    self._reserve(limits, period, missing, 1)
            self._requests += need.requests
            self._pages += need.pages
            self._tokens = max(0, self._tokens - need.tokens)
            return is_scarce
        finally:
            self._lock.release()

    def finish(self, reserved: Need, pages: int, day: str) -> bool:
        """End a request that had `reserved`, and count its pages; False, and nothing done, when the block is full."""
        with self._lock:
            if pages and not self._block.add(self._name, day, pages):
                return False
            self._requests -= reserved.requests
            self._pages -= reserved.pages
            self._counted += pages
            return True

    def settle(self) -> None:
        """Bring to the store what was counted, and give back what no request uses. Raises KeysUnavailable."""
        self._acquire()
        try:
            # Only this key's pages, and only under its lock, so that `_counted` is what is unsettled.
            for one in self._block.unsettled(self._name) if self._counted else ():
                left = max(0, self._counted - one.pages)
                hold = Hold(self._requests, self._pages + left)
                self._store.settle(self._name, self._block.worker, hold, one.series, one.total, one.period)
                self._block.settled(one)
                self._held, self._counted = hold, left
            self._tokens = 0
            hold = Hold(self._requests, self._pages + self._counted)
            if self._held != hold:
                self._store.hold(self._name, self._block.worker, hold)
                self._held = hold
        finally:
            self._lock.release()

    @property
    def has_unsettled(self) -> bool:
        """Whether `settle` has anything to do, as of now."""
        return self._counted > 0 or self._tokens > 0 or self._held != (self._requests, self._pages)

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=_LIMIT_S):
            raise KeysUnavailable("The store of the API keys answers too slowly.")

    def _missing(self, limits: KeyLimits, need: Need) -> Need:
        """What is not ready."""
        return Need(
            requests=max(0, self._requests + need.requests - self._held.requests),
            tokens=max(0, need.tokens - self._tokens) if limits.requests_per_s is not None else 0,
            pages=max(0, self._pages + self._counted + need.pages - self._held.pages),
        )

    def _take_block(self, limits: KeyLimits, period: Period, missing: Need) -> bool:
        """Take what is missing, with a block of each part of which much is left; False when too little is left."""
        now_s = self._monotonic()
        while True:
            parts = zip(missing, self._single_until_s, strict=True)
            more = Need(*[count + BLOCK - 1 if count and now_s >= end_s else count for count, end_s in parts])
            try:
                self._reserve(limits, period, more, SPARE)
                return True
            except LimitReached as reached:
                place = _PLACE_IN_NEED[reached.limit]
                if now_s < self._single_until_s[place]:
                    self._scarce_until_s = now_s + _SCARCE_S
                    return False
                self._single_until_s[place] = now_s + _SCARCE_S

    def _reserve(self, limits: KeyLimits, period: Period, need: Need, spare: int) -> None:
        held = self._held
        self._store.reserve(self._name, self._block.worker, limits, held, need, spare, period)
        self._held = Hold(held.requests + need.requests, held.pages + need.pages)
        self._tokens += need.tokens


class WorkerReservations:
    """The reservations of one worker, by key. Any thread may call, but for what says otherwise.

    Args:
        counts: Of all workers of the service.
        slot: This worker's.
        monotonic: Monotonic seconds.

    Attributes:
        in_blocks: Whether blocks are taken; only while a thread settles them.
    """

    def __init__(self, store: KeyStore, counts: PageCounts, slot: int, monotonic: Callable[[], float]) -> None:
        self._store, self._counts, self._slot, self._monotonic = store, counts, slot, monotonic
        self._block = counts.block(slot)
        self._by_key: dict[str, KeyReservation] = {}
        self._lock = threading.Lock()
        self.worker = self._block.worker
        self.in_blocks = False
        self._is_claimed = False

    def begin(self) -> bool:
        """Upkeep thread, first: settle what the slot's worker before this one has left. Raises KeysUnavailable.

        Returns:
            False while another worker does that; ask again.
        """
        if not self._block.claim():
            return False
        self._is_claimed = True
        _settle_block(self._store, self._block)
        self._store.begin_worker(self.worker)
        return True

    def of_key(self, name: str) -> KeyReservation:
        """That of a key."""
        found = self._by_key.get(name)
        if found is None:
            with self._lock:
                made = KeyReservation(self._store, self._block, name, self._monotonic)
                found = self._by_key.setdefault(name, made)
        return found

    def settle(self) -> None:
        """Upkeep thread, four times a second: bring what was counted to the store. Raises KeysUnavailable."""
        for one in list(self._by_key.values()):
            if one.has_unsettled:
                one.settle()

    def settle_abandoned(self) -> None:
        """Upkeep thread: the same for workers that died and have no successor. Raises KeysUnavailable."""
        settle_abandoned(self._store, self._counts, besides=self._slot)

    def end(self) -> None:
        """When no request is under way any more: settle what is left, and let others have the slot."""
        if not self._is_claimed:
            return
        try:
            self.settle()
        except KeysUnavailable as error:
            LOGGER.warning("Left this worker's counted pages to be settled by others: %s", error)
        self._block.give_up()


def settle_abandoned(store: KeyStore, counts: PageCounts, besides: int = -1) -> None:
    """Settle the blocks that no process holds. Raises KeysUnavailable."""
    for slot in counts.unsettled_slots():
        block = counts.block(slot)
        if slot != besides and block.claim():
            try:
                _settle_block(store, block)
            finally:
                block.give_up()


def _settle_block(store: KeyStore, block: CountBlock) -> None:
    for one in block.unsettled():
        store.settle(one.name, block.worker, Hold(), one.series, one.total, one.period)
        block.settled(one)
