"""Planned files as bytes, for temporary files: in the order of the bytes they are in the order of the names."""

from __future__ import annotations

from typing import Final

import orjson

from ocrsvc.batch.tasks import SourceFile

# In no JSON that orjson writes.
_BETWEEN: Final = b"\0"


def to_record(file: SourceFile) -> bytes:
    """A file as bytes that begin with its name."""
    pages = [file.pages.start, file.pages.stop] if isinstance(file.pages, range) else None
    numbers = None if pages else list(file.pages)
    values = [file.name, file.locator, file.version, file.size, file.total, pages, numbers]
    return file.name.encode() + _BETWEEN + orjson.dumps(values)


def from_record(record: bytes) -> SourceFile:
    """The file that `to_record` wrote."""
    name, locator, version, size, total, pages, numbers = orjson.loads(record.rpartition(_BETWEEN)[2])
    return SourceFile(name, locator, version, size, total, tuple(numbers) if pages is None else range(*pages))
