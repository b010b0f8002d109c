"""The line recognizer of Tesseract 5, with the traineddata file of a model.

Measured with tessdata_fast on drawn pages of Korean, Arabic, Thai, Hindi and Russian (docs/performance.md): crops of
36 px read best; Arabic is read as a raw line, because Tesseract's search for words loses some of its letters.
Reading a line is a single call of Tesseract, which cannot be interrupted.
"""

import os
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final

import numpy as np

from ocrsvc.engines.line_recognizer import LineText, RecognizerInfo, crop_of_height, gray_with_margin, path_at
from ocrsvc.engines.model.description import Direction, Recognition
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadModel, EngineUnavailable
from ocrsvc.results import Check, Pixels, no_check
from ocrsvc.settings.settings import Settings

HEIGHT_PX: Final = 36
MARGIN: Final = 0.3  # margin of a crop, as a share of its height
RAW_MARGIN: Final = 0.1  # margin of a raw line's crop
# Without a resolution, Tesseract guesses one and prints a warning.
_DPI: Final = 300
# Smallest difference between a crop's lightest and darkest pixel; Tesseract reads digits in blank crops.
_MIN_CONTRAST: Final = 16
_NAME: Final = "model"  # the file's name for Tesseract, without its suffix
_MARKS: Final = frozenset({"Mn", "Mc", "Me", "Cf"})  # Unicode categories of marks that belong to the letter before
# Thai's vowel SARA AM, which Tesseract writes as a mark and a letter.
_SARA_AM: Final = "\u0e33"
_NIKHAHIT: Final = "\u0e4d"
_SARA_AA: Final = "\u0e32"


@dataclass(slots=True)
class _Character:
    """A letter with its combining marks, the left and right edge of its box in pixels, and the confidence of its word.

    The edges are NaN if Tesseract reports the box of the whole word.
    """

    text: str
    left: float
    right: float
    confidence: float


class TesseractReader:
    """Tesseract with one traineddata file, for one thread. Raises EngineUnavailable, BadModel."""

    def __init__(self, library: Any, content: bytes, direction: Direction, where: str) -> None:
        self._library, self._direction = library, direction
        is_raw = direction == "rtl"
        self._margin = RAW_MARGIN if is_raw else MARGIN
        mode = library.PSM.RAW_LINE if is_raw else library.PSM.SINGLE_LINE
        # Tesseract opens files by path only. This one is in memory: it was verified, and perhaps decrypted.
        file = os.memfd_create("traineddata", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(file), "wb") as out, tempfile.TemporaryDirectory() as folder:
                out.write(content)
                out.flush()
                Path(folder, f"{_NAME}.traineddata").symlink_to(f"/proc/self/fd/{file}")
                oem = library.OEM.LSTM_ONLY
                self._api = library.PyTessBaseAPI(path=f"{folder}/", lang=_NAME, psm=mode, oem=oem)
        except RuntimeError as error:
            raise BadModel(
                f"{where} is not a model that Tesseract opens.",
                "Use a file of tessdata_fast or tessdata_best.",
            ) from error
        finally:
            os.close(file)

    @property
    def reads_latin(self) -> bool:
        """Whether the model knows the letters a to z."""
        return all(map(self._api.IsValidCharacter, ascii_lowercase))

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """Width and height of the crop for a line `along` px long and `across` px tall."""
        return crop_of_height(along, across, HEIGHT_PX)

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read line crops one by one; returns one LineText per crop. Calls `check` before each crop."""
        texts = []
        for crop in crops:
            check()
            line = LineText("", 0.0) if np.ptp(crop) < _MIN_CONTRAST else self._read(crop)
            texts.append(replace(line, direction=self._direction, order="logical"))
        return texts

    def close(self) -> None:
        """Free Tesseract's memory."""
        self._api.End()

    def _read(self, crop: Pixels) -> LineText:
        line = gray_with_margin(crop, self._margin)
        height, width = line.shape
        self._api.SetImageBytes(line.tobytes(), width, height, 1, width)
        self._api.SetSourceResolution(_DPI)
        text = self._api.GetUTF8Text()
        characters = _with_spaces(list(_joined(self._symbols())), text)
        if not characters:
            return LineText("", 0.0)
        margin = (width - crop.shape[1]) / 2
        middles = [((one.left + one.right) / 2 - margin) / crop.shape[1] for one in characters]
        confidences = [one.confidence for one in characters]
        path = path_at([one.text for one in characters], middles, confidences, crop.shape[1])
        return LineText("".join(one.text for one in characters), float(np.mean(confidences)), path)

    def _symbols(self) -> Iterator[_Character]:
        """The symbols of the line in logical order; a symbol may be only a combining mark."""
        symbol, word = self._library.RIL.SYMBOL, self._library.RIL.WORD
        iterator = self._api.GetIterator()
        if iterator is None or iterator.Empty(symbol):
            return
        for one in self._library.iterate_level(iterator, symbol):
            box, of_word = one.BoundingBox(symbol), one.BoundingBox(word)
            is_alone = one.IsAtBeginningOf(word) and one.IsAtFinalElement(word, symbol)
            is_known = box is not None and (is_alone or box != of_word)
            left, right = (float(box[0]), float(box[2])) if is_known else (np.nan, np.nan)
            yield _Character(one.GetUTF8Text(symbol), left, right, one.Confidence(word) / 100)


