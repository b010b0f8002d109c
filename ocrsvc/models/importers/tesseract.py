"""Makes a model of the engine tesseract from a traineddata file, whose name says its language."""

import struct
import tomllib
from collections.abc import Sequence
from importlib.resources import files as resources
from typing import Final

from ocrsvc.engines.model.description import Description, Direction, Recognition
from ocrsvc.errors import BadModel
from ocrsvc.models.importers.source_files import MAX_MODEL_BYTES, NewModel, SourceFile, Wanted

SUFFIX: Final = ".traineddata"
# A traineddata file begins with a table of its components' offsets; this is the index of the LSTM network.
_LSTM: Final = 17
_MAX_PARTS: Final = 64
# Right-to-left languages, whose lines Tesseract reads in its mode RAW_LINE; tested with Arabic only.
_RIGHT_TO_LEFT: Final = frozenset({"ar", "fa", "he", "ps", "sd", "ug", "ur", "yi"})


def find_tesseract(wanted: Wanted, files: Sequence[SourceFile]) -> NewModel | None:
    """Make a model of the only traineddata file; None without one. Raises BadModel for several, or if it is invalid."""
    found = [file for file in files if file.ending == SUFFIX]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:5])
        raise BadModel(f"There are {len(found)} traineddata files: {names}.", "Add each as a model of its own.")
    file = found[0]
    _check(file)
    name = file.base.removesuffix(SUFFIX)
    tags = tuple(wanted.languages) or tuple(filter(None, [_tags().get(name)]))
    if not tags:
        raise BadModel(f"The language of {file.base} is not known.", "Name it with --language TAG, such as ko.")
    direction: Direction = "rtl" if _RIGHT_TO_LEFT & set(tags) else "ltr"
    part = Recognition(file=file.base, languages=tags, direction=direction)
    return NewModel(Description(engine="tesseract", title=f"Tesseract {name}", recognition=(part,)), {file.base: file})


def _check(file: SourceFile) -> None:
    """Raise BadModel unless the file has an LSTM network, as all files for Tesseract 4 and later do."""
    content = file.read(MAX_MODEL_BYTES)
    count = struct.unpack_from("<i", content)[0] if len(content) >= 4 else 0
    is_whole = _LSTM < count <= _MAX_PARTS and len(content) > 4 + 8 * count
    place = struct.unpack_from("<q", content, 4 + 8 * _LSTM)[0] if is_whole else -1
    if not 0 < place < len(content):
        raise BadModel(
            f"{file.name} is damaged, or a model of Tesseract 3.", "Use a file of tessdata_fast or tessdata_best."
        )


def _tags() -> dict[str, str]:
    """Tesseract's names of languages, each with its language tag (languages.toml)."""
    text = resources("ocrsvc.models.importers").joinpath("languages.toml").read_text("utf-8")
    tags: dict[str, str] = tomllib.loads(text)["tesseract"]
    return tags
