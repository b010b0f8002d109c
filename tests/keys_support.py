"""API keys for tests: a key store in a file, a gate with settable clocks, and secrets by key name."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrsvc.access.admission import Admission
from ocrsvc.access.api_keys import KeyEntry, KeyLimits, Scope
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_store import KeyStore, Usage, day_of
from ocrsvc.access.manage_keys import add_key, revoke_key
from ocrsvc.access.sqlite_store import SqliteStore

# 2026-01-01 00:00:00 UTC, a Thursday.
NOW_S = 1_767_225_600.0
WRONG = "ocr_0123456789ab_" + "A" * 43


@dataclass(slots=True)
class Keys:
    """A key store and its address, secrets by key name, and a gate with the clocks `now_s` and `monotonic_s`."""

    address: str
    store: KeyStore
    now_s: float = NOW_S
    monotonic_s: float = 100.0
    secrets: dict[str, str] = field(default_factory=dict)
    gate: AccessGate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = AccessGate(self.store, clock=lambda: self.now_s, monotonic=lambda: self.monotonic_s)
        self.gate.refresh()

    def add(self, name: str = "anna", *scopes: Scope, **more: Any) -> str:
        """Add a key, by default with the scope `read`, and return its secret; `more` may name limits."""
        limits = {key: more.pop(key) for key in KeyLimits.__dataclass_fields__ if key in more}
        wanted = frozenset(scopes or ("read",))
        entry = KeyEntry(name, wanted, limits=KeyLimits(**limits), **{"created_at": self.now_s, **more})
        self.secrets[name] = add_key(self.store, entry)
        self.gate.refresh()
        return self.secrets[name]

    def enter(self, name: str = "anna", pages: int = 1) -> Admission:
        """Admit a request with this key."""
        return self.gate.enter(self.gate.check(self.secrets[name]), pages)

    def revoke(self, name: str = "anna") -> None:
        revoke_key(self.store, name, self.now_s)
        self.gate.refresh()

    def usage(self, name: str = "anna", now_s: float | None = None) -> Usage:
        """The key's usage on the day of `now_s`, by default today."""
        self.gate.refresh()
        return self.store.usage(name, day_of(now_s or self.now_s))


@contextmanager
def keys_in(folder: Path) -> Iterator[Keys]:
    """An empty key store in a new file in this folder."""
    with closing(SqliteStore(folder / "keys.db", lambda: 5.0)) as store:
        yield Keys(f"sqlite:{folder / 'keys.db'}", store)


def answer(admission: Admission, pages: int = 1) -> None:
    """Finish an admitted request that answered `pages` pages."""
    for _ in range(pages):
        admission.count()
    admission.settle()


def bearer(secret: str) -> Mapping[str, str]:
    """The Authorization header with this secret."""
    return {"Authorization": f"Bearer {secret}"}
