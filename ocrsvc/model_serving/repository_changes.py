"""Sees that a repository has changed by looking at its folders and manifests, without reading any.

Looking every few seconds works on every file system, a network's too, where the kernel reports no change that another
machine makes (inotify). It costs a listing of each folder of a model, and one look at each manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ocrsvc.model_repository.manifest import FILE as MANIFEST
from ocrsvc.model_repository.version import NAME
from ocrsvc.model_serving.policy import FILE, TENSORFLOW_FILE

Mark = tuple[str, int, int, int]
"""Of a file: its path, when it was changed (ns), its inode and its size."""


def look_at_repository(folder: Path) -> frozenset[Mark]:
    """What changes when a version comes, goes or is replaced, or the policies change. Empty where nothing is there."""
    return frozenset(_marks(folder))


def look_at_policies(folder: Path) -> frozenset[Mark]:
    """What changes when the file with the policies does."""
    return frozenset(mark for name in (FILE, TENSORFLOW_FILE) for mark in _mark(str(folder / name)))


def _marks(folder: Path) -> Iterator[Mark]:
    for model in _folders(str(folder)):
        if NAME.fullmatch(os.path.basename(model)):  # noqa: PTH119  pathlib takes five times as long
            for version in _folders(model):
                yield from _mark(f"{version}/{MANIFEST}")


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _mark(path: str) -> Iterator[Mark]:
    try:
        found = os.stat(path)  # noqa: PTH116  as above
    except OSError:
        return
    yield path, found.st_mtime_ns, found.st_ino, found.st_size
