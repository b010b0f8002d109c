"""The files that a model is made from, regular ones within bounds, and the version that they become."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from ocrsvc.engines.model.description import Description
from ocrsvc.errors import BadModel

# Size limit of an ONNX model, or of any other file that is copied.
MOST_MODEL_BYTES: Final = 1 << 30
# Size limit of a configuration, a dictionary or a licence.
MOST_TEXT_BYTES: Final = 8 << 20
# What is looked at beside a file that is named by itself: configurations, dictionaries, licences.
_BESIDE: Final = re.compile(r".*\.(?:ya?ml|txt|dict|keys|md)|LICEN[CS]E", re.IGNORECASE)
_MOST_FILES: Final = 5000
_DEEPEST: Final = 6


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source: where it really is, its name relative to the source's root, and the folder it is found in."""

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the operator says of a model; `languages` and `dictionary` are of the first recognizer."""

    sources: Sequence[Path]
    tier: str | None = None
    languages: Sequence[str] = ()
    recognizers: Mapping[str, Path] = field(default_factory=dict)
    dictionary: Path | None = None
    licence: str | None = None
    reference: Path | None = None


@dataclass(frozen=True, slots=True)
class NewModel:
    """A version that is to be written, with sentences on what was found; `files` may have the `model.toml` itself."""

    description: Description
    files: Mapping[str, SourceFile | bytes]
    notes: Sequence[str] = ()


def files_of(source: Path) -> list[SourceFile]:
    """A file, first, with the texts beside it; or the files in a folder, sorted by name. Raises BadModel."""
    try:
        place = source.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BadModel(f"{source} is not there.", "Name a file or a folder that is.") from error
    if not place.is_dir():
        return [SourceFile(place, source.name, place.parent, place.parent), *_beside(place)]
    found = []
    for file in _walk(place):
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


def _walk(root: Path) -> Iterator[SourceFile]:
    for place, folders, names in os.walk(root, onerror=_not_listed):
        folder = Path(place)
        linked = [name for name in folders if (folder / name).is_symlink()]
        if len(folder.relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        for name in (*names, *linked):
            path = folder / name
            target = _target(path, root) if path.is_symlink() else path
            if target is not None and target.is_file():
                yield SourceFile(target, path.relative_to(root).as_posix(), folder, root)


def _not_listed(error: OSError) -> None:
    raise BadModel(f"{error.filename} cannot be listed: {error.strerror}.", "Check its permissions.") from error


def _target(link: Path, root: Path) -> Path | None:
    """What a link inside the source leads to; None where it is gone. Raises BadModel for one that leads out."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    if not target.is_relative_to(root):
        raise BadModel(
            f"{link.relative_to(root).as_posix()} is a link that leads out of {root}.",
            "Copy the folder with `cp -rL` first, and name the copy.",
        )
    return target
