"""The access gate: admits or refuses requests by their API keys, over HTTP and gRPC.

Each worker holds all keys in memory and polls for changes four times a second. Checking a key never waits, and a
revoked key ends within half a second. If the store has not responded for five seconds, all requests are refused.

A request reserves its pages in the store, so that concurrent requests cannot exceed a quota together. Each page is
*counted* before its response is sent, in memory that outlives the worker; within 0.25 s the store has its count.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ocrsvc.access.admission import Admission, WorkerReservations
from ocrsvc.access.api_keys import KeyEntry, KeySecret, Scope, id_of, is_same
from ocrsvc.access.key_store import KeyStore, Usage, day_of
from ocrsvc.access.page_counts import PageCounts
from ocrsvc.access.rate_limits import is_near_quota
from ocrsvc.errors import KeyMissing, KeyRefused, KeysUnavailable, ScopeMissing
from ocrsvc.telemetry import metrics
from ocrsvc.telemetry.metric import Metric

LOGGER: Final = logging.getLogger("ocrsvc.access")

KEY_COUNTS_S: Final = 60.0
"""Interval of the key metrics, which take one store call per key."""

_REFRESH_S: Final = 0.25
_STALE_S: Final = 5.0


class AccessGate:
    """Admits requests by their API keys. Each worker has one gate, with a `slot` in the page counts. Thread-safe."""

    def __init__(
        self,
        store: KeyStore,
        counts: PageCounts | None = None,
        slot: int = 0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._clock, self._monotonic = store, clock, monotonic
        self._reservations = WorkerReservations(store, counts or PageCounts(), slot, monotonic)
        self._secrets: Mapping[str, tuple[KeyEntry, KeySecret]] = {}
        self._entries: Mapping[str, KeyEntry] = {}
        self._version = -1
        self._refreshed_s = -_STALE_S
        self._logged = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_refreshing, name="access", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Whether the keys in memory are at most five seconds old."""
        return self._monotonic() - self._refreshed_s < _STALE_S

    def start(self) -> None:
        """Start refreshing the keys in a thread; call it after the fork."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, if it was started, and close the store."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reservations.end()
        self._store.close()

    def check(self, secret: str | None, scope: Scope | None = None, adapter: str | None = None) -> KeyEntry:
        """The key with this secret, if it may use `scope` and the wire format `adapter` (None: any). Never waits.

        Raises KeyMissing, KeyRefused for a wrong, revoked or expired secret, ScopeMissing, KeysUnavailable.
        """
        if not secret:
            raise KeyMissing(
                "This service needs an API key, and none was sent.",
                "Send it as Authorization: Bearer KEY, or as X-API-Key: KEY.",
            )
        entry, stored = self._secrets.get(id_of(secret), (None, None))
        return self._allowed(entry if is_same(secret, stored) else None, stored, scope, adapter)

    def check_named(
        self, name: str, scope: Scope | None = None, adapter: str | None = None, secret_id: str = ""
    ) -> KeyEntry:
        """As `check`, but for a key's name, from a certificate, or with the `secret_id` of a secret sent earlier."""
        entry, stored = self._entries.get(name), None
        if secret_id:
            entry, stored = self._secrets.get(secret_id, (None, None))
        return self._allowed(entry if entry is not None and entry.name == name else None, stored, scope, adapter)

    def enter(self, entry: KeyEntry, pages: int = 0) -> Admission:
        """Admit a request of a checked key, and reserve pages. Raises as `Admission.expect`."""
        admission = Admission(self._store, self._reservations, entry, self._clock())
        admission.enter(pages)
        return admission

    def resume(self, identity: str) -> Admission:
        """Admit work on a job submitted with a key. Its pages count, but not as one of the key's concurrent requests.

        Raises KeyRefused, also if the key's name now belongs to a newer key, and KeysUnavailable.
        """
        entry = self.check_named(identity.partition(" ")[0])
        if entry.identity != identity:
            raise _refused()
        return Admission(self._store, self._reservations, entry, self._clock())

    def usage(self) -> list[tuple[KeyEntry, Usage]]:
        """All keys with their usage, sorted by name. Raises KeysUnavailable."""
        day, keys = day_of(self._clock()), self._store.keys()
        return [(key.entry, self._store.usage(key.entry.name, day)) for key in keys]

    def refresh(self) -> None:
        """For the gate's thread: send page counts to the store, read keys after a change. Raises KeysUnavailable."""
        now_s = self._monotonic()
        if not self._reservations.refresh():
            return
        # Read the version before the keys, so that the next refresh finds a change made in between.
        version = self._store.version()
        if version != self._version:
            keys = self._store.keys()
            self._entries = {key.entry.name: key.entry for key in keys}
            self._secrets = {secret.id: (key.entry, secret) for key in keys for secret in key.secrets}
            self._version = version
        self._refreshed_s = now_s

    def refresh_or_log(self) -> None:
        """Refresh, and log any failure instead of ending the thread."""
        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001  any is logged, and the thread goes on
            self._log_failure(error)
        else:
            if self._logged:
                LOGGER.info("The API key store responds again.")
            self._logged = ""

    def _log_failure(self, error: Exception) -> None:
        """Log a failed refresh: the first time, and again once requests are refused because the keys are too old."""
        line = "Refusing all requests: %s"
        if self.is_ready:
            line = f"Cannot refresh the keys: %s Those in memory stay valid for {_STALE_S:g} s after the last refresh."
        if line != self._logged:
            known = isinstance(error, KeysUnavailable)
            why = error.reason if isinstance(error, KeysUnavailable) else f"An unexpected {type(error).__name__}."
            level = logging.WARNING if self.is_ready else logging.ERROR
            LOGGER.log(level, line, why, exc_info=None if known else error)
        self._logged = line

    def _keep_refreshing(self) -> None:
        while True:
            self.refresh_or_log()
            if self._done.wait(_REFRESH_S):
                return

    def _allowed(
        self, entry: KeyEntry | None, shown: KeySecret | None, scope: Scope | None, adapter: str | None
    ) -> KeyEntry:
        """The key, if valid and allowed the scope and wire format. Raises KeyRefused, ScopeMissing, KeysUnavailable."""
        if not self.is_ready:
            raise KeysUnavailable
        now_s = self._clock()
        if entry is None or not entry.is_valid(now_s) or (shown is not None and not shown.is_valid(now_s)):
            raise _refused()
        if scope is not None and scope not in entry.scopes:
            raise _missing("scope", ", ".join(sorted(entry.scopes)), f"needs {scope}")
        if adapter is not None and entry.adapters is not None and adapter not in entry.adapters:
            raise _missing("format", f"the formats {', '.join(sorted(entry.adapters))}", f"is {adapter}")
        return entry


def read_key_counts(gate: AccessGate) -> Iterator[tuple[Metric, float]]:
    """Number of valid keys, and number of keys with at most a tenth of a quota left. Raises KeysUnavailable."""
    now_s = time.time()
    valid = [(entry.limits, usage) for entry, usage in gate.usage() if entry.is_valid(now_s)]
    yield metrics.KEYS, len(valid)
    yield metrics.KEYS_NEAR_QUOTA, sum(is_near_quota(limits, usage, now_s) for limits, usage in valid)


def _missing(noun: str, allowed: str, wanted: str) -> ScopeMissing:
    remedy = f"Ask the operator of this service for a key with this {noun}."
    return ScopeMissing(f"This API key is for {allowed}, and this request {wanted}.", remedy)


def _refused() -> KeyRefused:
    """Make the same error for all cases, so that callers cannot find out which keys exist."""
    return KeyRefused("The API key is not valid.", "Ask the operator of this service for a key.")
