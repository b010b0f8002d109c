"""PDF pages that are a single image are drawn at the image's resolution; answers are as for any other page."""

import io
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pikepdf
import pypdfium2
import pytest
from documents import GRAY, pdf
from image_support import noise
from numpy.typing import NDArray
from pikepdf import Array, Dictionary, Name, Stream
from support import data_of
from web_support import json_of, running_app

from ocrsvc.errors import BadOption, ImageTooLarge
from ocrsvc.imaging.engine_input import EngineInput
from ocrsvc.imaging.pdf.open_pdf import DrawingLimits, Pdf, image_size_px
from ocrsvc.results import Image, Pixels, ReadOptions
from ocrsvc.settings.settings import Settings

WIDE, HIGH = 310, 438
"""The image's size in pixels: an eighth of A4 at 300 dpi; neither side is a whole number of points."""
MOST = 20_000_000
Change = Callable[[pikepdf.Pdf], None]


PICTURE = noise(4, HIGH, WIDE)


def scan(dpi: float, change: Change = lambda _pdf: None, content: bytes = b"") -> bytes:
    made, file = pikepdf.new(), io.BytesIO()
    wide, high = WIDE * 72 / dpi, HIGH * 72 / dpi
    made.add_blank_page(page_size=(wide, high))
    page = made.pages[0].obj
    image = image_of(made, PICTURE)
    page.Resources = Dictionary(XObject=Dictionary(I=made.make_indirect(image)))
    page.Contents = made.make_stream(b"q %f 0 0 %f 0 0 cm /I Do Q " % (wide, high) + content)
    change(made)
    made.save(file)
    return file.getvalue()


def image_of(made: pikepdf.Pdf, pixels: Pixels) -> Stream:
    kind: dict[str, Any] = {
        "Type": Name.XObject,
        "Subtype": Name.Image,
        "ColorSpace": Name.DeviceGray,
        "BitsPerComponent": 8,
    }
    return Stream(made, pixels.tobytes(), Dictionary(**kind, Width=pixels.shape[1], Height=pixels.shape[0]))


def turned(degrees: int) -> Change:
    return lambda made: made.pages[0].obj.__setitem__("/Rotate", degrees)


def cropped(made: pikepdf.Pdf) -> None:
    """Crop the page to the image's upper left quarter, 155 x 219 pixels."""
    _, _, wide, high = (float(side) for side in made.pages[0].obj.MediaBox)
    made.pages[0].obj.CropBox = Array([0, high / 2, wide / 2, high])


def moved(made: pikepdf.Pdf) -> None:
    """Move the page's corner away from 0, 0, and double its unit."""
    page = made.pages[0].obj
    _, _, wide, high = (float(side) for side in page.MediaBox)
    page.MediaBox, page.UserUnit = Array([-9, 13, wide - 9, high + 13]), 2
    page.Contents = made.make_stream(b"q %f 0 0 %f -9 13 cm /I Do Q" % (wide, high))


def with_hidden_text(made: pikepdf.Pdf) -> None:
    """Add invisible text, as OCR programs do."""
    page = made.pages[0].obj
    page.Resources.Font = Dictionary(F=Dictionary(Type=Name.Font, Subtype=Name.Type1, BaseFont=Name.Helvetica))
    page.Contents = Array([page.Contents, made.make_stream(b"BT 3 Tr /F 9 Tf 9 9 Td (hidden) Tj ET")])


def with_mask(made: pikepdf.Pdf) -> None:
    """Add a mask that has four times the image's resolution."""
    mask = image_of(made, np.kron(PICTURE, np.ones((4, 4), np.uint8)))
    made.pages[0].obj.Resources.XObject.I.SMask = made.make_indirect(mask)


def enlarged(made: pikepdf.Pdf, times: float) -> None:
    box = [float(side) for side in made.pages[0].obj.MediaBox]
    made.pages[0].obj.MediaBox = Array([side * times for side in box])


def placed(made: pikepdf.Pdf, turn: tuple[float, float, float, float]) -> None:
    page = made.pages[0].obj
    _, _, wide, high = (float(side) for side in page.MediaBox)
    a, b, c, d = turn
    page.Contents = made.make_stream(b"q %f %f %f %f 0 0 cm /I Do Q" % (a * wide, b * wide, c * high, d * high))


def measured(data: bytes, dpi: int = 200, *, max_pixels: int = MOST, longest: int = 5000) -> tuple[int, int] | None:
    with closing(Pdf(data, DrawingLimits(dpi, max_pixels, longest), bool)) as document:
        return document.measure_image(1, bool)


def drawn(data: bytes, dpi: int = 200) -> NDArray[np.uint8]:
    with closing(Pdf(data, DrawingLimits(dpi, MOST, 5000), bool)) as document:
        size = document.measure_image(1, bool)
        assert size is not None
        return document.draw(1, size, bool, gray=True, is_image=True)


