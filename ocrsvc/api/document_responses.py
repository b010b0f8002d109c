"""Answers of the native API that are files: text formats, searchable PDF, and a zip of several."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from typing import IO, Final

import orjson
from flask import Response

from ocrsvc.errors import OcrsvcError, ResourcesExhausted
from ocrsvc.formats.document import DocumentResult
from ocrsvc.formats.output_files import (
    JSON,
    PDF,
    PDF_TYPE,
    ZIP_TYPE,
    NamedResult,
    OutputFile,
    disposition_of,
    files_of,
    write_zip,
    zip_name,
)
from ocrsvc.http.options import RequestedOptions
from ocrsvc.http.request import request
from ocrsvc.imaging.document import is_pdf
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import EngineInfo, Reading

FAILED_HEADER: Final = "X-Failed-Pages"
_MOST_RANGES: Final = 100
_USUAL_DPI: Final = 200
_AFTER_DEADLINE_S: Final = 1.0
_JPEG: Final = b"\xff\xd8"
_BYTES_A_PIXEL: Final = 6


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file of a request: its bytes or their error, its name, and its pages."""

    data: bytes | OcrsvcError
    name: str
    read: FileRead


class DocumentResponses:
    """Makes responses, for any thread; `reader` draws masked pages, those of a PDF at `pdf_dpi`."""

    def __init__(self, reader: Reader, pdf_dpi: int) -> None:
        self._reader, self._pdf_dpi = reader, pdf_dpi

    def respond(
        self, sent: Sequence[SentFile], asked: RequestedOptions, json_of: Callable[[], dict[str, object]]
    ) -> Response:
        """The answer in the requested formats for files with at least one page; `json_of` makes the JSON.

        Raises the error of a page where the formats have no place for it; as `write_document`.
        """
        _check_failures(sent, asked.formats)
        documents, words = self._documents_of(sent), asked.read.wants_words
        made = files_of(asked.formats, documents, lambda: orjson.dumps(json_of()), words=words)
        name = made[0].name if len(made) == 1 else zip_name(documents)
        with request.share.holding(_picture_bytes(sent) if PDF in asked.formats else 0):
            response = self._text_response(made[0]) if _is_text(made) else self._file_response(made)
        response.headers["Content-Disposition"] = disposition_of(name)
        if failed := _failed_pages(sent):
            response.headers[FAILED_HEADER] = failed
        return response

    def _text_response(self, file: OutputFile) -> Response:
        output = io.BytesIO()
        file.write(output, _limit_s(), request.make_check())
        return Response(output.getvalue(), content_type=f"{file.media_type}; charset=utf-8")

    def _file_response(self, made: Sequence[OutputFile]) -> Response:
        check = request.make_check()
        has_pdf = any(file.media_type == PDF_TYPE for file in made)
        permit = self._reader.pdf_making.take(check, request.caller) if has_pdf else nullcontext()
        with permit, _temporary_file() as output:
            if len(made) == 1:
                made[0].write(output, _limit_s(), check)
            else:
                write_zip(made, output, _limit_s(), check)
            size_bytes = output.tell()
            output.seek(0)
            # The finished response is counted again, for as long as it lasts.
            with request.share.holding(size_bytes):
                data = output.read()
        return Response(data, content_type=made[0].media_type if len(made) == 1 else ZIP_TYPE)

    def _documents_of(self, sent: Sequence[SentFile]) -> list[NamedResult]:
        engine = next(file.read.readings[0].engine for file in sent if file.read.readings)
        # With masking, each page has a list, which may be empty.
        is_masked = any(reading.page.masked is not None for file in sent for reading in file.read.readings)
        return [NamedResult(file.name, self._result_of(file, engine, is_masked=is_masked)) for file in sent]

    def _result_of(self, file: SentFile, engine: EngineInfo, *, is_masked: bool) -> DocumentResult:
        data = file.data if isinstance(file.data, bytes) else b""
        pages = [
            replace(outcome.page, number=number) for number, outcome in file.read.pages if isinstance(outcome, Reading)
        ]
        failed = [number for number, _ in file.read.errors]
        picture_of = self._reader.picture_maker(data, request.deadline, request.context) if is_masked else None
        return DocumentResult(data, pages, len(pages), engine, failed, picture_of, self._pdf_dpi or _USUAL_DPI)


def _check_failures(sent: Sequence[SentFile], formats: Sequence[str]) -> None:
    """Raises a page's error, for which text formats have no place, unless JSON is among them."""
    if JSON in formats or all(name == PDF for name in formats):
        return
    for file in sent:
        for _, error in file.read.errors:
            raise error


def _failed_pages(sent: Sequence[SentFile]) -> str:
    """The numbers of failed pages, as the option `pages` takes them, counted through all files; "" for none."""
    outcomes = [outcome for file in sent for _, outcome in file.read.pages]
    if len(sent) == 1:
        numbers = [number for number, _ in sent[0].read.errors]
    else:
        numbers = [at for at, outcome in enumerate(outcomes, start=1) if isinstance(outcome, OcrsvcError)]
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    written = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_MOST_RANGES]]
    # A header is short: the last range is open, and may hold pages that did not fail.
    return ",".join([*written, *(f"{first}-" for first, _ in ranges[_MOST_RANGES : _MOST_RANGES + 1])])


def _picture_bytes(sent: Sequence[SentFile]) -> int:
    """Memory for the largest page that a PDF cannot hold as it is: its pixels, and packed."""
    pages = [
        reading.page
        for file in sent
        if isinstance(file.data, bytes) and not is_pdf(file.data) and not file.data.startswith(_JPEG)
        for reading in file.read.readings
    ]
    return max((_BYTES_A_PIXEL * page.width * page.height for page in pages), default=0)


def _is_text(made: Sequence[OutputFile]) -> bool:
    return len(made) == 1 and made[0].media_type != PDF_TYPE


def _limit_s() -> float:
    """A little longer than the deadline, which the request's own check reports."""
    return request.left_s + _AFTER_DEADLINE_S


@contextmanager
def _temporary_file() -> Iterator[IO[bytes]]:
    """A file without a name. Raises ResourcesExhausted where it cannot be opened or written."""
    try:
        with TemporaryFile() as file:
            yield file
    except OSError as error:
        raise ResourcesExhausted(
            f"The file that was asked for cannot be written: {error.strerror}.", "Send it again in a moment."
        ) from error
