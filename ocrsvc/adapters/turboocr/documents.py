"""TurboOCR's responses for documents, over HTTP and gRPC: JSON pages, PDF and Markdown files, page streams."""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import orjson
from flask import Response

from ocrsvc.adapters.context import CodedError, CountedBuffer
from ocrsvc.adapters.turboocr.answers import code_of, error_members, to_document_page, to_results
from ocrsvc.adapters.turboocr.parameters import DocumentParameters, PageParameters
from ocrsvc.errors import BrokenImage, DeadlineExceeded, OcrsvcError, UnsupportedImage
from ocrsvc.formats.document import DocumentResult, options_for, write_document
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import current_request
from ocrsvc.http.responses import ended_pieces, stream_response
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.documents import FileRead, PageRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import EngineInfo, Page, Reading, ReadOptions
from ocrsvc.serving.work_queue import RequestContext, make_check

Outcome = Reading | OcrsvcError

# Markdown includes tables, and needs the layout to omit headers and footers.
_MARKDOWN: Final = ReadOptions(layout=True, tables=True)

NDJSON_TYPE: Final = "application/x-ndjson"
Pages = Generator[PageRead, None, None]


@dataclass(frozen=True, slots=True)
class DocumentCall:
    """One request to read a PDF or image file; `deadline` is a time of `time.monotonic`."""

    reader: Reader
    file: bytes
    parameters: DocumentParameters
    deadline: float
    context: RequestContext

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        """Raises DeadlineExceeded after the deadline, ClientGone if the client has disconnected."""
        make_check(self.context, self.deadline, time.monotonic)()


@dataclass(frozen=True, slots=True)
class DocumentAnswer:
    """A document's response: pages or a file; `degraded` lists the failed pages, which the file lacks."""

    readings: Sequence[Reading]
    pages: Sequence[dict[str, Any]] = ()
    file: bytes = b""
    degraded: str = ""


def batch_answer(outcomes: Sequence[Outcome], parameters: PageParameters) -> list[tuple[dict[str, Any], str | None]]:
    """Per image: its results and None, or its error and error code. Raises the first error if all images failed."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, OcrsvcError)]
    if failed and len(failed) == len(outcomes):
        raise failed[0]
    return [
        (to_results(outcome.page, parameters), None)
        if isinstance(outcome, Reading)
        else ({"results": [], **error_members(failure_of(outcome))}, code_of(outcome))
        for outcome in outcomes
    ]


def answer_pdf(call: DocumentCall) -> DocumentAnswer:
    """A PDF's response in the requested format. Raises OcrsvcError, also if no page was read."""
    form = call.parameters.form
    if not is_pdf(call.file):
        raise CodedError("PDF_RENDER_FAILED", "The file is not a PDF.", "Send an image to /ocr/raw.")
    options = options_for((form,), call.parameters.read_options(call.parameters.mode))
    options = replace(options, layout=options.layout or form == "md")
    read = call.reader.read_files([call.file], options, call.left_s, call.context)[0]
    if not read.readings:
        raise bad_file(call.file, read.errors[0][1])
    degraded = f"text({','.join(f'p{number}' for number, _ in read.errors)})" if read.errors else ""
    if form == "json":
        return DocumentAnswer(read.readings, [page_of(call, number, outcome) for number, outcome in read.pages])
    if form == "pdf":
        return DocumentAnswer(read.readings, file=_searchable_pdf(call, read), degraded=degraded)
    if call.parameters.as_pages:
        pages_of_markdown = [
            {"page_index": number - 1, "markdown": _markdown(call, [outcome.page], outcome.engine).decode()}
            if isinstance(outcome, Reading)
            else {"page_index": number - 1, "markdown": "", "text_degraded": True}
            for number, outcome in read.pages
        ]
        return DocumentAnswer(read.readings, pages_of_markdown, degraded=degraded)
    # `write_document` puts a page comment before each page but the first, so add the first page's here.
    pages = [reading.page for reading in read.readings]
    head = f"<!-- page {pages[0].number} -->\n\n".encode()
    return DocumentAnswer(read.readings, file=head + _markdown(call, pages, read.readings[0].engine), degraded=degraded)