@pytest.mark.parametrize("dpi", [72, 100, 150, 200, 203.2, 300])
def test_a_page_that_is_an_image_is_drawn_as_that_image_pixel_by_pixel(dpi: float) -> None:
    assert np.array_equal(drawn(scan(dpi)), PICTURE)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        pytest.param(turned(90), lambda own: np.rot90(own, -1), id="turned to the right"),
        pytest.param(turned(180), lambda own: np.rot90(own, 2), id="upside down"),
        pytest.param(turned(270), np.rot90, id="turned to the left"),
        pytest.param(cropped, lambda own: own[: HIGH // 2, : WIDE // 2], id="cropped"),
        pytest.param(moved, np.asarray, id="with another corner and unit"),
        pytest.param(with_hidden_text, np.asarray, id="with hidden text"),
    ],
)
def test_a_rotated_image_page_is_drawn_as_displayed(change: Change, shown: Callable[[Pixels], Pixels]) -> None:
    data = scan(150, change)
    assert np.array_equal(drawn(data), shown(PICTURE))
    with pypdfium2.PdfDocument(data) as document:
        width, height = document[0].get_size()
    assert abs(width / height - drawn(data).shape[1] / drawn(data).shape[0]) < 0.01


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(pdf(GRAY, size=(300, 400)), id="a drawing"),
        pytest.param(scan(150, content=b"0 g 9 9 40 40 re f"), id="an image and a drawing"),
        pytest.param(scan(150, content=b"q 40 0 0 40 0 0 cm /I Do Q"), id="two images"),
        pytest.param(scan(150, lambda made: enlarged(made, 2.5)), id="a small image on a large page"),
        pytest.param(scan(150, lambda made: placed(made, (1, 0.2, -0.2, 1))), id="a skewed image"),
        pytest.param(scan(150, with_mask), id="an image with a mask finer than itself"),
        pytest.param(scan(40), id="an image of 40 dpi"),
    ],
)
def test_any_other_page_is_drawn_at_the_default_resolution(data: bytes) -> None:
    assert measured(data) is None


def test_an_image_with_a_mask_is_used_from_the_default_resolution_up() -> None:
    assert measured(scan(250, with_mask)) == (WIDE, HIGH)


A4 = (595.2, 841.92)


@pytest.mark.parametrize(("own_dpi", "dpi", "max_pixels", "longest", "expected"), data_of("image_pages")["resolutions"])
def test_the_resolution_of_an_image_page_stays_within_the_limits(
    own_dpi: tuple[int, int], dpi: int, max_pixels: int, longest: int, expected: tuple[int, int] | None
) -> None:
    own = (A4[0] * own_dpi[0] / 72, A4[1] * own_dpi[1] / 72)
    found = image_size_px(A4, own, DrawingLimits(dpi, max_pixels, longest))
    assert (found is None) == (expected is None)
    if found and expected:
        assert max(abs(one - other) for one, other in zip(found, expected, strict=True)) <= 1
        assert found[0] * found[1] <= max_pixels
        assert max(found) <= longest


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(ImageTooLarge, match=f"{WIDE} x {HIGH} pixels"):
        measured(scan(150), max_pixels=WIDE * HIGH - 1)


def test_a_region_at_a_page_edge_has_at_least_one_pixel() -> None:
    view = EngineInput(ReadOptions(region=(199, 99, 9, 9)))
    assert view.apply(Image(np.zeros((30, 60), np.uint8), "pdf", (200, 100))).pixels.size == 1
    with pytest.raises(BadOption):
        EngineInput(ReadOptions(region=(200, 0, 9, 9))).apply(Image(np.zeros((30, 60), np.uint8), "pdf", (200, 100)))


@pytest.mark.parametrize("dpi", [150, 300])
def test_the_engine_gets_the_image_pixels_and_the_answer_the_usual_size(dpi: int) -> None:
    with running_app(Settings(pdf_dpi=200)) as app:
        found = [
            json_of(app.test_client().post(f"/v1/ocr{query}", data=scan(dpi), content_type="application/pdf"))
            for query in ("", "?region=50,20,100,40")
        ]
    (page,), (part,) = (answer["pages"] for answer in found)
    assert (page["width"], page["height"]) == (WIDE * 200 // dpi, HIGH * 200 // dpi)
    # The engine's second line names the size of the image that it received.
    assert page["lines"][1]["text"].startswith(f"{WIDE}x{HIGH} ")
    assert max(x for x, _ in page["lines"][0]["box"]) == pytest.approx(page["width"] * 3 / 4, rel=0.01)
    seen = [int(side) for side in part["lines"][1]["text"].split()[0].split("x")]
    assert seen == pytest.approx([100 * dpi / 200, 40 * dpi / 200], abs=1)
    assert max(x for x, _ in part["lines"][0]["box"]) == pytest.approx(50 + 75, abs=1)
