"""Pages as Markdown: headings, paragraphs, lists, tables, page breaks, and escaping of text."""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_support import box
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont
from support import data_of

from ocrsvc.engines.ppocr.engine import PageHandle
from ocrsvc.formats.blocks import join_lines
from ocrsvc.formats.markdown import markdown_by_page, markdown_parts
from ocrsvc.results import Cell, EngineInfo, Image, Line, Page, Pixels, ReadOptions, ReadTask, Region, Table

markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed (extra: dev)")

ENGINE = EngineInfo("fake", "fake", "1", "cpu", "fp32", "none")


def markdown_of(*pages: Page) -> str:
    return "".join(markdown_parts(pages, len(pages), ENGINE))


BODY = 30
LEFT = 100


def line(text: str, top: float, *, left: float = LEFT, size: float = BODY, right: float | None = None) -> Line:
    """A line with characters half as wide as high; Chinese characters are square."""
    wide = sum(size if ord(character) > 0x2E80 else size / 2 for character in text)
    return Line(text, 0.9, box(left, top, right or left + wide, top + size))


def page(*lines: Line, **more: object) -> Page:
    return Page(1240, 1754, 0, lines, **more)  # type: ignore[arg-type]


def below(texts: Sequence[str], *, pitch: float = 1.5, begin: float = 0, left: float = LEFT) -> list[Line]:
    return [line(text, begin + at * pitch * BODY, left=left) for at, text in enumerate(texts)]


FULL = "The quick brown fox jumps over the lazy dog and goes home"
HAN = ("暖风熏得游人醉这里是一个完整的长句子，它会", "在这里继续下去直到这一行结束为止这样就", "完了。")


@pytest.mark.parametrize(
    ("lines", "paragraphs"),
    [
        (
            [*below([FULL, FULL, "and sleeps."]), *below(["Later " + FULL, "it wakes."], begin=6 * BODY)],
            [f"{FULL} {FULL} and sleeps.", f"Later {FULL} it wakes."],
        ),
        (
            [*below([FULL, FULL, FULL + "."]), line(FULL, 4.5 * BODY, left=LEFT + 2 * BODY, right=LEFT + 855)],
            [f"{FULL} {FULL} {FULL}.", FULL],
        ),
        (below([FULL, FULL, "An end.", FULL, FULL]), [f"{FULL} {FULL} An end.", f"{FULL} {FULL}"]),
        (below(HAN), ["".join(HAN)]),
        (
            [*below([FULL, FULL, "which is so dif-"], left=50), *below(["ferent there.", FULL], left=950)],
            [f"{FULL} {FULL} which is so different there.", FULL],
        ),
        ([Line("a", 0.9, box(LEFT, top, LEFT, top)) for top in range(3)], ["a"] * 3),
    ],
    ids=["a gap", "an indent", "a short last line", "chinese", "in the next column", "lines without height"],
)
def test_lines_of_a_paragraph_are_joined(lines: list[Line], paragraphs: list[str]) -> None:
    assert markdown_of(page(*lines)) == "\n\n".join(paragraphs) + "\n"


@pytest.mark.parametrize(("lines", "joined"), data_of("markdown")["joined"])
def test_words_and_sentences_continue_in_the_next_line(lines: list[str], joined: str) -> None:
    assert join_lines(lines) == joined


def test_large_letters_are_headings_and_slightly_larger_ones_are_not() -> None:
    lines = [
        line("The Title", 0, size=2 * BODY),
        line("1.2 A Section", 100, size=1.5 * BODY),
        line("A Part", 170, size=1.3 * BODY),
        *below([FULL, FULL, FULL, FULL + "."], begin=240),
    ]
    lines[4] = line(FULL, 240 + 1.375 * BODY, size=1.25 * BODY, right=LEFT + 855)
    written = markdown_of(page(*lines))
    assert written.startswith("# The Title\n\n## 1.2 A Section\n\n### A Part\n\nThe quick")
    assert written.count("\n\n") == 3


def test_bullets_and_numbers_become_lists() -> None:
    items = ["We need:", "• apples that are", "  red", "• pears", "- plums", "1. first", "2. second", "4. fourth"]
    lines = below(items)
    assert markdown_of(page(*lines)).splitlines()[0] == "We need:"
    html = markdown_it.MarkdownIt().render(markdown_of(page(*lines)))
    assert (html.count("<ul>"), html.count("<li>")) == (1, 5)
    assert "<ol>" in html
    assert "4. fourth" in html


def test_letters_and_chinese_numbers_mark_list_items() -> None:
    items = ["a) this", "(b) that", "（一）甲", "①乙", "2、丙"]
    written = markdown_of(page(*below(["Either:", *items])))
    assert [row[2:] for row in written.splitlines() if row.startswith("- ")] == items


def test_a_table_takes_the_place_of_its_first_line() -> None:
    lines = [line("Prices", 0), line("apple", 100), line("1 | 2", 100, left=400), line("After.", 300)]
    cells = tuple(
        Cell(row, column, 1, 1, box(0, 0, 1, 1), text, at)
        for row, column, text, at in ((0, 0, "apple", (1,)), (0, 1, "1 | 2", (2,)), (1, 0, "", ()), (1, 1, "", ()))
    )
    table = Table(box(90, 90, 600, 200), 2, 2, cells)
    written = "| apple | 1 \\| 2 |\n| --- | --- |\n|  |  |"
    assert markdown_of(page(*lines, tables=(table,))) == f"Prices\n\n{written}\n\nAfter.\n"


