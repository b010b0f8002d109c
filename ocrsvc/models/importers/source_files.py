"""The files from which a model is imported (regular files of bounded size), and the imported version."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from ocrsvc.engines.model.description import Description
from ocrsvc.errors import BadModel

# Size limit of an ONNX model, or of any other file that is copied.
MAX_MODEL_BYTES: Final = 1 << 30
# Size limit of a configuration, a dictionary or a licence.
MAX_TEXT_BYTES: Final = 8 << 20
# Files beside a single named file that may belong to the same model: configurations, dictionaries, licences.
_BESIDE: Final = re.compile(r".*\.(?:ya?ml|txt|dict|keys|md)|LICEN[CS]E", re.IGNORECASE)
_MAX_FILES: Final = 5000
_DEEPEST: Final = 6


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to import: its path with links resolved, and its name relative to the root folder of the import."""

    path: Path
    name: str
    folder: Path
    root: Path

    @property
    def base(self) -> str:
        """The name without folders; for a link, the link's name."""
        return self.name.rpartition("/")[2]

    @property
    def ending(self) -> str:
        """The suffix in lower case, such as .onnx."""
        return Path(self.base).suffix.lower()

    def open(self) -> BinaryIO:
        """Open the file. Raises BadModel if it cannot be read or is not a regular file."""
        try:
            # O_NONBLOCK: opening a pipe must not block. O_NOFOLLOW: the file may have been replaced by a link.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            stream = open(descriptor, "rb")  # noqa: PTH123, SIM115  a descriptor, which the caller closes
        except OSError as error:
            raise BadModel(f"{self.name} cannot be read: {error.strerror}.", "Check its permissions.") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            stream.close()
            raise BadModel(f"{self.name} is not a regular file.", "Leave it out.")
        return stream

    def read(self, max_bytes: int) -> bytes:
        """Read the file. Raises BadModel if it cannot be read or is larger than `max_bytes`."""
        with self.open() as stream:
            content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise BadModel(f"{self.name} is larger than {max_bytes >> 20} MiB.", "Check that it is the right file.")
        return content

    def read_text(self) -> str:
        """Read the file as text. Raises BadModel: as for `read`, or it is not UTF-8."""
        try:
            return self.read(MAX_TEXT_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadModel(f"{self.name} is not UTF-8.", "Save it as UTF-8.") from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """The operator's options for an import; `languages` and `dictionary` are for the main recognizer."""

    sources: Sequence[Path]
    tier: str | None = None
    languages: Sequence[str] = ()
    recognizers: Mapping[str, Path] = field(default_factory=dict)
    dictionary: Path | None = None
    licence: str | None = None
    reference: Path | None = None


@dataclass(frozen=True, slots=True)
class NewModel:
    """A version to be written, with notes for the operator; `files` may contain the `model.toml`."""

    description: Description
    files: Mapping[str, SourceFile | bytes]
    notes: Sequence[str] = ()


def files_of(source: Path) -> list[SourceFile]:
    """The files of a source: a file and text files beside it, or a folder's files sorted by name. Raises BadModel."""
    try:
        path = source.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BadModel(f"{source} does not exist.", "Name an existing file or folder.") from error
    if not path.is_dir():
        return [SourceFile(path, source.name, path.parent, path.parent), *_beside(path)]
    files = list(islice(_walk(path), _MAX_FILES + 1))
    if len(files) > _MAX_FILES:
        raise BadModel(f"{source} contains more than {_MAX_FILES} files.", "Name the model's own folder.")
    return sorted(files, key=lambda file: file.name)


def _beside(file: Path) -> Iterator[SourceFile]:
    try:
        entries = sorted(os.scandir(file.parent), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries[:_MAX_FILES]:
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
    """A link's target; None if it is broken. Raises BadModel if it is outside the source."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    if not target.is_relative_to(root):
        raise BadModel(
            f"{link.relative_to(root).as_posix()} is a link to a file outside {root}.",
            "Copy the folder with `cp -rL` first, and name the copy.",
        )
    return target
