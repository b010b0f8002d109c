"""Lists of the files that belong to one source each: what became of every source of a part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from ocrsvc.batch.outputs.contract import WrittenFile
from ocrsvc.batch.store.contract import Store
from ocrsvc.errors import OcrsvcError

# Behind the folder of the format; what reads folders of data passes over names that begin so.
_FOLDER: Final = "_files/"
_CHUNK_BYTES: Final = 4 * 1024 * 1024


def listing_name(folder: str, name: str, part: int) -> str:
    """The name of a part's list.

    Args:
        folder: Of the format: "", or one that ends in a slash.
        name: Of the format.
        part: Its number.
    """
    return f"{folder}{_FOLDER}{name}-{part:05d}.jsonl"


def is_listing(name: str) -> bool:
    """Whether a file of the output is such a list."""
    return f"/{_FOLDER}" in f"/{name}"


def row_of(source: str, written: WrittenFile) -> bytes:
    """The line of a source that has its file."""
    row = {"source": source, "file": written.name, "bytes": written.size, "sha256": written.sha256}
    return orjson.dumps(row) + b"\n"


def row_of_failure(source: str, error: OcrsvcError) -> bytes:
    """The line of a source that cannot have one."""
    what = {"code": error.code, "detail": error.detail, "remedy": error.remedy}
    return orjson.dumps({"source": source, "error": what}) + b"\n"


def check_listed(store: Store, name: str) -> Iterator[str]:
    """Sentences about the files of a list that are not what was written. Raises OSError."""
    for line in store.read(name).splitlines():
        row = orjson.loads(line)
        if "file" in row:
            yield from _check_file(store, row)


def _check_file(store: Store, row: Mapping[str, Any]) -> Iterator[str]:
    size, digest = 0, hashlib.sha256()
    try:
        while chunk := store.read(row["file"], size, _CHUNK_BYTES):
            size += len(chunk)
            digest.update(chunk)
    except FileNotFoundError:
        yield f"{row['file']} is not there."
        return
    if (size, digest.hexdigest()) != (row["bytes"], row["sha256"]):
        yield f"{row['file']} is not what was written: it has {size} bytes, and {row['bytes']} were written."
