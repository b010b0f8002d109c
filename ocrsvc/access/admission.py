"""Admitted requests, and what their worker has reserved of each key's limits.

A worker reserves from the store in blocks while much of a key's limit is left. Requests that find what they need in the
block make no call to the store. A block is reserved only if four times as much is left, and its unused part is released
within a quarter of a second: blocks never exceed a limit, and other workers still get what they need. If less is left,
the key is scarce for a second: each request reserves exactly what it needs, and releases the rest at its end.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from ocrsvc.access.api_keys import KeyEntry, KeyLimits
from ocrsvc.access.key_store import Hold, KeyStore, LimitName, LimitReached, Need, day_of
from ocrsvc.access.page_counts import CountBlock, PageCounts
from ocrsvc.access.rate_limits import check_possible, headers_of, refusal_of
from ocrsvc.errors import KeysUnavailable

LOGGER: Final = logging.getLogger("ocrsvc.access")

BLOCK: Final = 16
"""Number of requests, or of pages, that are reserved from the store at once, as a block."""

SPARE: Final = 4
"""A block is reserved only if at least this many times the block's size is left of the limit."""

_PLACE_IN_NEED: Final[Mapping[LimitName, int]] = {"concurrency": 0, "requests": 1, "pages-a-day": 2, "pages-a-month": 2}
_NO_LIMITS: Final = KeyLimits()
_SCARCE_S: Final = 1.0
_ALIVE_S: Final = 1.0
# Time limit of a call to the API key store.
_LIMIT_S: Final = 1.0


class KeyReservation:
    """What one worker has reserved of one key's limits. For any thread; calls to the store are made one at a time."""

    def __init__(self, store: KeyStore, block: CountBlock, name: str, monotonic: Callable[[], float]) -> None:
        self._store, self._block, self._name, self._monotonic = store, block, name, monotonic
        self._lock = threading.Lock()
        # `_held`: what the store has reserved for this worker and key. Open requests use `_requests` and `_pages`;
        # `_counted` pages were read, but not reported to the store yet. The next request may use the rest of `_held`.
        self._held = Hold()
        self._requests = self._pages = self._counted = 0
        self._tokens = 0
        # Monotonic times until which no block is reserved because little is left: per field of Need; and for the key.
        self._single_until_s = [-_SCARCE_S] * len(Need())
        self._scarce_until_s = -_SCARCE_S

    def take(self, limits: KeyLimits, day: str, need: Need) -> bool:
        """Reserve what a request needs; returns whether little of a limit is left.

        If so, the request must release unused pages at its end. Raises LimitReached, with nothing reserved, and
        KeysUnavailable.
        """
        self._acquire()
        try:
            missing = self._missing(limits, need)
            is_scarce = self._monotonic() < self._scarce_until_s
            if any(missing):
                is_scarce = is_scarce or not self._take_block(limits, day, missing)
                if is_scarce:
                    self._reserve(limits, day, missing, 1)
            self._requests += need.requests
            self._pages += need.pages
            self._tokens = max(0, self._tokens - need.tokens)
            return is_scarce
        finally:
            self._lock.release()

    def finish(self, reserved: Need, pages: int, day: str) -> bool:
        """End a request that had `reserved`, and count its pages; False, without effect, if shared memory is full."""
        with self._lock:
            if pages and not self._block.add(self._name, day, pages):
                return False
            self._requests -= reserved.requests
            self._pages -= reserved.pages
            self._counted += pages
            return True

    def settle(self) -> None:
        """Send this key's page counts to the store, and release what no request uses. Raises KeysUnavailable."""
        if not self._counted and not self._tokens and self._held == (self._requests, self._pages):
            return
        self._acquire()
        try:
            # Send only this key's counts, holding its lock, so that `_counted` stays the number of its unsent pages.
            for one in self._block.unsettled(self._name) if self._counted else ():
                left = max(0, self._counted - one.pages)
                hold = Hold(self._requests, self._pages + left)
                self._store.settle(self._name, self._block.worker, hold, one.series, one.total, one.day)
                self._block.note_settled(one)
                self._held, self._counted = hold, left
            self._tokens = 0
            hold = Hold(self._requests, self._pages + self._counted)
            if self._held != hold:
                self._store.settle(self._name, self._block.worker, hold)
                self._held = hold
        finally:
            self._lock.release()

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=_LIMIT_S):
            raise KeysUnavailable("The API key store responds too slowly.")

    def _missing(self, limits: KeyLimits, need: Need) -> Need:
        """The part of a need that is not reserved yet."""
        return Need(
            requests=max(0, self._requests + need.requests - self._held.requests),
            tokens=max(0, need.tokens - self._tokens) if limits.requests_per_s is not None else 0,
            pages=max(0, self._pages + self._counted + need.pages - self._held.pages),
        )

    def _take_block(self, limits: KeyLimits, day: str, missing: Need) -> bool:
        """Reserve what is missing, and a block in advance; False, with nothing reserved, if little is left."""
        now_s = self._monotonic()
        while True:
            parts = zip(missing, self._single_until_s, strict=True)
            more = Need(*[count + BLOCK - 1 if count and now_s >= end_s else count for count, end_s in parts])
            try:
                self._reserve(limits, day, more, SPARE)
                return True
            except LimitReached as reached:
                place = _PLACE_IN_NEED[reached.limit]
                if now_s < self._single_until_s[place]:
                    self._scarce_until_s = now_s + _SCARCE_S
                    return False
                self._single_until_s[place] = now_s + _SCARCE_S

    def _reserve(self, limits: KeyLimits, day: str, need: Need, spare: int) -> None:
        held = self._held
        self._store.reserve(self._name, self._block.worker, limits, held, need, spare, day)
        self._held = Hold(held.requests + need.requests, held.pages + need.pages)
        self._tokens += need.tokens


