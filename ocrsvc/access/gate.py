"""The gate: decides whether a request with this API key is admitted, and counts what it uses. Of HTTP and gRPC alike.

A worker holds all keys in memory and looks for changes four times a second, so that a key costs no look-up, and a
revoked one ends within half a second. While the store does not say for five seconds whether anything changed, nobody is
admitted.

A page is *counted* when its answer is made, before it is sent: in memory that outlives the worker, from where the store
is told within a quarter of a second. Until then it is reserved in the store, so that requests under way at once never
exceed a quota together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from ocrsvc.access.accounts import Accounts
from ocrsvc.access.admission import REFRESH_S, Admission, HeaderCache
from ocrsvc.access.outage_log import OutageLog
from ocrsvc.access.page_counts import PageCounts
from ocrsvc.access.records import KeyEntry, KeySecret, Scope, StoredKey, Usage, name_in
from ocrsvc.access.secrets import id_of, is_same
from ocrsvc.access.store import KeyStore, period_of
from ocrsvc.errors import KeyMissing, KeyRefused, KeysUnavailable, ScopeMissing

_STALE_S: Final = 5.0
_ALIVE_S: Final = 1.0


class AccessGate:
    """Admits requests by their keys; made once in each worker. Any thread may call.

    Args:
        store: The keys, and what is used of them.
        service: Its name among those that share the store.
        clock: Unix seconds.
        monotonic: Monotonic seconds.
        counts: Of all its workers; by default there is this one only.
        slot: This worker's.
    """

    def __init__(
        self,
        store: KeyStore,
        service: str,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        counts: PageCounts | None = None,
        slot: int = 0,
    ) -> None:
        self._store = store
        self._accounts = Accounts(store, counts or PageCounts(service), slot, monotonic)
        self._clock, self._monotonic = clock, monotonic
        self._secrets: Mapping[str, tuple[KeyEntry, KeySecret]] = {}
        self._entries: Mapping[str, KeyEntry] = {}
        self._version = -1
        self._refreshed_s = -_STALE_S
        self._alive_s = -_ALIVE_S
        self._headers = HeaderCache(store, monotonic)
        self._outages = OutageLog(_STALE_S)
        self._begun = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_refreshing, name="access", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Whether the keys in memory are those of the store, as of five seconds ago at most."""
        return self._monotonic() - self._refreshed_s < _STALE_S

    def start(self) -> None:
        """Keep the keys in memory like those of the store, from a thread of its own; after the fork."""
        self._accounts.in_blocks = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and close the store; safe to call when it was never started."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._accounts.end()
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
        return _checked(entry, self._clock(), scope, adapter, kept)

    def check_named(self, name: str, scope: Scope | None = None, adapter: str | None = None) -> KeyEntry:
        """The key of this name, if it is good for this; see `check`, and `admit_named`."""
        self._check_ready()
        return _checked(self._entry_named(name), self._clock(), scope, adapter)

    def enter(self, entry: KeyEntry, pages: int = 0) -> Admission:
        """Admit a request of a key that was checked a moment ago. Raises QuotaExceeded, KeysUnavailable."""
        admission = self._admission(entry, self._clock())
        admission.enter(pages)
        return admission

    def admit_named(
        self, name: str, scope: Scope, adapter: str | None = None, pages: int = 0, secret_id: str = ""
    ) -> Admission:
        """Admit a request whose caller is known otherwise, as by a client certificate, under the key of this name.

        Args:
            name: Of the key.
            scope, adapter, pages: As for `admit`.
            secret_id: Of the secret that the caller has shown before, which must still be good; empty for none.

        Raises:
            KeyRefused: There is no such key, or it or the secret is not valid any more.
            OcrsvcError: As of `admit`.
        """
        entry = self.check_named(name, scope, adapter)
        if secret_id:
            shown, kept = self._secrets.get(secret_id, (None, None))
            if shown is None or shown.name != name:
                raise _refused()
            _checked(shown, self._clock(), scope, adapter, kept)
        return self.enter(entry, pages)

    def resume(self, identity: str) -> Admission:
        """Work that a key's holder left here is done now: its pages count, but it is no request under way.

        Args:
            identity: Of the key; one that has its name only does not pay for it.

        Raises:
            KeyRefused: The key is revoked or expired.
            KeysUnavailable: The store does not answer.
        """
        self._check_ready()
        entry = self._entry_named(name_in(identity))
        if entry.identity != identity or not entry.is_valid(self._clock()):
            raise _refused()
        return self._admission(entry, self._clock())

    def usage(self) -> list[tuple[KeyEntry, Usage]]:
        """Every key, and what is used of it, by name; for operators. Raises KeysUnavailable."""
        period, known = period_of(self._clock()), self._store.keys()
        return [(key.entry, self._store.usage(key.entry.name, period)) for key in known]

    def refresh(self) -> None:
        """Tell the store what was counted, and read the keys again if one has changed. Raises KeysUnavailable.

        In the gate's own thread, or in tests.
        """
        accounts, now_s = self._accounts, self._monotonic()
        self._begun = self._begun or accounts.begin()
        if not self._begun:
            return
        accounts.settle()
        if now_s - self._alive_s >= _ALIVE_S:
            self._store.keep_alive(accounts.worker)
            accounts.settle_abandoned()
            self._alive_s = now_s
        # First the number: a change between the two is read again a moment later.
        version = self._store.version()
        if version != self._version:
            self._take(self._store.keys())
            self._version = version
        self._refreshed_s = now_s

    def refresh_or_log(self) -> None:
        """The same, and what fails is logged: without its thread the gate would never admit anybody again."""
        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001  any is logged, and the thread goes on
            self._outages.failed(error, is_ready=self.is_ready)
        else:
            self._outages.answered()

    def _take(self, keys: list[StoredKey]) -> None:
        self._entries = {key.entry.name: key.entry for key in keys}
        self._secrets = {secret.id: (key.entry, secret) for key in keys for secret in key.secrets}

    def _keep_refreshing(self) -> None:
        while True:
            self.refresh_or_log()
            if self._done.wait(REFRESH_S):
                return

    def _check_ready(self) -> None:
        if not self.is_ready:
            raise KeysUnavailable

    def _entry_named(self, name: str) -> KeyEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise _refused()
        return entry

    def _admission(self, entry: KeyEntry, now_s: float) -> Admission:
        return Admission(self._store, self._accounts, self._headers, entry, now_s)


_HOW_TO_SEND: Final = "Send it as Authorization: Bearer KEY, or as X-API-Key: KEY."


def _refused() -> KeyRefused:
    """One sentence for all cases: who tries keys learns nothing."""
    return KeyRefused("The API key is not valid.", "Ask the operator of this service for a key.")


def _checked(
    entry: KeyEntry, now_s: float, scope: Scope | None, adapter: str | None, shown: KeySecret | None = None
) -> KeyEntry:
    """The key itself, by the secret that was shown, if there is one. Raises KeyRefused, ScopeMissing."""
    if not entry.is_valid(now_s) or (shown is not None and not shown.is_valid(now_s)):
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
