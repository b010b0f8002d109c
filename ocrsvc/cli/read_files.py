"""What `ocrsvc read` reads: files, by a service or by an engine in this process, one answer each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ocrsvc.cli.files import STANDARD, load, standard_input
from ocrsvc.cli.service_access import Access
from ocrsvc.client.response import Answer, page_of
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

if TYPE_CHECKING:
    from ocrsvc.imaging.page_ranges import Ranges
    from ocrsvc.pipeline.documents import FileRead
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.records import ReadOptions

Answered = Answer | OcrsvcError
"""What was read of a file, by a service or in this process, or what is wrong with it."""

Show = Callable[[Path, int, int], object]
"""Shows how far a file is: how many of its pages are read, and how many are to be."""

# Nobody waits but the person at the keyboard, who has Ctrl-C.
DEADLINE_S: Final = 86_400.0
_STOP_S: Final = 5.0
_AT_ONCE: Final = 16


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
        yield from _read_all(reader, files, asked, ranges, show)
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

    # Whoever reads files of their own may read all of them.
    own = {"OCRSVC_MAX_PAGES": "100000"} | ({"OCRSVC_ENGINE": engine} if engine else {})
    settings = read_settings(os.environ | own)
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    return reader


def _read_all(
    reader: Reader, files: Sequence[Path], options: ReadOptions, ranges: Ranges, show: Show
) -> Iterator[tuple[Path, Answered]]:
    """Each file with its answer, in order; as many at a time as a few engine threads can use, documents one by one."""
    from ocrsvc.imaging.document import may_have_pages

    for begin in range(0, len(files), _AT_ONCE):
        batch = files[begin : begin + _AT_ONCE]
        datas = [load(file) for file in batch]
        if len(batch) == 1 or any(isinstance(data, bytes) and may_have_pages(data) for data in datas):
            pairs = zip(batch, datas, strict=True)
            answers: Iterable[FileRead] = (_read_pages(reader, *pair, options, ranges, show) for pair in pairs)
        else:
            answers = reader.read_files(datas, options, DEADLINE_S, ranges=ranges)
        for file, answer in zip(batch, answers, strict=True):
            yield file, _as_answer(answer, options) if answer.readings else answer.errors[0][1]


def _read_pages(
    reader: Reader, file: Path, data: bytes | OcrsvcError, options: ReadOptions, ranges: Ranges, show: Show
) -> FileRead:
    """One file, page by page."""
    from ocrsvc.pipeline.documents import FileRead

    if isinstance(data, OcrsvcError):
        return FileRead("image", 1, ((1, data),))
    pages, total = [], 1
    with closing(reader.read_by_page(data, options, DEADLINE_S, ranges=ranges)) as read:
        for page in read:
            pages.append((page.number, page.outcome))
            total = page.total
            show(file, len(pages), page.chosen)
    return FileRead("", total, tuple(pages))


def _as_answer(read: FileRead, options: ReadOptions) -> Answer:
    """What was read, as a service answers it; pages that failed are in `failed` alone."""
    from ocrsvc.formats.json_values import page_to_dict, timing_to_dict
    from ocrsvc.readings import total_of

    engine, timing = asdict(read.readings[0].engine), timing_to_dict(total_of(read.readings))
    pages = [page_to_dict(reading.page, reading.page.number, options) for reading in read.readings]
    data = {"engine": engine, "pages": pages, "pages_total": read.total, "timing": timing}
    return Answer("", tuple(map(page_of, pages)), dict(read.errors), read.total, engine, timing, data)
