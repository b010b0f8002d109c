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


class PageParser:
    """Makes pages of an answer that comes in any pieces.

    Attributes:
        has_ended: Whether the answer is there, to its end.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def take(self, piece: bytes) -> Iterator[StreamedPage]:
        """The pages that are whole with this piece.

        Raises:
            OcrsvcError: What ended the answer before its last page, in the class of its code.
            ServerError: It is not the service's.
        """
        *whole, last = piece.split(b"\n")
        for line in whole:
            data = parsed(_OK, None, b"".join([*self._rest, line]))
            self._rest, self._rest_bytes = [], 0
            if (page := self._page_of(data)) is None:
                return
            yield page
        self._rest.append(last)
        self._rest_bytes += len(last)
        if self._rest_bytes > _MOST_PART_BYTES:
            raise ServerError("A page of the answer is larger than any of this service.", "Check the address.")

    def check_ended(self) -> None:
        """Raises Unreachable where no piece follows, and the answer has no end."""
        if not self.has_ended:
            raise Unreachable("The answer was cut off before its end.", "Ask for the pages that are missing.")

    def _page_of(self, data: Data) -> StreamedPage | None:
        """None for the end."""
        try:
            if "end" in data:
                self.has_ended = True
                return None
            if "page" not in data:
                raise error_of(int(data["error"].get("status", 500)), data["error"], None)
            return _page_of(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerError("The answer is not one of this service.", "Check the address.") from error


def pages_of(pieces: Iterable[bytes]) -> Iterator[StreamedPage]:
    """The pages of an answer. Raises as `PageParser`."""
    parser = PageParser()
    for piece in pieces:
        yield from parser.take(piece)
        if parser.has_ended:
            return
    parser.check_ended()


def _page_of(data: Data) -> StreamedPage:
    problem = data.get("error")
    outcome = page_of(data) if problem is None else error_of(int(problem.get("status", 500)), problem, None)
    return StreamedPage(int(data["page"]), int(data["pages_total"]), int(data["pages_wanted"]), outcome)
