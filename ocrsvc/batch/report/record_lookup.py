"""The records of single pages: from the results logs, and from the output where those are not kept any more."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from gzip import BadGzipFile, GzipFile
from typing import Any, Final

import orjson

from ocrsvc.batch.ledger.ledger import read_result
from ocrsvc.batch.page_record import record_head
from ocrsvc.batch.report.page_table import PageTable
from ocrsvc.batch.store.contract import Store
from ocrsvc.errors import DamagedLedger

_MOST_FILE_BYTES: Final = 64_000_000
"""Of a file of the output; a larger one is not looked at."""
_MOST_LINE_BYTES: Final = 16_000_000


class RecordLookup:
    """Finds records; holds those of one part that are asked for."""

    def __init__(self, store: Store, table: PageTable) -> None:
        self._store, self._table = store, table

    def find(self, page: int, part: int, name: str, number: int) -> dict[str, Any]:
        """The record of a page that was read or has failed; empty where it is not to be had. Raises OSError.

        Args:
            page, part: Numbers in the plan.
            name, number: Of the file, and of the page in it.
        """
        record = self._from_results(page)
        if record is None:
            record = self._from_output(self._table.finished.get(part, ""), name, number)
        found: dict[str, Any] = orjson.loads(record) if record else {}
        return found

    def _from_results(self, page: int) -> bytes | None:
        row = self._table.rows[page]
        if not row["log"]:
            return None
        with suppress(DamagedLedger):
            return read_result(self._store, self._table.logs[row["log"]], int(row["offset"]), int(row["size"]))
        return None

    def _from_output(self, file: str, name: str, number: int) -> bytes | None:
        """A line of JSON Lines; its file may be another's by now, so that nothing is taken for granted."""
        if not file:
            return None
        head = record_head(name, number)
        try:
            # Looked for by its first bytes: what is not wanted is not parsed.
            return next((line for line in self._lines(file) if line.startswith(head)), None)
        except (FileNotFoundError, BadGzipFile, EOFError, zlib.error):
            return None

    def _lines(self, file: str) -> Iterator[bytes]:
        data = io.BytesIO(self._store.read(file, 0, _MOST_FILE_BYTES))
        with GzipFile(fileobj=data) if file.endswith(".gz") else data as lines:
            while line := lines.readline(_MOST_LINE_BYTES):
                yield line
