"""Finds the files of a source that is a file or a folder, and loads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import SourceGone
from ocrsvc.imaging.decode import PixelLimits
from ocrsvc.imaging.document import may_have_pages, open_document

_HEAD_BYTES: Final = 64


def find_files(source: str) -> Iterator[SourceFile]:
    """The files of a source, those of a folder in the order of their names, without hidden ones. Raises SourceGone."""
    path = Path(source)
    if path.is_dir():
        for root, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith("."):
                    yield _file_of(Path(root, name))
    else:
        yield _file_of(path)


def load_file(file: SourceFile) -> bytes:
    """The bytes of a file. Raises SourceGone where there are none, or others than were planned."""
    path = Path(file.locator)
    try:
        version = _version_of(path.stat())
        data = path.read_bytes()
    except OSError as error:
        raise SourceGone(f"{file.name} cannot be read: {error.strerror}.") from error
    if version != file.version:
        raise SourceGone(f"{file.name} has changed since the run was planned.", "Take another destination for it.")
    return data


def _file_of(path: Path) -> SourceFile:
    try:
        stat = path.stat()
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            total = _count_pages(head + file.read()) if may_have_pages(head) else 1
    except OSError as error:
        raise SourceGone(f"{path} cannot be read: {error.strerror}.", "Check its name and permissions.") from error
    return SourceFile(str(path), str(path), _version_of(stat), stat.st_size, total, range(1, total + 1))


def _version_of(stat: os.stat_result) -> str:
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def _count_pages(data: bytes) -> int:
    """The pages of a document; 1 of one that cannot be opened, which reading it will say."""
    from ocrsvc.errors import OcrsvcError

    try:
        document = open_document(data, PixelLimits(1 << 40, {}), 100, lambda: None, lambda _bytes: None)
    except OcrsvcError:
        return 1
    try:
        return document.count
    finally:
        document.close()
