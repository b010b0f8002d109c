"""Finds a version's reference pages: its own, else the operator's for its model or for all, else the built-in one.

NAME.txt beside an image is its expected text. Without one, the serving version's text is expected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from ocrsvc.engines.model.files import read_file
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadModel

FOLDER: Final = "reference"  # folder with the operator's pages, in the repository's folder or in a model's
_MAX_PAGES: Final = 32
_MAX_BYTES: Final = 64 << 20
_IMAGES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
_OWN_PAGE: Final = files("ocrsvc.engines.ppocr").joinpath("reference_page.png")
_OWN_LANGUAGES: Final = frozenset({"zh", "en"})


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """One page: a function that reads its file (raises OSError or BadModel), and its expected text, if known."""

    name: str
    read: Callable[[], bytes]
    expected: str | None


def find_reference_pages(repository: Path | None, version: ModelVersion) -> list[ReferencePage]:
    """The pages for a version: at least one, at most the first 32 by name. Raises BadModel."""
    reference = version.description.reference
    # Only files of the manifest belong to the version.
    own = sorted(file for file in version.digests if file.startswith(f"{reference.folder}/"))
    pages = _paired(own, lambda name: partial(version.read, name))
    if not pages and "folder" in reference.model_fields_set:
        raise BadModel(
            f"{version} has no images in {reference.folder}/, which its model.toml names.",
            "Put pages there, or remove the entry.",
        )
    for folder in reference_folders(repository, version):
        pages = pages or _pages_in(folder)
    return pages or [_packaged_page(version)]


def reference_folders(repository: Path | None, version: ModelVersion) -> tuple[Path, ...]:
    """Folders that may contain the operator's pages for a version."""
    return () if repository is None else (repository / version.name / FOLDER, repository / FOLDER)


def _pages_in(folder: Path) -> list[ReferencePage]:
    try:
        names = sorted(file.name for file in folder.iterdir() if not file.name.startswith(".") and file.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BadModel(f"{folder} cannot be listed: {error.strerror}.", "Make it readable for the service.") from error
    return _paired(names, lambda name: partial(_read_file, folder / name))


def _paired(names: list[str], reader_of: Callable[[str], Callable[[], bytes]]) -> list[ReferencePage]:
    """Pair images with their texts. Raises BadModel: a text has no image."""
    texts = {name.removesuffix(".txt"): name for name in names if name.endswith(".txt")}
    images = {name: name.removesuffix(suffix) for name in names if (suffix := Path(name).suffix).lower() in _IMAGES}
    for stem in sorted(set(texts) - set(images.values())):
        raise BadModel(f"The reference page {stem} is missing: there is only {texts[stem]}.", "Add its image.")
    chosen = list(images.items())[:_MAX_PAGES]
    read = {stem: reader_of(texts[stem])().decode("utf-8", "replace") for _, stem in chosen if stem in texts}
    return [ReferencePage(name, reader_of(name), read.get(stem)) for name, stem in chosen]


def _packaged_page(version: ModelVersion) -> ReferencePage:
    """The built-in page in Chinese and English; its text is expected from models with both languages."""
    expected = None
    if set(version.description.languages) >= _OWN_LANGUAGES:
        expected = files("ocrsvc.models.proof").joinpath("reference_page.txt").read_text("utf-8")
    return ReferencePage("reference_page.png", _OWN_PAGE.read_bytes, expected)


def _read_file(file: Path) -> bytes:
    """Read a reference page or its expected text. Raises BadModel."""
    try:
        content = read_file(file, _MAX_BYTES + 1)
    except OSError as error:
        raise BadModel(f"{file} cannot be read: {error.strerror}.", "Make it readable for the service.") from error
    if len(content) > _MAX_BYTES:
        raise BadModel(f"{file} has more than {_MAX_BYTES >> 20} MiB.", "Use a smaller page.")
    return content
