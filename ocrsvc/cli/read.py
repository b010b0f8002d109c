"""What `ocrsvc read FILE…` does: the text of images, read in this process or by a service."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson

from ocrsvc.calling.answer import Answer
from ocrsvc.errors import NothingSent, OcrsvcError, OperatorError
from ocrsvc.plan import plan_for, set_library_threads
from ocrsvc.settings import read_settings

if TYPE_CHECKING:
    from ocrsvc.cli.commands import Commands
    from ocrsvc.reader import Reader
    from ocrsvc.records import Box, EngineInfo, Page, Reading, ReadOptions

    # A service's answer, one of this process, or what is wrong.
    Answered = Answer | Reading | OcrsvcError

# Nobody waits but the person at the keyboard, who has Ctrl-C.
_DEADLINE_S: Final = 86_400.0
_STOP_S: Final = 5.0

# As `ocrsvc.formats.choose` names them, which loads a numeric library.
_FORMATS: Final = ("text", "json", "tsv", "hocr", "alto")


def add_command(commands: Commands) -> None:
    """Declare `ocrsvc read`."""
    parser = commands.add_parser("read", help="print the text of images")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="image file; - is standard input")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="text (default), json (one object a line and file), or one document for all files: tsv, hocr, alto",
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
    parser.add_argument("--line", action="store_true", help="each image is one line: detect nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read every file; a bad one is told on stderr and does not stop the others.

    Returns:
        0, or the exit code of the first file that failed.
    """
    answers = _by_service(args) if args.url else _by_ourselves(args)
    show = _show_each if args.format in {"text", "json"} else _show_together
    codes = list(show(answers, args))
    return next((code for code in codes if code), 0)


def _by_service(args: argparse.Namespace) -> Iterator[tuple[Path, Answered]]:
    """Each file with the answer of the service at --url, in order, a few at a time."""
    try:
        from ocrsvc.client import Client
    except ModuleNotFoundError as error:
        raise OperatorError(f"--url needs the package {error.name}.", "Install the extra: ocrsvc[client].") from error

    pictures = (sys.stdin.buffer.read() if str(file) == "-" else file for file in args.files)
    with Client(args.url) as client:
        answers = client.read_many(pictures, rotate=args.rotate, detect=not args.line)
        yield from zip(args.files, answers, strict=True)


def _by_ourselves(args: argparse.Namespace) -> Iterator[tuple[Path, Answered]]:
    """Each file with the answer of an engine in this process, in order."""
    # Before the numeric libraries load, which read the environment once: so they are imported inside functions here.
    set_library_threads(os.environ)
    from ocrsvc.records import ReadOptions

    options = ReadOptions(rotate=args.rotate, detect=not args.line)
    reader = _start_reader(args.engine)
    try:
        yield from _read_all(reader, args.files, options)
    finally:
        reader.stop(_STOP_S)


def _start_reader(engine: str | None) -> Reader:
    """A reader that is warm; raises EngineUnavailable or SettingsError."""
    from ocrsvc.reader import Reader

    settings = read_settings(os.environ | ({"OCRSVC_ENGINE": engine} if engine else {}))
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    return reader


def _read_all(
    reader: Reader, files: Sequence[Path], options: ReadOptions
) -> Iterator[tuple[Path, Reading | OcrsvcError]]:
    """Each file with its answer, in order; as many at a time as a few engine threads can use."""
    for begin in range(0, len(files), 16):
        batch = files[begin : begin + 16]
        data = [_load(file) for file in batch]
        answers = iter(reader.read_many([item for item in data if isinstance(item, bytes)], options, _DEADLINE_S))
        for file, item in zip(batch, data, strict=True):
            yield file, (next(answers) if isinstance(item, bytes) else item)


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
            yield _complain(file, answer)
            continue
        if args.format == "json":
            print(orjson.dumps({"file": str(file), **_members_of(answer)}).decode(), flush=True)
        else:
            heading = f"==> {file} <==\n" if len(args.files) > 1 else ""
            print(f"{heading}{_text_of(answer)}", flush=True)
        yield 0


def _show_together(answers: Iterator[tuple[Path, Answered]], args: argparse.Namespace) -> Iterator[int]:
    """Print all pages as one document, numbered on from file to file; gives each file's exit code."""
    from ocrsvc.formats.choose import FORMATS

    pages: list[Page] = []
    engine: EngineInfo | None = None
    for file, answer in answers:
        if isinstance(answer, OcrsvcError):
            yield _complain(file, answer)
            continue
        fresh, engine = _pages_of(answer)
        pages.extend(replace(page, number=number) for number, page in enumerate(fresh, start=len(pages) + 1))
        yield 0
    if engine is not None:
        print(FORMATS[args.format].write(pages, engine), end="", flush=True)


def _complain(file: Path, error: OcrsvcError) -> int:
    print(f"ocrsvc: {file}: {error}", file=sys.stderr, flush=True)
    return error.exit_code


def _text_of(answer: Answer | Reading) -> str:
    return answer.text if isinstance(answer, Answer) else answer.page.text


def _members_of(answer: Answer | Reading) -> dict[str, object]:
    """The answer with the names of the native API."""
    if isinstance(answer, Answer):
        return dict(answer.data)
    from ocrsvc.formats.structured import engine_to_dict, page_to_dict, timing_to_dict

    return {
        "engine": engine_to_dict(answer.engine),
        "pages": [page_to_dict(answer.page, 1)],
        "timing": timing_to_dict(answer.timing),
    }


def _pages_of(answer: Answer | Reading) -> tuple[list[Page], EngineInfo]:
    """The pages of an answer, and who read them."""
    from ocrsvc.records import EngineInfo, Line, Page

    if not isinstance(answer, Answer):
        return [answer.page], answer.engine
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
