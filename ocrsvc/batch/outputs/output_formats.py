"""The output formats of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Literal

from ocrsvc.batch.outputs.contract import OutputWriter
from ocrsvc.batch.outputs.json_lines import JsonLines
from ocrsvc.errors import BadOption
from ocrsvc.formats.output_formats import OUTPUT_FORMATS

Rows = Literal["page", "line", "word"]
"""What a row of Parquet is for."""


@dataclass(frozen=True, slots=True)
class WriterRequest:
    """What a writer is opened with.

    Attributes:
        folder: In which it writes: "", or one that ends in a slash.
        identity: Engine, model and version that read, as `PageReader.start` gives them.
        run_format: As of RunDescription.
    """

    folder: str
    identity: Mapping[str, str]
    run_format: int


@dataclass(frozen=True, slots=True)
class BatchFormat:
    """One format.

    Attributes:
        open: Opens its writer.
        help: One phrase for people.
        is_cheap: Whether it is worth writing of parts that will be written again.
    """

    open: Callable[[WriterRequest], OutputWriter]
    help: str
    is_cheap: bool = True


def _open_parquet(rows: Rows, request: WriterRequest) -> OutputWriter:
    from ocrsvc.batch.outputs.parquet_writer import ParquetFiles

    return ParquetFiles(request.folder, rows, request.run_format)


def _open_text(name: str, request: WriterRequest) -> OutputWriter:
    from ocrsvc.batch.outputs.text_files import text_files

    return text_files(name, request.folder, request.identity)


def _open_pdf(request: WriterRequest) -> OutputWriter:
    from ocrsvc.batch.outputs.pdf_files import pdf_files

    return pdf_files(request.folder)


BATCH_FORMATS: Final[Mapping[str, BatchFormat]] = {
    "jsonl": BatchFormat(lambda request: JsonLines(request.folder), "one line of JSON for each page"),
    "jsonl.gz": BatchFormat(lambda request: JsonLines(request.folder, is_packed=True), "the same, packed by gzip"),
    "parquet": BatchFormat(partial(_open_parquet, "page"), "Parquet with one row for each page"),
    "parquet:line": BatchFormat(partial(_open_parquet, "line"), "Parquet with one row for each line"),
    "parquet:word": BatchFormat(partial(_open_parquet, "word"), "Parquet with one row for each word"),
    **{
        name: BatchFormat(partial(_open_text, name), f"{form.help}, a file for each source")
        for name, form in OUTPUT_FORMATS.items()
    },
    "pdf": BatchFormat(_open_pdf, "searchable PDF, a file for each source", is_cheap=False),
}


def check_formats(names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raises BadOption unless the formats are known, each named once, and fit how pages are to be read.

    Args:
        names: Of BATCH_FORMATS.
        options: How pages are read, as the native API names them.
    """
    for name in names:
        if name not in BATCH_FORMATS:
            raise BadOption(f"--format is {name!r}: accepted are {', '.join(BATCH_FORMATS)}, separated by commas.")
    for name in set(names):
        if names.count(name) > 1:
            raise BadOption(f"--format is {','.join(names)!r}, which has {name} twice.", "Name each format once.")
    if "parquet:word" in names and not (options.get("words") or options.get("characters")):
        raise BadOption("--format parquet:word has a row for each word, and words are not asked for.", "Add --words.")
    if "pdf" in names and options.get("mask"):
        raise BadOption("--format pdf shows the pages as they are, and --mask is to hide what is on them.")
    if any(name.startswith("parquet") for name in names):
        check_parquet()


def check_parquet() -> None:
    """Raises BadOption where what writes Parquet is not installed."""
    if find_spec("pyarrow") is None:
        raise BadOption("--format parquet needs the package pyarrow.", "Install the extra: ocrsvc[parquet].")


def open_writers(
    names: Sequence[str], identity: Mapping[str, str], run_format: int, unfinished: str = ""
) -> list[OutputWriter]:
    """The writers of formats that were checked; each of several has a folder of its own, and Parquet always.

    Args:
        names: Of the formats.
        identity, run_format: As of WriterRequest.
        unfinished: A folder that ends in a slash, for what is not finished: those that are cheap write there. "" is for
            what is finished.
    """
    requests = {name: WriterRequest(unfinished + _folder_of(name, len(names)), identity, run_format) for name in names}
    wanted = {name: request for name, request in requests.items() if BATCH_FORMATS[name].is_cheap or not unfinished}
    return [BATCH_FORMATS[name].open(request) for name, request in wanted.items()]


def _folder_of(name: str, formats: int) -> str:
    """What reads a folder of Parquet takes every file in it for one."""
    return f"{name.replace(':', '-')}/" if formats > 1 or name.startswith("parquet") else ""
