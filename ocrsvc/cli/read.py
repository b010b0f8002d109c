"""`ocrsvc read FILE…`: prints or writes the text of images and documents, read in this process or by a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import cache
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from ocrsvc.batch.human_readable import count_of, visible
from ocrsvc.cli.options import FILE, check_at_most_one, command, option, output_option, reading_options
from ocrsvc.cli.output import ALIASES, JSON, PDF, STDIO, TEXT, check_output, formats_for, is_zip, show_progress, writing
from ocrsvc.cli.service import Access, service_access
from ocrsvc.client.request import API_KEY_VARIABLE, Options
from ocrsvc.client.response import Answer, page_of
from ocrsvc.errors import BadOption, KeyMissing, NotConnected, NothingSent, OcrsvcError
from ocrsvc.formats.document import DocumentResult
from ocrsvc.plugins import needs_of, output_formats
from ocrsvc.results import EngineInfo, ReadOptions, no_check, total_of
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

if TYPE_CHECKING:
    from ocrsvc.formats.output_files import NamedResult
    from ocrsvc.http.options import RequestedOptions
    from ocrsvc.pipeline.documents import PageRead
    from ocrsvc.pipeline.read import Reader

FileOutcome = Answer | OcrsvcError
"""A file's result, or its error."""
FileAnswers = Iterator[tuple[Path, FileOutcome]]

# A day, which is no limit in practice: the user can press Ctrl-C.
_DEADLINE_S: Final = 86_400.0
_STOP_S: Final = 5.0
_FILES_AT_ONCE: Final = 16


def load(file: Path) -> bytes | OcrsvcError:
    """The bytes of a file, or the error."""
    try:
        return standard_input() if file == STDIO else file.read_bytes()
    except OSError as error:
        return NothingSent(f"The file cannot be read: {error.strerror}.", "Check its name and permissions.")


@cache
def standard_input() -> bytes:
    """Read all of standard input; later calls return the same bytes."""
    return sys.stdin.buffer.read()


def read_by_service(files: Sequence[Path], url: str, access: Access, options: Options, *, shows: bool) -> FileAnswers:
    """Read files by a service, a few at a time; yield each file with its outcome, in order."""
    images = (standard_input() if file == STDIO else file for file in files)
    with access.client(url) as client, closing(client.read_many(images, **options)) as answers:
        for done, (file, answer) in enumerate(zip(files, answers, strict=True), start=1):
            if shows:
                show_progress(done, len(files), visible(str(file))[:60])
            if isinstance(answer, NotConnected) and done < len(files):
                # Stop here: without a connection the other files would fail too, each after a few seconds.
                left = f"{answer.remedy} {count_of(len(files) - done, 'more file')} not read."
                yield file, NotConnected(answer.detail, left)
                return
            yield file, answer


def read_in_this_process(files: Sequence[Path], engine: str | None, options: Options, *, shows: bool) -> FileAnswers:
    """Read files by an engine in this process; yield each file with its outcome, in order."""
    set_library_environment(os.environ)
    from ocrsvc.http.options import read_options

    parsed = read_options(options.items())
    reader = start_reader(engine)
    try:
        for begin in range(0, len(files), _FILES_AT_ONCE):
            yield from _read(reader, files[begin : begin + _FILES_AT_ONCE], parsed, shows=shows)
    finally:
        reader.stop(_STOP_S)


def start_reader(engine: str | None) -> Reader:
    """Start a warm reader. Raises EngineUnavailable, SettingsError."""
    from ocrsvc.pipeline.read import Reader

    # OCRSVC_MAX_PAGES limits the requests of a service's clients, not this command.
    overrides = {"OCRSVC_MAX_PAGES": "100000"} | ({"OCRSVC_ENGINE": engine} if engine else {})
    settings = read_settings(os.environ | overrides)
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    return reader


def _read(reader: Reader, files: Sequence[Path], options: RequestedOptions, *, shows: bool) -> FileAnswers:
    """Yield each file with its outcome; pages are read concurrently."""
    contents = [load(file) for file in files]
    with closing(reader.read_files_by_page(contents, options.read, _DEADLINE_S, ranges=options.pages)) as read:
        for number, group in groupby(read, key=lambda page: page.file):
            pages: list[PageRead] = []
            for page in group:
                pages.append(page)
                if shows:
                    show_progress(len(pages), page.chosen, visible(str(files[number - 1]))[:60])
            yield files[number - 1], _answer_of(pages, options.read)


