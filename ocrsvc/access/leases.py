"""What one worker has reserved of a key: taken from the store in blocks while much is left, one by one when little is.

A request that finds what it needs in the worker's block asks nobody. More than it needs is taken only while four times
as much would be left, and what is not used of it goes back within a quarter of a second: a block never exceeds a limit,
and keeps nothing from other workers that these would miss. Where there is not even four times as much as a request
needs, the key is *scarce* for a second: each request is reserved in the store, and given back there at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from ocrsvc.access.page_counts import CountBlock
from ocrsvc.access.records import Hold, KeyLimits, Need
from ocrsvc.access.store import KeyStore, LimitName, LimitReached, Period
from ocrsvc.errors import KeysUnavailable

BLOCK: Final = 16
"""Requests, and pages, that a worker takes at once."""

SPARE: Final = 4
"""How many times as much must be left as is taken."""

_RESOURCES: Final[Mapping[LimitName, int]] = {"concurrency": 0, "rate": 1, "day": 2, "month": 2}
"""What of a Need a limit is of."""

_SCARCE_S: Final = 1.0
# As long as one call of a store may take.
_LIMIT_S: Final = 1.0


class Lease:
    """One key in one worker. Any thread may call; calls of the store are made one at a time.

    Args:
        store, block, worker: Of the gate.
        name: Of the key.
        monotonic: Monotonic seconds.
    """

    def __init__(
        self, store: KeyStore, block: CountBlock, worker: str, name: str, monotonic: Callable[[], float]
    ) -> None:
        self._store, self._block, self._worker, self._name = store, block, worker, name
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # In the store, for this worker; of it are under way, and counted but not settled; the rest is ready.
        self._held = Hold()
        self._requests = self._pages = self._counted = 0
        # Requests that may begin.
        self._tokens = 0
        # Until when no block is taken of each of a Need, and when each request asks the store.
        self._small_until_s = [-_SCARCE_S] * len(Need())
        self._scarce_until_s = -_SCARCE_S

    def take(self, limits: KeyLimits, period: Period, need: Need, *, in_blocks: bool) -> bool:
        """Reserve what a request needs; whether it is scarce, and so is to be given back to the store at once.

        Raises:
            LimitReached: A limit is reached; nothing is reserved.
            KeysUnavailable: The store does not answer.
        """
        self._acquire()
        try:
            missing = self._missing(limits, need)
            is_scarce = not in_blocks or self._monotonic() < self._scarce_until_s
            if missing.is_something:
                is_scarce = is_scarce or not self._take_block(limits, period, missing)
                if is_scarce:
                    self._ask(limits, period, missing, 1)
            self._requests += need.requests
            self._pages += need.pages
            self._tokens = max(0, self._tokens - need.tokens)
            return is_scarce
        finally:
            self._lock.release()

    def finish(self, reserved: Need, pages: int, day: str) -> bool:
        """A request is over, and so many pages of it count; `settle` tells the store.

        Args:
            reserved: What it had taken.
            pages: That are answered.
            day: To which they belong.

        Returns:
            False when the block is full: they are not counted, and the request is not over.
        """
        with self._lock:
            if pages and not self._block.add(self._name, day, pages):
                return False
            self._requests -= reserved.requests
            self._pages -= reserved.pages
            self._counted += pages
            return True

    def settle(self) -> None:
        """Bring what was counted to the store, and give back what is not under way.

        Raises:
            KeysUnavailable: The store does not answer; the next call does the rest.
        """
        self._acquire()
        try:
            for one in self._block.unsettled(self._name):
                left = max(0, self._counted - one.pages)
                hold = Hold(self._requests, self._pages + left)
                self._store.settle(self._name, self._worker, hold, one.number, one.pages, one.period)
                self._block.note(one)
                self._held, self._counted = hold, left
            self._tokens = 0
            hold = Hold(self._requests, self._pages + self._counted)
            if self._held != hold:
                self._store.hold(self._name, self._worker, hold)
                self._held = hold
        finally:
            self._lock.release()

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
        """Take what is missing, and of what much is left some more; False when of anything too little is left."""
        now_s = self._monotonic()
        while True:
            ends_s = zip(missing, self._small_until_s, strict=True)
            more = Need(*[count + BLOCK - 1 if count and now_s >= end_s else count for count, end_s in ends_s])
            try:
                self._ask(limits, period, more, SPARE)
                return True
            except LimitReached as reached:
                resource = _RESOURCES[reached.limit]
                if now_s < self._small_until_s[resource]:
                    self._scarce_until_s = now_s + _SCARCE_S
                    return False
                self._small_until_s[resource] = now_s + _SCARCE_S

    def _ask(self, limits: KeyLimits, period: Period, need: Need, spare: int) -> None:
        held = self._held
        self._store.reserve(self._name, self._worker, limits, held, need, spare, period)
        self._held = Hold(held.requests + need.requests, held.pages + need.pages)
        self._tokens += need.tokens
