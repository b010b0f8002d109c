"""`ocrsvc read FILE…`: the text of images and documents, read in this process or by a service."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.options import FILE, Reading, check_at_most_one, command, option, reading_options
from ocrsvc.cli.output import (
    JSON,
    OTHER_NAMES,
    PDF,
    STANDARD,
    TEXT,
    check_output,
    formats_for,
    is_zip,
    show_progress,
    writing,
)
from ocrsvc.cli.read_files import Answered, is_pdf, json_line, read_by_service, read_in_this_process, write_documents
from ocrsvc.cli.service import Access, service_access
from ocrsvc.client.response import Answer
from ocrsvc.errors import BadOption, KeyMissing
from ocrsvc.registry import needs_of, output_formats
from ocrsvc.settings.api_key import API_KEY_VARIABLE

_KEY_REMEDY: Final = f"Name a file with the key with --key-file, or set {API_KEY_VARIABLE}."
_DOCUMENTS: Final = ", ".join(name for name in output_formats() if name != TEXT)


def _formats_of(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> tuple[str, ...] | None:
    """The formats that an option names. Raises BadParameter."""
    if value is None or isinstance(value, tuple):
        return value
    names = tuple(dict.fromkeys(OTHER_NAMES.get(name, name) for name in value.split(",")))
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
@click.argument(
    "files", nargs=-1, required=True, type=FILE, metavar="FILE...", help="Image, PDF or TIFF; - is standard input."
)
@option(
    "--format",
    "formats",
    callback=_formats_of,
    metavar="FORMAT[,FORMAT...]",
    help=f"text, json (an object a line and file), or one document of all files: {_DOCUMENTS}; several are written as "
    "a zip. By default what the name after -o ends in, else text.",
)
@option("--json", "formats", flag_value=JSON, callback=_formats_of, help="The same as --format json.")
@option("-o", "--output", type=FILE, help="File to write, whole or not at all; - is standard output.")
@option("--engine", metavar="NAME", help="Engine to use instead of the one that OCRSVC_ENGINE names.")
@option("--url", section="Service", metavar="URL[,URL...]", help="A service, or several, that read instead.")
@option("--timing", section="Service", is_flag=True, help="Show where each request's time went, on stderr and in JSON.")
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
    reading: Reading,
) -> int:
    """Print the text of images and documents, or write searchable PDFs and other files of it.

    A file that cannot be read is reported and does not stop the others; the first one gives the exit code.
    """
    check_at_most_one(engine=engine, url=url)
    if timing and not url:
        raise BadOption("--timing tells where a service's time goes.", "Name the service: --url http://host:port.")
    chosen = _checked_formats(formats, files, output or STANDARD, reading)
    options = {**reading.options, **{name: True for name in needs_of(chosen) if not reading.options.get(name)}}
    shows = (output is not None or not sys.stdout.isatty()) and sys.stderr.isatty()
    if url:
        asked = {**options, "pages": reading.pages, "timing": "stages" if timing else None}
        answers = _shown(read_by_service(files, url, access, asked), len(files) if shows else 0)
    else:
        show = _show_pages if shows else lambda _file, _done, _count: None
        answers = read_in_this_process(files, engine, reading.pages, options, show)
    if output is None and chosen in {(TEXT,), (JSON,)}:
        codes = list(_print_each(answers, as_json=chosen == (JSON,), headed=len(files) > 1))
    else:
        codes = list(_write_together(answers, chosen, output or STANDARD, reading))
    return next((code for code in codes if code), 0)


def _checked_formats(
    asked: tuple[str, ...] | None, files: Sequence[Path], target: Path, reading: Reading
) -> tuple[str, ...]:
    """What is written. Raises BadOption, before anything is read, for what cannot be."""
    check_output(target, files)
    formats = formats_for(asked, target)
    if formats == (PDF,) and len(files) > 1 and target.suffix.lower() == ".pdf" and any(map(is_pdf, files)):
        raise BadOption(
            "One PDF is made of several pictures, and one of each file where a PDF is among them.",
            "Read files one by one, or write a zip: -o FILE.zip.",
        )
    if target == STANDARD and sys.stdout.isatty() and (PDF in formats or len(formats) > 1):
        raise BadOption("What is asked for is no text, and would be written to the terminal.", "Add -o FILE.")
    if PDF in formats and reading.options["mask"]:
        raise BadOption(
            "--format pdf shows the pages as they are, and --mask is to hide what is on them.",
            "Ask a service: POST /v1/ocr?format=pdf&mask=… shows pictures of the pages with what is masked in black.",
        )
    return formats


def _shown(answers: Iterable[tuple[Path, Answered]], count: int) -> Iterator[tuple[Path, Answered]]:
    """The same; how far it is is shown where there is a count."""
    for done, answer in enumerate(answers, start=1):
        if count:
            _show_pages(answer[0], done, count)
        yield answer


def _show_pages(file: Path, done: int, count: int) -> None:
    show_progress(done, count, visible(str(file))[:60])


def _print_each(answers: Iterable[tuple[Path, Answered]], *, as_json: bool, headed: bool) -> Iterator[int]:
    """Print each file's answer as it comes; gives its exit code."""
    for file, answer in answers:
        if isinstance(answer, Answer):
            heading = f"==> {file} <==\n" if headed else ""
            print(json_line(file, answer).decode() if as_json else f"{heading}{answer.text}\n", end="", flush=True)
        yield _report(file, answer)


def _write_together(
    answers: Iterable[tuple[Path, Answered]], formats: Sequence[str], target: Path, reading: Reading
) -> Iterator[int]:
    """Write all files as one document; gives each file's exit code. Nothing is written where none could be read."""
    read: list[tuple[Path, Answer]] = []
    for file, answer in answers:
        if isinstance(answer, Answer):
            read.append((file, answer))
        yield _report(file, answer)
    if read:
        options = reading.options
        asked = {"words": options["words"] or options["characters"], "tables": options["tables"]}
        unwanted = {name for name, is_asked in asked.items() if not is_asked}
        with writing(target) as output:
            write_documents(read, formats, output, unwanted, as_zip=is_zip(target))


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
