"""A key as the stores keep it, one JSON document; and as operators see it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final, Literal

import orjson

from ocrsvc.access.records import KeyEntry, KeyLimits, KeySecret, StoredKey, Usage

LOGGER: Final = logging.getLogger("ocrsvc.access")


def write_key(key: StoredKey) -> str:
    """The document of a key."""
    return orjson.dumps(
        {"entry": entry_to_dict(key.entry), "secrets": list(map(_secret_to_dict, key.secrets))}
    ).decode()


def read_keys(documents: Iterable[str | bytes]) -> list[StoredKey]:
    """The keys of documents; one that cannot be read, as one of a later version, admits nobody and is logged."""
    found = []
    for document in documents:
        try:
            value = orjson.loads(document)
            text = document.decode() if isinstance(document, bytes) else document
            found.append(StoredKey(_entry_from(value["entry"]), tuple(map(_secret_from, value["secrets"])), text))
        except (KeyError, TypeError, ValueError) as error:
            LOGGER.error("A key is left out, for it cannot be read: %s: %s", type(error).__name__, error)
    return found


def entry_to_dict(entry: KeyEntry) -> dict[str, Any]:
    """The members of an entry, ready to become JSON."""
    adapters = None if entry.adapters is None else sorted(entry.adapters)
    return asdict(entry) | {"scopes": sorted(entry.scopes), "adapters": adapters}


def usage_to_dict(entry: KeyEntry, usage: Usage, now_s: float) -> dict[str, Any]:
    """A key, its state, and what is used of it, for operators."""
    return {
        **entry_to_dict(entry),
        "state": state_of(entry, now_s),
        "usage": {
            "pages_today": usage.today,
            "pages_this_month": usage.this_month,
            "pages_reserved": usage.reserved,
            "requests_under_way": usage.requests,
        },
    }


def state_of(entry: KeyEntry, now_s: float) -> Literal["valid", "expired", "revoked"]:
    """Whether a key is accepted now, and why not."""
    if entry.revoked_at is not None:
        return "revoked"
    return "valid" if entry.is_valid(now_s) else "expired"


def _entry_from(members: dict[str, Any]) -> KeyEntry:
    adapters = members["adapters"]
    sets = {"scopes": frozenset(members["scopes"]), "adapters": None if adapters is None else frozenset(adapters)}
    return KeyEntry(**members | sets | {"limits": KeyLimits(**members["limits"])})


def _secret_to_dict(secret: KeySecret) -> dict[str, Any]:
    return {"id": secret.id, "sha256": secret.digest.hex(), "expires_at": secret.expires_at}


def _secret_from(members: dict[str, Any]) -> KeySecret:
    return KeySecret(members["id"], bytes.fromhex(members["sha256"]), members["expires_at"])
