"""POST /ocr/stream: a line of JSON for each page, as soon as it is read, between one that begins and one that ends."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

import orjson
from flask import Response

from ocrsvc.adapters.turboocr.documents import DocumentCall, bad_file, page_of
from ocrsvc.adapters.turboocr.failures import code_of
from ocrsvc.errors import ClientGone, DeadlineExceeded, OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import Request, current_request
from ocrsvc.http.response_stream import SentPieces, stream_response
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.documents import PageRead
from ocrsvc.readings import Reading

NDJSON_TYPE: Final = "application/x-ndjson"

Pages = Generator[PageRead, None, None]


def respond_by_page(call: DocumentCall) -> Response:
    """The answer, which begins once the first page is read: until then it can be an error with its status.

    Raises:
        OcrsvcError: As reading raises; the error of a page that is the only one, or that is too late.
    """
    options = call.asked.page.read_options(call.asked.mode)
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
        self._sent = SentPieces(request)
        self._read = self._failed = 0

    def pieces(self, first: PageRead, pages: Pages) -> Iterator[bytes]:
        """What ends an answer that has begun is told in it."""
        try:
            yield from self._piece(self._begin(first))
            for page in chain((first,), pages):
                yield from self._piece(self._page(page))
            self._settle()
            yield from self._piece({"event": "end", "pages": self._read + self._failed, "failed": self._failed})
        except (ClientGone, GeneratorExit) as error:
            self._request.stream_code = ClientGone.code
            with suppress(OcrsvcError):
                self._settle()
            if isinstance(error, GeneratorExit):
                raise
        except Exception as error:  # noqa: BLE001  the edge of the web, once the status has left
            failure = failure_of(error)
            self._request.stream_code = failure.code
            with suppress(OcrsvcError):
                self._settle()
            yield _line({"event": "error", "code": code_of(failure)})
        finally:
            self._request.streamed_bytes = self._sent.count_bytes

    def _piece(self, event: dict[str, object]) -> Iterator[bytes]:
        """Raises ClientGone, and QueueFull and BodyTooLarge where there is no memory for it."""
        line = _line(event)
        self._sent.take(len(line))
        yield line
        self._sent.note_sent(len(line))

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

    def _settle(self) -> None:
        """Count the pages for the caller's key. Raises KeysUnavailable."""
        if self._request.pages is not None:
            self._request.pages.settle(succeeded=True)


def _line(event: dict[str, object]) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
