"""Output of commands: tables and progress on a terminal, file formats, and files written completely or not at all."""

import os
import shutil
import stat
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final

from ocrsvc.errors import BadOption, OperatorError
from ocrsvc.plugins import output_formats

JSON, NDJSON, PDF, TEXT = "json", "ndjson", "pdf", "text"
ALIASES: Final = {"txt": TEXT}
"""Aliases of formats."""
STDIO: Final = Path("-")
"""Standard input or output."""

_ZIP: Final = ".zip"
_JSONS: Final = {".json": JSON, ".jsonl": NDJSON, ".ndjson": NDJSON}
_OTHER_ENDINGS: Final = {".markdown": "md", ".xml": "alto", ".html": "hocr", ".htm": "hocr"}
_ENDINGS: Final = {form.suffix: name for name, form in output_formats().items()} | _JSONS | _OTHER_ENDINGS
"""Formats by file ending, in lower case."""
_BAR: Final = 24


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, to_right: bool = False) -> Iterator[str]:
    """The lines of a table with a header; `to_right` right-aligns all columns but the first."""
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        blanks = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [blanks[at] + cell if to_right and at else cell + blanks[at] for at, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """Width in terminal columns; Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def show_progress(done: int, count: int, doing: str = "") -> None:
    """Print progress: a bar on a terminal, else lines."""
    filled = _BAR * done // max(1, count)
    end = "\r" if sys.stderr.isatty() and done < count else "\n"
    sys.stderr.write(f"[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{count} {doing:60}{end}")
    sys.stderr.flush()


def formats_for(asked: tuple[str, ...] | None, output: Path, default: str = TEXT, lines: str = JSON) -> tuple[str, ...]:
    """The formats of --format, else of the output's file ending, else `default`; .jsonl and .ndjson mean `lines`.

    Raises BadOption if ending and format disagree, the ending is unknown, or a zip has no formats.
    """
    formats = {end: lines if name == NDJSON else name for end, name in _ENDINGS.items()}
    by_ending = formats.get(_ending_of(output))
    if asked is None:
        if is_zip(output):
            raise BadOption(f"{output} is a zip, but its formats are missing.", "Add --format, such as pdf,md.")
        if not by_ending and output.suffix:
            raise BadOption(f"No format ends in {output.suffix}.", f"Accepted are {', '.join(formats)}, {_ZIP}.")
        return (by_ending or default,)
    if by_ending is None or asked == (by_ending,):
        return asked
    raise _mismatch(asked, output, by_ending, formats)


def _mismatch(requested: Sequence[str], output: Path, by_ending: str, formats: Mapping[str, str]) -> BadOption:
    if len(requested) > 1:
        what = f"Several formats need a zip, but the output is {output}."
        return BadOption(what, f"Write -o {output.with_suffix(_ZIP)}, or only --format {by_ending}.")
    endings = " or ".join(end for end, name in formats.items() if name == requested[0])
    what = f"The ending of {output} does not match --format {requested[0]}."
    return BadOption(what, f"Use the ending {endings}, or --format {by_ending}.")


def is_zip(output: Path) -> bool:
    """Whether the output's name ends in .zip."""
    return _ending_of(output) == _ZIP


def _ending_of(output: Path) -> str:
    name = output.name.lower()
    return next((ending for ending in (_ZIP, *_ENDINGS) if name.endswith(ending)), "")


def check_output(output: Path, sources: Sequence[Path] = ()) -> None:
    """Raises BadOption if the output cannot be written or would replace a source."""
    if output == STDIO:
        return
    if output.is_dir() or not output.parent.is_dir():
        raise BadOption(f"{output} cannot be written.", "Name a file in an existing folder.")
    if output.exists() and any(source.exists() and output.samefile(source) for source in sources):
        raise BadOption(f"{output} is one of the input files.", "Name another file.")


@contextmanager
def writing(output: Path) -> Iterator[IO[bytes]]:
    """Yield a file; if the block succeeds, it replaces the output, or is copied to a pipe. Raises OperatorError."""
    is_device = output == STDIO or (output.exists() and not output.is_file())
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
        with nullcontext(sys.stdout.buffer) if output == STDIO else output.open("wb") as device:
            shutil.copyfileobj(file, device)
            device.flush()


@contextmanager
def _beside(output: Path) -> Iterator[IO[bytes]]:
    """Yield a file in a temporary folder beside the output; at the end it replaces the output and gets its mode."""
    with TemporaryDirectory(dir=output.parent, prefix=f".{output.name[:40]}.") as folder:
        draft = Path(folder, "draft")
        with draft.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if output.exists():
            draft.chmod(stat.S_IMODE(output.stat().st_mode))
        draft.replace(output)
