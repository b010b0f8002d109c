"""Tables of images: the rows of a Parquet or an Arrow file, each an image, a document, or a path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ocrsvc.batch.sources.archive import Member, too_large
from ocrsvc.batch.sources.image_column import ImageColumn, find_image_column
from ocrsvc.batch.sources.page_count import HEAD_BYTES
from ocrsvc.batch.sources.row_cursors import Batches, RowCursors
from ocrsvc.errors import BrokenArchive, SourceGone
from ocrsvc.imaging.document import may_have_pages


class TableFile(Protocol):
    """A file of a table that is open; `close` it. Raises what pyarrow raises."""

    @property
    def schema(self) -> Any:
        """Its columns, as pyarrow says them."""

    @property
    def rows(self) -> int | None:
        """How many it has; None where that is known at its end."""

    def mean_bytes(self, column: ImageColumn) -> int:
        """What a row of a column has in the mean; 0 where that is known at its end."""

    def start_of(self, row: int) -> int:
        """The row from which one must read to come to a row."""

    def read_from(self, row: int, column: ImageColumn) -> Batches:
        """The arrays of a column from such a row on, a few megabytes at a time."""

    def close(self) -> None:
        """Close the file."""


class TableArchive:
    """The images of a table, named by their row from 0.

    Args:
        file: The table; belongs to this from now on.
        column: Which holds the images; None finds it.
    """

    def __init__(self, file: TableFile, column: str | None) -> None:
        self._file, self._wanted = file, column
        self._cursors: dict[str, RowCursors] = {}

    def members(self) -> Iterator[Member]:
        """As Archive.members.

        The column is read where it has paths, where its first image is a document, whose pages are to be counted, and
        where only its end says how many rows there are.
        """
        with failures_of_table():
            column = find_image_column(self._file.schema, self._wanted)
            if column.has_paths:
                yield from self._paths(column)
            elif self._file.rows is None or may_have_pages(self._first_head(column)):
                yield from self._read_rows(column)
            else:
                size = self._file.mean_bytes(column)
                for row in range(self._file.rows):
                    yield Member(f"#{row}", f"{row} {column.to_text()}", size, is_image=True)

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        row, _, column = place.partition(" ")
        cursors = self._cursors_of(column)
        with failures_of_table():
            data = cursors.row(int(row))
        if data is None:
            raise BrokenArchive("The row has no image.", "Leave the row out.")
        if len(data) > most_bytes:
            raise too_large(len(data), most_bytes)
        return bytes(data)

    def close(self) -> None:
        """As Archive.close."""
        self._cursors.clear()
        self._file.close()

    def _cursors_of(self, column: str) -> RowCursors:
        image_column = ImageColumn.of(column)
        new = RowCursors(self._file.start_of, lambda start: self._file.read_from(start, image_column))
        # Two threads may come here at once: the first one's stay.
        return self._cursors.setdefault(column, new)

    def _paths(self, column: ImageColumn) -> Iterator[Member]:
        for row, value in self._values(column):
            path = value.as_py()
            if not path:
                yield Member(f"#{row}", "", 0, problem="The row has no path.", is_image=True)
            else:
                yield Member(f"#{row}", "", 0, path=path, is_image=True)

    def _read_rows(self, column: ImageColumn) -> Iterator[Member]:
        for row, value in self._values(column):
            buffer = value.as_buffer()
            size, head = (0, b"") if buffer is None else (buffer.size, buffer[:HEAD_BYTES].to_pybytes())
            yield Member(f"#{row}", f"{row} {column.to_text()}", size, head, is_image=True)

    def _first_head(self, column: ImageColumn) -> bytes:
        """The first bytes of the first image; none where there is none in the first batch."""
        for array in self._file.read_from(0, column):
            for value in array:
                if value.is_valid:
                    return bytes(value.as_buffer()[:HEAD_BYTES])
            break
        return b""

    def _values(self, column: ImageColumn) -> Iterator[tuple[int, Any]]:
        row = 0
        for array in self._file.read_from(0, column):
            for value in array:
                yield row, value
                row += 1


@contextmanager
def failures_of_table() -> Iterator[None]:
    """Failures of pyarrow are BrokenArchive."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, IndexError, UnicodeDecodeError) as error:
        raise _broken(error) from error
    except OSError as error:
        # pyarrow says so what is wrong with the content; a file that cannot be read has a number.
        if error.errno is not None:
            raise
        raise _broken(error) from error


def check_pyarrow() -> None:
    """Raises SourceGone where pyarrow is not installed."""
    try:
        import pyarrow as pa  # noqa: F401  whether it is there
    except ModuleNotFoundError as error:
        raise SourceGone("Parquet and Arrow files need pyarrow.", "Install the extra: ocrsvc[parquet].") from error


def _broken(error: Exception) -> BrokenArchive:
    return BrokenArchive(f"The table is cut off or damaged: {str(error)[:200]}.", "Make it again.")
