"""Which access the files of an address have: those of this machine, or another's.

Everything of `batch.sources` opens files through `open_file`, so that archives are read wherever they are.
"""

from __future__ import annotations

from typing import BinaryIO, Final

from ocrsvc.batch.sources.file_access import FileAccess
from ocrsvc.batch.sources.local_access import LocalAccess

_LOCAL: Final = LocalAccess()


def access_of(_address: str) -> FileAccess:
    """What finds and opens the files of a source or an address. Raises BadOption for one of a kind that is not read."""
    return _LOCAL


def open_file(address: str) -> BinaryIO:
    """A file for reading at any place, unbuffered; to be closed. Raises OSError."""
    return access_of(address).open(address)
