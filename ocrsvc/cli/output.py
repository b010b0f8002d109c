"""What commands write: tables and progress on a terminal, and files, by format, that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Final

from ocrsvc.errors import BadOption, OperatorError
from ocrsvc.plugins import output_formats

JSON, NDJSON, PDF, TEXT = "json", "ndjson", "pdf", "text"
OTHER_NAMES: Final = {"txt": TEXT}
"""Other names for formats."""
STANDARD: Final = Path("-")
"""Standard input or output."""

_ZIP: Final = ".zip"
_JSONS: Final = {".json": JSON, ".jsonl": NDJSON, ".ndjson": NDJSON}
_OTHER_ENDINGS: Final = {".markdown": "md", ".xml": "alto", ".html": "hocr", ".htm": "hocr"}
_ENDINGS: Final = {form.suffix: name for name, form in output_formats().items()} | _JSONS | _OTHER_ENDINGS
"""Formats by the end of a name, in lower case."""
_WIDE: Final = frozenset("WF")
_BAR: Final = 24


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, to_right: bool = False) -> Iterator[str]:
    """The lines of a table with its heads; `to_right` aligns all columns but the first as figures."""
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        blanks = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [blanks[at] + cell if to_right and at else cell + blanks[at] for at, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """In columns of a terminal, where Chinese takes two."""
    return sum(2 if unicodedata.east_asian_width(character) in _WIDE else 1 for character in text)


def show_progress(done: int, count: int, doing: str = "") -> None:
    """A bar on a terminal, a line elsewhere."""
    filled = _BAR * done // max(1, count)
    end = "\r" if sys.stderr.isatty() and done < count else "\n"
    sys.stderr.write(f"[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{count} {doing:60}{end}")
    sys.stderr.flush()


def formats_for(asked: tuple[str, ...] | None, output: Path, default: str = TEXT, lines: str = JSON) -> tuple[str, ...]:
    """What --format names, or else the end of the name after -o; `default` is for a name without a known end.

    `lines` is the format of JSON on lines. Raises BadOption where name and format disagree, or a zip's are not named.
    """
    formats = {end: lines if name == NDJSON else name for end, name in _ENDINGS.items()}
    named = formats.get(_ending_of(output))
    if asked is None:
        if is_zip(output):
            raise BadOption(f"{output} is a zip of formats that are not named.", "Name them, such as --format pdf,md.")
        return (named or default,)
    if named is None or asked == (named,):
        return asked
    raise _mismatch(asked, output, named, formats)


def _mismatch(asked: Sequence[str], output: Path, named: str, formats: Mapping[str, str]) -> BadOption:
    if len(asked) > 1:
        what = f"Several formats are written as a zip, and {output} is no name of one."
        return BadOption(what, f"Write -o {output.with_suffix(_ZIP)}, or only --format {named}.")
    fitting = " or ".join(end for end, name in formats.items() if name == asked[0])
    what = f"{output} is a name for --format {named}, and --format {asked[0]} is asked for."
    return BadOption(what, f"Let the name end in {fitting}, or ask for --format {named}.")


def is_zip(output: Path) -> bool:
    """Whether the name is one of a zip, which may hold a single file."""
    return _ending_of(output) == _ZIP


def _ending_of(output: Path) -> str:
    name = output.name.lower()
    return next((ending for ending in (_ZIP, *_ENDINGS) if name.endswith(ending)), "")


def check_output(output: Path, sources: Sequence[Path] = ()) -> None:
    """Raises BadOption, before anything is read, where a file cannot be written, or would replace a source."""
    if output == STANDARD:
        return
    if output.is_dir() or not output.parent.is_dir():
        raise BadOption(f"{output} is no file that can be written.", "Name one in a folder that is there.")
    if output.exists() and any(source.exists() and output.samefile(source) for source in sources):
        raise BadOption(f"{output} is one of the files that are read.", "Name another file.")


@contextmanager
def writing(output: Path) -> Iterator[IO[bytes]]:
    """A file that becomes the output when the block ends without an error; a pipe or device is written to.

    Raises OperatorError.
    """
    is_device = output == STANDARD or (output.exists() and not output.is_file())
    try:
        with _copied_to(output) if is_device else _beside(Path(os.path.realpath(output))) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OperatorError(f"{output} cannot be written: {error.strerror}.", "Name another file.") from error


@contextmanager
def _copied_to(output: Path) -> Iterator[IO[bytes]]:
    with TemporaryFile() as file:
        yield file
        file.seek(0)
        with nullcontext(sys.stdout.buffer) if output == STANDARD else output.open("wb") as device:
            shutil.copyfileobj(file, device)
            device.flush()


@contextmanager
def _beside(output: Path) -> Iterator[IO[bytes]]:
    """A file in the same folder, which takes the output's name and mode at the end."""
    file = NamedTemporaryFile("w+b", dir=output.parent, prefix=f".{output.name[:40]}.", delete=False)  # noqa: SIM115
    os.umask(mask := os.umask(0))
    try:
        with file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), stat.S_IMODE(output.stat().st_mode) if output.exists() else 0o666 & ~mask)
            os.fsync(file.fileno())
        Path(file.name).replace(output)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise
