"""Opening the key store of OCRSVC_KEYS; adding, changing, revoking and rotating keys.

A running service applies changes within half a second. Each change raises OperatorError if the key does not exist or
another command has changed it, and KeysUnavailable if the store does not respond; then nothing was changed.
"""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from ocrsvc.access.api_keys import KeyEntry, StoredKey, make_secret
from ocrsvc.access.key_store import KeyStore
from ocrsvc.access.page_counts import PageCounts
from ocrsvc.access.redis_store import RedisStore
from ocrsvc.access.sqlite_store import SqliteStore, open_file, reason_of
from ocrsvc.errors import OperatorError, SettingsError

_SQLITE: Final = "sqlite:"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def open_store(address: str) -> KeyStore:
    """The store at an address; it connects at its first call, so it may be made before a fork. Raises SettingsError."""
    path = path_of(address)
    return RedisStore(address) if path is None else SqliteStore(path)


def check_store(address: str) -> None:
    """For the arbiter at the start: test the key file, and create it if missing. Raises SettingsError.

    Redis is not contacted: workers are not ready until they reach it.
    """
    path = path_of(address)
    if path is None:
        open_store(address).close()
        return
    try:
        open_file(path).close()
    except (sqlite3.Error, OSError) as error:
        raise SettingsError(
            f"OCRSVC_KEYS names the file {path}, which cannot be used: {reason_of(error)}.",
            "Use a file on a local disk, in a folder that the service's user may write to, and run ocrsvc keys as this "
            "user.",
        ) from error


def settle_rest(address: str, counts: PageCounts) -> None:
    """For the arbiter at the end: send the page counts of killed workers to the store. Raises KeysUnavailable."""
    if counts.unsettled_slots():
        with closing(open_store(address)) as store:
            counts.settle_abandoned(store)


def path_of(address: str) -> Path | None:
    """The file of a SQLite store; None for other stores."""
    return Path(address.removeprefix(_SQLITE)) if address.startswith(_SQLITE) else None


def add_key(store: KeyStore, entry: KeyEntry) -> str:
    """Add a key; returns its secret, which is stored nowhere.

    The name of a revoked or expired key may be reused; pages read with the old key count for the new key's limits.
    """
    if not _NAME.fullmatch(entry.name):
        raise OperatorError(
            f"{entry.name[:80]!r} is not a valid key name.",
            "Use up to 64 letters, digits, dots, hyphens, underscores and @, beginning with a letter or digit.",
        )
    known = _find(store, entry.name)
    if known is not None and known.entry.is_valid(entry.created_at):
        raise OperatorError(
            f"A key named {entry.name} exists.", "Use another name, or replace its secret: ocrsvc keys rotate."
        )
    text, secret = make_secret()
    _put(store, StoredKey(entry, (secret,), known.document if known is not None else None))
    return text


def change_key(store: KeyStore, key: StoredKey, entry: KeyEntry) -> None:
    """Replace the entry of a key from `key_named`, and keep its secrets."""
    _put(store, replace(key, entry=entry))


def revoke_key(store: KeyStore, name: str, now_s: float) -> None:
    """Revoke a key permanently."""
    key = key_named(store, name)
    _put(store, replace(key, entry=replace(key.entry, revoked_at=now_s), secrets=()))


def rotate_key(store: KeyStore, name: str, grace_s: float, now_s: float) -> str:
    """Give a key a new secret, and return it; its older secrets are accepted for another `grace_s`."""
    key = key_named(store, name)
    if not key.entry.is_valid(now_s):
        raise OperatorError(f"The key {name} has expired.", "Add it again.")
    text, secret = make_secret()
    end_s = now_s + grace_s
    before = [replace(old, expires_at=min(old.expires_at or end_s, end_s)) for old in key.secrets]
    _put(store, replace(key, secrets=(secret, *(old for old in before if old.is_valid(now_s)))))
    return text


def key_named(store: KeyStore, name: str) -> StoredKey:
    """The key with this name. Raises OperatorError if there is none, or it is revoked."""
    key = _find(store, name)
    if key is None:
        raise OperatorError(f"There is no key named {name[:80]!r}.", "List all keys: ocrsvc keys list.")
    if key.entry.revoked_at is not None:
        raise OperatorError(f"The key {name} is revoked.", "Add it again, with a new secret: ocrsvc keys add.")
    return key


def _put(store: KeyStore, key: StoredKey) -> None:
    if not store.put(key):
        raise OperatorError(
            f"The key {key.entry.name} was added or changed by another command meanwhile, "
            "or by a later version of this program. Nothing was changed.",
            "Look at it (ocrsvc keys list), and try again.",
        )


def _find(store: KeyStore, name: str) -> StoredKey | None:
    return next((key for key in store.keys() if key.entry.name == name), None)  # noqa: SIM118  a store is no dict
