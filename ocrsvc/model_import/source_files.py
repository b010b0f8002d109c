"""The files that a model is made from: regular ones, within bounds, and none that a link leads to elsewhere."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ocrsvc.errors import BadModel

MOST_MODEL_BYTES: Final = 1 << 30
"""Of an ONNX model, or of any other file that is copied."""
MOST_TEXT_BYTES: Final = 8 << 20
"""Of a configuration, a dictionary or a licence."""

_BESIDE: Final = re.compile(r".*\.(?:ya?ml|txt|dict|keys|md)|LICEN[CS]E", re.IGNORECASE)
"""What is looked at beside a file that is named by itself: configurations, dictionaries, licences."""
_MOST_FILES: Final = 5000
_DEEPEST: Final = 6


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source.

    Attributes:
        path: Where it really is.
        name: As people are told: relative to the source, or the file's own name.
        folder: The folder that it is found in.
        root: The source's folder, in which whatever belongs to it is.
    """

    path: Path
    name: str
    folder: Path
    root: Path

    @property
    def base(self) -> str:
        """Its name without folders; a link's own."""
        return self.name.rpartition("/")[2]

    @property
    def ending(self) -> str:
        """Such as .onnx; in small letters."""
        return Path(self.base).suffix.lower()

    def open(self) -> BinaryIO:
        """Its content. Raises BadModel: it cannot be read, or is no regular file."""
        try:
            # A pipe or a device would keep us waiting; a link may have come since.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            stream = open(descriptor, "rb")  # noqa: PTH123, SIM115  a descriptor, which the caller closes
        except OSError as error:
            raise BadModel(f"{self.name} cannot be read: {error.strerror}.", "Check its permissions.") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            stream.close()
            raise BadModel(f"{self.name} is no regular file.", "Leave it out.")
        return stream

    def read(self, most_bytes: int) -> bytes:
        """Its content. Raises BadModel: it cannot be read, or is larger."""
        with self.open() as stream:
            content = stream.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise BadModel(f"{self.name} is larger than {most_bytes >> 20} MiB.", "It cannot be what it should be.")
        return content

    def read_text(self) -> str:
        """Its content as text. Raises BadModel: as for `read`, or it is not UTF-8."""
        try:
            return self.read(MOST_TEXT_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadModel(f"{self.name} is not UTF-8.", "Save it as UTF-8.") from error


def files_of(source: Path) -> list[SourceFile]:
    """A file, first, with the texts beside it; or the files in a folder, sorted by name.

    Raises:
        BadModel: There is no such file or folder, it holds too many files, or a link in it leads out of it.
    """
    try:
        place = source.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BadModel(f"{source} is not there.", "Name a file or a folder that is.") from error
    if not place.is_dir():
        return [SourceFile(place, source.name, place.parent, place.parent), *_beside(place)]
    found = []
    for file in _walk(place, place, 0):
        found.append(file)
        if len(found) > _MOST_FILES:
            raise BadModel(f"{source} holds more than {_MOST_FILES} files.", "Name the folder of the model itself.")
    return sorted(found, key=lambda file: file.name)


def _beside(file: Path) -> Iterator[SourceFile]:
    try:
        entries = sorted(os.scandir(file.parent), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries[:_MOST_FILES]:
        if _BESIDE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False) and entry.name != file.name:
            yield SourceFile(Path(entry.path), entry.name, file.parent, file.parent)


def _walk(folder: Path, root: Path, depth: int) -> Iterator[SourceFile]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BadModel(f"{folder} cannot be listed: {error.strerror}.", "Check its permissions.") from error
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink():
            yield from _linked(path, root)
        elif entry.is_dir(follow_symlinks=False):
            if depth < _DEEPEST:
                yield from _walk(path, root, depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield SourceFile(path, path.relative_to(root).as_posix(), folder, root)


def _linked(link: Path, root: Path) -> Iterator[SourceFile]:
    """What a link to a file inside the source stands for. Raises BadModel for one that leads out."""
    name = link.relative_to(root).as_posix()
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return
    if not target.is_relative_to(root):
        raise BadModel(
            f"{name} is a link that leads out of {root}.", "Copy the folder with `cp -rL` first, and name the copy."
        )
    if target.is_file():
        yield SourceFile(target, name, link.parent, root)
