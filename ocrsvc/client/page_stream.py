"""Pages as a service sends them, one by one: the parts of an answer in NDJSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ocrsvc.client.response import Data, Page, error_of, page_of, parsed
from ocrsvc.errors import OcrsvcError, ServerError, Unreachable

FORMAT: Final = "ndjson"

_MOST_PART_BYTES: Final = 1 << 28
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class StreamedPage:
    """One page, as soon as it is read.

    Attributes:
        number: In the file, from 1.
        total: Pages of the file.
        wanted: How many of them are read.
        outcome: What is on it, or why it could not be read.
    """

    number: int
    total: int
    wanted: int
    outcome: Page | OcrsvcError


def pages_of(pieces: Iterable[bytes]) -> Iterator[StreamedPage]:
    """The pages of an answer that comes in any pieces.

    Raises:
        OcrsvcError: What ended it before its last page, in the class of its code.
        Unreachable: It is cut off.
        ServerError: It is not the service's.
    """
    for part in _lines_of(pieces):
        data = parsed(_OK, None, part)
        try:
            if "end" in data:
                return
            if "page" not in data:
                raise error_of(int(data["error"].get("status", 500)), data["error"], None)
            yield _page_of(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerError("The answer is not one of this service.", "Check the address.") from error
    raise Unreachable("The answer was cut off before its end.", "Ask for the pages that are missing.")


def _page_of(data: Data) -> StreamedPage:
    problem = data.get("error")
    outcome = page_of(data) if problem is None else error_of(int(problem.get("status", 500)), problem, None)
    return StreamedPage(int(data["page"]), int(data["pages_total"]), int(data["pages_wanted"]), outcome)


def _lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Raises ServerError for a line that no page has."""
    rest: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        *whole, last = piece.split(b"\n")
        for line in whole:
            yield b"".join([*rest, line])
            rest, size_bytes = [], 0
        rest.append(last)
        size_bytes += len(last)
        if size_bytes > _MOST_PART_BYTES:
            raise ServerError("A page of the answer is larger than any of this service.", "Check the address.")