def test_regions_mark_titles_headers_and_footers() -> None:
    lines = [line("Running head", 0), line("A title", 100), line("Text.", 200), line("17", 1700)]
    kinds = ("header", "title", "text", "footer")
    regions = tuple(Region(kind, 0.9, one.box, (at,)) for at, (kind, one) in enumerate(zip(kinds, lines, strict=True)))  # type: ignore[arg-type]
    assert markdown_of(page(*lines, regions=regions)) == "### A title\n\nText.\n"


def test_a_turned_page_is_written_in_reading_direction() -> None:
    upright = page(*below([FULL, FULL, "An end.", FULL, FULL]))
    boxes: list[Any] = [tuple((y, upright.width - x) for x, y in each.box) for each in upright.lines]
    lines = tuple(replace(each, box=turned) for each, turned in zip(upright.lines, boxes, strict=True))
    assert markdown_of(Page(upright.height, upright.width, 90, lines)) == markdown_of(upright)


def test_pages_are_separated_by_a_comment_with_their_number() -> None:
    pages = [page(line("One.", 0), number=3), page(number=4), page(line("Two.", 0), number=7)]
    assert markdown_of(*pages) == "One.\n\n<!-- page 4 -->\n\n\n<!-- page 7 -->\n\nTwo.\n"


def test_headings_are_relative_to_the_text_of_earlier_pages() -> None:
    text, title = page(*below([FULL] * 9)), page(line("Second Part", 0, size=2 * BODY), number=2)
    assert markdown_of(text, title).endswith("# Second Part\n")


@pytest.mark.parametrize("text", data_of("markdown")["text"])
def test_text_does_not_become_markup(text: str) -> None:
    check_is_text(text)


@given(st.text(max_size=60))
def test_no_text_becomes_markup(text: str) -> None:
    check_is_text(text)


def check_is_text(text: str) -> None:
    """The rendered Markdown has only paragraphs and list items, without inline markup."""
    written = markdown_of(page(line(text, 0), line("End.", 500)))
    tokens = markdown_it.MarkdownIt("gfm-like", {"linkify": False}).parse(written)
    kinds = {token.type.removesuffix("_open").removesuffix("_close") for token in tokens}
    assert kinds <= {"paragraph", "inline", "bullet_list", "ordered_list", "list_item"}
    children = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in children} <= {"text", "text_special"}


def test_a_hostile_page_takes_linear_time() -> None:
    def seconds(count: int) -> float:
        lines = [line("- 1. [a](b) -" if at % 2 else "(a)" * 20, at % 97, left=at % 89) for at in range(count)]
        read = page(*lines)
        # The garbage collector would scan objects of other tests.
        gc.disable()
        try:
            began_s = time.process_time()
            markdown_of(read)
            return time.process_time() - began_s
        finally:
            gc.enable()

    seconds(100)
    assert min(seconds(8000) for _ in range(3)) < 20 * max(0.01, *(seconds(1000) for _ in range(3)))


LATIN = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
CHINESE = Path("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")
# Only lower-case words, so that sentence ends do not separate paragraphs.
TEXT = """
the clerk writes down the name and the hour of every ship that comes into the harbour of our town and on most days
there are fewer than twenty while in summer when the ferries run late there may be as many as sixty and still
"""
HEADINGS = ("a short title", "the keeping of the harbour books", "the keeping of the harbour books and")
HANZI = "港务所为每一艘进港的船只留下记录由一位职员写明船名国旗和时间平日里不过二十艘到了夏天渡轮晚点也许会有六十艘之多"
HAN_HEADINGS = ("港务记录", "港务所的船只进港记录方法")


def draw(font: Path, words: list[str], headings: tuple[str, ...], body_px: int, head_px: int, between: str) -> Pixels:
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


SIZES = [(LATIN, *sizes) for sizes in [(26, 40, "##"), (26, 50, "#"), (20, 31, "##"), (32, 60, "#"), (26, 26, None)]]
HAN_SIZES = [(CHINESE, *sizes) for sizes in [(26, 34, "###"), (26, 40, "##"), (32, 59, "#")] if CHINESE.is_file()]


@pytest.mark.parametrize(("font", "body_px", "head_px", "marks"), [*SIZES, *HAN_SIZES])
def test_large_text_is_a_heading(handle: PageHandle, font: Path, body_px: int, head_px: int, marks: str | None) -> None:
    words, headings, between = (TEXT.split(), HEADINGS, " ") if font == LATIN else (list(HANZI), HAN_HEADINGS, "")
    (page,) = handle.read(
        [ReadTask(Image(draw(font, words, headings, body_px, head_px, between), "png"), ReadOptions())]
    )
    assert isinstance(page, Page)
    found = [part for _, text in markdown_by_page([page]) for part in text.split("\n") if part.startswith("#")]
    assert found == ([f"{marks} {heading}" for heading in headings] if marks else [])
