"""Responses of POST /v1/ocr that stream pages as they are read; the last part is a summary or an error."""

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import astuple, replace
from itertools import chain
from operator import add

import orjson
from flask import Response

from ocrsvc.errors import DeadlineExceeded, OcrsvcError
from ocrsvc.formats.json_values import page_to_dict, stages_to_dict, timing_to_dict
from ocrsvc.http.error_responses import failure_of, problem_dict
from ocrsvc.http.options import RequestedOptions, StreamForm
from ocrsvc.http.request import current_request
from ocrsvc.http.responses import ended_pieces, stream_response
from ocrsvc.pipeline.documents import PageRead
from ocrsvc.results import EngineInfo, Reading, Timing

Pages = Generator[PageRead, None, None]


def respond_by_page(pages: Pages, options: RequestedOptions, form: StreamForm, files: int, began_s: float) -> Response:
    """A response that starts when the first page is read; `files` is the number of files, `began_s` monotonic time.

    Raises errors that occur before that, and the first page's error if it is the only page or missed the deadline.
    """
    try:
        first = next(pages)
        is_alone = files == first.chosen == 1
        if isinstance(first.outcome, OcrsvcError if is_alone else DeadlineExceeded):
            raise first.outcome
        stream = PageStream(options, form, files, began_s)
        return stream_response(stream.pieces(chain((first,), pages)), form.media_type, pages.close)
    except BaseException:
        pages.close()
        raise


class PageStream:
    """Makes the parts of one streamed response, in the request's own thread."""

    def __init__(self, options: RequestedOptions, form: StreamForm, files: int, began_s: float) -> None:
        self._request, self._options, self._form, self._files = current_request(), options, form, files
        self._began_s = began_s
        self._read = self._failed = 0
        self._timing = Timing(0.0, 0.0, 0.0, 0.0)
        self._engine: EngineInfo | None = None

    def pieces(self, pages: Iterable[PageRead]) -> Iterator[bytes]:
        """One piece per page, then a summary or the error that ended the response."""
        parts = (self._piece("page", self._page(page)) for page in pages)
        return ended_pieces(self._request, parts, lambda: self._piece("end", {"end": self._end()}), self._error)

    def _piece(self, kind: str, part: dict[str, object]) -> bytes:
        return self._form.piece(kind, orjson.dumps(part))

    def _error(self, failure: OcrsvcError) -> bytes:
        return self._piece("error", {"error": problem_dict(failure, self._request.id)})

    def _page(self, page: PageRead) -> dict[str, object]:
        """The page as in the JSON response, with its file's page counts. Raises DeadlineExceeded to end the stream."""
        source = {} if self._files == 1 else {"source": {"file": page.file, "page": page.number}}
        number = page.number if self._files == 1 else self._read + self._failed + 1
        counts = {"pages_total": page.total, "pages_wanted": page.chosen}
        if isinstance(page.outcome, Reading):
            self._note_read(page.outcome)
            values = page_to_dict(page.outcome.page, number, self._options.read, lines=self._options.lines)
            return {**values, **source, **counts}
        if isinstance(page.outcome, DeadlineExceeded):
            raise page.outcome
        self._failed += 1
        error = problem_dict(failure_of(page.outcome), self._request.id)
        return {"page": number, "error": error, **source, **counts}

    def _note_read(self, reading: Reading) -> None:
        self._read += 1
        self._engine = self._engine or reading.engine
        self._timing = Timing(*map(add, astuple(self._timing), astuple(reading.timing)))

    def _end(self) -> dict[str, object]:
        timing = timing_to_dict(replace(self._timing, total_s=time.monotonic() - self._began_s))
        stages = stages_to_dict(self._request.ledger.seconds()) if self._options.stages else {}
        return {
            "id": self._request.id,
            "engine": self._engine,
            "pages_read": self._read,
            "pages_failed": self._failed,
            "timing": {**timing, **stages},
        }
