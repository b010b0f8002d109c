"""The gate: decides whether a request with this API key is admitted, and counts what it uses. Of HTTP and gRPC alike.

A worker holds all keys in memory and looks for changes four times a second, so that a key costs no look-up, and a
revoked one ends within half a second. While the store does not say for two seconds whether anything changed, nobody is
admitted.

A page is *counted* when its answer is made, before it is sent: in one transaction of the store, with the giving back of
what was reserved. Until then it is reserved, so that requests under way at once never exceed a quota together.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from ocrsvc.access.quotas import headers_of, refusal_of
from ocrsvc.access.records import KeyEntry, KeySecret, Scope, StoredKey, Usage
from ocrsvc.access.secrets import id_of, is_same
from ocrsvc.access.store import KeyStore, LimitReached, Period, period_of
from ocrsvc.errors import KeyMissing, KeyRefused, KeysUnavailable, ScopeMissing

LOGGER: Final = logging.getLogger("ocrsvc.access")

REFRESH_S: Final = 0.25
_STALE_S: Final = 2.0
_ALIVE_S: Final = 1.0


class AccessGate:
    """Admits requests by their keys; made once in each worker. Any thread may call.

    Args:
        store: The keys, and what is used of them.
        worker: This worker's name in the store.
        clock: Unix seconds.
        monotonic: Monotonic seconds.
    """

    def __init__(
        self,
        store: KeyStore,
        worker: str,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._worker = store, worker
        self._clock, self._monotonic = clock, monotonic
        self._secrets: Mapping[str, tuple[KeyEntry, KeySecret]] = {}
        self._entries: Mapping[str, KeyEntry] = {}
        self._version = -1
        self._refreshed_s = -_STALE_S
        self._alive_s = -_ALIVE_S
        self._begun = False
        # Of what is settled: a worker that comes after this one under its name counts anew.
        self._origin, self._numbers = secrets.token_hex(4), itertools.count()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_refreshing, name="access", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Whether the keys in memory are those of the store, as of two seconds ago at most."""
        return self._monotonic() - self._refreshed_s < _STALE_S

    def start(self) -> None:
        """Keep the keys in memory like those of the store, from a thread of its own; after the fork."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and close the store; safe to call when it was never started."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._store.close()

    def admit(self, secret: str | None, scope: Scope, adapter: str | None = None, pages: int = 0) -> Admission:
        """Admit a request that carries this secret text.

        Args:
            secret: As the client sent it; None or empty where it sent none.
            scope: What the request wants to do.
            adapter: The wire format it came in, by its name in the registry, `api` for the native API; None where keys
                for some formats only are good as well, as for operators' routes.
            pages: That it will take at least, which are reserved at once; `Admission.charge` reserves more. 1 for an
                image, which spares a second transaction.

        Raises:
            KeyMissing: There is no secret.
            KeyRefused: It is wrong, revoked or expired.
            ScopeMissing: It is not for this scope or adapter.
            QuotaExceeded: One of its limits is reached.
            KeysUnavailable: The store does not answer.
        """
        return self.enter(self.check(secret, scope, adapter), pages)

    def check(self, secret: str | None, scope: Scope | None = None, adapter: str | None = None) -> KeyEntry:
        """The key that this secret text belongs to, if it is good for this. Asks no store, and never waits.

        Args:
            secret, adapter: As for `admit`.
            scope: As for `admit`; None where any valid key is good.

        Raises:
            OcrsvcError: As of `admit`, but for QuotaExceeded.
        """
        if not secret:
            raise KeyMissing("This service wants an API key, and none was sent.", _HOW_TO_SEND)
        self._check_ready()
        entry, kept = self._secrets.get(id_of(secret), (None, None))
        if not is_same(secret, kept) or entry is None or kept is None:
            raise _refused()
        now_s = self._clock()
        if kept.expires_at is not None and now_s >= kept.expires_at:
            raise _refused()
        return _checked(entry, now_s, scope, adapter)

    def check_named(self, name: str, scope: Scope | None = None, adapter: str | None = None) -> KeyEntry:
        """The key of this name, if it is good for this; see `check`, and `admit_named`."""
        self._check_ready()
        return _checked(self._entry_named(name), self._clock(), scope, adapter)

    def enter(self, entry: KeyEntry, pages: int = 0) -> Admission:
        """Admit a request of a key that was checked a moment ago. Raises QuotaExceeded, KeysUnavailable."""
        admission = self._admission(entry, self._clock())
        admission.enter(pages)
        return admission

    def admit_named(self, name: str, scope: Scope, adapter: str | None = None, pages: int = 0) -> Admission:
        """Admit a request whose caller is known otherwise, as by a client certificate, under the key of this name.

        Args:
            name: Of the key.
            scope, adapter, pages: As for `admit`.

        Raises:
            KeyRefused: There is no such key, or it is revoked or expired.
            OcrsvcError: As of `admit`.
        """
        return self.enter(self.check_named(name, scope, adapter), pages)

    def resume(self, name: str) -> Admission:
        """Work that this key's holder left here is done now: its pages count, but it is no request under way.

        Raises:
            KeyRefused: The key is revoked or expired.
            KeysUnavailable: The store does not answer.
        """
        self._check_ready()
        entry = self._entry_named(name)
        if not entry.is_valid(self._clock()):
            raise _refused()
        return self._admission(entry, self._clock())

    def usage(self) -> list[tuple[KeyEntry, Usage]]:
        """Every key, and what is used of it, by name; for operators. Raises KeysUnavailable."""
        period, known = period_of(self._clock()), self._store.keys()
        return [(key.entry, self._store.usage(key.entry.name, period)) for key in known]

    def refresh(self) -> None:
        """Read the keys again if one has changed. Raises KeysUnavailable. In the gate's own thread, or in tests."""
        if not self._begun:
            self._store.begin_worker(self._worker)
            self._begun = True
        now_s = self._monotonic()
        if now_s - self._alive_s >= _ALIVE_S:
            self._store.keep_alive(self._worker)
            self._alive_s = now_s
        # First the number: a change between the two is read again a moment later.
        version = self._store.version()
        if version != self._version:
            self._take(self._store.keys())
            self._version = version
        self._refreshed_s = now_s

    def _take(self, keys: list[StoredKey]) -> None:
        self._entries = {key.entry.name: key.entry for key in keys}
        self._secrets = {secret.id: (key.entry, secret) for key in keys for secret in key.secrets}

    def _keep_refreshing(self) -> None:
        was_ready = True
        while True:
            try:
                self.refresh()
            except KeysUnavailable as error:
                if was_ready:
                    LOGGER.error("Nobody is admitted: %s", error)
                was_ready = False
            else:
                if not was_ready:
                    LOGGER.info("The store of the API keys answers again.")
                was_ready = True
            if self._done.wait(REFRESH_S):
                return

    def _check_ready(self) -> None:
        if not self.is_ready:
            raise KeysUnavailable(
                "The store of the API keys does not answer.", "Send the request again in a moment.", retry_after_s=2
            )

    def _entry_named(self, name: str) -> KeyEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise _refused()
        return entry

    def _admission(self, entry: KeyEntry, now_s: float) -> Admission:
        return Admission(self._store, self._worker, entry, now_s, f"{self._origin}.{next(self._numbers)}")