class WorkerReservations:
    """The reservations of one worker, by key. Any thread may call, unless a method says otherwise."""

    def __init__(self, store: KeyStore, counts: PageCounts, slot: int, monotonic: Callable[[], float]) -> None:
        self._store, self._counts, self._slot, self._monotonic = store, counts, slot, monotonic
        self._block = CountBlock(counts, slot)
        self._by_key: dict[str, KeyReservation] = {}
        self._is_claimed = False
        self._alive_s = -_ALIVE_S

    def refresh(self) -> bool:
        """Every 0.25 s: send the page counts of this worker, and of dead workers that were not replaced, to the store.

        Returns False, having done nothing, while another process has this worker's slot locked. Raises KeysUnavailable.
        """
        if not self._is_claimed:
            if not self._block.claim():
                return False
            self._block.settle_all(self._store)
            self._store.begin_worker(self._block.worker)
            self._is_claimed = True
        self.settle()
        now_s = self._monotonic()
        if now_s - self._alive_s >= _ALIVE_S:
            self._store.keep_alive(self._block.worker)
            self._counts.settle_abandoned(self._store, except_slot=self._slot)
            self._alive_s = now_s
        return True

    def of_key(self, name: str) -> KeyReservation:
        """This worker's reservation of a key, made at the first call."""
        known = self._by_key.get(name)
        return known or self._by_key.setdefault(name, KeyReservation(self._store, self._block, name, self._monotonic))

    def settle(self) -> None:
        """Send the page counts of all keys to the store, and release unused reservations. Raises KeysUnavailable."""
        for reservation in list(self._by_key.values()):
            reservation.settle()

    def end(self) -> None:
        """After the last request: send all page counts to the store, and free this worker's slot."""
        if self._is_claimed:
            try:
                self.settle()
            except KeysUnavailable as error:
                LOGGER.warning("Other workers will settle this worker's counted pages: %s", error)
            self._block.give_up()


class Admission:
    """One admitted request until its response is made; its pages count for the day of its arrival, `now_s`.

    Only one thread at a time may use it.
    """

    def __init__(self, store: KeyStore, reservations: WorkerReservations, entry: KeyEntry, now_s: float) -> None:
        self.entry = entry
        self._store, self._reservations, self._now_s = store, reservations, now_s
        self._of_key = reservations.of_key(entry.name)
        self._day = day_of(now_s)
        self._reserved = Need()
        # Number of pages that are reserved but not begun, and number of pages that were read.
        self._expected = self._answered = 0
        self._is_scarce = False

    @property
    def may_cache(self) -> bool:
        """Whether pages of this request may use the result cache."""
        return self.entry.may_cache

    @property
    def headers(self) -> Mapping[str, str]:
        """RateLimit headers for the response; empty without quotas and rate limit, or if the store does not respond."""
        limits = self.entry.limits
        if limits == KeyLimits(concurrency=limits.concurrency):
            return {}
        try:
            return headers_of(limits, self._store.usage(self.entry.name, self._day), self._now_s)
        except KeysUnavailable:
            return {}

    def enter(self, pages: int) -> None:
        """Called by the access gate: reserve the request and its pages. Raises as `expect`."""
        if self.entry.limits != _NO_LIMITS:
            self._take(Need(1, int(self.entry.limits.requests_per_s is not None), pages))
        self._expected = pages

    def expect(self, pages: int) -> None:
        """Ensure that `pages` pages are reserved, not counting those already begun; reserve all missing ones or none.

        Raises PagesOverQuota for more than the key's whole quota of a day or month, QuotaExceeded, KeysUnavailable.
        """
        more = pages - self._expected
        if more > 0:
            if self.entry.limits != _NO_LIMITS:
                self._take(Need(pages=more))
            self._expected = pages

    def take(self) -> None:
        """Begin a page, and reserve it unless `expect` did. Raises as `expect`."""
        self.expect(1)
        self._expected -= 1

    def count(self) -> None:
        """Note a page that was read or found in the cache."""
        self._answered += 1

    def settle(self, *, succeeded: bool = True) -> None:
        """Count the pages of a response, or none if it failed; a second call does nothing.

        Raises KeysUnavailable if there is no room for the count: then the response must not be sent.
        """
        pages, self._answered = self._answered if succeeded else 0, 0
        if not pages and not any(self._reserved):
            return
        if not self._of_key.finish(self._reserved, pages, self._day):
            # Send all page counts to the store now, because shared memory has no room for more keys.
            self._reservations.settle()
            if not self._of_key.finish(self._reserved, pages, self._day):
                raise KeysUnavailable("There is no room to count pages.")
        self._reserved = Need()
        if self._is_scarce:
            # Release unused reservations now, because other requests need them; after a failure `refresh` tries again.
            with suppress(KeysUnavailable):
                self._of_key.settle()

    def release(self) -> None:
        """End the request, and give reserved pages that were not read back to the quota. Never raises."""
        self.settle(succeeded=False)

    def _take(self, need: Need) -> None:
        entry, day = self.entry, self._day
        check_possible(entry.limits, self._reserved.pages + need.pages)
        try:
            self._is_scarce |= self._of_key.take(entry.limits, day, need)
        except LimitReached as reached:
            raise refusal_of(entry.limits, reached.limit, self._store.usage(entry.name, day), self._now_s) from None
        self._reserved = Need(*map(sum, zip(self._reserved, need, strict=True)))
