"""Adds, changes, revokes and rotates keys. A running service follows within half a second."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from ocrsvc.access.records import KeyEntry, StoredKey
from ocrsvc.access.secrets import make_secret
from ocrsvc.access.store import KeyStore
from ocrsvc.errors import OperatorError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def add_key(store: KeyStore, entry: KeyEntry) -> str:
    """Add a key; its secret text, which is stored nowhere.

    A name whose key was revoked or has expired may be used again; what was used of it today still counts.

    Raises:
        OperatorError: The name is none, or a key of this name is valid.
        KeysUnavailable: The store does not answer.
    """
    if not _NAME.fullmatch(entry.name):
        raise OperatorError(
            f"{entry.name[:80]!r} cannot be the name of a key.",
            "Take up to 64 letters, digits, dots, hyphens, underscores and @, a letter or digit first.",
        )
    known = _find(store, entry.name)
    if known is not None and known.entry.is_valid(entry.created_at):
        raise OperatorError(
            f"There is a key named {entry.name}.", "Take another name, or replace its secret: ocrsvc keys rotate."
        )
    text, secret = make_secret()
    store.put(StoredKey(entry, (secret,)))
    return text


def change_key(store: KeyStore, entry: KeyEntry) -> None:
    """Replace the entry of a key, whose secrets stay. Raises as `key_named`."""
    store.put(replace(key_named(store, entry.name), entry=entry))


def revoke_key(store: KeyStore, name: str, now_s: float) -> None:
    """End a key for good. Raises OperatorError when there is none, or it is revoked already."""
    key = key_named(store, name)
    store.put(replace(key, entry=replace(key.entry, revoked_at=now_s), secrets=()))


def rotate_key(store: KeyStore, name: str, grace_s: float, now_s: float) -> str:
    """Give a key a new secret text; those before it are accepted for `grace_s` more.

    Raises:
        OperatorError: There is no such key, or it is not valid any more.
        KeysUnavailable: The store does not answer.
    """
    key = key_named(store, name)
    if not key.entry.is_valid(now_s):
        raise OperatorError(f"The key {name} has expired.", "Add it again.")
    text, secret = make_secret()
    end_s = now_s + grace_s
    before = [replace(old, expires_at=min(old.expires_at or end_s, end_s)) for old in key.secrets]
    valid = [old for old in before if old.expires_at is not None and old.expires_at > now_s]
    store.put(replace(key, secrets=(secret, *valid)))
    return text


def key_named(store: KeyStore, name: str) -> StoredKey:
    """The key of this name. Raises OperatorError when there is none, or it is revoked."""
    key = _find(store, name)
    if key is None:
        raise OperatorError(f"There is no key named {name[:80]!r}.", "See those that are: ocrsvc keys list.")
    if key.entry.revoked_at is not None:
        raise OperatorError(f"The key {name} is revoked.", "Add it again, with a new secret: ocrsvc keys add.")
    return key


def _find(store: KeyStore, name: str) -> StoredKey | None:
    keys = store.keys()
    return next((key for key in keys if key.entry.name == name), None)
