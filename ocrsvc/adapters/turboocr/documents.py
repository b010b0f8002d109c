"""Reads documents as TurboOCR's clients ask for them, over HTTP or gRPC, and tells what was read of each page."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ocrsvc.adapters.turboocr.failures import Coded, error_members
from ocrsvc.adapters.turboocr.page_values import to_document_page
from ocrsvc.adapters.turboocr.parameters import DocumentParameters, OutputForm
from ocrsvc.errors import BrokenImage, OcrsvcError, UnsupportedImage
from ocrsvc.formats.document import options_for
from ocrsvc.http.error_responses import failure_of
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.records import Page
from ocrsvc.serving.work_queue import RequestContext


@dataclass(frozen=True, slots=True)
class DocumentCall:
    """One request for a document, over HTTP or gRPC.

    Attributes:
        reader: Reads it.
        file: The whole file.
        asked: What is asked of it.
        deadline: When the answer must be there, on `time.monotonic`.
        context: Whether still somebody waits for it, and its account of memory.
    """

    reader: Reader
    file: bytes
    asked: DocumentParameters
    deadline: float
    context: RequestContext

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 if it has passed."""
        return max(0.0, self.deadline - time.monotonic())


def read_pdf(call: DocumentCall, form: OutputForm = "json") -> FileRead:
    """The pages of a PDF, with what its answer needs; at least one of them was read. Raises OcrsvcError."""
    if not is_pdf(call.file):
        raise Coded("PDF_RENDER_FAILED", "This is no PDF.", "Send an image to /ocr/raw.")
    options = options_for((form,), call.asked.page.read_options(call.asked.mode))
    if form == "md":
        options = replace(options, layout=True)
    read = call.reader.read_files([call.file], options, call.left_s, call.context)[0]
    if not read.readings:
        raise bad_file(call.file, read.errors[0][1])
    return read


def bad_file(file: bytes, error: OcrsvcError) -> OcrsvcError:
    """The error of a file that cannot be opened, with the code that the original has for it."""
    if is_pdf(file) and isinstance(error, UnsupportedImage | BrokenImage):
        return Coded("PDF_RENDER_FAILED", error.detail, error.remedy)
    return error


def to_pages(call: DocumentCall, read: FileRead) -> list[dict[str, object]]:
    """The pages, in order; one that could not be read says why."""
    return [page_of(call, number, outcome) for number, outcome in read.pages]


def page_of(call: DocumentCall, number: int, outcome: Reading | OcrsvcError) -> dict[str, object]:
    """One page of a document, or why there is none."""
    drawn_dpi = call.reader.settings.pdf_dpi if is_pdf(call.file) else None
    if isinstance(outcome, Reading):
        return to_document_page(replace(outcome.page, number=number), call.asked, drawn_dpi)
    empty = to_document_page(Page(0, 0, 0, (), number), replace(call.asked, autorotate=False), drawn_dpi)
    return {**empty, "width": 0, "height": 0, **error_members(outcome, failure_of(outcome))}
