"""Output formats: any text gives a file that parsers accept; and documents as files."""

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from documents import page_texts, pdf, tiff
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from web_support import running_reader

from ocrsvc.errors import DeadlineExceeded
from ocrsvc.formats.document import DocumentResult, text_parts, write_document
from ocrsvc.pipeline.read import Reader
from ocrsvc.plugins import OutputFormat, output_formats
from ocrsvc.results import EngineInfo, Line, Page, Reading, ReadOptions, Word, no_check
from ocrsvc.settings.settings import Settings

HTML = "{http://www.w3.org/1999/xhtml}"
ALTO = "{http://www.loc.gov/standards/alto/ns-v4#}"
ENGINE = EngineInfo("ppocr", "v6 <small>", "1", "cpu", "fp32", "x")
UPRIGHT = Line("甲 & <b>", 0.98761, ((10.0, 20.04), (110.46, 20.0), (110.5, 49.5), (10.0, 49.5)))
# Vertical text at the page's right side, read upwards; its box exceeds the page by half a pixel.
UPWARDS = Line('"up"', 0.5, ((180.0, 90.0), (180.0, 40.0), (200.4, 40.0), (200.4, 90.0)))
PAGES = (Page(200, 100, 0, (UPRIGHT, UPWARDS), 1), Page(64, 32, 90, (), 2))


def page_of(text: str) -> Page:
    return Page(64, 32, 0, (Line(text, 1.0, ((1.0, 1.0), (9.0, 1.0), (9.0, 5.0), (1.0, 5.0))),))


def read_text(name: str) -> str:
    return (ROOT / "tests" / "data" / name).read_text("utf-8")


def write(name: str, pages: Sequence[Page]) -> str:
    return "".join(text_parts(output_formats()[name], pages, len(pages), ENGINE))


def as_xml_can_hold(text: str) -> str:
    def is_char(code: int) -> bool:
        return code in {9, 10, 13} or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000

    return "".join(letter if is_char(ord(letter)) else "\ufffd" for letter in text)


ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from("<>&\"'\t\r\n\x00\x1b\x85]\u2028"))


@given(ANY_TEXT)
def test_any_text_survives_writing_and_parsing(text: str) -> None:
    (word,) = ET.fromstring(write("hocr", [page_of(text)])).iterfind(f".//{HTML}span[@class='ocrx_word']")
    (string,) = ET.fromstring(write("alto", [page_of(text)])).iterfind(f".//{ALTO}String")
    assert (word.text or "") == string.get("CONTENT") == as_xml_can_hold(text)
    cells = [row.split("\t") for row in write("tsv", [page_of(text)]).splitlines()]
    assert ([len(row) for row in cells], cells[2][11].split()) == ([12, 12, 12], text.split())


def test_the_tsv_has_tesseracts_columns() -> None:
    assert write("tsv", PAGES) == read_text("lines.tsv")


# There is a space before the second word and none before the third.
WORDS = (
    Word("The", 0.9, ((10.0, 20.0), (40.0, 20.0), (40.0, 50.0), (10.0, 50.0))),
    Word("hall", 0.8, ((50.0, 20.0), (90.0, 20.0), (90.0, 50.0), (50.0, 50.0))),
    Word("殿", 0.7, ((90.0, 20.0), (110.0, 20.0), (110.0, 50.0), (90.0, 50.0))),
)
WITH_WORDS = (Page(200, 100, 0, (Line("The hall殿", 0.85, UPRIGHT.box, WORDS), UPWARDS), 1),)


def test_words_are_a_tsv_level_and_keep_the_spaces_of_their_line() -> None:
    assert write("tsv", WITH_WORDS) == read_text("words.tsv")
    root = ET.fromstring(write("hocr", WITH_WORDS))
    words = [("10 20 40 50", 90), ("50 20 90 50", 80), ("90 20 110 50", 70)]
    assert titles(root, "ocrx_word")[:3] == [f"bbox {place}; x_wconf {sure}" for place, sure in words]
    assert "".join(next(root.iterfind(f".//{HTML}span[@class='ocr_line']")).itertext()) == "The hall殿"
    line = next(ET.fromstring(write("alto", WITH_WORDS)).iterfind(f".//{ALTO}TextLine"))
    assert [one.get("CONTENT", one.tag.removeprefix(ALTO)) for one in line] == ["The", "SP", "hall", "殿"]


