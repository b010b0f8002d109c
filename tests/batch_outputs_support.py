"""Results of pages for the tests of outputs, without a run."""

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
    """A line 20 high and 160 wide."""
    return Line(text, 0.9876, box(20, top, 180, top + 20), None if words is None else tuple(words))


def page(*texts: str) -> Page:
    """A page of 200 x 100 pixels with these lines."""
    return Page(200, 100, 0, tuple(line(text, 10.0 + 30 * at) for at, text in enumerate(texts)))


Outcome = Page | OcrsvcError | None
"""What became of a page; None is not known yet."""


def results(name: str, outcomes: Sequence[Outcome], data: bytes = b"", asked: ReadOptions | None = None) -> FileResults:
    """What is known of a file with these pages."""
    numbers = range(1, len(outcomes) + 1)
    group = PageGroup(SourceFile(name, name, "", len(data), len(outcomes), numbers), tuple(numbers), tuple(numbers))
    records: dict[int, bytes] = {}
    for number, outcome in zip(numbers, outcomes, strict=True):
        if isinstance(outcome, OcrsvcError):
            records[number] = failure_of(group, number, outcome).record
        elif outcome is not None:
            said = page_to_dict(outcome, number, asked or ReadOptions())
            records[number] = result_of(group, number, said, 0.1, "here").record
    return FileResults(group.file, tuple(records), records.__getitem__, lambda: data)


def write(folder: Path, name: str, *files: FileResults) -> WrittenFile:
    """Have a format write these files as the first part."""
    return next(open_writers([name], READER))(Destination(folder), 0, iter(files), replace=True)


def tree(folder: Path) -> Mapping[str, bytes]:
    """The content of every file below a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
