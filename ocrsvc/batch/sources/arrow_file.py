"""Arrow files and streams, such as those of Hugging Face's data sets: batch after batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np

from ocrsvc.batch.sources.address_access import open_file
from ocrsvc.batch.sources.image_column import ImageColumn
from ocrsvc.batch.sources.row_cursors import Batches
from ocrsvc.batch.sources.table import failures_of_table

_MAGIC: Final = b"ARROW1"


class ArrowTable:
    """As TableFile: an Arrow file, whose batches can be read in any order, or a stream of them.

    Memory holds the batch that is read, as large as its writer made it.

    Args:
        address: Of the file. Raises OSError and BrokenArchive.
    """

    def __init__(self, address: str) -> None:
        from pyarrow import ipc

        self._address, self._ipc = address, ipc
        self._opened = open_file(address)
        try:
            with failures_of_table():
                self._is_stream = self._opened.read(len(_MAGIC)) != _MAGIC
                self._schema = self._open(self._opened).schema
        except BaseException:
            self._opened.close()
            raise
        self._starts: Any = None

    @property
    def schema(self) -> Any:
        """As TableFile.schema."""
        return self._schema

    @property
    def rows(self) -> int | None:
        """As TableFile.rows."""
        return None

    def mean_bytes(self, column: ImageColumn) -> int:
        """As TableFile.mean_bytes."""
        del column
        return 0

    def start_of(self, row: int) -> int:
        """As TableFile.start_of: where the batch begins; a stream is read from its beginning."""
        if self._is_stream:
            return 0
        starts = self._batch_starts()
        return int(starts[int(np.searchsorted(starts, row, side="right")) - 1])

    def read_from(self, row: int, column: ImageColumn) -> Batches:
        """As TableFile.read_from."""
        return self._read(row, column)

    def close(self) -> None:
        """As TableFile.close."""
        self._opened.close()

    def _read(self, row: int, column: ImageColumn) -> Iterator[Any]:
        number = self._schema.get_field_index(column.name)
        if self._is_stream:
            # Each pass has a place in the file of its own.
            with open_file(self._address) as opened:
                for batch in self._open(opened, number):
                    yield _checked(batch.column(0), column)
            return
        file = self._open(self._opened, number)
        for at in range(int(np.searchsorted(self._batch_starts(), row)) if row else 0, file.num_record_batches):
            yield _checked(file.get_batch(at).column(0), column)

    def _batch_starts(self) -> Any:
        """The first row of each batch of a file, and behind them the count of all rows; read once."""
        if self._starts is None:
            file = self._open(self._opened)
            self._starts = np.cumsum([0, *(file.get_batch(at).num_rows for at in range(file.num_record_batches))])
        return self._starts

    def _open(self, opened: BinaryIO, column: int | None = None) -> Any:
        options = self._ipc.IpcReadOptions(use_threads=False, included_fields=None if column is None else [column])
        opened.seek(0)
        if self._is_stream:
            return self._ipc.open_stream(opened, options=options)
        return self._ipc.open_file(opened, options=options)


def _checked(values: Any, column: ImageColumn) -> Any:
    """The array of images, whose offsets are inside it: Arrow does not look, and would read any memory or crash."""
    values.validate(full=True)
    return column.values_of(values)