def titles(root: ET.Element, kind: str) -> list[str | None]:
    return [element.get("title") for element in root.iterfind(f".//{HTML}*[@class='{kind}']")]


def test_hocr_has_frames_confidences_and_angles() -> None:
    root = ET.fromstring(write("hocr", PAGES))
    assert titles(root, "ocr_page") == ["bbox 0 0 200 100; ppageno 0", "bbox 0 0 64 32; ppageno 1"]
    upright, upwards = titles(root, "ocr_line")
    assert upright == "bbox 10 20 111 50"
    assert upwards == "bbox 180 40 200 90; poly 180 90 180 40 200 40 200 90; textangle 90"
    assert titles(root, "ocrx_word") == ["bbox 10 20 111 50; x_wconf 99", "bbox 180 40 200 90; x_wconf 50"]
    system = root.find(f".//{HTML}meta[@name='ocr-system']")
    assert system is not None
    assert system.get("content") == "ocrsvc (ppocr v6 <small> 1)"


def test_alto_has_frames_confidences_and_shapes() -> None:
    pages = ET.fromstring(write("alto", PAGES)).findall(f".//{ALTO}Page")
    found = [[page.get(name) for name in ("PHYSICAL_IMG_NR", "WIDTH", "HEIGHT")] for page in pages]
    assert found == [["1", "200", "100"], ["2", "64", "32"]]
    upright, upwards = (dict(string.attrib) for string in pages[0].iterfind(f".//{ALTO}String"))
    assert upright == place("string_1_1", 10, 20, 101, 30) | {"WC": "0.9876", "CONTENT": "甲 & <b>"}
    assert upwards == place("string_1_2", 180, 40, 20, 50) | {"WC": "0.5000", "CONTENT": '"up"'}
    assert [shape.get("POINTS") for shape in pages[0].iter(f"{ALTO}Polygon")] == ["180,90 180,40 200,40 200,90"]
    assert pages[1].find(f".//{ALTO}TextBlock") is None


def place(name: str, left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {"ID": name, "HPOS": str(left), "VPOS": str(top), "WIDTH": str(width), "HEIGHT": str(height)}


@pytest.mark.parametrize("pages", [PAGES, WITH_WORDS])
@pytest.mark.parametrize("name", ["hocr", "alto"])
def test_ids_are_unique_in_a_document(name: str, pages: Sequence[Page]) -> None:
    root = ET.fromstring(write(name, pages))
    ids = [value for element in root.iter() for name, value in element.items() if name.lower() == "id"]
    assert len(ids) == len(set(ids)) > 5


@pytest.mark.parametrize(("name", "form"), output_formats().items())
def test_every_format_is_documented(name: str, form: OutputFormat) -> None:
    assert f"| {name} | {form.media_type} | " in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


FAKE = EngineInfo("fake", "fake", "1", "cpu", "fp32", "none")


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with running_reader(Settings(engine="fake"), opener=None, threads=1) as reader:
        yield reader


def pages_of(reader: Reader, file: bytes) -> list[Page]:
    with closing(reader.read_files_by_page([file], ReadOptions(), 60)) as read:
        return [page.outcome.page for page in read if isinstance(page.outcome, Reading)]


def made(name: str, file: bytes, pages: list[Page], limit_s: float = 60) -> bytes:
    output = io.BytesIO()
    write_document(name, DocumentResult(file, pages, len(pages), FAKE), output, limit_s, no_check)
    return output.getvalue()


def test_a_text_layer_is_not_written_a_second_time(reader: Reader) -> None:
    file = pdf(b"BT /F 12 Tf 10 40 Td (own text) Tj ET", size=(300, 72))
    (page,) = pages_of(reader, file)
    first, *others = page.lines
    lines = (replace(first, text="own text", source="text_layer"), *(replace(line, source="ocr") for line in others))
    (found,) = page_texts(made("pdf", file, [replace(page, lines=lines)]))
    assert (found.count("own text"), others[0].text in found) == (1, True)


def test_a_searchable_pdf_ends_at_its_time_limit(reader: Reader) -> None:
    file = tiff([200])
    with pytest.raises(DeadlineExceeded):
        made("pdf", file, pages_of(reader, file), limit_s=0)
