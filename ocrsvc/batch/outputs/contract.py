"""The contract of an output format: it writes a part of the plan at once, whole, under names that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import SourceFile


@dataclass(frozen=True, slots=True)
class FileResults:
    """What is known of one file's pages.

    Attributes:
        file: The file.
        pages: The numbers of its pages that were read or have failed, in order.
        record: Gives the record of such a page, one line of JSON; read when it is asked for, so that memory holds one.
        load: Gives the bytes of the file itself; raises OcrsvcError.
    """

    file: SourceFile
    pages: Sequence[int]
    record: Callable[[int], bytes]
    load: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is in the store: its name there, its size in bytes, and the SHA-256 of its content in hexadecimal."""

    name: str
    size: int
    sha256: str


class OutputWriter(Protocol):
    """Writes one format. A part that is written again, with the same pages or more, replaces what was there."""

    def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[WrittenFile]:
        """Write a part, file by file in the order of the plan; gives the files that the ledger is to name.

        Raises OSError. The same results give the same bytes, in every process and on every machine.
        """
