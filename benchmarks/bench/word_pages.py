"""Draws pages with known word boxes in varied fonts, sizes, scripts, slants and resolutions.

Pillow draws them with the machine's fonts (Debian: fonts-liberation, fonts-dejavu, fonts-noto-cjk). A word is a run
between spaces; each Chinese character is a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Frame = NDArray[np.float64]
"""(4,) left, top, right, bottom in pixels of the page."""

_FONTS: Final = Path("/usr/share/fonts")
LATIN: Final = {
    "sans": _FONTS / "truetype/liberation/LiberationSans-Regular.ttf",
    "bold": _FONTS / "truetype/liberation/LiberationSans-Bold.ttf",
    "narrow": _FONTS / "truetype/liberation/LiberationSansNarrow-Regular.ttf",
    "serif": _FONTS / "truetype/liberation/LiberationSerif-Regular.ttf",
    "italic": _FONTS / "truetype/liberation/LiberationSerif-Italic.ttf",
    "mono": _FONTS / "truetype/liberation/LiberationMono-Regular.ttf",
    "wide": _FONTS / "truetype/dejavu/DejaVuSans.ttf",
}
CHINESE: Final = {
    "hei": _FONTS / "opentype/noto/NotoSansCJK-Regular.ttc",
    "heavy": _FONTS / "opentype/noto/NotoSansCJK-Bold.ttc",
    "song": _FONTS / "opentype/noto/NotoSerifCJK-Regular.ttc",
}
_SIMPLIFIED: Final = 2  # index of the Simplified Chinese face in a Noto CJK collection

PROSE: Final = """
The harbour office keeps a record of every ship that comes in, and a clerk writes down its name, its flag and the hour.
On most days there are fewer than twenty; in summer, when the ferries run late, there may be as many as sixty (or more).
"It is not the number that matters," she said, "but whether we can read it a year from now." Nobody could, at first: the
ink had run, and half of the pages were lost in 1987. A new book was begun on 3 March 1988, at a cost of $14.50 a page.
We have 7 of these books today. Each is 41.5 cm tall, weighs 3.2 kg and has 480 leaves, all of them cut by hand; if you
ask for one, you will be given gloves, a pencil and no more than 30 minutes. Is it worth it? I would go again at once.
"""
TABLE: Final = """
Item Qty Price Total
Rope, 20 m 4 12.95 51.80
Lamp oil 12 3.40 40.80
Paint (red) 1 27.00 27.00
Nails 50 mm 250 0.04 10.00
Canvas 6 18.75 112.50
Brass hook 16 2.15 34.40
Sum 276.50
VAT 19% 52.54
To pay 329.04
"""
HAN: Final = """
港务所为每一艘进港的船只留下记录，由一位职员写明船名、国旗和时间。平日里不过二十艘，到了夏天渡轮晚点，
也许会有六十艘之多。她说：重要的不是数目，而是一年以后还能不能看清楚。起初谁也看不清，墨水化开，一半的
书页都已丢失。新的一册从三月开始，如今共有七册，每册都是手工裁切而成，若要借阅，需要戴上手套并只用铅笔。
"""
MIXED: Final = """
本册共480页，高41.5cm，重3.2kg，于1988年3月3日开始使用。
订单号：A20391 金额：￥329.04 折扣：15%
请使用Python3.11或更新的版本运行install.sh脚本。
联系电话 0574-8832 6610，邮箱 port@example.org
温度25℃，湿度60%，风速3.4m/s。
第2轮 共16只Brass hook，每只2.15元
"""


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A word of a page: its text, and three common definitions of its box.

    Attributes:
        text: Without spaces.
        ink: Box around its ink.
        bounds: Box by Pillow's getbbox: horizontally from the origin to the advance or the end of the ink, whichever is
            larger; vertically around the ink.
        type: Box of its advance width, from the font's ascent to its descent, as in browsers.
    """

    text: str
    ink: Frame
    bounds: Frame
    type: Frame


@dataclass(frozen=True, slots=True, eq=False)
class DrawnPage:
    """A page and its words.

    Attributes:
        name: Describes the content.
        kind: latin, chinese, mixed or table; for modified pages slanted, low or vertical.
        pixels: (H, W, 3) BGR, uint8.
        words: Words with letters, digits or Chinese characters; punctuation marks are drawn but not listed.
        language: Tesseract's name of the language.
    """

    name: str
    kind: str
    pixels: NDArray[np.uint8]
    words: Sequence[Word]
    language: str = "eng"


