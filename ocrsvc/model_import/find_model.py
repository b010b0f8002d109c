"""Makes a version of whatever a model's files are: ONNX models, Tr's folder, or a folder with a `model.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ocrsvc.errors import BadModel
from ocrsvc.model_import.new_model import NewModel, Wanted
from ocrsvc.model_import.origin import Origin, find_origin
from ocrsvc.model_import.ppocr_parts import find_ppocr
from ocrsvc.model_import.source_files import SourceFile, files_of
from ocrsvc.model_repository.description import Description, parse_description
from ocrsvc.model_repository.version import DESCRIPTION_FILE

TR_FILES: Final = ("libtr.so", "ctpn.bin", "crnn.bin")
LICENCE_FILE: Final = "LICENSE"
_IMAGES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp", ".txt"})
_TR_28: Final = "Its recogniser is the engine tr_crnn, which needs no repository: OCRSVC_ENGINE=tr_crnn."


def find_model(wanted: Wanted) -> NewModel:
    """What the files of a model make.

    Raises:
        BadModel: Something is missing, damaged or ambiguous; the remedy names what would be accepted.
    """
    by_source = {source: files_of(source) for source in wanted.sources}
    files = [file for found in by_source.values() for file in found]
    origins = [find_origin(source, found) for source, found in by_source.items()]
    model = _described(files) or _tr(files) or find_ppocr(wanted, files)
    return _with_origin(_with_reference(model, wanted), wanted, origins)


def _described(files: Sequence[SourceFile]) -> NewModel | None:
    """A folder that has a `model.toml` is taken as it says, with all of its files."""
    at_root = {file.base: file for file in files if file.folder == file.root}
    if DESCRIPTION_FILE not in at_root:
        return None
    description = parse_description(at_root[DESCRIPTION_FILE].read_text())
    taken = {_target(file): file for file in files if not file.base.startswith((".", "SHA256SUMS"))}
    if missing := [name for name in description.files if name not in taken]:
        raise BadModel(f"{DESCRIPTION_FILE} names {', '.join(missing)}, which the folder has not.", "Copy it there.")
    return NewModel(description, taken)


def _target(file: SourceFile) -> str:
    return (file.folder / file.base).relative_to(file.root).as_posix()


def _tr(files: Sequence[SourceFile]) -> NewModel | None:
    """The operator's copy of Tr 2.3."""
    by_name: Mapping[str, SourceFile] = {file.base: file for file in files}
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
            f"{wanted.reference} holds no image.",
            "Accepted are PNG, JPEG, TIFF, WebP, BMP and GIF, each with the text that should be read in NAME.txt.",
        )
    folder = model.description.reference.folder
    files = dict(model.files) | {f"{folder}/{file.base}": file for file in pages}
    return NewModel(model.description, files, [*model.notes, f"{len(pages)} files become its reference pages."])


def _with_origin(model: NewModel, wanted: Wanted, origins: Sequence[Origin]) -> NewModel:
    """With where it comes from and its licence, unless its own `model.toml` says it."""
    if DESCRIPTION_FILE in model.files:
        return model
    text = next((origin.text for origin in origins if origin.text is not None), None)
    licence = wanted.licence or next((origin.licence for origin in origins if origin.licence), "")
    said = ", ".join(dict.fromkeys(origin.source for origin in origins))
    description = model.description.model_copy(update={"licence": licence, "source": said})
    unknown = [] if licence else ["Nothing says its licence: name it with --licence."]
    licence_file = {} if text is None else {LICENCE_FILE: text}
    return NewModel(description, dict(model.files) | licence_file, [*model.notes, *unknown])
