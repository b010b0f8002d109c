"""The text layer of a PDF: which text is used, its boxes, and what the engine still reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from documents import GRAY
from flask.testing import FlaskClient
from image_support import box, png
from text_layer_pages import image, mapped, page_pdf, text, type3, with_image
from web_support import KnownEngine, running_reader

from ocrsvc.client.response import Response, answer_of
from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.isolated.messages import SharedArea, pack_tasks, unpack_tasks
from ocrsvc.engines.page_analysis import AnalysingEngine
from ocrsvc.errors import BadOption, BrokenImage, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import open_document
from ocrsvc.imaging.pdf.merge_text import merge_text
from ocrsvc.imaging.pdf.open_pdf import Pdf
from ocrsvc.imaging.pdf.own_text import OwnPage
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Image, Line, OwnText, Page, ReadOptions, ReadTask

AUTO, ONLY, MERGE = (ReadOptions(text_layer=mode) for mode in ("auto", "only", "merge"))
SENTENCE = b"The quick brown fox jumps over the lazy dog."


class InkEngine(KnownEngine):
    """Reads one line around all dark pixels of a page and records its tasks."""

    traits = EngineTraits(wants_gray=True)

    def __init__(self) -> None:
        self.tasks: list[ReadTask] = []

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        self.tasks += tasks
        return [_seen(task) for task in tasks]


def _seen(task: ReadTask) -> Page:
    pixels = task.image.pixels
    rows, columns = np.nonzero(pixels < 100)
    if not len(rows):
        return Page(task.image.width, task.image.height, 0, ())
    left, top, right, bottom = (float(side) for side in (columns.min(), rows.min(), columns.max(), rows.max()))
    return Page(task.image.width, task.image.height, 0, (Line("seen", 0.5, box(left, top, right, bottom)),))


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Reader, InkEngine]]:
    engine = InkEngine()
    with running_reader(opener=lambda: AnalysingEngine(engine), threads=1) as reader:
        yield reader, engine


@pytest.fixture
def pages(running: tuple[Reader, InkEngine]) -> Any:
    reader, engine = running
    engine.tasks.clear()

    def read(file: bytes, options: ReadOptions = AUTO) -> list[Page]:
        [found] = reader.read_files([file], options, 30.0)
        assert not found.errors, found.errors
        return [reading.page for reading in found.readings]

    return read


def texts(page: Page) -> list[str]:
    return [line.text for line in page.lines]


def sources(page: Page) -> set[str | None]:
    return {line.source for line in page.lines}


def frame(line: Line) -> tuple[float, ...]:
    xs, ys = zip(*line.box, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def test_a_valid_text_layer_replaces_the_engine_on_request(pages: Any, running: Any) -> None:
    [page, blank, gray] = pages(page_pdf(text(SENTENCE) + text(b"Second line.", y=130), b"", GRAY))
    assert texts(page) == [SENTENCE.decode(), "Second line."]
    assert {(line.source, line.confidence) for line in page.lines} == {("text_layer", 1.0)}
    assert (blank.lines, gray.lines, running[1].tasks) == ((), (), [])
    [page] = pages(page_pdf(text(SENTENCE)), ReadOptions())
    assert (texts(page), sources(page), len(running[1].tasks)) == (["seen"], {None}, 1)


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize("crop", [b"", b"/CropBox [10 20 280 190]", b"/UserUnit 2"])
def test_boxes_follow_turned_and_cropped_pages(pages: Any, turn: int, crop: bytes) -> None:
    file = page_pdf(text(SENTENCE), page=b"/Rotate %d %s" % (turn, crop))
    [page] = pages(file)
    [drawn] = pages(file, ReadOptions())
    assert (texts(page), page.angle) == ([SENTENCE.decode()], -turn % 360)
    assert (page.width, page.height) == (drawn.width, drawn.height)
    assert frame(page.lines[0]) == pytest.approx(frame(drawn.lines[0]), abs=4.0)


def test_boxes_of_upward_lines_begin_where_reading_starts(pages: Any) -> None:
    upwards = b"BT /F 12 Tf 0 1 -1 0 100 20 Tm (Up along the edge) Tj ET\n"
    [page] = pages(page_pdf(upwards + text(SENTENCE, y=30, x=110, size=6)))
    line = next(line for line in page.lines if line.text == "Up along the edge")
    (x0, y0), (x1, y1) = line.box[:2]
    assert x0 == pytest.approx(x1)
    assert y1 < y0 - 200


def test_boxes_of_words_and_characters_follow_their_ink(pages: Any) -> None:
    [page] = pages(page_pdf(text(b"Hi there, you", size=20)), replace(AUTO, characters=True))
    [line] = page.lines
    assert line.words is not None
    assert [word.text for word in line.words] == ["Hi", "there,", "you"]
    assert ["".join(one.text for one in word.characters) for word in line.words] == ["Hi", "there,", "you"]
    rights = [word.box[1][0] for word in line.words]
    lefts = [word.box[0][0] for word in line.words]
    assert all(right < left for right, left in zip(rights, lefts[1:], strict=False))
    # In thousandths of an em, Helvetica's H begins at 77 and the i after it ends at 877: 44 px at 20 points.
    assert rights[0] - lefts[0] == pytest.approx(44.4, abs=1.0)


def test_glyphs_form_the_visible_lines(pages: Any) -> None:
    # Text drawn twice for bold or a shadow is one line.
    bold = text(SENTENCE) + text(SENTENCE, x=20.3) + text(b"Shadow", y=100, size=20) + text(b"Shadow", 21.5, 98.5, 20)
    # Separate cells are separate lines; adjacent pieces are one line.
    pieces = text(b"Name", y=150) + text(b"Amount", x=150, y=150)
    pieces += b"BT /F 12 Tf 20 120 Td [(A) 20 (V) -300 (word) -250 (of) 10 (pieces)] TJ ET\n"
    first, second = pages(page_pdf(bold, pieces + text(b"now", x=118, y=120)))
    assert texts(first) == [SENTENCE.decode(), "Shadow"]
    assert texts(second) == ["Name", "Amount", "AV word ofpieces now"]


def test_ligatures_become_letters_and_hyphens_stay(pages: Any) -> None:
    font, more = mapped({ord("A"): "ffi", ord("B"): "\ufb01", ord("C"): "\u00ad"})
    [page] = pages(page_pdf(text(b"oAce and Bre exam-") + text(b"ple and hyC", y=130), font=font, more=more))
    assert texts(page) == ["office and fire exam-", "ple and hy-"]


def wrongly_mapped() -> bytes:
    letters = "abcdefghijklmnopqrstuvwxyz"
    lines = (
        b"Whoever takes the text of this page",
        b"as it stands in the file will find",
        b"that nobody could read a word of it",
    )
    content = b"".join(text(line, y=160 - 20 * row) for row, line in enumerate(lines))
    return in_font(
        mapped({ord(one): other for one, other in zip(letters, letters[7:] + letters[:7], strict=True)}), content
    )


def in_font(font: tuple[bytes, dict[int, bytes]], content: bytes) -> bytes:
    return page_pdf(content, font=font[0], more=font[1])


def scanned() -> dict[str, Any]:
    pixels = np.full((200, 300), 255, np.uint8)
    cv2.putText(pixels, "SCANNED TEXT", (20, 100), cv2.FONT_HERSHEY_SIMPLEX, 1.0, 0, 2)
    return with_image(pixels.tobytes(), 300, 200)


INVISIBLE = text(b"5canned tcxt", more=b"3 Tr", y=90, size=24)
UNSOUND: dict[str, Callable[[], bytes]] = {
    "a wrong Unicode map": wrongly_mapped,
    "a Type 3 font without names": lambda: in_font(type3(), text(b"ABCDEFGHIJ KLMNOP")),
    "private use code points": lambda: in_font(
        mapped({code: chr(0xE000 + code) for code in range(0x21, 0x7F)}), text(SENTENCE)
    ),
    "the replacement character": lambda: in_font(mapped({ord("o"): "\ufffd"}), text(SENTENCE)),
    "invisible text over a scan": lambda: page_pdf(image() + INVISIBLE, **scanned()),
    "visible text under a scan": lambda: page_pdf(text(b"5canned tcxt", y=90, size=24) + image(), **scanned()),
    "a scan alone": lambda: page_pdf(image(), **scanned()),
}


@pytest.mark.parametrize("kind", UNSOUND)
def test_an_invalid_text_layer_is_left_to_the_engine(pages: Any, running: Any, kind: str) -> None:
    [page] = pages(UNSOUND[kind]())
    assert (texts(page), sources(page)) == (["seen"], {"ocr"})
    assert len(running[1].tasks) == 1


HIDDEN = text(b"white on white", y=100, more=b"1 g") + text(b"below the page", y=-50) + text(b"0", x=400)


@pytest.mark.parametrize(
    ("content", "page"),
    [
        (text(SENTENCE, more=b"0 g") + HIDDEN, b""),
        (b"0 g 0 0 300 200 re f\n" + text(SENTENCE, more=b"1 g"), b""),
        (text(SENTENCE, y=100) + text(b"cut off", y=190), b"/CropBox [0 0 300 180]"),
    ],
    ids=["hidden text", "white on black", "partly outside the crop box"],
)
def test_only_visible_text_is_used(pages: Any, running: Any, content: bytes, page: bytes) -> None:
    [read] = pages(page_pdf(content, page=page))
    assert (texts(read), running[1].tasks) == ([SENTENCE.decode()], [])


def mixed(height: int = 100) -> bytes:
    return page_pdf(text(SENTENCE, y=160) + image(height=height, x=10, width=height * 3 // 2, y=20), **scanned())


@pytest.mark.parametrize("options", [AUTO, MERGE])
def test_the_rest_of_a_page_is_recognized_and_merged_in_order(pages: Any, running: Any, options: ReadOptions) -> None:
    [page] = pages(mixed(), options)
    assert [(line.text, line.source) for line in page.lines] == [(SENTENCE.decode(), "text_layer"), ("seen", "ocr")]
    [task] = running[1].tasks
    # The engine sees only the picture; the text is erased.
    assert task.image.pixels[: task.image.height // 2].min() == 255


def test_only_merge_mode_recognizes_small_marks(pages: Any, running: Any) -> None:
    small = text(SENTENCE, y=160) + b"0 g 20 20 9 8 re f 31 20 5 8 re f\n"
    [page] = pages(page_pdf(small))
    assert (sources(page), running[1].tasks) == ({"text_layer"}, [])
    [page] = pages(page_pdf(small), MERGE)
    assert sources(page) == {"text_layer", "ocr"}


def test_only_mode_uses_all_text_without_the_engine_and_refuses_images(pages: Any, running: Any) -> None:
    found = [pages(make(), ONLY)[0] for make in (UNSOUND["invisible text over a scan"], UNSOUND["a scan alone"], mixed)]
    assert [texts(page) for page in found] == [["5canned tcxt"], [], [SENTENCE.decode()]]
    reader, engine = running
    assert not engine.tasks
    with pytest.raises(BadOption, match="is an image"):
        reader.read(png(), ONLY, 30.0)
    page = reader.read(png(shade=10), AUTO, 30.0).page
    assert (texts(page), sources(page)) == (["seen"], {"ocr"})


def test_a_region_has_only_the_text_inside_it(pages: Any, running: Any) -> None:
    file = page_pdf(text(b"above", y=150) + text(b"left and right", y=50))
    # The region is in pixels at 200 dpi.
    [page] = pages(file, replace(AUTO, region=(0, 300, 200, 255)))
    assert texts(page)[0].startswith("left")
    assert "right" not in texts(page)[0]
    with pytest.raises(BadOption, match="outside the page"):
        raise running[0].read_files([file], replace(AUTO, region=(5000, 0, 10, 10)), 30.0)[0].errors[0][1]


def test_recognized_lines_over_the_text_layer_are_dropped() -> None:
    own = OwnText((Line("own text", 1.0, box(100, 100, 300, 120)),))
    read = [Line("own tex", 1.0, box(105, 98, 296, 124)), Line("other", 1.0, box(100, 140, 300, 160))]
    merged = merge_text(Page(400, 300, 0, tuple(read)), own)
    assert texts(merged) == ["own text", "other"]


def test_hebrew_is_in_logical_order_for_any_drawing_order(pages: Any) -> None:
    font, more = mapped({ord("a") + at: chr(0x5D0 + at) for at in range(26)})
    # Drawn left to right as one string (gimel, bet, alef), and alef first with each character placed separately.
    placed = b"".join(text(b"%c" % (97 + at), 200 - 12 * at, 100, 20) for at in range(3))
    [one] = pages(page_pdf(text(b"cba", size=20), font=font, more=more), ONLY)
    [other] = pages(page_pdf(placed, font=font, more=more), ONLY)
    assert (texts(one), texts(other)) == (["\u05d0\u05d1\u05d2"], ["\u05d0\u05d1\u05d2"])


def test_stacked_chinese_is_a_vertical_line_but_stacked_digits_are_not(pages: Any) -> None:
    font, more = mapped({ord("A"): "\u7e26", ord("B"): "\u66f8", ord("C"): "\u304d"})
    column = b"".join(text(b"%c" % (65 + at), 100, 150 - 22 * at, 20) for at in range(3))
    digits = b"".join(text(b"%d" % at, 200, 150 - 22 * at, 20) for at in range(3)).replace(b"/F", b"/S")
    [page] = pages(page_pdf(column + digits, font=font, more=more), ONLY)
    assert sorted(texts(page)) == ["0", "1", "2", "\u7e26\u66f8\u304d"]


@pytest.mark.parametrize("count", [100_000, 1_500_000])
def test_the_text_layer_of_a_page_with_too_many_characters_is_ignored(running: Any, count: int) -> None:
    file = page_pdf(b"BT /F 1 Tf 20 100 Td " + b"(abcdefghij) Tj " * (count // 10) + b"ET")
    with closing(open_document(file, PixelLimits(1 << 27), 200, bool, bool)) as document:
        assert document.own_page(1, AUTO, bool, bool) == OwnPage(833, 555, OwnText(()))
    [failed] = running[0].read_files([file], ONLY, 60.0)
    [(_, error)] = failed.errors
    assert isinstance(error, BrokenImage)


def test_a_text_layer_that_crashes_pdfium_is_ignored(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> int:
        raise BrokenImage("The text of page 1 makes the program crash.")

    monkeypatch.setattr(Pdf, "count_characters", crash)
    [page] = pages(page_pdf(text(SENTENCE)))
    assert (texts(page), sources(page)) == (["seen"], {"ocr"})


def test_tables_use_the_text_layer_in_their_cells(pages: Any, running: Any) -> None:
    grid = b"1 w " + b"".join(b"20 %d m 280 %d l S " % (y, y) for y in (60, 100, 140, 180))
    grid += b"".join(b"%d 60 m %d 180 l S " % (x, x) for x in (20, 150, 280))
    cells = b"".join(text(b"cell%d" % at, 30 + 130 * (at % 2), 155 - 40 * (at // 2)) for at in range(6))
    [page] = pages(page_pdf(grid + cells), replace(AUTO, tables=True))
    assert not running[1].tasks
    assert sources(page) == {"text_layer"}
    assert [cell.text for cell in page.tables[0].cells] == [f"cell{at}" for at in range(6)]


def test_the_text_layer_reaches_an_isolated_engine() -> None:
    own = OwnText((Line("own", 1.0, box(1, 2, 3, 4)),), 90, is_all=True)
    task = ReadTask(Image(np.zeros((20, 30), np.uint8), "pdf"), AUTO, 9e9, own=own)
    with closing(SharedArea()) as area:
        [unpacked] = unpack_tasks(pack_tasks([task], area), area)
        assert isinstance(unpacked, ReadTask)
        assert unpacked.own == own
        # The area cannot close while its memory is referenced.
        del unpacked


def test_api_and_client_give_the_source_of_lines(client: FlaskClient) -> None:
    url = "/v1/ocr?text_layer=auto&words=true"
    answer = client.post(url, data=page_pdf(text(SENTENCE)), content_type="application/pdf")
    wrong = client.post("/v1/ocr?text_layer=some", data=b"", content_type="application/pdf")
    [page] = answer_of(Response(answer.status_code, None, answer.data)).pages
    assert [(line.source, len(line.words or ())) for line in page.lines] == [("text_layer", 9)]
    assert wrong.status_code == 400
