"""Searchable PDFs: the text layer has the read text in place, and the rest of the PDF is unchanged."""

import io
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
import pikepdf
import pypdfium2
import pytest
from batch_outputs_support import line
from documents import GRAY, assemble, pdf, stream, tiff, with_text
from hostile_files import PDFS
from image_support import box, encoded, saved
from numpy.typing import NDArray
from PIL import Image

from ocrsvc.errors import BrokenImage
from ocrsvc.formats.pdf.image_pdf import ImagePdf
from ocrsvc.formats.pdf.page_image import page_image
from ocrsvc.formats.pdf.text_lines import text_of
from ocrsvc.imaging.codecs.decode import PixelLimits, decode, open_encoded_image
from ocrsvc.results import Box, Line, Page, Word

LIMITS = PixelLimits(1 << 30)
# Lines of 160 x 20 pixels on a page of 200 x 100 pixels at 200 dpi.
TEXTS = ("正品促销 hello", "한국어 ñ 𠀀 →", "plain words, with 12.5 %")
READ = Page(200, 100, 0, (line(TEXTS[0]), line(TEXTS[1], 40), line(TEXTS[2], 70)))


def images_pdf(*files: bytes, read: Page = READ) -> bytes:
    whole = io.BytesIO()
    made = ImagePdf(whole)
    for number, file in enumerate(files, 1):
        made.add_page(page_image(file, LIMITS), text_of(replace(read, number=number)))
    made.finish()
    return whole.getvalue()


def by_pdfium(data: bytes) -> list[list[str]]:
    with pypdfium2.PdfDocument(data) as document:
        return [page.get_textpage().get_text_range().split("\r\n") for page in document]


def by_poppler(data: bytes) -> list[list[str]]:
    command = ["pdftotext", "-enc", "UTF-8", "-", "-"]
    found = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode()
    return [[text for text in page.splitlines() if text] for page in found.split("\f")[:-1]]


needs_poppler = pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext (poppler-utils) is missing")


def faults(data: bytes) -> Sequence[str]:
    with pikepdf.open(io.BytesIO(data)) as document:
        return [str(fault) for fault in (*document.check_pdf_syntax(), *document.get_warnings())]


def drawn(data: bytes, number: int = 0) -> bytes:
    with pypdfium2.PdfDocument(data) as document:
        return bytes(document[number].render(scale=2).to_numpy().tobytes())