def answer_markdown(call: DocumentCall) -> DocumentAnswer:
    """The Markdown of an image. Raises as `Reader.read` and `write_document`."""
    reading = call.reader.read(call.file, _MARKDOWN, call.left_s, call.context)
    return DocumentAnswer([reading], file=_markdown(call, [reading.page], reading.engine))


def bad_file(file: bytes, error: OcrsvcError) -> OcrsvcError:
    """The error of an unreadable file; for a PDF it has TurboOCR's error code for PDFs."""
    if is_pdf(file) and isinstance(error, UnsupportedImage | BrokenImage):
        return CodedError("PDF_RENDER_FAILED", error.detail, error.remedy)
    return error


def page_of(call: DocumentCall, number: int, outcome: Outcome) -> dict[str, Any]:
    """One page of a document, or its error."""
    drawn_dpi = call.reader.settings.pdf_dpi if is_pdf(call.file) else None
    if isinstance(outcome, Reading):
        return to_document_page(replace(outcome.page, number=number), call.parameters, drawn_dpi)
    upright = call.parameters.model_copy(update={"autorotate": False})
    empty = to_document_page(Page(0, 0, 0, (), number), upright, drawn_dpi)
    return {**empty, "width": 0, "height": 0, **error_members(failure_of(outcome))}


def _searchable_pdf(call: DocumentCall, read: FileRead) -> bytes:
    min_confidence = call.parameters.min_confidence or 0.0
    pages = [
        replace(page, lines=tuple(line for line in page.lines if line.confidence >= min_confidence))
        for page in (reading.page for reading in read.readings)
    ]
    failed = [number for number, _ in read.errors]
    is_masked = any(page.masked is not None for page in pages)
    picture_of = call.reader.picture_maker(call.file, call.deadline, call.context) if is_masked else None
    dpi = call.reader.settings.pdf_dpi
    result = DocumentResult(call.file, pages, len(pages), read.readings[0].engine, failed, picture_of, dpi)
    with call.reader.pdf_making.take(call.check):
        return _written("pdf", result, call)


def _markdown(call: DocumentCall, pages: Sequence[Page], engine: EngineInfo) -> bytes:
    return _written("md", DocumentResult(call.file, pages, len(pages), engine), call)


def _written(name: str, result: DocumentResult, call: DocumentCall) -> bytes:
    output = CountedBuffer(call.context.share)
    write_document(name, result, output, call.left_s, call.check)
    return output.take_value()


def respond_by_page(call: DocumentCall) -> Response:
    """Stream a JSON line per page as soon as it is read, between a first and a last line.

    Raises errors from before the first page, and that page's error if it is the only page or DeadlineExceeded.
    """
    options = call.parameters.read_options(call.parameters.mode)
    pages = call.reader.read_files_by_page([call.file], options, call.left_s, call.context)
    try:
        first = next(pages)
        if isinstance(first.outcome, OcrsvcError if first.chosen == 1 else DeadlineExceeded):
            raise bad_file(call.file, first.outcome)
        has_failed: list[bool] = []
        pieces = ended_pieces(
            current_request(),
            map(_line, _events(call, first, pages, has_failed)),
            lambda: _line({"event": "end", "pages": len(has_failed), "failed": sum(has_failed)}),
            lambda failure: _line({"event": "error", "code": code_of(failure)}),
        )
        return stream_response(pieces, NDJSON_TYPE, pages.close)
    except BaseException:
        pages.close()
        raise


def _events(call: DocumentCall, first: PageRead, pages: Pages, has_failed: list[bool]) -> Iterator[dict[str, object]]:
    """Yield an event for the document, then one per page; append to `has_failed` whether each page failed.

    Raises DeadlineExceeded at the deadline, after which no page is read.
    """
    kind, parameters = "pdf" if is_pdf(call.file) else "image", call.parameters
    yield {"event": "meta", "kind": kind, "pages": first.chosen, "dpi": parameters.dpi, "mode": parameters.mode}
    for page in chain((first,), pages):
        if isinstance(page.outcome, DeadlineExceeded):
            raise page.outcome
        has_failed.append(isinstance(page.outcome, OcrsvcError))
        if isinstance(page.outcome, Reading):
            yield {"event": "page", **page_of(call, page.number, page.outcome)}
        else:
            code = code_of(failure_of(page.outcome))
            yield {"event": "page_error", "page_index": page.number - 1, "code": code}


def _line(event: dict[str, object]) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