def _answer_of(pages: Sequence[PageRead], options: ReadOptions) -> FileOutcome:
    """A file's outcome as a service would return it; failed pages are only in its `failed`."""
    from ocrsvc.formats.json_values import page_to_dict, timing_to_dict

    failed = {page.number: page.outcome for page in pages if isinstance(page.outcome, OcrsvcError)}
    readings = [page.outcome for page in pages if not isinstance(page.outcome, OcrsvcError)]
    if not readings:
        return next(iter(failed.values()))
    engine, timing = asdict(readings[0].engine), timing_to_dict(total_of(readings))
    read = [page_to_dict(reading.page, reading.page.number, options) for reading in readings]
    data = {"engine": engine, "pages": read, "pages_total": pages[0].total, "timing": timing}
    return Answer("", tuple(map(page_of, read)), failed, pages[0].total, engine, timing, data)


def _write(read: Sequence[tuple[Path, Answer]], formats: Sequence[str], target: Path, options: Options) -> None:
    """Write all documents in these formats, as one file or a zip, without words and tables that are not requested."""
    from ocrsvc.formats.output_files import files_of, write_zip

    wanted = {"words": options["words"] or options["characters"], "tables": options["tables"]}
    unwanted = {name for name, is_wanted in wanted.items() if not is_wanted}
    documents = [_result_of(file, answer, with_file=PDF in formats) for file, answer in read]
    lines = (_json_line(file, answer, unwanted) for file, answer in read)
    results = files_of(formats, documents, lambda: b"".join(lines), words="words" not in unwanted)
    with writing(target) as output:
        if len(results) == 1 and not is_zip(target):
            results[0].write(output, _DEADLINE_S, no_check)
        else:
            write_zip(results, output, _DEADLINE_S, no_check)


def _json_line(file: Path, answer: Answer, unwanted: Collection[str] = ()) -> bytes:
    """One file's result as a line of JSON, without the unwanted members of pages and lines."""
    pages = [_without(page, unwanted) for page in answer.data["pages"]]
    return orjson.dumps({"file": str(file), **answer.data, "pages": pages}, option=orjson.OPT_APPEND_NEWLINE)


