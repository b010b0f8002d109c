"""Writes JSON piece by piece, so that memory holds one page of a document at a time."""

import shutil
from collections.abc import Iterable
from tempfile import SpooledTemporaryFile
from typing import IO, Final, Self

import orjson

from ocrsvc.formats.document import Output

# Shorter lists stay in memory; longer ones go to a temporary file.
_IN_MEMORY_BYTES: Final = 1 << 18
_COPIED_BYTES: Final = 1 << 18


def write_list(values: Iterable[object], output: Output) -> None:
    """Write a JSON list whose values come one at a time. Raises OSError."""
    between = b"["
    for value in values:
        output.write(between + orjson.dumps(value))
        between = b","
    output.write(b"[]" if between == b"[" else b"]")


class JsonText:
    """An Output that writes UTF-8 text as one JSON string; every piece must end with a complete character."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def __enter__(self) -> Self:
        self._output.write(b'"')
        return self

    def __exit__(self, *_: object) -> None:
        self._output.write(b'"')

    def write(self, data: bytes | memoryview, /) -> object:
        """Append UTF-8 text, escaped, to the JSON string. Raises OSError."""
        return self._output.write(orjson.dumps(str(data, "utf-8"))[1:-1])


class JsonList:
    """A JSON list that is collected in memory while it is short, then in an unnamed temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115  `close` closes it
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def append(self, value: object) -> None:
        """Append a value to the list. Raises OSError."""
        if self._count:
            self._file.write(b",")
        self._file.write(orjson.dumps(value))
        self._count += 1

    def copy_to(self, output: Output) -> None:
        """Write all appended values to `output` as one JSON list. Raises OSError."""
        self._file.seek(0)
        output.write(b"[")
        shutil.copyfileobj(self._file, output, _COPIED_BYTES)
        output.write(b"]")
