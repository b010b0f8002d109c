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

from ocrsvc.engines.model.files import read_file
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadModel

# Name of a folder with the operator's pages, in the repository's folder or in that of a model.
FOLDER: Final = "reference"
_MOST_PAGES: Final = 32
_MOST_BYTES: Final = 64 << 20
_IMAGES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
_OWN_PAGE: Final = files("ocrsvc.engines.ppocr").joinpath("reference_page.png")
_OWN_LANGUAGES: Final = frozenset({"zh", "en"})


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """One page: how to read its file, and the text wanted, where that is known. `read` raises OSError or BadModel."""

    name: str
    read: Callable[[], bytes]
    wanted: str | None


def find_reference_pages(repository: Path | None, version: ModelVersion) -> list[ReferencePage]:
    """The pages for a version, at least one, the first 32 by name. Raises BadModel."""
    reference = version.description.reference
    # What else lies in its folder is not of the version.
    own = sorted(file for file in version.digests if file.startswith(f"{reference.folder}/"))
    pages = _paired(own, lambda name: partial(version.read, name))
    if not pages and "folder" in reference.model_fields_set:
        raise BadModel(
            f"{version} has no images in {reference.folder}/, which its model.toml names.",
            "Put pages there, or leave the entry out.",
        )
    for folder in reference_folders(repository, version):
        pages = pages or _pages_in(folder)
    return pages or [_packaged_page(version)]


def reference_folders(repository: Path | None, version: ModelVersion) -> tuple[Path, ...]:
    """Where the operator's pages for a version may be."""
    return () if repository is None else (repository / version.name / FOLDER, repository / FOLDER)


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
    images = {name: _stem(name) for name in names if Path(name).suffix.lower() in _IMAGES}
    if lonely := sorted(set(texts) - set(images.values())):
        raise BadModel(
            f"The reference page {lonely[0]} is missing: there is only {texts[lonely[0]]}.", "Put its image there."
        )
    chosen = list(images.items())[:_MOST_PAGES]
    read = {stem: reader_of(texts[stem])().decode("utf-8", "replace") for _, stem in chosen if stem in texts}
    return [ReferencePage(name, reader_of(name), read.get(stem)) for name, stem in chosen]


def _packaged_page(version: ModelVersion) -> ReferencePage:
    """A drawn page in Chinese and English, whose text is wanted of a model that says it reads both."""
    wanted = None
    if set(version.description.languages) >= _OWN_LANGUAGES:
        wanted = files("ocrsvc.models.proof").joinpath("reference_page.txt").read_text("utf-8")
    return ReferencePage("reference_page.png", _OWN_PAGE.read_bytes, wanted)


def _stem(name: str) -> str:
    return name[: -len(suffix)] if (suffix := Path(name).suffix) else name


def _read_file(file: Path) -> bytes:
    """Raises BadModel."""
    try:
        content = read_file(file, _MOST_BYTES + 1)
    except OSError as error:
        raise BadModel(f"{file} cannot be read: {error.strerror}.", "Let the service read it.") from error
    if len(content) > _MOST_BYTES:
        raise BadModel(f"{file} has more than {_MOST_BYTES >> 20} MiB.", "Take a smaller page.")
    return content
