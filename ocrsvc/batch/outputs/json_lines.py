"""Output as JSON Lines: one file for each part, one line for each page, in the order of the sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from gzip import GzipFile
from typing import Final

from ocrsvc.batch.outputs.contract import FileResults, WrittenFile
from ocrsvc.batch.outputs.hashed_writing import hashed_writing
from ocrsvc.batch.store.contract import Store

_PACKING: Final = 6


class JsonLines:
    """Files named pages-00000.jsonl and so on; a line holds source, page, text, lines and error.

    Args:
        folder: Before the names: "", or one that ends in a slash.
        is_packed: By gzip; the names end in .gz then.
    """

    def __init__(self, folder: str, *, is_packed: bool = False) -> None:
        self._folder, self._is_packed = folder, is_packed

    def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[WrittenFile]:
        """As OutputWriter.write."""
        name = f"{self._folder}pages-{part:05d}.jsonl{'.gz' if self._is_packed else ''}"
        with hashed_writing(store, name) as output, ExitStack() as packing:
            # Without a name and a time in it: the same pages give the same bytes.
            lines = packing.enter_context(GzipFile("", "wb", _PACKING, output, 0)) if self._is_packed else output
            for results in files:
                for page in results.pages:
                    lines.write(results.record(page) + b"\n")
        return [output.written()]
