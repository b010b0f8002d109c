"""API keys for tests: a store in a file, a gate whose clocks stand still until told otherwise, and keys by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrsvc.access.admission import Admission
from ocrsvc.access.api_keys import KeyEntry, KeyLimits, Scope
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_store import KeyStore, Usage, period_of
from ocrsvc.access.manage_keys import add_key, revoke_key
from ocrsvc.access.open_store import check_store, open_store

# 2026-01-01 00:00:00 UTC, a Thursday.
NOW_S = 1_767_225_600.0
WRONG = "ocr_0123456789ab_" + "A" * 43


@dataclass(slots=True)
class Keys:
    """A store of keys and a gate over it.

    Attributes:
        address: As OCRSVC_KEYS names the store.
        secrets: Of the keys that were added, by name.
        now_s: What the gate's clock says.
    """

    address: str
    store: KeyStore
    now_s: float = NOW_S
    secrets: dict[str, str] = field(default_factory=dict)
    gate: AccessGate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = AccessGate(self.store, "test:0", clock=lambda: self.now_s, monotonic=lambda: 0.0)

    def add(self, name: str = "anna", *scopes: Scope, expires_at: float | None = None, **more: Any) -> str:
        """Add a key, by default for reading; its secret. Limits are given by their names."""
        names = KeyLimits.__dataclass_fields__
        limits = KeyLimits(**{key: value for key, value in more.items() if key in names})
        rest = {key: value for key, value in more.items() if key not in names}
        wanted = frozenset(scopes or ("read",))
        entry = KeyEntry(name, wanted, limits=limits, created_at=self.now_s, expires_at=expires_at, **rest)
        self.secrets[name] = add_key(self.store, entry)
        self.gate.refresh()
        return self.secrets[name]

    def revoke(self, name: str) -> None:
        """End a key."""
        revoke_key(self.store, name, self.now_s)
        self.gate.refresh()

    def usage(self, name: str = "anna") -> Usage:
        """What is used of a key."""
        return self.store.usage(name, period_of(self.now_s))


@contextmanager
def keys_in(folder: Path) -> Iterator[Keys]:
    """A store without a key, in a new file in this folder."""
    address = f"sqlite:{folder / 'keys.db'}"
    check_store(address)
    keys = Keys(address, open_store(address))
    keys.gate.refresh()
    try:
        yield keys
    finally:
        keys.store.close()


def admit(
    gate: AccessGate, secret: str | None, scope: Scope = "read", adapter: str | None = None, pages: int = 0
) -> Admission:
    """A request with this secret, admitted."""
    return gate.enter(gate.check(secret, scope, adapter), pages)


def answer(admission: Admission, pages: int = 1) -> None:
    """Make the answer of a request, with so many pages."""
    for _ in range(pages):
        admission.count()
    admission.settle()


def bearer(secret: str) -> Mapping[str, str]:
    """The header that most clients send."""
    return {"Authorization": f"Bearer {secret}"}
