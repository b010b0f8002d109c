"""One admitted request: what it has reserved of its key, until its answer is made and its pages are counted."""

from __future__ import annotations

from collections.abc import Mapping

from ocrsvc.access.api_keys import KeyEntry
from ocrsvc.access.key_store import KeyStore, LimitReached, Need, period_of
from ocrsvc.access.rate_limits import check_possible, headers_of, refusal_of
from ocrsvc.access.reservations import WorkerReservations
from ocrsvc.errors import KeysUnavailable


class Admission:
    """One admitted request. Used by the threads of its request, one at a time.

    Args:
        now_s: When it came, in Unix seconds: its pages belong to that day.
    """

    def __init__(self, store: KeyStore, reservations: WorkerReservations, entry: KeyEntry, now_s: float) -> None:
        self.entry = entry
        self._store, self._reservations, self._now_s = store, reservations, now_s
        self._of_key = reservations.of_key(entry.name)
        self._period = period_of(now_s)
        self._reserved = Need()
        # Pages that are expected and not taken yet, and those that were answered.
        self._expected = self._answered = 0
        self._is_scarce = not reservations.in_blocks

    @property
    def may_cache(self) -> bool:
        """Whether its pages may be stored in the result cache, and answered from it."""
        return self.entry.may_cache

    @property
    def headers(self) -> Mapping[str, str]:
        """RateLimit headers for its answer; empty where the key has no limit over time, or the store is away."""
        if self.entry.limits.is_timeless:
            return {}
        try:
            usage = self._store.usage(self.entry.name, self._period)
        except KeysUnavailable:
            return {}
        return headers_of(self.entry.limits, usage, self._now_s)

    def enter(self, pages: int) -> None:
        """The gate, once: count the request as under way, and reserve pages. Raises as `expect`."""
        if not self.entry.limits.is_empty:
            self._take(Need(1, int(self.entry.limits.requests_per_s is not None), pages))
        self._expected = pages

    def expect(self, pages: int) -> None:
        """Reserve so many pages that are to be read, or found in the cache, beside those that were taken.

        Raises:
            PagesOverQuota: They are more than the key has in a whole day or month.
            QuotaExceeded: They are more than the key has left; none of them is reserved.
            KeysUnavailable: The store does not answer.
        """
        more = pages - self._expected
        if more > 0:
            if not self.entry.limits.is_empty:
                self._take(Need(pages=more))
            self._expected = pages

    def take(self) -> None:
        """A page is about to be read, expected or not. Raises as `expect`."""
        self.expect(1)
        self._expected -= 1

    def count(self) -> None:
        """A page was read, or found in the cache."""
        self._answered += 1

    def settle(self, *, succeeded: bool = True) -> None:
        """The answer is made: count its pages, or none of a failure; once, for what comes later does nothing.

        Raises:
            KeysUnavailable: The store does not answer, and there is no room to keep the count until it does; the answer
                must not be sent.
        """
        pages, self._answered = self._answered if succeeded else 0, 0
        if not pages and not any(self._reserved):
            return
        day = self._period.day
        if not self._of_key.finish(self._reserved, pages, day):
            # The block is full of pages that the store does not have.
            self._reservations.settle()
            if not self._of_key.finish(self._reserved, pages, day):
                raise KeysUnavailable("There is no room to count pages.")
        self._reserved = Need()
        if self._is_scarce:
            try:
                # Others wait for what is given back.
                self._of_key.settle()
            except KeysUnavailable:
                # It is counted, and is brought to the store when that answers again.
                return

    def release(self) -> None:
        """The request is over, whatever way: give back what was not counted. Never raises."""
        self.settle(succeeded=False)

    def _take(self, need: Need) -> None:
        entry, period = self.entry, self._period
        check_possible(entry.limits, self._reserved.pages + need.pages)
        try:
            self._is_scarce |= self._of_key.take(entry.limits, period, need, in_blocks=self._reservations.in_blocks)
        except LimitReached as reached:
            raise refusal_of(entry.limits, reached.limit, self._store.usage(entry.name, period), self._now_s) from None
        self._reserved = Need(*map(sum, zip(self._reserved, need, strict=True)))
