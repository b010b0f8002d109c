"""`ocrsvc read FILE…`: the text of images and documents, read in this process or by a service."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import orjson

from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.api_key import add_argument, read_key
from ocrsvc.cli.reading_options import add_reading_options, options_of
from ocrsvc.cli.tls_arguments import add_tls_arguments
from ocrsvc.client import response
from ocrsvc.client.response import Answer, page_of
from ocrsvc.errors import BadOption, KeyMissing, NothingSent, OcrsvcError, OperatorError
from ocrsvc.formats.output_formats import OUTPUT_FORMATS
from ocrsvc.settings.api_key import API_KEY_VARIABLE
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

if TYPE_CHECKING:
    from ocrsvc.imaging.page_ranges import Ranges
    from ocrsvc.pipeline.documents import FileRead
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.readings import EngineInfo
    from ocrsvc.records import Box, Line, Page, ReadOptions

Answered = Answer | OcrsvcError
"""What was read of a file, by a service or in this process, or what is wrong with it."""

HELP: Final = "print the text of images and documents"
# Nobody waits but the person at the keyboard, who has Ctrl-C.
_DEADLINE_S: Final = 86_400.0
_STOP_S: Final = 5.0
_KEY_REMEDY: Final = f"Name a file with the key with --key-file, or set {API_KEY_VARIABLE}."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc read`."""
    documents = [name for name in OUTPUT_FORMATS if name != "text"]
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="image, PDF or TIFF; - is standard input")
    parser.add_argument(
        "--format",
        choices=("text", "json", *documents),
        default="text",
        help="text (default), json (one object a line and file), or one document for all files: "
        + ", ".join(documents),
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--engine", help="engine to use instead of the one that OCRSVC_ENGINE names")
    where.add_argument(
        "--url",
        help="address of a service that reads them, instead of this process; or of several, with commas between",
    )
    add_argument(parser)
    add_tls_arguments(parser)
    add_reading_options(parser)
    parser.add_argument(
        "--timing", action="store_true", help="with --url: where each request's time went, on stderr and in JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Read every file; a bad one is reported on stderr and does not stop the others.

    Returns:
        0, or the exit code of the first file that failed.
    """
    if args.timing and not args.url:
        raise BadOption("--timing tells where a service's time goes.", "Name the service: --url http://host:port.")
    answers = _by_service(args) if args.url else _in_this_process(args)
    show = _show_each if args.format in {"text", "json"} else _show_together
    codes = list(show(answers, args))
    return next((code for code in codes if code), 0)


def _by_service(args: argparse.Namespace) -> Iterator[tuple[Path, Answered]]:
    """Each file with the answer of the service at --url, in order, a few at a time."""
    try:
        from ocrsvc.client import Client
    except ModuleNotFoundError as error:
        raise OperatorError(f"--url needs the package {error.name}.", "Install the extra: ocrsvc[client].") from error

    images = (sys.stdin.buffer.read() if str(file) == "-" else file for file in args.files)
    own = None if args.cert is None else (args.cert, args.cert_key or args.cert)
    urls: str | list[str] = args.url.split(",") if "," in args.url else args.url
    with Client(urls, api_key=read_key(args.key_file), ca=args.ca, certificate=own) as client:
        timing: Literal["stages"] | None = "stages" if args.timing else None
        answers = client.read_many(images, **options_of(args) | {"pages": args.pages, "timing": timing})
        yield from zip(args.files, answers, strict=True)


def _in_this_process(args: argparse.Namespace) -> Iterator[tuple[Path, Answered]]:
    """Each file with the answer of an engine in this process, in order."""
    # Before the numeric libraries load, which read the environment once: so they are imported inside functions here.
    set_library_environment(os.environ)
    from ocrsvc.http.options import read_options

    options, ranges = read_options(options_of(args).items()).read, _ranges_of(args.pages)
    reader = _start_reader(args.engine)
    try:
        yield from _read_all(reader, args.files, options, ranges)
    finally:
        reader.stop(_STOP_S)


def _ranges_of(text: str | None) -> Ranges:
    """The pages asked for. Raises BadOption."""
    from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, parse_ranges

    try:
        return ALL if text is None else parse_ranges(text)
    except ValueError as error:
        raise BadOption(f"--pages is {text!r}: accepted are {ACCEPTED}.") from error


def _start_reader(engine: str | None) -> Reader:
    """A reader that is warm; raises EngineUnavailable or SettingsError."""
    from ocrsvc.pipeline.read import Reader

    # Whoever reads files of their own may read all of them.
    own = {"OCRSVC_MAX_PAGES": "100000"} | ({"OCRSVC_ENGINE": engine} if engine else {})
    settings = read_settings(os.environ | own)
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    return reader


def _read_all(
    reader: Reader, files: Sequence[Path], options: ReadOptions, ranges: Ranges
) -> Iterator[tuple[Path, Answered]]:
    """Each file with its answer, in order; as many at a time as a few engine threads can use."""
    for begin in range(0, len(files), 16):
        batch = files[begin : begin + 16]
        answers = reader.read_files([_load(file) for file in batch], options, _DEADLINE_S, ranges=ranges)
        for file, answer in zip(batch, answers, strict=True):
            yield file, _as_answer(answer, options) if answer.readings else answer.errors[0][1]


def _as_answer(read: FileRead, options: ReadOptions) -> Answer:
    """What was read, as a service answers it; pages that failed are in `failed` alone."""
    from ocrsvc.formats.json_values import page_to_dict, timing_to_dict
    from ocrsvc.readings import total_of

    engine, timing = asdict(read.readings[0].engine), timing_to_dict(total_of(read.readings))
    pages = [page_to_dict(reading.page, reading.page.number, options) for reading in read.readings]
    data = {"engine": engine, "pages": pages, "pages_total": read.total, "timing": timing}
    return Answer("", tuple(map(page_of, pages)), dict(read.errors), read.total, engine, timing, data)


def _load(file: Path) -> bytes | OcrsvcError:
    """The bytes of a file, or why there are none."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        return NothingSent(f"The file cannot be read: {error.strerror}.", "Check its name and permissions.")


def _show_each(answers: Iterator[tuple[Path, Answered]], args: argparse.Namespace) -> Iterator[int]:
    """Print each file's answer as it comes, as text or as JSON; gives its exit code."""
    for file, answer in answers:
        if isinstance(answer, Answer):
            heading = f"==> {file} <==\n" if len(args.files) > 1 else ""
            if args.format == "json":
                print(orjson.dumps({"file": str(file), **answer.data}).decode(), flush=True)
            else:
                print(f"{heading}{answer.text}", flush=True)
        yield _report(file, answer)


def _show_together(answers: Iterator[tuple[Path, Answered]], args: argparse.Namespace) -> Iterator[int]:
    """Print all pages as one document; gives each file's exit code."""
    read: list[Answer] = []
    for file, answer in answers:
        if isinstance(answer, Answer):
            read.append(answer)
        yield _report(file, answer)
    if read:
        pages, engine = _to_records(read, keep_numbers=len(args.files) == 1)
        print(OUTPUT_FORMATS[args.format].write(pages, engine), end="", flush=True)


def _to_records(answers: Sequence[Answer], *, keep_numbers: bool) -> tuple[list[Page], EngineInfo]:
    """The pages of all files as output formats take them, and who read them.

    Numbered on from file to file, or as they are numbered in a lone document.
    """
    from ocrsvc.readings import EngineInfo
    from ocrsvc.records import Page

    pages = []
    for count, page in enumerate((page for answer in answers for page in answer.pages), start=1):
        lines = tuple(map(_to_line, page.lines))
        pages.append(Page(page.width, page.height, page.angle, lines, page.number if keep_numbers else count))
    return pages, EngineInfo(**answers[-1].engine)


def _to_line(line: response.Line) -> Line:
    from ocrsvc.records import Line, Word

    words = [Word(word.text, word.confidence, cast("Box", word.box)) for word in line.words or ()]
    return Line(line.text, line.confidence, cast("Box", line.box), None if line.words is None else tuple(words))


def _report(file: Path, answer: Answered) -> int:
    """Report what failed, the whole file or some of its pages; gives the exit code of the first failure."""
    if isinstance(answer, Answer):
        if answer.stages:
            stages = ", ".join(f"{name.removesuffix('_s')} {spent_s:.3f}" for name, spent_s in answer.stages.items())
            print(f"ocrsvc: {file}: {stages} s", file=sys.stderr, flush=True)
        failed = {f", page {number}": error for number, error in answer.failed.items()}
    else:
        failed = {"": answer}
    for page, error in failed.items():
        said = f"{error.detail} {_KEY_REMEDY}" if isinstance(error, KeyMissing) else error
        print(visible(f"ocrsvc: {file}{page}: {said}"), file=sys.stderr, flush=True)
    return next((error.exit_code for error in failed.values()), 0)
