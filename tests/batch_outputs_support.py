"""Page results for the tests of batch output formats, made without a batch run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from image_support import box

from ocrsvc.batch.destination import Destination, WrittenFile
from ocrsvc.batch.outputs.output_formats import open_writers
from ocrsvc.batch.pages import FileResults, PageGroup, SourceFile, failure_of, result_of
from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.json_values import page_to_dict
from ocrsvc.results import Line, Page, ReadOptions, Word

READER = {"engine": "fake", "model": "none", "version": "1"}


def line(text: str, top: float = 10.0, words: Sequence[Word] | None = None) -> Line:
    """Return a line 160 px wide and 20 px high."""
    return Line(text, 0.9876, box(20, top, 180, top + 20), None if words is None else tuple(words))


def page(*texts: str) -> Page:
    """Return a page of 200 x 100 px with one line per text."""
    return Page(200, 100, 0, tuple(line(text, 10.0 + 30 * at) for at, text in enumerate(texts)))


Outcome = Page | OcrsvcError | None
"""The result of a page: read, failed, or None while it is not known."""


def results(name: str, outcomes: Sequence[Outcome], data: bytes = b"", asked: ReadOptions | None = None) -> FileResults:
    """Return the results of a file with one page per outcome."""
    numbers = range(1, len(outcomes) + 1)
    group = PageGroup(SourceFile(name, name, "", len(data), len(outcomes), numbers), tuple(numbers), tuple(numbers))
    records: dict[int, bytes] = {}
    for number, outcome in zip(numbers, outcomes, strict=True):
        if isinstance(outcome, OcrsvcError):
            records[number] = failure_of(group, number, outcome).record
        elif outcome is not None:
            values = page_to_dict(outcome, number, asked or ReadOptions())
            records[number] = result_of(group, number, values, 0.1, "here").record
    return FileResults(group.file, tuple(records), records.__getitem__, lambda: data)


def write(folder: Path, name: str, *files: FileResults) -> WrittenFile:
    """Write these files as the first part of a run, in the named output format."""
    return next(open_writers([name], READER))(Destination(folder), 0, iter(files), replace=True)


def tree(folder: Path) -> Mapping[str, bytes]:
    """Return the content of every file below a folder by relative path."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
