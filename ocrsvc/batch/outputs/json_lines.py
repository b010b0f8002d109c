"""Output as JSON Lines: one file for each part, one line for each page, in the order of the sources."""

from __future__ import annotations

from collections.abc import Iterator

from ocrsvc.batch.outputs.contract import FileResults
from ocrsvc.batch.store.contract import Store


class JsonLines:
    """Files named pages-00000.jsonl and so on; a line holds source, page, text, lines and error."""

    def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[str]:
        """As OutputWriter.write."""
        name = f"pages-{part:05d}.jsonl"
        with store.writing(name) as output:
            for results in files:
                for page in results.pages:
                    output.write(results.record(page) + b"\n")
        return [name]
