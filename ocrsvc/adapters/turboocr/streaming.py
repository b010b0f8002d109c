"""POST /ocr/stream: a line of JSON for each page, as soon as it is read, between one that begins and one that ends."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain
from typing import Final

import orjson
from flask import Response

from ocrsvc.adapters.turboocr.documents import DocumentCall, bad_file, page_of
from ocrsvc.adapters.turboocr.failures import code_of
from ocrsvc.errors import DeadlineExceeded, OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import Request, current_request
from ocrsvc.http.response_stream import ended_pieces, stream_response
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.documents import PageRead
from ocrsvc.readings import Reading

NDJSON_TYPE: Final = "application/x-ndjson"

Pages = Generator[PageRead, None, None]


def respond_by_page(call: DocumentCall) -> Response:
    """The answer, which begins once the first page is read: until then it can be an error with its status.

    Raises the error of a page that is the only one, or that is too late, and as reading does.
    """
    options = call.asked.read_options(call.asked.mode)
    pages = call.reader.read_by_page(call.file, options, call.left_s, call.context)
    try:
        first = next(pages)
        if isinstance(first.outcome, OcrsvcError if first.chosen == 1 else DeadlineExceeded):
            raise bad_file(call.file, first.outcome)
        pieces = _EventStream(current_request(), call).pieces(first, pages)
        return stream_response(pieces, NDJSON_TYPE, pages.close)
    except BaseException:
        pages.close()
        raise


class _EventStream:
    """The lines of one answer; for the thread of its request."""

    def __init__(self, request: Request, call: DocumentCall) -> None:
        self._request, self._call = request, call
        self._read = self._failed = 0

    def pieces(self, first: PageRead, pages: Pages) -> Iterator[bytes]:
        """What ends an answer that has begun is reported in it."""
        events = chain((self._begin(first),), (self._page(page) for page in chain((first,), pages)))
        return ended_pieces(self._request, map(_line, events), lambda: _line(self._end()), _error_line)

    def _begin(self, first: PageRead) -> dict[str, object]:
        kind, asked = "pdf" if is_pdf(self._call.file) else "image", self._call.asked
        return {"event": "meta", "kind": kind, "pages": first.chosen, "dpi": asked.dpi, "mode": asked.mode}

    def _page(self, page: PageRead) -> dict[str, object]:
        """Raises DeadlineExceeded: no page after it will be read."""
        if isinstance(page.outcome, Reading):
            self._read += 1
            return {"event": "page", **page_of(self._call, page.number, page.outcome)}
        if isinstance(page.outcome, DeadlineExceeded):
            raise page.outcome
        self._failed += 1
        failure = failure_of(page.outcome)
        return {"event": "page_error", "page_index": page.number - 1, "code": code_of(failure)}

    def _end(self) -> dict[str, object]:
        return {"event": "end", "pages": self._read + self._failed, "failed": self._failed}


def _error_line(failure: OcrsvcError) -> bytes:
    return _line({"event": "error", "code": code_of(failure)})


def _line(event: dict[str, object]) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