class Admission:
    """One request that was admitted, until its answer is made. Used by the threads of its request, one at a time.

    Attributes:
        entry: The key's.
    """

    def __init__(self, store: KeyStore, worker: str, entry: KeyEntry, now_s: float, number: str) -> None:
        self.entry = entry
        self._number = number
        self._store, self._worker, self._now_s = store, worker, now_s
        self._period: Period = period_of(now_s)
        self._requests = 0
        self._reserved = 0
        self._usage: Usage | None = None

    @property
    def rate_limit_headers(self) -> Mapping[str, str]:
        """RateLimit headers for the answer, as of when pages were last reserved; empty where the key has no limit."""
        return headers_of(self.entry.limits, self._usage, self._now_s) if self._usage else {}

    def enter(self, pages: int) -> None:
        """The gate, once: count the request as under way, and reserve pages. Raises as `AccessGate.admit`."""
        if self.entry.limits.is_empty:
            return
        self._reserve(self._store.admit, pages)
        self._requests = 1

    def charge(self, pages: int) -> None:
        """Reserve pages that are about to be read, or found in the cache, beyond those reserved before.

        Raises:
            QuotaExceeded: They are more than the key has left; none of them is reserved.
            KeysUnavailable: The store does not answer.
        """
        if pages and not self.entry.limits.is_empty:
            self._reserve(self._store.reserve, pages)

    def settle(self, pages: int) -> None:
        """The answer is made: count its pages, and give back the rest; once, for what comes later does nothing.

        Args:
            pages: That are answered; those that failed are none.

        Raises:
            KeysUnavailable: The store does not answer; the answer must not be sent.
        """
        requests, reserved = self._requests, self._reserved
        if requests or reserved or pages:
            self._store.settle(self._number, self.entry.name, self._worker, requests, reserved, pages, self._period)
        self._requests = self._reserved = 0

    def release(self) -> None:
        """The request is over: give back what is still reserved, uncounted. Never raises; the lease ends what stays."""
        try:
            self.settle(0)
        except KeysUnavailable as error:
            LOGGER.warning("What a request had reserved is given back later: %s", error)

    def _reserve(self, take: Callable[..., Usage], pages: int) -> None:
        entry = self.entry
        try:
            self._usage = take(self._number, entry.name, self._worker, entry.limits, pages, self._period)
        except LimitReached as reached:
            raise refusal_of(entry.limits, reached, self._now_s) from None
        self._reserved += pages


_HOW_TO_SEND: Final = "Send it as Authorization: Bearer KEY, or as X-API-Key: KEY."


def _refused() -> KeyRefused:
    """One sentence for all cases: who tries keys learns nothing."""
    return KeyRefused("The API key is not valid.", "Ask the operator of this service for a key.")


def _checked(entry: KeyEntry, now_s: float, scope: Scope | None, adapter: str | None) -> KeyEntry:
    """The key itself. Raises KeyRefused, ScopeMissing."""
    if not entry.is_valid(now_s):
        raise _refused()
    if scope is not None and scope not in entry.scopes:
        raise ScopeMissing(
            f"This API key is for {', '.join(sorted(entry.scopes))}, and this needs {scope}.",
            "Ask the operator of this service for a key with this scope.",
        )
    if adapter is not None and entry.adapters is not None and adapter not in entry.adapters:
        raise ScopeMissing(
            f"This API key is for the formats {', '.join(sorted(entry.adapters))}, and this is {adapter}.",
            "Ask the operator of this service for a key with this format.",
        )
    return entry
