"""Headings of Markdown on drawn pages: their level is that of the size of their letters, however long they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from ocrsvc.engines.ppocr.engine import PpocrEngine, open_ppocr
from ocrsvc.formats.letter_sizes import BodySize
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.records import Box, Image, Line, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for

LATIN = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
CHINESE = Path("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")
# Small letters everywhere: a paragraph may look as if it went on in the next.
TEXT = """
the clerk writes down the name and the hour of every ship that comes into the harbour of our town and on most days
there are fewer than twenty while in summer when the ferries run late there may be as many as sixty and still
"""
HEADINGS = ("a short title", "the keeping of the harbour books", "the keeping of the harbour books and")
HAN = "港务所为每一艘进港的船只留下记录由一位职员写明船名国旗和时间平日里不过二十艘到了夏天渡轮晚点也许会有六十艘之多"
HAN_HEADINGS = ("港务记录", "港务所的船只进港记录方法")


@pytest.fixture(scope="module")
def engine() -> Iterator[PpocrEngine]:
    settings = read_settings({})
    engine = open_ppocr(settings, plan_for(settings, workers=1))
    yield engine
    engine.close()


def draw(font: Path, words: list[str], headings: tuple[str, ...], body_px: int, head_px: int, between: str) -> Pixels:
    """Paragraphs of three full lines with a heading between each two."""
    small, large = (ImageFont.truetype(str(font), size) for size in (body_px, head_px))
    lines = [""]
    for word in words * 3:
        longer = f"{lines[-1]}{between if lines[-1] else ''}{word}"
        lines = [*lines[:-1], longer] if small.getlength(longer) < 1080 else [*lines, word]
    picture = Picture.new("L", (1240, 1500), 255)
    pen, top = ImageDraw.Draw(picture), 60.0
    for heading in (*headings, None):
        for text in lines[:3]:
            pen.text((80, top), text, font=small, fill=0)
            top += 1.45 * body_px
        if heading is not None:
            pen.text((80, top + body_px / 2), heading, font=large, fill=0)
            top += 1.35 * head_px + 0.8 * body_px
    return np.asarray(picture.crop((0, 0, 1240, round(top) + 60)), np.uint8)


def headings_of(engine: PpocrEngine, pixels: Pixels) -> list[str]:
    (page,) = engine.open_handle().read([ReadTask(Image(pixels, "png"), ReadOptions())])
    assert isinstance(page, Page)
    return [part for _, text in markdown_by_page([page]) for part in text.split("\n") if part.startswith("#")]


@pytest.mark.parametrize(
    ("body_px", "head_px", "marks"), [(26, 40, "##"), (26, 50, "#"), (20, 31, "##"), (32, 60, "#"), (26, 26, None)]
)
def test_latin_headings_are_found_by_their_size(
    engine: PpocrEngine, body_px: int, head_px: int, marks: str | None
) -> None:
    found = headings_of(engine, draw(LATIN, TEXT.split(), HEADINGS, body_px, head_px, " "))
    assert found == ([f"{marks} {heading}" for heading in HEADINGS] if marks else [])


@pytest.mark.skipif(not CHINESE.is_file(), reason="needs the typeface Noto Sans CJK")
@pytest.mark.parametrize(("body_px", "head_px", "marks"), [(26, 34, "###"), (26, 40, "##"), (32, 59, "#")])
def test_chinese_headings_are_found_by_their_size(engine: PpocrEngine, body_px: int, head_px: int, marks: str) -> None:
    found = headings_of(engine, draw(CHINESE, list(HAN), HAN_HEADINGS, body_px, head_px, ""))
    assert found == [f"{marks} {heading}" for heading in HAN_HEADINGS]


def line(text: str, high: float, wide: float) -> Line:
    box: Box = ((0, 0), (wide, 0), (wide, high), (0, high))
    return Line(text, 0.9, box)


BODY = line("the clerk writes down the name and the hour of every ship that", 28, 910)


@pytest.mark.parametrize(
    ("text", "high", "wide", "ratio"),
    [
        # Measured on drawn pages of 26 px text: headings of 40 and 48 px, and text whose box is high by chance.
        pytest.param("A short title", 33, 276, 1.5, id="40 px, a low box"),
        pytest.param("The keeping of the harbour books", 37, 695, 1.5, id="40 px"),
        pytest.param("A short title", 39, 331, 1.8, id="48 px, a low box"),
        pytest.param("the clerk writes down the name and the hour of every", 31, 760, 1.0, id="26 px, a high box"),
        pytest.param("name                        and", 28, 910, 1.0, id="a wide gap"),
        pytest.param("港务记录", 42, 136, 1.3, id="34 px, a high box of Chinese"),
    ],
)
def test_a_width_corrects_what_a_height_says(text: str, high: float, wide: float, ratio: float) -> None:
    body = BodySize().add(Page(1240, 1754, 0, (BODY,)))
    assert body.ratio_of(line(text, high, wide)) == pytest.approx(ratio, abs=0.12)


def test_a_page_without_letters_has_no_size() -> None:
    assert BodySize().ratio_of(BODY) == 1.0