def picture(width: int = 60, height: int = 30, *, colour: bool = True) -> np.ndarray:
    noise = np.random.default_rng(7).integers(0, 255, (height // 10, width // 10, 3 if colour else 1), np.uint8)
    return noise.repeat(10, axis=0).repeat(10, axis=1).squeeze()


def jpeg(pixels: np.ndarray, orientation: int = 1, mode: str = "RGB") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(Image.fromarray(pixels[..., ::-1]).convert(mode), "JPEG", quality=95, exif=exif, dpi=(300, 300))


@needs_poppler
def test_text_can_be_extracted_from_pdfs_and_images() -> None:
    once, after = (with_text(pdf(GRAY, GRAY), [replace(READ, number=2)]) for _ in range(2))
    assert (by_pdfium(after), by_poppler(after)) == ([[""], list(TEXTS)], [[], list(TEXTS)])
    assert by_poppler(images_pdf(jpeg(picture(200, 100)))) == [list(TEXTS)]
    assert faults(after) == []
    assert once == after, "the same text gives the same bytes"


def form_pdf() -> bytes:
    """A page whose text is in a form XObject; the form's font is a resource inherited from the page tree."""
    return assemble(
        {
            1: b"<< /Type /Catalog /Pages 2 0 R >>",
            2: b"<< /Type /Pages /Kids [4 0 R] /Count 1 /MediaBox [0 0 72 36] /Rotate 180 "
            b"/Resources << /Font << /OcrText 3 0 R >> /XObject << /X 6 0 R >> >> >>",
            3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            4: b"<< /Type /Page /Parent 2 0 R /Contents [5 0 R] >>",
            5: stream(b"/X Do"),
            6: stream(
                b"BT /OcrText 9 Tf 2 9 Td (Of the form) Tj ET", b"/Type /XObject /Subtype /Form /BBox [0 0 72 36]"
            ),
        }
    )


def test_resources_used_only_by_a_form_stay() -> None:
    before = form_pdf()
    after = with_text(before, [READ])
    assert drawn(before) == drawn(after)
    with pikepdf.open(io.BytesIO(after)) as document:
        fonts = document.pages[0].obj["/Resources"]["/Font"]
        assert [str(fonts[name]["/BaseFont"]) for name in ("/OcrText", "/OcrText1")] == ["/Helvetica", "/Invisible"]
    assert by_pdfium(after) == [[*TEXTS, "Of the form"]]


def test_page_streams_are_unchanged() -> None:
    raw_image = bytes(range(256)) * 3
    head = b"/Type /XObject /Subtype /Image /Width 16 /Height 16 /ColorSpace /DeviceRGB /BitsPerComponent 8 /Length 768"
    image = {50: b"<< %s >>\nstream\n%s\nendstream" % (head, raw_image)}
    before = pdf(b"q 72 0 0 36 0 0 cm /I Do Q", resources=b"/XObject << /I 50 0 R >>", objects=image)
    after = with_text(before, [READ])
    with pikepdf.open(io.BytesIO(before)) as was, pikepdf.open(io.BytesIO(after)) as now:
        assert now.pages[0].obj["/Resources"]["/XObject"]["/I"].read_raw_bytes() == raw_image
        assert now.pages[0].obj["/Contents"][1].read_raw_bytes() == was.pages[0].obj["/Contents"].read_raw_bytes()


def test_text_is_in_place_on_cropped_turned_pages_and_images() -> None:
    whole = io.BytesIO()
    # The page's content leaves a changed transformation matrix.
    drawing = b"0.5 0 0 0.5 10 10 cm q 2 0 0 2 0 0 cm " + GRAY
    document = pypdfium2.PdfDocument(pdf(drawing, size=(300, 200)))
    document[0].set_cropbox(100, 50, 500, 86)
    document[0].set_rotation(90)
    document.save(whole)
    # The visible page is 36 points wide and 200 high.
    on_page = with_text(whole.getvalue(), [Page(72, 400, 0, (Line("X", 0.9, box(10, 40, 20, 60)),))])
    on_picture = images_pdf(encoded(picture()), read=Page(60, 30, 0, (Line("X", 0.9, box(10, 5, 20, 10)),)))
    # 60 x 30 pixels at 200 dpi are 21.6 x 10.8 points.
    for made, place in ((on_page, (120, 55, 130, 60)), (on_picture, (3.6, 7.2, 7.2, 9.0))):
        found = pypdfium2.PdfDocument(made)[0].get_textpage().get_charbox(0)
        assert found == pytest.approx(place, abs=0.3)


def test_a_restricted_pdf_stays_encrypted() -> None:
    whole = io.BytesIO()
    restricted = pikepdf.Encryption(owner="secret", user="", allow=pikepdf.Permissions(extract=False))
    with pikepdf.open(io.BytesIO(pdf(GRAY))) as document:
        document.save(whole, encryption=restricted)
    after = with_text(whole.getvalue(), [READ])
    assert by_pdfium(after) == [list(TEXTS)]
    with pikepdf.open(io.BytesIO(after)) as document:
        assert document.is_encrypted
        assert not document.allow.extract


@pytest.mark.parametrize(
    ("kind", "size"),
    [("circle", 10**4), ("says_many_pages", 1 << 30), ("object_stream", 1 << 26), ("nested_filters", 1 << 26)],
)
def test_a_hostile_pdf_is_refused_or_only_grows_by_its_text(kind: str, size: int) -> None:
    data = PDFS[f"pdf_{kind}"].make(size)
    try:
        after = with_text(data, [READ])
    except BrokenImage:
        return
    assert len(after) < len(data) + 10_000


@needs_poppler
def test_extracted_words_keep_their_spaces_and_final_hyphens() -> None:
    # The first two words touch; a gap precedes the last, as after a Chinese comma.
    places = (("ab", 20, 60), ("cd", 60, 100), ("ef", 120, 180))
    words = tuple(Word(text, 1, box(left, 10, right, 30)) for text, left, right in places)
    lines = (Line("ab cdef", 1, box(20, 10, 180, 30), words), line("an inter-", 40), line("viewed man", 70))
    made = images_pdf(encoded(picture(200, 100)), read=Page(200, 100, 0, lines))
    assert by_pdfium(made) == by_poppler(made) == [["ab cdef", "an inter\u2010", "viewed man"]]


@pytest.mark.parametrize("words", [("a", "c"), ("ab",), ("c", "ab"), ("",), ()])
def test_words_that_differ_from_the_line_are_ignored(words: Sequence[str]) -> None:
    known = tuple(Word(text, 1, box(20, 10, 40, 30)) for text in words)
    ((_, pieces),) = text_of(Page(200, 100, 0, (Line("ab c", 1, box(20, 10, 180, 30), known),))).lines
    assert pieces == [("ab c", 0, 1)]


@needs_poppler
@pytest.mark.parametrize("climb", [-48, -14, 14, 48])
@pytest.mark.parametrize("has_words", [False, True])
def test_words_of_slanted_lines_are_extracted_whole(climb: int, *, has_words: bool) -> None:
    texts = ["Exposure", "without", "intermediate", "protection", "hospitalised"]
    boxes = [tilted(60 * at, 60 * at + 56, climb / 300) for at in range(5)]
    words = tuple(map(Word, texts, [1.0] * 5, boxes)) if has_words else None
    read = Page(320, 200, 0, (Line(" ".join(texts), 1, tilted(0, 296, climb / 300), words),))
    made = images_pdf(encoded(picture(320, 200)), read=read)
    assert " ".join(by_poppler(made)[0]).split() == " ".join(by_pdfium(made)[0]).split() == texts
    with pypdfium2.PdfDocument(made) as document:
        found = document[0].get_textpage()
        begins = [found.get_text_range().index(word) for word in texts]
        firsts = np.array([found.get_charbox(at) for at in begins])
        lasts = np.array([found.get_charbox(at + len(word) - 1) for at, word in zip(begins, texts, strict=True)])
    # The baseline of the words has the line's slope, within half a point.
    middles, heights = (firsts[:, 0] + lasts[:, 2]) / 2, (firsts[:, 1] + lasts[:, 1]) / 2
    assert np.allclose(np.diff(heights), -np.diff(middles) * climb / 300, atol=0.5)


def tilted(left: float, right: float, slope: float) -> Box:
    """Box of a slanted line 14 pixels high."""
    (x0, y0), (x1, y1) = ((x, 80 + x * slope) for x in (left, right))
    return (x0, y0), (x1, y1), (x1, y1 + 14), (x0, y0 + 14)


BENT = (
    ("Results", "were", "found", "among", "those", "exposed", "longer"),
    ("than", "fifteen", "years", "showed", "some", "larger", "risks"),
    ("with", "exposure", "towards", "other", "kinds", "of", "meat"),
)


def bent_line(texts: Sequence[str], top: float) -> Line:
    """A line whose words, 12 pixels high, follow an arc 40 pixels deep; the line's box contains all words."""
    boxes = []
    for at in range(len(texts)):
        left, right = 20 + 50 * at, 62 + 50 * at
        start, end = (top + 40 * (1 - ((x - 191) / 171) ** 2) for x in (left, right))
        boxes.append(((left, start), (right, end), (right, end + 12), (left, start + 12)))
    words = tuple(map(Word, texts, [1.0] * len(texts), boxes))
    return Line(" ".join(texts), 1, box(20, top, 362, top + 52), words)


@needs_poppler
@pytest.mark.parametrize(
    ("texts", "tops", "bottoms"),
    [
        (("Name", "____"), (20, 31), (30, 32)),
        (("one", "two", '"', "six"), (23, 20, 20, 20), (30, 30, 23, 30)),
        (("Hill", ",", "gap", "."), (20, 28, 23, 28), (30, 32, 33, 30)),
    ],
)
def test_punctuation_bends_no_line(texts: Sequence[str], tops: Sequence[int], bottoms: Sequence[int]) -> None:
    boxes = [box(20 + 30 * at, top, 44 + 30 * at, low) for at, (top, low) in enumerate(zip(tops, bottoms, strict=True))]
    words = tuple(map(Word, texts, [1.0] * len(texts), boxes))
    line = Line(" ".join(texts), 1, box(20, min(tops), 14 + 30 * len(texts), max(bottoms)), words)
    page = Page(380, 140, 0, (line,))
    assert [len(pieces) for _, pieces in text_of(page).lines] == [len(texts)]
    assert by_poppler(images_pdf(encoded(picture(380, 140)), read=page)) == [[line.text]]


@needs_poppler
def test_words_of_bent_lines_are_extracted_whole_in_place() -> None:
    lines = [bent_line(texts, 20 + 17 * at) for at, texts in enumerate(BENT)]
    made = images_pdf(encoded(picture(380, 140)), read=Page(380, 140, 0, tuple(lines)))
    texts = sorted(word for texts in BENT for word in texts)
    assert sorted(" ".join(by_poppler(made)[0]).split()) == sorted(" ".join(by_pdfium(made)[0]).split()) == texts
    with pypdfium2.PdfDocument(made) as document:
        page = document[0].get_textpage()
        for word in (word for line in lines for word in line.words or ()):
            at = page.get_text_range().index(word.text)
            left, low, _, high = page.get_charbox(at)
            right = page.get_charbox(at + len(word.text) - 1)[2]
            middle = np.mean(word.box, axis=0)
            # In pixels; a word is 12 pixels high.
            assert (left + right) / 2 / 0.36 == pytest.approx(middle[0], abs=2)
            assert abs(140 - (low + high) / 2 / 0.36 - middle[1]) < 6


RIGHT_TO_LEFT = ("שלום עולם, 12.5%", "مرحبا بالعالم")


@needs_poppler
def test_right_to_left_text_is_extracted_in_logical_order() -> None:
    lines = (line(RIGHT_TO_LEFT[0]), line(RIGHT_TO_LEFT[1], 50))
    made = images_pdf(encoded(picture(200, 100)), read=Page(200, 100, 0, lines))
    assert by_pdfium(made) == [list(RIGHT_TO_LEFT)]
    # Poppler adds direction marks around the text.
    assert by_poppler(made)[0][-1].strip("\u202a\u202b\u202c") == RIGHT_TO_LEFT[1]


@pytest.mark.parametrize(("file", "sides"), [(jpeg(picture()), (14.4, 7.2)), (encoded(picture()), (21.6, 10.8))])
def test_jpeg_and_png_data_is_embedded_unchanged(file: bytes, sides: tuple[float, float]) -> None:
    made = images_pdf(file)
    with pikepdf.open(io.BytesIO(made)) as document:
        assert document.pages[0].obj["/Resources"]["/XObject"]["/I"].read_raw_bytes() in file
        assert [float(side) for side in document.pages[0].obj["/MediaBox"]] == pytest.approx([0, 0, *sides])
    assert by_pdfium(made) == [list(TEXTS)]
    assert faults(made) == []


PICTURES = {
    "colour": encoded(picture()),
    "gray": encoded(picture(colour=False)),
    "black and white": encoded(picture(colour=False) // 128 * 255, ".png", (cv2.IMWRITE_PNG_BILEVEL, 1)),
    "transparent": encoded(np.dstack([picture(), picture(colour=False)])),
    "bmp": encoded(picture(), ".bmp"),
    "webp": encoded(picture(), ".webp", (cv2.IMWRITE_WEBP_QUALITY, 101)),
    "tiff": encoded(picture(colour=False) // 128 * 255, ".tif"),
    "palette": saved(Image.fromarray(picture()).convert("P", palette=Image.Palette.ADAPTIVE, colors=7), "PNG", bits=4),
}


def in_colour(pixels: np.ndarray) -> np.ndarray:
    pixels = pixels.reshape(*pixels.shape[:2], -1)[..., :3]
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))


@pytest.mark.parametrize("kind", PICTURES)
def test_other_images_are_embedded_losslessly(kind: str) -> None:
    file = PICTURES[kind]
    made = images_pdf(file)
    with pypdfium2.PdfDocument(made) as document:
        (image,) = document[0].get_objects([pypdfium2.raw.FPDF_PAGEOBJ_IMAGE])
        pixels = image.get_bitmap().to_numpy()
    assert np.array_equal(in_colour(pixels), in_colour(decode(file, LIMITS, gray=False).pixels))
    assert faults(made) == []


def rendered_and_decoded(file: bytes) -> NDArray[np.int64]:
    """The centre pixel of each square of `picture`, rendered and decoded; renderers blend pixels at the edges."""
    expected = decode(file, LIMITS, gray=False).pixels
    with pypdfium2.PdfDocument(images_pdf(file)) as document:
        shown = document[0].render(scale=300 / 72).to_numpy()
    assert shown.shape == expected.shape
    return np.stack([shown, expected])[:, 5::10, 5::10].astype(int)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_shown_in_its_exif_orientation(orientation: int) -> None:
    shown, expected = rendered_and_decoded(jpeg(picture(), orientation))
    assert np.abs(shown - expected).max() < 8


def test_a_cmyk_image_keeps_its_colours() -> None:
    shown, expected = rendered_and_decoded(jpeg(picture(), mode="CMYK"))
    # Each program converts CMYK to RGB differently; inverted colours would differ by 125.
    assert np.abs(shown - expected).mean() < 40


def test_characters_without_a_free_code_become_question_marks() -> None:
    text = "".join(chr(0x20000 + at) for at in range(2100))
    read = Page(60, 30, 0, (Line(text, 0.9, box(0, 5, 60, 10)),))
    (found,) = by_pdfium(images_pdf(encoded(picture()), read=read))[0]
    assert found == text[:2048] + "?" * 52


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (jpeg(picture()), (300, 300)),
        (encoded(picture()), None),
        (tiff([32], x_resolution=240, y_resolution=120, resolution_unit=2), (240, 120)),
        (tiff([32], resolution=100, resolution_unit=3), (254, 254)),
        (jpeg(picture()).replace(b"JFIF\0", b"JFIX\0"), None),
    ],
)
def test_the_resolution_of_an_image_sets_the_page_size(file: bytes, expected: tuple[float, float] | None) -> None:
    assert open_encoded_image(file, LIMITS).dpi == (expected and pytest.approx(expected))
