"""Pages drawn by render_pages.py, with their words' boxes.

The script lies in `shared` beside the repository and reports the boxes of lines only. Wrappers around its functions
that draw and move lines add the words to each line.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import cv2
import numpy as np

from bench.word_pages import DrawnPage, Frame, Word, counted, move_word, place_words

Lines = list[dict[str, Any]]
Move = Callable[[float, float], tuple[float, float]]
SEED: Final = 16
LANGUAGES: Final = {"en": "eng", "zh": "chi_sim", "mixed": "chi_sim+eng"}
_LINES: Final = "5-25"


@dataclass(frozen=True, slots=True)
class Sheet:
    """Options for the script: language, layout, encoding, and the clockwise rotation in degrees."""

    language: str
    layout: str
    encoding: str = "png_rgb"
    rotation: int = 0
    noisy: bool | None = None


SHEETS: Final = (
    *(Sheet(language, layout) for language in LANGUAGES for layout in ("text",) * 3 + ("receipt", "table", "screen")),
    *(Sheet(language, "text", "jpeg_rgb", noisy=True) for language in LANGUAGES for _ in range(2)),
    *(Sheet(language, "text", rotation=turn) for language in ("en", "zh") for turn in (90, 180, 270)),
)


def rendered_pages(script: Path, sheets: Sequence[Sheet] = SHEETS) -> list[DrawnPage]:
    """One page per sheet; the script slants some pages by up to three degrees, and adds shading, blur or noise."""
    module = _load(script)
    words, fonts, count = module.Words(), module.find_fonts(), module.line_counts(_LINES)
    with tempfile.TemporaryDirectory() as folder:
        return [_page(module, place, sheet, (words, fonts, count), folder) for place, sheet in enumerate(sheets)]


def _load(script: Path) -> ModuleType:
    """Import the script, with its functions wrapped to add words to lines."""
    spec = importlib.util.spec_from_file_location("render_pages", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    put, move = module.put, module.move

    def put_words(
        drawing: Any, lines: list[dict[str, Any]], x: float, y: float, text: str, font: Any, fill: Any
    ) -> None:
        put(drawing, lines, x, y, text, font, fill)
        lines[-1]["words"] = [move_word(word, _quad) for word in place_words(x, y, text, font)]

    def move_words(lines: list[dict[str, Any]], by: Move) -> None:
        move(lines, by)
        for line in lines:
            line["words"] = [
                move_word(word, lambda quad: np.array([by(x, y) for x, y in quad])) for word in line["words"]
            ]

    vars(module).update(put=put_words, move=move_words)
    return module


def _moved(quad: Frame, by: Move) -> Frame:
    return np.array([by(x, y) for x, y in quad.tolist()])


def _quad(frame: Frame) -> Frame:
    """The (4, 2) corners of a box."""
    left, top, right, bottom = frame.tolist()
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def _page(module: ModuleType, place: int, sheet: Sheet, given: tuple[Any, ...], folder: str) -> DrawnPage:
    drawn = module.one(
        place,
        SEED,
        *given,
        lang=sheet.language,
        layout=sheet.layout,
        enc=sheet.encoding,
        exif=0,
        rotation=sheet.rotation,
        noisy=sheet.noisy,
        out=folder,
    )
    pixels = np.asarray(cv2.imread(str(Path(folder, drawn["file"])), cv2.IMREAD_COLOR), np.uint8)
    kind = "turned" if sheet.rotation else "slanted" if "skew" in drawn["params"] else sheet.language
    return DrawnPage(Path(drawn["file"]).stem, kind, pixels, counted(list(_words(drawn))), LANGUAGES[sheet.language])


def _words(drawn: dict[str, Any]) -> Iterator[Word]:
    """The words of a page, in upright boxes."""
    for line in drawn["lines"]:
        for word in line["words"]:
            yield move_word(word, lambda quad: np.array([*quad.min(axis=0), *quad.max(axis=0)]))
