"""Opens the store of API keys that OCRSVC_KEYS names."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from ocrsvc.access.key_store import KeyStore
from ocrsvc.access.page_counts import PageCounts
from ocrsvc.access.redis_store import RedisStore, check_url
from ocrsvc.access.reservations import settle_abandoned
from ocrsvc.access.sqlite_store import SqliteStore, open_file, reason_of
from ocrsvc.errors import SettingsError

SQLITE: Final = "sqlite:"


def open_store(address: str) -> KeyStore:
    """The store at an address that the settings accept. It connects at its first call: make it before a fork.

    Raises:
        SettingsError: A Redis is named, and the package redis is not installed.
    """
    path = path_of(address)
    return RedisStore(address) if path is None else SqliteStore(path)


def check_store(address: str) -> None:
    """In gunicorn's arbiter, at the start: make a missing file of keys. Raises SettingsError.

    A Redis is not asked: workers that cannot reach it are not ready until they can.
    """
    path = path_of(address)
    if path is None:
        check_url(address)
        return
    try:
        open_file(path).close()
    except (sqlite3.Error, OSError) as error:
        raise SettingsError(
            f"OCRSVC_KEYS names the file {path}, which cannot be used: {reason_of(error)}.",
            "Name a file on a disk of this machine, in a folder that the service's user may write to, "
            "and run ocrsvc keys as this user.",
        ) from error


def settle_rest(address: str, counts: PageCounts) -> None:
    """gunicorn's arbiter, last: count what killed workers have left. Raises KeysUnavailable."""
    if counts.unsettled_slots():
        with closing(open_store(address)) as store:
            settle_abandoned(store, counts)


def path_of(address: str) -> Path | None:
    """The file of a store of SQLite; None for another store."""
    return Path(address.removeprefix(SQLITE)) if address.startswith(SQLITE) else None
