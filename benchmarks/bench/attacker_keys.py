"""API keys for a service under attack: a valid key for well-behaved clients, and one of four kinds for attackers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ocrsvc.access.api_keys import KeyEntry
from ocrsvc.access.manage_keys import add_key, check_store, open_store, revoke_key

KINDS = ("none", "wrong", "revoked", "scope")
"""What the attackers send: no key, an unknown key, a revoked key, or a key with the wrong scope."""

_WRONG = "ocr_0123456789ab_" + "A" * 43


@dataclass(frozen=True, slots=True)
class AttackerKeys:
    """Settings of the service, and the header line that each group of clients sends ("" for none).

    Attributes:
        env: Environment variables for the service.
        innocent: Header line of the well-behaved clients, without its line end.
        hostile: Header line of the attackers, without its line end.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    innocent: str = ""
    hostile: str = ""


@contextmanager
def attacker_keys(kind: str | None) -> Iterator[AttackerKeys]:
    """Create the keys for attackers of this kind; None runs the service without keys."""
    if kind is None:
        yield AttackerKeys()
        return
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:{Path(folder, 'keys.db')}"
        check_store(address)
        store = open_store(address)
        names = {name: add_key(store, KeyEntry(name)) for name in ("innocent", "revoked")}
        names["scope"] = add_key(store, KeyEntry("scope", frozenset({"operate"})))
        revoke_key(store, "revoked", time.time())
        shown = {"wrong": _WRONG, **names}.get(kind)
        hostile = f"Authorization: Bearer {shown}" if shown else ""
        yield AttackerKeys({"OCRSVC_KEYS": address}, f"X-API-Key: {names['innocent']}", hostile)
        store.close()
