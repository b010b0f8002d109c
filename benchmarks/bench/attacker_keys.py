"""The API keys of a service under attack: a right one for its innocent clients, and what its attackers show."""

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
"""No key, a wrong one, one that was revoked, and one for something else."""

_WRONG = "ocr_0123456789ab_" + "A" * 43


@dataclass(frozen=True, slots=True)
class AttackerKeys:
    """Lines of heads, without their ends; empty ones are left out.

    Attributes:
        env: What the service is started with.
        innocent: Of those who have done nothing wrong.
        hostile: Of the attackers.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    innocent: str = ""
    hostile: str = ""


@contextmanager
def attacker_keys(kind: str | None) -> Iterator[AttackerKeys]:
    """Keys for a run with attackers of this kind; None is a service that wants no keys."""
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
