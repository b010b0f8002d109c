"""Output as Parquet: one file for each part, packed by Zstandard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow.parquet as pq

from ocrsvc.batch.outputs.contract import FileResults, WrittenFile
from ocrsvc.batch.outputs.hashed_writing import hashed_writing
from ocrsvc.batch.outputs.output_formats import Rows
from ocrsvc.batch.outputs.parquet_rows import rows_of
from ocrsvc.batch.outputs.parquet_schema import columns_of
from ocrsvc.batch.store.contract import Store

_GROUP_PAGES: Final = 1000
_GROUP_BYTES: Final = 16 << 20
"""Of records: with them and what Arrow makes of them, a row group takes about four times as much memory."""
_PACKING: Final = 3


class ParquetFiles:
    """Files named pages-00000.parquet, or lines- or words-, and so on.

    Args:
        folder: Before the names: "", or one that ends in a slash.
        rows: What a row is for.
        run_format: As of RunDescription.
    """

    def __init__(self, folder: str, rows: Rows, run_format: int) -> None:
        self._folder, self._rows, self._columns = folder, rows, columns_of(rows, run_format)

    def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[WrittenFile]:
        """As OutputWriter.write."""
        name = f"{self._folder}{self._rows}s-{part:05d}.parquet"
        with (
            hashed_writing(store, name) as output,
            pq.ParquetWriter(
                output, self._columns, compression="zstd", compression_level=_PACKING, write_statistics=True
            ) as writer,
        ):
            for group in _groups_of(files):
                writer.write_table(rows_of(group, self._rows, self._columns))
        return [output.written()]


def _groups_of(files: Iterator[FileResults]) -> Iterator[list[bytes]]:
    """The records of one row group after the other."""
    group: list[bytes] = []
    size = 0
    for results in files:
        for page in results.pages:
            group.append(results.record(page))
            size += len(group[-1])
            if len(group) == _GROUP_PAGES or size >= _GROUP_BYTES:
                yield group
                group, size = [], 0
    if group:
        yield group
