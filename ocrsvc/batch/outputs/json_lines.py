"""Output as JSON Lines: one file for each part, one line for each page, in the order of the sources."""

from __future__ import annotations

from collections.abc import Iterator

from ocrsvc.batch.outputs.contract import FileResults, WrittenFile
from ocrsvc.batch.outputs.hashed_writing import hashed_writing
from ocrsvc.batch.store.contract import Store


class JsonLines:
    """Files named pages-00000.jsonl and so on; a line holds source, page, text, lines and error.

    Args:
        folder: Before the names: "", or one that ends in a slash.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[WrittenFile]:
        """As OutputWriter.write."""
        with hashed_writing(store, f"{self._folder}pages-{part:05d}.jsonl") as output:
            for results in files:
                for page in results.pages:
                    output.write(results.record(page) + b"\n")
        return [output.written()]
