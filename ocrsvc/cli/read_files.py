"""What `ocrsvc read` reads and makes of it: files, by a service or by an engine in this process, and documents."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from ocrsvc.cli.output import PDF, STANDARD
from ocrsvc.cli.service import Access
from ocrsvc.client.response import Answer, page_of
from ocrsvc.errors import BadOption, NothingSent, OcrsvcError
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

if TYPE_CHECKING:
    from ocrsvc.formats.document import NamedResult
    from ocrsvc.imaging.page_ranges import Ranges
    from ocrsvc.pipeline.documents import PageRead
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.records import ReadOptions

Answered = Answer | OcrsvcError
"""What was read of a file, by a service or in this process, or what is wrong with it."""

Show = Callable[[Path, int, int], object]
"""Shows how far a file is: how many of its pages are read, and how many are to be."""

# The only one who waits is at the keyboard, and has Ctrl-C.
_DEADLINE_S: Final = 86_400.0
_STOP_S: Final = 5.0
_AT_ONCE: Final = 16


def load(file: Path) -> bytes | OcrsvcError:
    """The bytes of a file, or why there are none."""
    try:
        return standard_input() if file == STANDARD else file.read_bytes()
    except OSError as error:
        return NothingSent(f"The file cannot be read: {error.strerror}.", "Check its name and permissions.")


@cache
def standard_input() -> bytes:
    """All of it, read once."""
    return sys.stdin.buffer.read()


def is_pdf(file: Path) -> bool:
    """Whether it begins as a PDF does; False for what cannot be read."""
    data = load(file)
    return isinstance(data, bytes) and b"%PDF-" in data[:32]


def read_by_service(
    files: Sequence[Path], url: str, access: Access, options: Mapping[str, Any]
) -> Iterator[tuple[Path, Answered]]:
    """Each file with the answer of the service at this address, in order, a few at a time."""
    images = (standard_input() if file == STANDARD else file for file in files)
    with access.client(url) as client:
        yield from zip(files, client.read_many(images, **options), strict=True)


def read_in_this_process(
    files: Sequence[Path], engine: str | None, pages: str | None, options: Mapping[str, Any], show: Show
) -> Iterator[tuple[Path, Answered]]:
    """Each file with the answer of an engine in this process, in order."""
    # Before the numeric libraries load, which read the environment once: so they are imported inside functions here.
    set_library_environment(os.environ)
    from ocrsvc.http.options import read_options

    asked, ranges = read_options(options.items()).read, _ranges_of(pages)
    reader = start_reader(engine)
    try:
        for begin in range(0, len(files), _AT_ONCE):
            yield from _read_some(reader, files[begin : begin + _AT_ONCE], asked, ranges, show)
    finally:
        reader.stop(_STOP_S)


def _ranges_of(text: str | None) -> Ranges:
    """The pages asked for. Raises BadOption."""
    from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, parse_ranges

    try:
        return ALL if text is None else parse_ranges(text)
    except ValueError as error:
        raise BadOption(f"--pages is {text!r}: accepted are {ACCEPTED}.") from error


def start_reader(engine: str | None) -> Reader:
    """A reader that is warm; raises EngineUnavailable or SettingsError."""
    from ocrsvc.pipeline.read import Reader

    # The limit is for requests of others.
    own = {"OCRSVC_MAX_PAGES": "100000"} | ({"OCRSVC_ENGINE": engine} if engine else {})
    settings = read_settings(os.environ | own)
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    return reader


def _read_some(
    reader: Reader, files: Sequence[Path], options: ReadOptions, ranges: Ranges, show: Show
) -> Iterator[tuple[Path, Answered]]:
    """Each file with its answer; pages are read concurrently."""

    def shown(file: Path, pages: Iterable[PageRead]) -> Iterator[PageRead]:
        for done, page in enumerate(pages, start=1):
            show(file, done, page.chosen)
            yield page

    datas = [load(file) for file in files]
    with closing(reader.read_files_by_page(datas, options, _DEADLINE_S, ranges=ranges)) as read:
        for number, pages in groupby(read, key=lambda page: page.file):
            file = files[number - 1]
            yield file, _answer_of(list(shown(file, pages)), options)


def _answer_of(pages: Sequence[PageRead], options: ReadOptions) -> Answered:
    """What was read of a file, as a service answers it; pages that failed are in `failed` alone."""
    from ocrsvc.formats.json_values import page_to_dict, timing_to_dict
    from ocrsvc.readings import total_of

    failed = {page.number: page.outcome for page in pages if isinstance(page.outcome, OcrsvcError)}
    readings = [page.outcome for page in pages if not isinstance(page.outcome, OcrsvcError)]
    if not readings:
        return next(iter(failed.values()))
    engine, timing = asdict(readings[0].engine), timing_to_dict(total_of(readings))
    read = [page_to_dict(reading.page, reading.page.number, options) for reading in readings]
    data = {"engine": engine, "pages": read, "pages_total": pages[0].total, "timing": timing}
    return Answer("", tuple(map(page_of, read)), failed, pages[0].total, engine, timing, data)


def write_documents(
    read: Sequence[tuple[Path, Answer]],
    formats: Sequence[str],
    output: IO[bytes],
    unwanted: Collection[str],
    *,
    as_zip: bool,
) -> None:
    """All files of these formats as one file, and as a zip where they are several or `as_zip` says so.

    Text formats and JSON lack what is unwanted of words and tables. Raises OcrsvcError where a file cannot be made, and
    OSError from the output.
    """
    from ocrsvc.formats.document import files_of, write_zip
    from ocrsvc.records import no_check

    documents = [_result_of(file, answer, with_file=PDF in formats) for file, answer in read]
    made = files_of(
        formats,
        documents,
        lambda: b"".join(json_line(file, answer, unwanted) for file, answer in read),
        words="words" not in unwanted,
    )
    if len(made) == 1 and not as_zip:
        made[0].write(output, _DEADLINE_S, no_check)
    else:
        write_zip(made, output, _DEADLINE_S, no_check)


def json_line(file: Path, answer: Answer, unwanted: Collection[str] = ()) -> bytes:
    """One file's answer as a line of JSON, without some members of its pages and lines."""
    pages = [_without(unwanted, page) for page in answer.data["pages"]] if unwanted else answer.data["pages"]
    return orjson.dumps({"file": str(file), **answer.data, "pages": pages}, option=orjson.OPT_APPEND_NEWLINE)


def _without(names: Collection[str], page: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in page.items() if name not in names}
    if "lines" in page:
        kept["lines"] = [{name: value for name, value in line.items() if name not in names} for line in page["lines"]]
    return kept


def _result_of(file: Path, answer: Answer, *, with_file: bool) -> NamedResult:
    from ocrsvc.formats.document import DocumentResult, NamedResult
    from ocrsvc.readings import EngineInfo

    data = load(file) if with_file else b""
    if not isinstance(data, bytes):
        raise data
    pages = [page.record() for page in answer.pages]
    result = DocumentResult(data, pages, len(pages), EngineInfo(**answer.engine), list(answer.failed))
    return NamedResult("" if file == STANDARD else file.name, result)
