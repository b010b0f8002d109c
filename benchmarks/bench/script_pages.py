"""Pages of 20 lines in several scripts, drawn from the texts and fonts of scripts.toml; always the same pages."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from ocrsvc.results import Pixels

KINDS: Final = ("plain", "degraded", "mixed", "words")
_FONTS: Final = Path("/usr/share/fonts")
_SCRIPTS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("scripts.toml").read_text("utf-8"))
_FROM_RIGHT: Final = frozenset({"ar"})
# Thai has no spaces between words, so a piece is one or two phrases.
_PIECE_WORDS: Final = {"th": (1, 2)}
_LATIN: Final = ("Linux", "Python 3.11", "README", "Google", "PDF", "Microsoft Office", "USB", "2026", "Wi-Fi")
_LINES: Final = 20
_WIDTH: Final = 1700
_MARGIN: Final = 80
_SIZES_PX: Final = (26, 30, 34, 38)


def draw_script_page(lang: str, kind: str, number: int) -> tuple[Pixels, list[str]]:
    """Draw a page. Kinds: plain, degraded, mixed (every other line English), words (a Latin word in each line)."""
    source = random.Random(f"{lang} {kind if kind != 'degraded' else 'plain'} {number}")
    size = source.choice(_SIZES_PX)
    fonts = {tag: _font(tag, number, size) for tag in (lang, "en")}
    picture = Picture.new("L", (_WIDTH, 60 + 2 * size * _LINES), 255)
    pen, lines = ImageDraw.Draw(picture), []
    for row in range(_LINES):
        parts = _parts(lang, kind, row, source)
        while _length(parts, fonts) > _WIDTH - 2 * _MARGIN:
            parts = _parts(lang, kind, row, source)
        lines.append(" ".join(text for text, _ in parts))
        _draw(pen, parts, fonts, 40 + 2 * size * row + size, from_right=lang in _FROM_RIGHT and parts[0][1] == lang)
    pixels: Pixels = np.repeat(np.asarray(picture)[:, :, None], 3, axis=2).copy()
    return (_degraded(pixels, number) if kind == "degraded" else pixels), lines


Parts = list[tuple[str, str]]  # texts, each with the language of its font
Fonts = dict[str, ImageFont.FreeTypeFont]


def _font(lang: str, number: int, size: int) -> ImageFont.FreeTypeFont:
    files = _SCRIPTS[lang]["fonts"]
    return ImageFont.truetype(str(_FONTS / files[number % len(files)]), size)


def _parts(lang: str, kind: str, row: int, source: random.Random) -> Parts:
    pieces = _pieces(lang, source)
    if kind == "mixed" and row % 2:
        return [(next(_pieces("en", source)), "en")]
    if kind == "words":
        return [(next(pieces), lang), (source.choice(_LATIN), "en"), (next(pieces), lang)]
    return [(next(pieces), lang)]


def _pieces(lang: str, source: random.Random) -> Iterator[str]:
    """Random sequences of neighbouring words from the sentences."""
    while True:
        words = source.choice(_SCRIPTS[lang]["text"]).split(" ")
        count = source.randint(*_PIECE_WORDS.get(lang, (3, 8)))
        begin = source.randrange(max(1, len(words) - count + 1))
        yield " ".join(words[begin : begin + count])


def _length(parts: Parts, fonts: Fonts) -> float:
    return sum(fonts[lang].getlength(f"{text} ") for text, lang in parts)


def _draw(pen: ImageDraw.ImageDraw, parts: Parts, fonts: Fonts, base: int, *, from_right: bool) -> None:
    """Draw the parts of a line side by side, starting at the margin where the script starts."""
    place = float(_WIDTH - _MARGIN if from_right else _MARGIN)
    for text, lang in parts:
        length, space = fonts[lang].getlength(text), fonts[lang].getlength(" ")
        pen.text((place - length if from_right else place, base), text, 0, fonts[lang], anchor="ls")
        place += -(length + space) if from_right else length + space


def _degraded(pixels: Pixels, seed: int) -> Pixels:
    """The page skewed, blurred, gray and noisy, after JPEG compression at quality 45."""
    source, (height, width) = np.random.default_rng(seed), pixels.shape[:2]
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), source.uniform(-1, 1), 1)
    skewed = cv2.GaussianBlur(cv2.warpAffine(pixels, turn, (width, height), borderValue=(255, 255, 255)), (0, 0), 0.9)
    gray = (60 + 0.65 * skewed.astype(np.float32) + source.normal(0, 8, pixels.shape)).clip(0, 255).astype(np.uint8)
    _, data = cv2.imencode(".jpg", gray, [cv2.IMWRITE_JPEG_QUALITY, 45])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)
