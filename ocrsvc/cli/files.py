"""Files that commands read and write: standard input as bytes, and outputs that are there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Final

from ocrsvc.errors import BadOption, NothingSent, OcrsvcError, OperatorError

STANDARD: Final = Path("-")
"""Standard input or output."""
_ANYBODYS: Final = 0o666


def load(file: Path) -> bytes | OcrsvcError:
    """The bytes of a file, or why there are none."""
    try:
        return standard_input() if file == STANDARD else file.read_bytes()
    except OSError as error:
        return NothingSent(f"The file cannot be read: {error.strerror}.", "Check its name and permissions.")


@cache
def standard_input() -> bytes:
    """All of it, read once."""
    return sys.stdin.buffer.read()


def is_pdf(file: Path) -> bool:
    """Whether it begins as a PDF does; False for what is no file."""
    if file == STANDARD:
        return b"%PDF-" in standard_input()[:32]
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return b"%PDF-" in opened.read(32)


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
    """A file to write into, which becomes the output when the block ends, if it raises nothing.

    What is there already is replaced at once; a pipe or device is written to. Raises OperatorError.
    """
    try:
        if output == STANDARD or (output.exists() and not output.is_file()):
            with TemporaryFile() as file:
                yield file
                file.seek(0)
                _copy(file, output)
        else:
            with _beside(Path(os.path.realpath(output))) as file:
                yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OperatorError(f"{output} cannot be written: {error.strerror}.", "Name another file.") from error


def _copy(file: IO[bytes], output: Path) -> None:
    if output == STANDARD:
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with output.open("wb") as device:
        shutil.copyfileobj(file, device)


@contextmanager
def _beside(output: Path) -> Iterator[IO[bytes]]:
    """A file in the same folder, which takes the output's name at the end."""
    file = NamedTemporaryFile("w+b", dir=output.parent, prefix=f".{output.name[:40]}.", delete=False)  # noqa: SIM115
    try:
        with file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), _mode_of(output))
            os.fsync(file.fileno())
        Path(file.name).replace(output)
    except BaseException:
        with suppress(OSError):
            Path(file.name).unlink()
        raise


def _mode_of(output: Path) -> int:
    """As it was, or as a new file has it."""
    if output.exists():
        return stat.S_IMODE(output.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return _ANYBODYS & ~mask
