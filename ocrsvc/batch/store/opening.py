"""Opens the store that a destination names."""

from __future__ import annotations

from pathlib import Path

from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.store.local_store import LocalStore


def open_store(destination: str) -> Store:
    """The store at a folder's path."""
    return LocalStore(Path(destination))
