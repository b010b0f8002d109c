"""Output in files of their own for each source: a tree like that of the sources, and a list of what became of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from ocrsvc.batch.outputs.contract import FileResults, WrittenFile
from ocrsvc.batch.outputs.hashed_writing import HashedFile, hashed_writing
from ocrsvc.batch.outputs.source_listing import listing_name, row_of, row_of_failure
from ocrsvc.batch.outputs.source_paths import source_path
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.visible_text import visible
from ocrsvc.errors import CallerError, SourceGone

LOGGER: Final = logging.getLogger("ocrsvc.batch")

WriteFile = Callable[[FileResults, HashedFile], object]
"""Writes the file of one source. Raises CallerError or SourceGone if there cannot be one, and OSError."""


class SourceFiles:
    """One file for each source any of whose pages is known, and a list for each part.

    The list, which the ledger names, holds a line of JSON for each of these sources: `source`, and `file`, `bytes` and
    `sha256`; or `error`, where it has no file.

    Args:
        name: Of the format.
        folder: Before the names: "", or one that ends in a slash.
        ending: Of the files' names, one of `source_paths.ENDINGS`.
        write_file: Writes each of them.
    """

    def __init__(self, name: str, folder: str, ending: str, write_file: WriteFile) -> None:
        self._name, self._folder, self._ending, self._write_file = name, folder, ending, write_file

    def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[WrittenFile]:
        """As OutputWriter.write."""
        with hashed_writing(store, listing_name(self._folder, self._name, part)) as listing:
            for results in files:
                if results.pages:
                    listing.write(self._write_source(store, results))
        return [listing.written()]

    def _write_source(self, store: Store, results: FileResults) -> bytes:
        """Write a source's file; gives its line in the list."""
        source = results.file.name
        try:
            with hashed_writing(store, self._folder + source_path(source, self._ending)) as output:
                self._write_file(results, output)
        except (CallerError, SourceGone) as error:
            LOGGER.warning("%s has no file in the format %s: %s", visible(source), self._name, visible(str(error)))
            return row_of_failure(source, error)
        return row_of(source, output.written())
