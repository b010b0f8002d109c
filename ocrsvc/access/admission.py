"""One admitted request: what it has reserved of its key, until its answer is made and its pages are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ocrsvc.access.accounts import Accounts
from ocrsvc.access.quotas import check_possible, headers_of, refusal_of
from ocrsvc.access.records import KeyEntry, KeyLimits, Need
from ocrsvc.access.store import KeyStore, LimitReached, Period, period_of
from ocrsvc.errors import KeysUnavailable

REFRESH_S = 0.25


class HeaderCache:
    """RateLimit headers of the keys, made four times a second at most for each key; any thread may call.

    Args:
        store: Of the keys.
        monotonic: Monotonic seconds.
    """

    def __init__(self, store: KeyStore, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._known: dict[str, tuple[float, KeyLimits, Mapping[str, str]]] = {}

    def headers_of(self, entry: KeyEntry, period: Period, now_s: float) -> Mapping[str, str]:
        """Those of a key, as of a quarter of a second ago at most. Raises KeysUnavailable."""
        read_s, known = self._monotonic(), self._known.get(entry.name)
        if known is None or known[1] is not entry.limits or read_s - known[0] >= REFRESH_S:
            headers = headers_of(entry.limits, self._store.usage(entry.name, period), now_s)
            known = self._known[entry.name] = read_s, entry.limits, headers
        return known[2]


class Admission:
    """One request that was admitted, until its answer is made. Used by the threads of its request, one at a time.

    Args:
        store, accounts, headers: Of the gate.
        entry: The key's.
        now_s: When it came, in Unix seconds.

    Attributes:
        entry: The key's.
    """

    def __init__(
        self, store: KeyStore, accounts: Accounts, headers: HeaderCache, entry: KeyEntry, now_s: float
    ) -> None:
        self.entry = entry
        self._store, self._accounts, self._headers, self._now_s = store, accounts, headers, now_s
        self._lease = accounts.lease(entry.name)
        self._period = period_of(now_s)
        self._reserved = Need()
        self._is_scarce = not accounts.in_blocks

    @property
    def rate_limit_headers(self) -> Mapping[str, str]:
        """RateLimit headers for the answer, as of a quarter of a second ago; empty where the key has no such limit."""
        if self.entry.limits.is_timeless:
            return {}
        try:
            return self._headers.headers_of(self.entry, self._period, self._now_s)
        except KeysUnavailable:
            # They are no reason for an answer to fail.
            return {}

    def enter(self, pages: int) -> None:
        """The gate, once: count the request as under way, and reserve pages. Raises as `AccessGate.admit`."""
        if not self.entry.limits.is_empty:
            self._take(Need(1, int(self.entry.limits.requests_per_s is not None), pages))

    def charge(self, pages: int) -> None:
        """Reserve pages that are about to be read, or found in the cache, beyond those reserved before.

        Raises:
            PagesOverQuota: With those before they are more than the key has in a whole day or month.
            QuotaExceeded: They are more than the key has left; none of them is reserved.
            KeysUnavailable: The store does not answer.
        """
        if pages and not self.entry.limits.is_empty:
            self._take(Need(pages=pages))

    def settle(self, pages: int) -> None:
        """The answer is made: count its pages, and give back the rest; once, for what comes later does nothing.

        Args:
            pages: That are answered; those that failed are none.

        Raises:
            KeysUnavailable: The store does not answer, and there is no room to keep the count until it does; the answer
                must not be sent.
        """
        reserved = self._reserved
        if not pages and not any(reserved):
            return
        if not self._lease.finish(reserved, pages, self._period.day):
            # All its places hold what the store has not been told yet.
            self._accounts.settle()
            if not self._lease.finish(reserved, pages, self._period.day):
                raise KeysUnavailable("There is no room to count pages.")
        self._reserved = Need()
        self._tell_store()

    def release(self) -> None:
        """The request is over: give back what is still reserved, uncounted. Never raises."""
        self.settle(0)

    def _tell_store(self) -> None:
        """At once where others wait for what is given back, else soon."""
        self._accounts.touch(self.entry.name)
        if self._is_scarce:
            try:
                self._lease.settle()
            except KeysUnavailable:
                # It is counted, and the store is told when it answers again.
                return

    def _take(self, need: Need) -> None:
        entry, period = self.entry, self._period
        check_possible(entry.limits, self._reserved.pages + need.pages)
        try:
            self._is_scarce |= self._lease.take(entry.limits, period, need, in_blocks=self._accounts.in_blocks)
        except LimitReached as reached:
            usage = self._store.usage(entry.name, period)
            raise refusal_of(entry.limits, reached.limit, usage, self._now_s) from None
        self._reserved = Need(*map(sum, zip(self._reserved, need, strict=True)))
