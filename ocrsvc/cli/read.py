"""`ocrsvc read FILE…`: the text of images and documents, read in this process or by a service."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson

from ocrsvc.client.response import Answer
from ocrsvc.errors import BadOption, NothingSent, OcrsvcError, OperatorError
from ocrsvc.formats.output_formats import OUTPUT_FORMATS
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_threads

if TYPE_CHECKING:
    from ocrsvc.cli.commands import Commands
    from ocrsvc.imaging.page_ranges import Ranges
    from ocrsvc.pipeline.documents import FileRead
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.records import Box, EngineInfo, Page, ReadOptions

    # A service's answer, one of this process, or what is wrong.
    Answered = Answer | FileRead | OcrsvcError

# Nobody waits but the person at the keyboard, who has Ctrl-C.
_DEADLINE_S: Final = 86_400.0
_STOP_S: Final = 5.0


def add_command(commands: Commands) -> None:
    """Declare `ocrsvc read`."""
    documents = [name for name in OUTPUT_FORMATS if name != "text"]
    parser = commands.add_parser("read", help="print the text of images and documents")
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
    where.add_argument("--url", help="address of a service that reads them, instead of this process")
    parser.add_argument(
        "--rotate",
        choices=("auto", "0", "90", "180", "270"),
        default="auto",
        help="clockwise turn that makes the page upright; auto finds it",
    )
    parser.add_argument("--pages", help="which pages of documents, such as 1-3,7 or 5-; all, if left out")
    parser.add_argument("--line", action="store_true", help="each image is one line: detect nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read every file; a bad one is reported on stderr and does not stop the others.

    Returns:
        0, or the exit code of the first file that failed.
    """
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
    with Client(args.url) as client:
        answers = client.read_many(images, rotate=args.rotate, detect=not args.line, pages=args.pages)
        yield from zip(args.files, answers, strict=True)


def _in_this_process(args: argparse.Namespace) -> Iterator[tuple[Path, Answered]]:
    """Each file with the answer of an engine in this process, in order."""
    # Before the numeric libraries load, which read the environment once: so they are imported inside functions here.
    set_library_threads(os.environ)
    from ocrsvc.records import ReadOptions

    options, ranges = ReadOptions(rotate=args.rotate, detect=not args.line), _ranges_of(args.pages)
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
) -> Iterator[tuple[Path, FileRead | OcrsvcError]]:
    """Each file with its answer, in order; as many at a time as a few engine threads can use."""
    for begin in range(0, len(files), 16):
        batch = files[begin : begin + 16]
        answers = reader.read_files([_load(file) for file in batch], options, _DEADLINE_S, ranges=ranges)
        for file, answer in zip(batch, answers, strict=True):
            errors = [outcome for _, outcome in answer.pages if isinstance(outcome, OcrsvcError)]
            yield file, errors[0] if len(errors) == len(answer.pages) else answer


def _load(file: Path) -> bytes | OcrsvcError:
    """The bytes of a file, or why there are none."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        return NothingSent(f"The file cannot be read: {error.strerror}.", "Check its name and permissions.")


def _show_each(answers: Iterator[tuple[Path, Answered]], args: argparse.Namespace) -> Iterator[int]:
    """Print each file's answer as it comes, as text or as JSON; gives its exit code."""
    for file, answer in answers:
        if isinstance(answer, OcrsvcError):
            yield _report(file, answer)
            continue
        if args.format == "json":
            print(orjson.dumps({"file": str(file), **_members_of(answer)}).decode(), flush=True)
        else:
            heading = f"==> {file} <==\n" if len(args.files) > 1 else ""
            print(f"{heading}{_text_of(answer)}", flush=True)
        yield _report_pages(file, answer)


def _show_together(answers: Iterator[tuple[Path, Answered]], args: argparse.Namespace) -> Iterator[int]:
    """Print all pages as one document, numbered on from file to file; gives each file's exit code."""
    pages: list[Page] = []
    engine: EngineInfo | None = None
    for file, answer in answers:
        if isinstance(answer, OcrsvcError):
            yield _report(file, answer)
            continue
        fresh, engine = _pages_of(answer)
        # Of a lone document, the numbers in it.
        first = len(pages) + 1
        pages.extend(fresh if len(args.files) == 1 else (replace(p, number=n) for n, p in enumerate(fresh, first)))
        yield _report_pages(file, answer)
    if engine is not None:
        print(OUTPUT_FORMATS[args.format].write(pages, engine), end="", flush=True)


def _report(file: Path, error: OcrsvcError) -> int:
    print(f"ocrsvc: {file}: {error}", file=sys.stderr, flush=True)
    return error.exit_code


def _report_pages(file: Path, answer: Answer | FileRead) -> int:
    """Report which pages of a document failed; gives the exit code of the first."""
    failed = answer.failed if isinstance(answer, Answer) else dict(answer.errors)
    for number, error in failed.items():
        print(f"ocrsvc: {file}, page {number}: {error}", file=sys.stderr, flush=True)
    return next((error.exit_code for error in failed.values()), 0)


def _text_of(answer: Answer | FileRead) -> str:
    return answer.text if isinstance(answer, Answer) else "\n\f".join(one.page.text for one in answer.readings)


def _members_of(answer: Answer | FileRead) -> dict[str, object]:
    """The answer with the names of the native API; pages that failed are reported elsewhere."""
    if isinstance(answer, Answer):
        return dict(answer.data)
    from ocrsvc.formats.json_values import page_to_dict, timing_to_dict
    from ocrsvc.records import total_of

    readings = answer.readings
    return {
        "engine": readings[0].engine,
        "pages": [page_to_dict(reading.page, reading.page.number) for reading in readings],
        "pages_total": answer.total,
        "timing": timing_to_dict(total_of(readings)),
    }


def _pages_of(answer: Answer | FileRead) -> tuple[list[Page], EngineInfo]:
    """The pages of an answer, and who read them."""
    from ocrsvc.records import EngineInfo, Line, Page

    if not isinstance(answer, Answer):
        return [reading.page for reading in answer.readings], answer.readings[0].engine
    pages = [
        Page(
            page.width,
            page.height,
            page.angle,
            tuple(Line(line.text, line.confidence, cast("Box", line.box)) for line in page.lines),
            page.number,
        )
        for page in answer.pages
    ]
    return pages, EngineInfo(**answer.engine)