class _Sheet:
    """A white page to draw words on."""

    def __init__(self, width: int, height: int, ink: int = 0, paper: int = 255) -> None:
        self._image, self._ink = Image.new("L", (width, height), paper), ink
        self._draw = ImageDraw.Draw(self._image)
        self.words: list[Word] = []

    def write(self, x: float, baseline: float, text: str, font: ImageFont.FreeTypeFont) -> float:
        """Draw a run without spaces at a point, record its words, and return the x where it ends."""
        self._draw.text((x, baseline), text, fill=self._ink, font=font, anchor="ls")
        self.words += place_words(x, baseline, text, font)
        return x + font.getlength(text)

    def pixels(self) -> NDArray[np.uint8]:
        """The page so far, (H, W, 3)."""
        return np.ascontiguousarray(np.array(self._image.convert("RGB")))

    def page(self, name: str, kind: str, language: str) -> DrawnPage:
        """The finished page with its countable words."""
        return DrawnPage(name, kind, self.pixels(), counted(self.words), language)


def counted(words: Sequence[Word]) -> list[Word]:
    """The words with letters, digits or Chinese characters."""
    return [word for word in words if any(map(str.isalnum, word.text))]


def place_words(x: float, baseline: float, text: str, font: ImageFont.FreeTypeFont) -> list[Word]:
    """The words of a text drawn at a point."""
    ascent, descent = font.getmetrics()
    words = []
    for begin, end in _spans(text):
        left, right = (x + font.getlength(text[:place]) for place in (begin, end))
        origin = np.array([left, baseline, left, baseline])
        frame = np.array([left, baseline - ascent, right, baseline + descent])
        bounds = np.array(font.getbbox(text[begin:end], anchor="ls")) + origin
        words.append(Word(text[begin:end], _ink_of(text[begin:end], font) + origin, bounds, frame))
    return words


def _ink_of(text: str, font: ImageFont.FreeTypeFont) -> Frame:
    """Box around the pixels that are more than half inked, relative to the text's origin."""
    size = math.ceil(font.size)
    sheet = Image.new("L", (math.ceil(font.getlength(text)) + 2 * size, 4 * size))
    ImageDraw.Draw(sheet).text((size, 2 * size), text, fill=255, font=font, anchor="ls")
    found = sheet.point(lambda shade: 255 * (shade >= 128)).getbbox() or (0, 0, 0, 0)
    left, top, right, bottom = found
    return np.array([left - size, top - 2 * size, right - size, bottom - 2 * size], float)


