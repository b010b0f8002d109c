"""Opens the store that a destination names."""

from __future__ import annotations

from pathlib import Path

from ocrsvc.batch.objects.url import is_url
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.store.local_store import LocalStore


def open_store(destination: str) -> Store:
    """The store at a folder's path or at a URL. Raises BadOption."""
    if destination.startswith("file://"):
        return LocalStore(Path(destination.removeprefix("file://")))
    if is_url(destination):
        from ocrsvc.batch.store.object_store import open_object_store

        return open_object_store(destination)
    return LocalStore(Path(destination))
