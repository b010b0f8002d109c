"""Finds the pages that a version must read: its own, else the operator's for its model or for all, else one of ours.

NAME.txt beside an image says what should be read. Without one, it is what the version that serves reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from ocrsvc.errors import BadModel
from ocrsvc.model_repository.repository_files import read_file
from ocrsvc.model_repository.version import ModelVersion

FOLDER: Final = "reference"
"""Of the operator's pages, in the repository's folder or in that of a model."""

MOST_PAGES: Final = 32
"""Those that are read: the first, by name."""

MOST_BYTES: Final = 64 << 20
"""Of the file of one page."""

_IMAGES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
_OWN_PAGE: Final = ("ocrsvc.engines.ppocr", "reference_page.png")
_OWN_TEXT: Final = ("ocrsvc.model_serving.proof", "reference_page.txt")
_OWN_LANGUAGES: Final = frozenset({"zh", "en"})


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """One page.

    Attributes:
        name: Of its file.
        read: The content of the image. Raises OSError or BadModel.
        wanted: What should be read; None where nobody has said.
    """

    name: str
    read: Callable[[], bytes]
    wanted: str | None


def find_reference_pages(repository: Path | None, version: ModelVersion) -> list[ReferencePage]:
    """The pages for a version, by name; there is always one at least.

    Raises:
        BadModel: It names a folder of pages that has none, or a text has no image, or cannot be read.
    """
    own = _own_pages(version)
    if own or "folder" in version.description.reference.model_fields_set:
        return own or _missing(version)
    if repository is not None:
        for folder in (repository / version.name / FOLDER, repository / FOLDER):
            if pages := _pages_in(folder):
                return pages
    return [_packaged_page(version)]


def _missing(version: ModelVersion) -> list[ReferencePage]:
    folder = version.description.reference.folder
    raise BadModel(
        f"{version} has no images in {folder}/, which its model.toml names.", "Put pages there, or leave the entry out."
    )


def _own_pages(version: ModelVersion) -> list[ReferencePage]:
    """Those that the version's manifest names: what else lies in its folder is nobody's word."""
    prefix = f"{version.description.reference.folder}/"
    names = sorted(file for file in version.digests if file.startswith(prefix))
    return _paired(names, lambda name: partial(version.read, name))


def _pages_in(folder: Path) -> list[ReferencePage]:
    try:
        names = sorted(one.name for one in folder.iterdir() if not one.name.startswith(".") and one.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BadModel(f"{folder} cannot be listed: {error.strerror}.", "Let the service read it.") from error
    return _paired(names, lambda name: partial(_read_file, folder / name))


def _paired(names: list[str], reader_of: Callable[[str], Callable[[], bytes]]) -> list[ReferencePage]:
    """Images with their texts. Raises BadModel."""
    texts = {name.removesuffix(".txt"): name for name in names if name.endswith(".txt")}
    images = [name for name in names if Path(name).suffix.lower() in _IMAGES]
    if lonely := sorted(set(texts) - {_stem(name) for name in images}):
        raise BadModel(
            f"The reference page {lonely[0]} is missing: there is only {texts[lonely[0]]}.", "Put its image there."
        )
    return [_page(name, reader_of, texts.get(_stem(name))) for name in images[:MOST_PAGES]]


def _page(name: str, reader_of: Callable[[str], Callable[[], bytes]], text: str | None) -> ReferencePage:
    wanted = None if text is None else reader_of(text)().decode("utf-8", "replace")
    return ReferencePage(name, reader_of(name), wanted)


def _packaged_page(version: ModelVersion) -> ReferencePage:
    """A page that we have drawn, in Chinese and English: its text is wanted of a model that says it reads both."""
    package, name = _OWN_PAGE
    wanted = None
    if set(version.description.languages) >= _OWN_LANGUAGES:
        wanted = files(_OWN_TEXT[0]).joinpath(_OWN_TEXT[1]).read_text("utf-8")
    return ReferencePage(name, files(package).joinpath(name).read_bytes, wanted)


def _stem(name: str) -> str:
    return name[: -len(suffix)] if (suffix := Path(name).suffix) else name


def _read_file(file: Path) -> bytes:
    """Raises BadModel."""
    try:
        content = read_file(file, MOST_BYTES + 1)
    except OSError as error:
        raise BadModel(f"{file} cannot be read: {error.strerror}.", "Let the service read it.") from error
    if len(content) > MOST_BYTES:
        raise BadModel(f"{file} has more than {MOST_BYTES >> 20} MiB.", "Take a smaller page.")
    return content