def is_han(character: str) -> bool:
    """Whether the character counts as a word: a Chinese character or a full-width mark."""
    return "\u2e80" <= character <= "\u9fff" or character in "，。！？：；（）"


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Start and end index of each word of a text."""
    begin = 0
    for place in range(1, len(text) + 1):
        if place == len(text) or text[place] == " " or is_han(text[place]) or is_han(text[place - 1]):
            if text[begin:place].strip():
                yield begin, place
            begin = place + 1 if text[place : place + 1] == " " else place


def _face(file: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(file), size, index=_SIMPLIFIED if file.suffix == ".ttc" else 0)


def _prose(font: ImageFont.FreeTypeFont, size: int, *, columns: int = 1, dark: bool = False) -> _Sheet:
    """Draw running text, ragged right."""
    width = max(700, size * 34)
    sheet = _Sheet(width, size * 34 // columns + 60, *((235, 40) if dark else (0, 255)))
    column_px = (width - 60) // columns
    x, y, column, left = 30.0, 30.0 + size, 0, 30
    for word in PROSE.split():
        if x + font.getlength(word) > left + column_px - 25:
            x, y = float(left), y + round(size * 1.45)
            if y > sheet.pixels().shape[0] - 30:
                column, y = column + 1, 30.0 + size
                left = 30 + column * column_px
                x = float(left)
            if column == columns:
                break
        x = math.ceil(sheet.write(x, y, word, font) + font.getlength(" "))
    return sheet


def _table(font: ImageFont.FreeTypeFont, size: int) -> _Sheet:
    """Draw a table of items with columns of numbers."""
    rows = TABLE.strip().splitlines()
    sheet = _Sheet(size * 30 + 60, round(size * 1.8 * len(rows)) + 60)
    for row, text in enumerate(rows):
        words = text.split()
        numbers = [word for word in words if word[0].isdigit() and "." in word] or words[1:]
        x = 30.0
        for word in [word for word in words if word not in numbers]:
            x = math.ceil(sheet.write(x, 30 + size + round(row * size * 1.8), word, font) + font.getlength(" "))
        for place, word in enumerate(reversed(numbers)):
            right = size * 30 - place * size * 6
            sheet.write(round(right - font.getlength(word)), 30 + size + round(row * size * 1.8), word, font)
    return sheet


def _han(font: ImageFont.FreeTypeFont, size: int, texts: Sequence[str], in_line: int) -> _Sheet:
    """Draw lines of Chinese, keeping their spaces."""
    lines = [text[begin : begin + in_line] for text in texts for begin in range(0, len(text), in_line)]
    sheet = _Sheet(size * in_line + 80, round(size * 1.7 * len(lines)) + 60)
    for row, line in enumerate(lines):
        x = 30.0
        for run in line.split():
            x = math.ceil(sheet.write(x, 30 + size + round(row * size * 1.7), run, font) + font.getlength(" "))
    return sheet


def _vertical(font: ImageFont.FreeTypeFont, size: int) -> _Sheet:
    """Draw vertical columns of Chinese, from right to left."""
    text = [character for character in HAN if is_han(character) and character not in "，。：、"]
    sheet = _Sheet(size * 12 + 60, size * 14 + 80)
    for place, character in enumerate(text[:72]):
        column, row = divmod(place, 12)
        sheet.write(size * 12 - column * size * 2 - size, 40 + size + round(row * size * 1.1), character, font)
    return sheet


def slanted(page: DrawnPage, degrees: float) -> DrawnPage:
    """The page rotated clockwise by a few degrees, with upright boxes around the rotated words."""
    height, width = page.pixels.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), -degrees, 1.0)
    margin = math.ceil(abs(math.sin(math.radians(degrees))) * max(height, width) / 2)
    matrix[:, 2] += margin
    pixels = cv2.warpAffine(
        page.pixels, matrix, (width + 2 * margin, height + 2 * margin), flags=cv2.INTER_CUBIC, borderValue=(255,) * 3
    )

    def moved(frame: Frame) -> Frame:
        left, top, right, bottom = frame.tolist()
        corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
        points = corners @ matrix[:, :2].T + matrix[:, 2]
        return np.array([*points.min(axis=0), *points.max(axis=0)])

    words = [move_word(word, moved) for word in page.words]
    return replace(page, name=f"{page.name}_slanted", kind="slanted", pixels=np.asarray(pixels, np.uint8), words=words)


def move_word(word: Word, move: Callable[[Frame], Frame]) -> Word:
    """The word with all its boxes transformed."""
    return replace(word, ink=move(word.ink), bounds=move(word.bounds), type=move(word.type))


def shrunk(page: DrawnPage, scale: float, quality: int) -> DrawnPage:
    """The page at a lower resolution, after JPEG compression."""
    small = cv2.resize(page.pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    data = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    pixels = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)
    rows, columns = pixels.shape[0] / page.pixels.shape[0], pixels.shape[1] / page.pixels.shape[1]
    by = np.array([columns, rows, columns, rows])
    words = [move_word(word, by.__mul__) for word in page.words]
    return replace(page, name=f"{page.name}_low", kind="low", pixels=pixels, words=words)


def word_pages() -> list[DrawnPage]:
    """All pages: Latin, Chinese and mixed text, some slanted or at a low resolution."""
    latin = [
        _prose(_face(file, size), size, columns=columns, dark=dark).page(f"{name}{size}", "latin", "eng")
        for (name, file), size, columns, dark in zip(
            LATIN.items(),
            (22, 28, 20, 24, 30, 18, 26),
            (1, 1, 2, 1, 1, 1, 1),
            (False, False, False) * 2 + (True,),
            strict=True,
        )
    ]
    latin += [
        _prose(_face(LATIN[name], size), size).page(f"{name}{size}", "latin", "eng")
        for name, size in (("sans", 14), ("serif", 48), ("serif", 16))
    ]
    tables = [
        _table(_face(LATIN[name], size), size).page(f"table_{name}{size}", "table", "eng")
        for name, size in (("sans", 20), ("mono", 24), ("serif", 32))
    ]
    chinese = [
        _han(_face(file, size), size, [HAN.replace("\n", "")], in_line).page(f"{name}{size}", "chinese", "chi_sim")
        for (name, file), size, in_line in zip(CHINESE.items(), (24, 40, 30), (34, 16, 26), strict=True)
    ]
    mixed = [
        _han(_face(file, size), size, MIXED.strip().splitlines(), 60).page(
            f"mixed_{name}{size}", "mixed", "chi_sim+eng"
        )
        for (name, file), size in zip(CHINESE.items(), (22, 36, 28), strict=True)
    ]
    upright = [
        _vertical(_face(CHINESE[name], size), size).page(f"vertical_{name}", "vertical", "chi_sim_vert")
        for name, size in (("hei", 32), ("song", 40))
    ]
    turned = [
        slanted(page, degrees)
        for page, degrees in (
            (latin[0], 3),
            (latin[3], -3),
            (latin[4], 2),
            (tables[0], 3),
            (chinese[0], -3),
            (mixed[1], 3),
        )
    ]
    low = [
        shrunk(page, scale, 60)
        for page, scale in (
            (latin[0], 0.6),
            (latin[3], 0.5),
            (latin[5], 0.7),
            (tables[1], 0.5),
            (chinese[1], 0.4),
            (mixed[0], 0.65),
        )
    ]
    return [*latin, *tables, *chinese, *mixed, *upright, *turned, *low]
