"""`ocrsvc read FILE…`: the text of images and documents, read in this process or by a service."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.api_key import add_argument
from ocrsvc.cli.output_file import STANDARD, check_output, writing
from ocrsvc.cli.output_format import JSON, OTHER_NAMES, PDF, TEXT, check_one_pdf, formats_for, is_zip
from ocrsvc.cli.progress import show_progress
from ocrsvc.cli.read_documents import json_line, more_options, write_documents
from ocrsvc.cli.read_files import Answered, read_by_service, read_in_this_process
from ocrsvc.cli.reading_options import add_reading_options, options_of
from ocrsvc.cli.tls_arguments import add_tls_arguments
from ocrsvc.client.response import Answer
from ocrsvc.errors import BadOption, KeyMissing
from ocrsvc.registry import output_formats
from ocrsvc.settings.api_key import API_KEY_VARIABLE

HELP: Final = "print the text of images and documents, or write searchable PDFs and other files of them"
_KEY_REMEDY: Final = f"Name a file with the key with --key-file, or set {API_KEY_VARIABLE}."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc read`."""
    documents = ", ".join(name for name in output_formats() if name != TEXT)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="image, PDF or TIFF; - is standard input")
    parser.add_argument(
        "--format",
        type=_formats_of,
        metavar="FORMAT[,FORMAT…]",
        help=f"text, json (one object a line and file), or one document for all files: {documents}; several are "
        "written as a zip; by default what the name after -o ends in, else text",
    )
    parser.add_argument("--json", action="store_const", const=(JSON,), dest="format", help="the same as --format json")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write, whole or not at all; - is standard output"
    )
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


def _formats_of(text: str) -> tuple[str, ...]:
    """For argparse, which reports ArgumentTypeError."""
    names = tuple(dict.fromkeys(OTHER_NAMES.get(name, name) for name in text.split(",")))
    for name in names:
        if name not in (JSON, *output_formats()):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {JSON}, {', '.join(output_formats())}")
    return names


def run(args: argparse.Namespace) -> int:
    """Read every file; a bad one is reported on stderr and does not stop the others.

    Returns:
        0, or the exit code of the first file that failed.
    """
    if args.timing and not args.url:
        raise BadOption("--timing tells where a service's time goes.", "Name the service: --url http://host:port.")
    output: Path = args.output or STANDARD
    check_output(output, args.files)
    args.format = formats_for(args.format, output)
    check_one_pdf(args.files, args.format, output)
    if output == STANDARD and sys.stdout.isatty() and (PDF in args.format or len(args.format) > 1):
        raise BadOption("What is asked for is no text, and would be written to the terminal.", "Add -o FILE.")
    answers = _answers(args, shows_progress=args.output is not None or not sys.stdout.isatty())
    streams = args.output is None and args.format in {(TEXT,), (JSON,)}
    codes = list((_show_each if streams else _write_together)(answers, args))
    return next((code for code in codes if code), 0)


def _answers(args: argparse.Namespace, *, shows_progress: bool) -> Iterator[tuple[Path, Answered]]:
    """Each file with its answer, in order; on a terminal with how far it is, unless that shows the answers."""
    more = more_options(args.format, options_of(args))
    shows = shows_progress and sys.stderr.isatty()
    if not args.url:
        yield from read_in_this_process(args, more, _show_pages if shows else _show_nothing)
        return
    for count, answer in enumerate(read_by_service(args, more), start=1):
        if shows:
            show_progress(count, len(args.files), visible(str(answer[0]))[:60])
        yield answer


def _show_pages(file: Path, done: int, count: int) -> None:
    show_progress(done, count, visible(str(file))[:60])


def _show_nothing(_file: Path, _done: int, _count: int) -> None:
    """Elsewhere than on a terminal."""


def _show_each(answers: Iterator[tuple[Path, Answered]], args: argparse.Namespace) -> Iterator[int]:
    """Print each file's answer as it comes, as text or as JSON; gives its exit code."""
    for file, answer in answers:
        if isinstance(answer, Answer):
            heading = f"==> {file} <==\n" if len(args.files) > 1 else ""
            if args.format == (JSON,):
                print(json_line(file, answer).decode(), end="", flush=True)
            else:
                print(f"{heading}{answer.text}", flush=True)
        yield _report(file, answer)


def _write_together(answers: Iterator[tuple[Path, Answered]], args: argparse.Namespace) -> Iterator[int]:
    """Write all files as one document; gives each file's exit code. Nothing is written where none could be read."""
    read: list[tuple[Path, Answer]] = []
    for file, answer in answers:
        if isinstance(answer, Answer):
            read.append((file, answer))
        yield _report(file, answer)
    if read:
        with writing(args.output or STANDARD) as output:
            words = args.words or args.segmented or args.characters
            as_zip = is_zip(args.output or STANDARD)
            write_documents(read, args.format, output, words=words, tables=args.tables, as_zip=as_zip)


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
