"""Lists of the files that belong to one source each: what became of every source of a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from ocrsvc.batch.outputs.contract import WrittenFile
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.store.file_digest import check_file
from ocrsvc.errors import OcrsvcError

# Behind the folder of the format; what reads folders of data passes over names that begin so.
_FOLDER: Final = "_files/"


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
        if "file" in row and (problem := check_file(store, row["file"], row["bytes"], row["sha256"])):
            yield problem
