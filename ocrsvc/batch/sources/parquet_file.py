"""Parquet files: a column read a few megabytes at a time, from any row group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ocrsvc.batch.sources.address_access import open_file
from ocrsvc.batch.sources.image_column import ImageColumn
from ocrsvc.batch.sources.row_cursors import Batches
from ocrsvc.batch.sources.table import failures_of_table
from ocrsvc.errors import BrokenArchive

_BATCH_BYTES: Final = 4 * 1024 * 1024
_MOST_BATCH_ROWS: Final = 4096
_BUFFER_BYTES: Final = 1024 * 1024
# So many rows may be empty, or the same.
_FREE_ROWS: Final = 1_000_000


class ParquetTable:
    """As TableFile.

    Args:
        address: Of the file. Raises OSError and BrokenArchive.
    """

    def __init__(self, address: str) -> None:
        from pyarrow import parquet

        self._opened = open_file(address)
        try:
            with failures_of_table():
                # A column's pages one after another, and not whole chunks, which may have gigabytes.
                self._file = parquet.ParquetFile(self._opened, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            _check_rows(int(self._file.metadata.num_rows), self._opened.seek(0, os.SEEK_END))
        except BaseException:
            self._opened.close()
            raise
        self._metadata = self._file.metadata
        groups = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        self._starts = np.cumsum([0, *groups])

    @property
    def schema(self) -> Any:
        """As TableFile.schema."""
        return self._file.schema_arrow

    @property
    def rows(self) -> int:
        """As TableFile.rows."""
        return int(self._starts[-1])

    def mean_bytes(self, column: ImageColumn) -> int:
        """As TableFile.mean_bytes."""
        total = sum(self._column_bytes(group, column) for group in range(self._metadata.num_row_groups))
        return total // max(1, self.rows)

    def start_of(self, row: int) -> int:
        """As TableFile.start_of: where the row group begins."""
        return int(self._starts[self._group_of(row)])

    def read_from(self, row: int, column: ImageColumn) -> Batches:
        """As TableFile.read_from."""
        return self._read(self._group_of(row), column)

    def close(self) -> None:
        """As TableFile.close."""
        self._file.close(force=True)
        self._opened.close()

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _read(self, first: int, column: ImageColumn) -> Iterator[Any]:
        for group in range(first, self._metadata.num_row_groups):
            batches = self._file.iter_batches(
                self._batch_rows(group, column), row_groups=[group], columns=[column.path], use_threads=False
            )
            for batch in batches:
                yield column.values_of(batch.column(0))

    def _batch_rows(self, group: int, column: ImageColumn) -> int:
        """Rows that have about `_BATCH_BYTES` of the column, if they are all alike."""
        row_bytes = self._column_bytes(group, column) // max(1, int(self._metadata.row_group(group).num_rows))
        return max(1, min(_MOST_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))

    def _column_bytes(self, group: int, column: ImageColumn) -> int:
        described = self._metadata.row_group(group)
        chunks = (described.column(number) for number in range(described.num_columns))
        return sum(int(chunk.total_uncompressed_size) for chunk in chunks if chunk.path_in_schema == column.path)


def _check_rows(rows: int, size_bytes: int) -> None:
    """Raises BrokenArchive for more rows than bytes: 40 kB may hold 20 million rows without anything in them."""
    if rows < 0 or rows > max(_FREE_ROWS, size_bytes):
        raise BrokenArchive(f"It says that it has {rows} rows in {size_bytes} bytes.", "Leave empty rows out.")
