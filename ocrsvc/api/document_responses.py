"""Responses of the native API that are files: text formats, searchable PDF, and zips of several."""

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
from ocrsvc.imaging.page_ranges import format_ranges
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import EngineInfo, Reading

FAILED_HEADER: Final = "X-Failed-Pages"
_MAX_RANGES: Final = 100
_DEFAULT_DPI: Final = 200
_AFTER_DEADLINE_S: Final = 1.0
_JPEG: Final = b"\xff\xd8"
_BYTES_A_PIXEL: Final = 6


@dataclass(frozen=True, slots=True)
class RequestFile:
    """A file of a request: its bytes or the error of decoding it, its name, and its pages."""

    data: bytes | OcrsvcError
    name: str
    read: FileRead


class DocumentResponses:
    """Makes responses in formats other than JSON, for any thread; PDF pages are rendered at `pdf_dpi`."""

    def __init__(self, reader: Reader, pdf_dpi: int) -> None:
        self._reader, self._pdf_dpi = reader, pdf_dpi

    def respond(
        self, files: Sequence[RequestFile], options: RequestedOptions, json_of: Callable[[], dict[str, object]]
    ) -> Response:
        """The response in the requested formats, for files with at least one page; `json_of` makes the JSON.

        Raises a page's error if the formats cannot report it, and the errors of `write_document`.
        """
        _check_failures(files, options.formats)
        documents, words = self._documents_of(files), options.read.wants_words
        outputs = files_of(options.formats, documents, lambda: orjson.dumps(json_of()), words=words)
        name = outputs[0].name if len(outputs) == 1 else zip_name(documents)
        with request.share.holding(_picture_bytes(files) if PDF in options.formats else 0):
            response = self._text_response(outputs[0]) if _is_text(outputs) else self._file_response(outputs)
        response.headers["Content-Disposition"] = disposition_of(name)
        if failed := _failed_pages(files):
            response.headers[FAILED_HEADER] = failed
        return response

    def _text_response(self, file: OutputFile) -> Response:
        output = io.BytesIO()
        file.write(output, _limit_s(), request.make_check())
        return Response(output.getvalue(), content_type=f"{file.media_type}; charset=utf-8")

    def _file_response(self, outputs: Sequence[OutputFile]) -> Response:
        check = request.make_check()
        has_pdf = any(file.media_type == PDF_TYPE for file in outputs)
        permit = self._reader.pdf_making.take(check, request.caller) if has_pdf else nullcontext()
        with permit, _temporary_file() as output:
            if len(outputs) == 1:
                outputs[0].write(output, _limit_s(), check)
            else:
                write_zip(outputs, output, _limit_s(), check)
            size_bytes = output.tell()
            output.seek(0)
            # Reserve memory for the file's bytes until the Response object exists, which reserves it itself.
            with request.share.holding(size_bytes):
                data = output.read()
        return Response(data, content_type=outputs[0].media_type if len(outputs) == 1 else ZIP_TYPE)

    def _documents_of(self, files: Sequence[RequestFile]) -> list[NamedResult]:
        engine = next(file.read.readings[0].engine for file in files if file.read.readings)
        # If the option `mask` is on, `masked` is a list, perhaps an empty one; otherwise it is None.
        is_masked = any(reading.page.masked is not None for file in files for reading in file.read.readings)
        return [NamedResult(file.name, self._result_of(file, engine, is_masked=is_masked)) for file in files]

    def _result_of(self, file: RequestFile, engine: EngineInfo, *, is_masked: bool) -> DocumentResult:
        data = file.data if isinstance(file.data, bytes) else b""
        pages = [
            replace(outcome.page, number=number) for number, outcome in file.read.pages if isinstance(outcome, Reading)
        ]
        failed = [number for number, _ in file.read.errors]
        picture_of = self._reader.picture_maker(data, request.deadline, request.context) if is_masked else None
        return DocumentResult(data, pages, len(pages), engine, failed, picture_of, self._pdf_dpi or _DEFAULT_DPI)


def _check_failures(files: Sequence[RequestFile], formats: Sequence[str]) -> None:
    """Raises a page's error for text formats, which cannot report it, unless JSON is also requested."""
    if JSON in formats or all(name == PDF for name in formats):
        return
    for file in files:
        for _, error in file.read.errors:
            raise error


def _failed_pages(files: Sequence[RequestFile]) -> str:
    """The failed pages in the syntax of the option `pages`, numbered across all files; "" if none has failed."""
    outcomes = [outcome for file in files for _, outcome in file.read.pages]
    if len(files) == 1:
        numbers = [number for number, _ in files[0].read.errors]
    else:
        numbers = [at for at, outcome in enumerate(outcomes, start=1) if isinstance(outcome, OcrsvcError)]
    ranges = format_ranges(numbers)
    # Keep the response header short: one open range ("9-") replaces further ranges, although it includes good pages.
    rest = [f"{more.partition('-')[0]}-" for more in ranges[_MAX_RANGES : _MAX_RANGES + 1]]
    return ",".join([*ranges[:_MAX_RANGES], *rest])


def _picture_bytes(files: Sequence[RequestFile]) -> int:
    """Bytes for encoding the largest image of a PDF response: pixels and compressed copy. JPEG and PDF need none."""
    pages = [
        reading.page
        for file in files
        if isinstance(file.data, bytes) and not is_pdf(file.data) and not file.data.startswith(_JPEG)
        for reading in file.read.readings
    ]
    return max((_BYTES_A_PIXEL * page.width * page.height for page in pages), default=0)


def _is_text(outputs: Sequence[OutputFile]) -> bool:
    return len(outputs) == 1 and outputs[0].media_type != PDF_TYPE


def _limit_s() -> float:
    """Time limit for writing a file in seconds: a little after the deadline, whose error should be raised first."""
    return request.left_s + _AFTER_DEADLINE_S


@contextmanager
def _temporary_file() -> Iterator[IO[bytes]]:
    """An unnamed file. Raises ResourcesExhausted if it cannot be opened or written."""
    try:
        with TemporaryFile() as file:
            yield file
    except OSError as error:
        raise ResourcesExhausted(
            f"The requested file cannot be written: {error.strerror}.", "Send the request again later."
        ) from error
