"""The output formats of batch runs, by name, and the interface of their writers."""

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from ocrsvc.batch.destination import Destination, WrittenFile
from ocrsvc.batch.pages import FileResults
from ocrsvc.errors import BadOption
from ocrsvc.plugins import text_formats

WritePart = Callable[..., WrittenFile]
"""Writes an output part; called with destination, part, FileResults and `replace`. Returns the file for the manifest.

The same results give the same bytes. Raises OSError; FileExistsError if the file exists, unless `replace`.
"""
BATCH_FORMATS: Final = {
    "jsonl": "one line of JSON for each page",
    "jsonl.gz": "the same, packed by gzip",
    "parquet": "Parquet with one row for each page",
    "parquet:line": "Parquet with one row for each line",
    "parquet:word": "Parquet with one row for each word",
    **{name: f"{form.help}, a file for each source" for name, form in text_formats().items()},
    "pdf": "searchable PDF, a file for each source",
}
"""Format names, each with a short description."""


def check_formats(names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raises BadOption for formats that are unknown, repeated, or impossible with the page options."""
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
        raise BadOption("--format parquet needs the package pyarrow.", "Install the extra: pip install '.[parquet]'.")


def open_writers(
    names: Sequence[str], reader: Mapping[str, str], below: str = "", root: str = ""
) -> Iterator[WritePart]:
    """Yield a writer per format, for the output folder `below`; `root`: folder of sources; `reader`: engine, model."""
    for name in names:
        # Parquet gets its own folder, as Parquet readers try to read every file in a folder.
        has_folder = len(names) > 1 or name.startswith("parquet")
        folder = f"{below}{name.replace(':', '-')}/" if has_folder else below
        if name.startswith("jsonl"):
            yield partial(_write_lines, folder, name)
        elif name.startswith("parquet"):
            from ocrsvc.batch.outputs.parquet_files import write_parquet

            yield partial(write_parquet, folder, name.partition(":")[2] or "page")
        else:
            from ocrsvc.batch.outputs.source_files import source_file_writer

            yield source_file_writer(name, folder, reader, root)


def _write_lines(
    folder: str, ending: str, destination: Destination, part: int, files: Iterator[FileResults], *, replace: bool
) -> WrittenFile:
    name = f"{folder}pages-{part:05d}.{ending}"
    with destination.writing(name, replace=replace) as output, ExitStack() as packing:
        is_packed = ending.endswith(".gz")
        # The gzip header has no name and time, so that the same pages give the same bytes.
        lines = packing.enter_context(gzip.GzipFile("", "wb", 6, output, 0)) if is_packed else output
        for results in files:
            for page in results.pages:
                lines.write(results.record(page) + b"\n")
    return output.written()
