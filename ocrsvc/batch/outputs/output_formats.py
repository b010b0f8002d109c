"""The output formats of batch runs, by name, and the contract of what writes them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Protocol

from ocrsvc.batch.destination import Destination, WrittenFile
from ocrsvc.batch.pages import SourceFile
from ocrsvc.errors import BadOption
from ocrsvc.registry import text_formats

_PACKING: Final = 6


@dataclass(frozen=True, slots=True)
class FileResults:
    """What is known of one file's pages.

    Attributes:
        pages: Numbers of its pages that have a result, in order.
        record: Gives the record of such a page, so that memory holds one.
        load: Gives the bytes of the file itself; raises OcrsvcError.
    """

    file: SourceFile
    pages: Sequence[int]
    record: Callable[[int], bytes]
    load: Callable[[], bytes]


class OutputWriter(Protocol):
    """Writes one format, one part at a time."""

    def write(
        self, destination: Destination, part: int, files: Iterator[FileResults], *, replace: bool
    ) -> list[WrittenFile]:
        """Write a part, and give the files that its manifest names. The same results give the same bytes.

        Raises OSError; FileExistsError where a file is there that must not be replaced.
        """


class JsonLines:
    """Files named pages-00000.jsonl and so on, perhaps packed by gzip; `folder` is "" or ends in a slash."""

    def __init__(self, folder: str, *, is_packed: bool = False) -> None:
        self._folder, self._is_packed = folder, is_packed

    def write(
        self, destination: Destination, part: int, files: Iterator[FileResults], *, replace: bool
    ) -> list[WrittenFile]:
        """As OutputWriter.write."""
        name = f"{self._folder}pages-{part:05d}.jsonl{'.gz' if self._is_packed else ''}"
        with destination.writing(name, replace=replace) as output, ExitStack() as packing:
            # Without a name and a time in it: the same pages give the same bytes.
            lines = packing.enter_context(gzip.GzipFile("", "wb", _PACKING, output, 0)) if self._is_packed else output
            for results in files:
                for page in results.pages:
                    lines.write(results.record(page) + b"\n")
        return [output.written()]


@dataclass(frozen=True, slots=True)
class BatchFormat:
    """`open` gives a writer for a folder and the identity of what reads; one that is cheap writes at a limit, too."""

    open: Callable[[str, Mapping[str, str]], OutputWriter]
    help: str
    is_cheap: bool = True


def _open_parquet(rows: str, folder: str, _reader: Mapping[str, str]) -> OutputWriter:
    from ocrsvc.batch.outputs.parquet_files import ParquetFiles

    return ParquetFiles(folder, rows)


def _open_text(name: str, folder: str, reader: Mapping[str, str]) -> OutputWriter:
    from ocrsvc.batch.outputs.source_files import text_files

    return text_files(name, folder, reader)


def _open_pdf(folder: str, _reader: Mapping[str, str]) -> OutputWriter:
    from ocrsvc.batch.outputs.source_files import pdf_files

    return pdf_files(folder)


BATCH_FORMATS: Final[Mapping[str, BatchFormat]] = {
    "jsonl": BatchFormat(lambda folder, _reader: JsonLines(folder), "one line of JSON for each page"),
    "jsonl.gz": BatchFormat(lambda folder, _reader: JsonLines(folder, is_packed=True), "the same, packed by gzip"),
    "parquet": BatchFormat(partial(_open_parquet, "page"), "Parquet with one row for each page"),
    "parquet:line": BatchFormat(partial(_open_parquet, "line"), "Parquet with one row for each line"),
    "parquet:word": BatchFormat(partial(_open_parquet, "word"), "Parquet with one row for each word"),
    **{
        name: BatchFormat(partial(_open_text, name), f"{form.help}, a file for each source")
        for name, form in text_formats().items()
    },
    "pdf": BatchFormat(_open_pdf, "searchable PDF, a file for each source", is_cheap=False),
}


def check_formats(names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raises BadOption unless the formats are known, each named once, and fit how pages are to be read."""
    for name in names:
        if name not in BATCH_FORMATS:
            raise BadOption(f"--format is {name!r}: accepted are {', '.join(BATCH_FORMATS)}, separated by commas.")
        if names.count(name) > 1:
            raise BadOption(f"--format is {','.join(names)!r}, which has {name} twice.", "Name each format once.")
    if "parquet:word" in names and not (options.get("words") or options.get("characters")):
        raise BadOption("--format parquet:word has a row for each word, and words are not asked for.", "Add --words.")
    if "pdf" in names and options.get("mask"):
        raise BadOption("--format pdf shows the pages as they are, and --mask is to hide what is on them.")
    if any(name.startswith("parquet") for name in names) and find_spec("pyarrow") is None:
        raise BadOption("--format parquet needs the package pyarrow.", "Install the extra: ocrsvc[parquet].")


def open_writers(names: Sequence[str], reader: Mapping[str, str], unfinished: str = "") -> list[OutputWriter]:
    """The writers of formats; each of several has a folder of its own, and Parquet always.

    With a folder for what is `unfinished` they are those that are cheap.
    """
    wanted = [name for name in names if BATCH_FORMATS[name].is_cheap or not unfinished]
    return [BATCH_FORMATS[name].open(unfinished + _folder_of(name, len(names)), reader) for name in wanted]


def _folder_of(name: str, formats: int) -> str:
    """What reads a folder of Parquet takes every file in it for one."""
    return f"{name.replace(':', '-')}/" if formats > 1 or name.startswith("parquet") else ""
