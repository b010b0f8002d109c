"""Where the bytes of a planned file are, as text for any process: a whole file, or a place in an archive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote_from_bytes, unquote_to_bytes

# No path and no URL holds it.
_BETWEEN: Final = "\0"


@dataclass(frozen=True, slots=True)
class Locator:
    """A file, or a place in it.

    Attributes:
        address: Path or URL of the file.
        kind: Which of the archives' readers loads the place; "" is the whole file.
        place: What that reader needs to find it, without looking through the archive.
    """

    address: str
    kind: str = ""
    place: str = ""

    def to_text(self) -> str:
        """As a plan holds it: a whole file is its address; a path that is no valid text is quoted."""
        address = self.address
        if not address.isascii() and not _is_text(address):
            address = _BETWEEN + quote_from_bytes(os.fsencode(address))
        return f"{address}{_BETWEEN}{self.kind}{_BETWEEN}{self.place}" if self.kind else address

    @classmethod
    def of(cls, text: str) -> Self:
        """The locator that `to_text` wrote."""
        if text.startswith(_BETWEEN):
            quoted, *rest = text[1:].split(_BETWEEN, 2)
            return cls(os.fsdecode(unquote_to_bytes(quoted)), *rest)
        return cls(*text.split(_BETWEEN, 2))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