def _without(page: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    kept = {name: value for name, value in page.items() if name not in names}
    if "lines" in page and names:
        kept["lines"] = [_without(line, names) for line in page["lines"]]
    return kept


def _result_of(file: Path, answer: Answer, *, with_file: bool) -> NamedResult:
    from ocrsvc.formats.output_files import NamedResult

    data = load(file) if with_file else b""
    if not isinstance(data, bytes):
        raise data
    pages = [page.record() for page in answer.pages]
    result = DocumentResult(data, pages, len(pages), EngineInfo(**answer.engine), list(answer.failed))
    return NamedResult("" if file == STDIO else file.name, result)


_KEY_REMEDY: Final = f"Name the key's file with --key-file, or set {API_KEY_VARIABLE}."
_DOCUMENTS: Final = ", ".join(name for name in output_formats() if name != TEXT)


def _formats_of(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> tuple[str, ...] | None:
    """Parse a comma-separated list of formats. Raises BadParameter."""
    if value is None or isinstance(value, tuple):
        return value
    names = tuple(dict.fromkeys(ALIASES.get(name, name) for name in value.split(",")))
    for name in names:
        if name not in (JSON, *output_formats()):
            raise click.BadParameter(f"{name!r} is not one of {JSON}, {', '.join(output_formats())}.")
    return names


@command(
    "ocrsvc read page.png",
    "ocrsvc read scan.pdf --pages 1-3 --json",
    "ocrsvc read scan.pdf -o searchable.pdf",
    "ocrsvc read *.jpg --format pdf,md -o all.zip",
    "ocrsvc read page.png --url http://127.0.0.1:8000",
)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...", help="Image, PDF or TIFF; - for stdin.")
@option(
    "--format",
    "formats",
    callback=_formats_of,
    metavar="FORMAT[,FORMAT...]",
    help=f"text, json (one object per line and file), or one document of all files: {_DOCUMENTS}; several formats need "
    "a zip. By default from the ending of -o, else text.",
)
@option("--json", "formats", flag_value=JSON, callback=_formats_of, help="Same as --format json.")
@output_option(help="File to write, completely or not at all; - for standard output.")
@option("--engine", metavar="NAME", help="Engine to use instead of OCRSVC_ENGINE.")
@option("--url", section="Service", metavar="URL[,URL...]", help="Service or services to read with instead.")
@option("--timing", section="Service", is_flag=True, help="Show the time of each stage, on stderr and in JSON.")
@service_access
@reading_options
def read(
    *,
    files: Sequence[Path],
    formats: tuple[str, ...] | None,
    output: Path | None,
    engine: str | None,
    url: str | None,
    timing: bool,
    access: Access,
    reading: Options,
) -> int:
    """Print the text of images and documents, or write searchable PDFs and other files.

    Unreadable files are reported and do not stop the others; the first failure sets the exit code.
    """
    check_at_most_one(engine=engine, url=url)
    if timing and not url:
        raise BadOption("--timing needs a service.", "Name it with --url http://host:port.")
    chosen = _checked_formats(formats, files, output or STDIO, reading)
    options: Any = {**reading, **{name: True for name in needs_of(chosen) if not reading.get(name)}}
    shows = (output is not None or not sys.stdout.isatty()) and sys.stderr.isatty()
    if url:
        options["timing"] = "stages" if timing else None
        answers = read_by_service(files, url, access, options, shows=shows)
    else:
        answers = read_in_this_process(files, engine, options, shows=shows)
    return _output(answers, chosen, output, reading, headed=len(files) > 1)


def _checked_formats(
    requested: tuple[str, ...] | None, files: Sequence[Path], target: Path, reading: Options
) -> tuple[str, ...]:
    """The formats to write. Raises BadOption before anything is read."""
    if folder := next((str(file) for file in files if file.is_dir()), ""):
        raise BadOption(f"{folder} is a folder.", f"Read it with: ocrsvc batch {quote(folder)} --out results")
    check_output(target, files)
    formats = formats_for(requested, target)
    joins = formats == (PDF,) and len(files) > 1 and target.suffix.lower() == ".pdf"
    if joins and any(isinstance(data, bytes) and b"%PDF-" in data[:32] for data in map(load, files)):
        raise BadOption("A PDF cannot be joined with others.", "Read them one by one, or write a zip: -o FILE.zip.")
    if target == STDIO and sys.stdout.isatty() and (PDF in formats or len(formats) > 1):
        raise BadOption("A binary file cannot be written to the terminal.", "Add -o FILE.")
    if PDF in formats and reading["mask"]:
        what = "--mask cannot be combined with --format pdf, which shows the unmasked pages."
        raise BadOption(what, "Use a service: POST /v1/ocr?format=pdf&mask=… draws masked parts in black.")
    return formats


def _output(files: FileAnswers, formats: Sequence[str], output: Path | None, reading: Options, *, headed: bool) -> int:
    """Print each file's result when it is ready, or write all to one output; return the first failure's exit code."""
    code, read, prints = 0, list[tuple[Path, Answer]](), output is None and formats in {(TEXT,), (JSON,)}
    for file, answer in files:
        if isinstance(answer, Answer) and prints:
            heading = f"==> {file} <==\n" if headed else ""
            text = _json_line(file, answer).decode() if formats == (JSON,) else f"{heading}{answer.text}\n"
            print(text, end="", flush=True)
        elif isinstance(answer, Answer):
            read.append((file, answer))
        failure = _report(file, answer)
        code = code or failure
    if read:
        _write(read, formats, output or STDIO, reading)
    return code


def _report(file: Path, answer: FileOutcome) -> int:
    """Report failures of a file or its pages; return the first one's exit code."""
    if isinstance(answer, Answer):
        if answer.stages:
            stages = ", ".join(f"{name.removesuffix('_s')} {spent_s:.3f}" for name, spent_s in answer.stages.items())
            print(f"ocrsvc: {file}: {stages} s", file=sys.stderr, flush=True)
        failed = {f", page {number}": error for number, error in answer.failed.items()}
    else:
        failed = {"": answer}
    for page, error in failed.items():
        message = f"{error.detail} {_KEY_REMEDY}" if isinstance(error, KeyMissing) else error
        print(visible(f"ocrsvc: {file}{page}: {message}"), file=sys.stderr, flush=True)
    return next((error.exit_code for error in failed.values()), 0)