def _joined(symbols: Iterator[_Character]) -> Iterator[_Character]:
    """Join combining marks with the letter before them."""
    last: _Character | None = None
    for symbol in symbols:
        for letter in symbol.text:
            if last is not None and unicodedata.category(letter) in _MARKS:
                last.text += letter
                continue
            text = letter
            if last is not None:
                if letter == _SARA_AA and _NIKHAHIT in last.text:
                    last.text, text = last.text.replace(_NIKHAHIT, ""), _SARA_AM
                yield last
            last = _Character(text, symbol.left, symbol.right, symbol.confidence)
    if last is not None:
        yield last


def _with_spaces(characters: list[_Character], text: str) -> list[_Character]:
    """Insert spaces where `text` has them, and place characters without a box between their neighbours."""
    if not characters:
        return []
    edges = np.array([(one.left, one.right) for one in characters])
    known = np.flatnonzero(np.isfinite(edges[:, 0]))
    if not len(known):
        return []
    spaced = list[_Character]()
    at = 0
    for number, one in enumerate(characters):
        one.left, one.right = (float(np.interp(number, known, edges[known, side])) for side in (0, 1))
        found = text.find(one.text[0], at)
        if spaced and any(map(str.isspace, text[at : max(at, found)])):
            spaced.append(_space_between(spaced[-1], one))
        spaced.append(one)
        at = max(at, found + 1)
    return spaced


def _space_between(before: _Character, after: _Character) -> _Character:
    near, far = (before.right, after.left) if before.left <= after.left else (before.left, after.right)
    return _Character(" ", near, far, min(before.confidence, after.confidence))


class TesseractRecognizer:
    """A model's traineddata; opens a TesseractReader per thread. Raises EngineUnavailable, BadModel."""

    def __init__(self, model: ModelVersion, described: Recognition) -> None:
        try:
            import tesserocr
        except ImportError as error:
            raise EngineUnavailable(
                f"Tesseract cannot be loaded: {error}.", "Install the extra: pip install '.[tesseract]'."
            ) from error
        self._library, self._direction = tesserocr, described.direction
        self._content, self._where = model.read(described.file), f"{model}: {described.file}"
        with_latin = self.open_reader()
        reads_latin = with_latin.reads_latin
        with_latin.close()
        version = tesserocr.tesseract_version().split("\n")[0].rpartition(" ")[2]
        title = f"Tesseract {described.file.removesuffix('.traineddata')}"
        self.info = RecognizerInfo(
            title, version, "Tesseract on the CPU", described.languages, described.direction, reads_latin=reads_latin
        )

    def open_reader(self) -> TesseractReader:
        """Open a reader for the calling thread. Raises EngineUnavailable, BadModel."""
        return TesseractReader(self._library, self._content, self._direction, self._where)


def open_tesseract(_settings: Settings, model: ModelVersion | None) -> TesseractRecognizer:
    """Open a model's traineddata file. Raises EngineUnavailable, BadModel."""
    if model is None:
        raise EngineUnavailable(
            "The engine tesseract has no model of its own.",
            "Add one to OCRSVC_MODELS, for example: ocrsvc models add ko kor.traineddata. Then send lang=ko.",
        )
    if len(model.description.recognition) != 1:
        raise BadModel(
            f"{model}: model.toml must have one [[recognition]] for the engine tesseract.",
            "Name one traineddata file there; add each other language as a model.",
        )
    return TesseractRecognizer(model, model.description.recognition[0])
