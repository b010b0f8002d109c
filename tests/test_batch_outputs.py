"""Output formats of `ocrsvc batch`: files for all sources together, and one file per source."""

import functools
import gzip
import hashlib
import io
import json
import string
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pikepdf
import pyarrow.dataset
import pyarrow.parquet
import pypdfium2
import pytest
from batch_outputs_support import Outcome, line, page, results, tree, write
from batch_support import draw_images, use_fake_engine
from documents import GRAY, pdf, tiff
from hypothesis import given
from hypothesis import strategies as st
from image_support import box, png
from support import read_data

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.outputs.output_formats import BATCH_FORMATS
from ocrsvc.batch.outputs.source_files import ENDINGS, common_folder, source_path
from ocrsvc.batch.pages import FileResults
from ocrsvc.batch.verify import verify
from ocrsvc.cli.main import run
from ocrsvc.errors import BrokenImage, OcrsvcError, ResourcesExhausted, SourceGone
from ocrsvc.results import Barcode, Cell, Character, MaskedPart, Page, ReadOptions, Region, Table, Word

FAILED = BrokenImage("This PNG is cut off.", "Send it whole.")
ASKED = ReadOptions(words=True, characters=True, layout=True, tables=True, barcodes=True, mask=("phone",))


def full_page() -> Page:
    """A page that fills every field of a page record."""
    characters = tuple(Character(text, 0.5, box(20, 10, 30, 30)) for text in "ab")
    words = (Word("ab", 0.75, box(20, 10, 60, 30), characters), Word("*", 0.25, box(70, 10, 180, 30)))
    cell = Cell(0, 0, 1, 2, box(20, 10, 180, 30), "ab *", (0,))
    return Page(
        *(200, 100, 90, (replace(line("ab *", words=words), source="ocr"), line("c", 50.0, words=()))),
        tables=(Table(box(20, 10, 180, 30), 1, 2, (cell,)),),
        regions=(Region("text", 0.5, box(0, 0, 200, 100), (0, 1)),),
        barcodes=(Barcode("QRCode", "https://a.example", box(150, 60, 190, 90)),),
        masked=(MaskedPart("phone", 0, 3, 4, box(70, 10, 180, 30)),),
    )


def without_nulls(value: Any) -> Any:
    """Remove the nulls that Parquet returns for missing members."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def json_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "pages-00000.jsonl").read_bytes().splitlines()]


def parquet_rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    [file] = folder.rglob(f"{kind}s-00000.parquet")
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    return rows


FILES = (
    results("a.pdf", [full_page(), FAILED, page()], asked=ASKED),
    results("b.png", [page("正品促销", "hello \x00😀")]),
)


def test_parquet_and_gzip_hold_the_same_records_as_json_lines(tmp_path: Path) -> None:
    for name in ("jsonl", "jsonl.gz", "parquet"):
        write(tmp_path, name, *FILES)
    rows = parquet_rows(tmp_path, "page")
    assert without_nulls(rows) == without_nulls(json_rows(tmp_path))
    assert [row["error"] and row["error"]["code"] for row in rows] == [None, "broken_image", None, None]
    assert [row["regions"] is None for row in rows] == [False, True, False, True]
    packed = gzip.decompress((tmp_path / "pages-00000.jsonl.gz").read_bytes())
    assert packed == (tmp_path / "pages-00000.jsonl").read_bytes()


def test_line_and_word_tables_also_have_rows_for_pages_without_text(tmp_path: Path) -> None:
    for name in ("parquet:line", "parquet:word"):
        write(tmp_path, name, *FILES)
    lines, words = parquet_rows(tmp_path, "line"), parquet_rows(tmp_path, "word")
    assert [(row["source"], row["page"], row["line"], row["text"]) for row in lines] == [
        *(("a.pdf", 1, 0, "ab *"), ("a.pdf", 1, 1, "c"), ("a.pdf", 2, None, None), ("a.pdf", 3, None, None)),
        *(("b.png", 1, 0, "正品促销"), ("b.png", 1, 1, "hello \x00😀")),
    ]
    first = lines[0]
    assert (first["left"], first["top"], first["right"], first["bottom"]) == (20, 10, 180, 30)
    assert (first["confidence"], first["box"]) == (0.9876, [[20, 10], [180, 10], [180, 30], [20, 30]])
    assert lines[2]["error"]["code"] == "broken_image"
    assert [row["line_source"] for row in (*lines[:2], *words[:2])] == ["ocr", None, "ocr", "ocr"]
    assert [(row["page"], row["line"], row["word"], row["text"]) for row in words[:5]] == [
        *((1, 0, 0, "ab"), (1, 0, 1, "*"), (1, 1, None, None)),
        *((2, None, None, None), (3, None, None, None)),
    ]
    assert (words[1]["left"], words[1]["confidence"]) == (70, 0.25)


@pytest.mark.parametrize("name", BATCH_FORMATS)
def test_the_same_results_give_the_same_bytes_listed_with_size_and_digest(name: str, tmp_path: Path) -> None:
    # Include a page of unknown size.
    files = (*FILES, results("c.png", [replace(page("x"), width=0, height=0), FAILED]))
    if name == "pdf":
        pictures = results("b.tif", [READ, READ], tiff([200, 150])), results("c.jpg", [READ], encoded(".jpg"))
        files = (results("a.pdf", [READ, FAILED], pdf(GRAY, GRAY)), *pictures)
    file, again = (write(tmp_path / place, name, *files) for place in ("once", "again"))
    assert file == again
    assert tree(tmp_path / "once") == tree(tmp_path / "again")
    data = tree(tmp_path / "once")[file.name]
    assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_part_written_again_with_more_pages_replaces_the_old_one(tmp_path: Path) -> None:
    written: list[list[Outcome]] = [[page("one"), None, None], [page("one"), page("two"), FAILED]]
    for outcomes in written:
        for name in ("jsonl", "parquet", "text"):
            write(tmp_path, name, results("a.pdf", outcomes))
    assert [row["page"] for row in json_rows(tmp_path)] == [1, 2, 3]
    assert [row["page"] for row in parquet_rows(tmp_path, "page")] == [1, 2, 3]
    assert (tmp_path / "a.pdf.txt").read_text() == "one\n\ftwo\n\f"


def test_row_groups_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.batch.outputs.parquet_files._GROUP_BYTES", 4000)
    large = page("x" * 5000)
    write(tmp_path, "parquet", results("a.tif", [page("x")] * 7 + [large, page("x")]))
    found = pyarrow.parquet.ParquetFile(tmp_path / "parquet/pages-00000.parquet").metadata
    assert [found.row_group(at).num_rows for at in range(found.num_row_groups)] == [8, 1]


@pytest.mark.parametrize(
    ("name", "ending", "holds"),
    [
        ("hocr", ".hocr", ("ppageno 2", ">ab</span>", 'id="page_3"')),
        ("alto", ".alto.xml", ("fake none", 'CONTENT="c"', 'ID="page_3"')),
        ("tsv", ".tsv", ("\tab\n",)),
    ],
)
def test_documents_of_each_source_hold_its_pages_and_words(
    name: str, ending: str, holds: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path, name, *FILES)
    text = (tmp_path / f"a.pdf{ending}").read_text()
    assert [part for part in holds if part not in text] == []


def test_the_command_writes_all_formats_of_the_same_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_fake_engine(monkeypatch)
    monkeypatch.chdir(tmp_path)
    draw_images(tmp_path / "in", 3)
    (tmp_path / "in" / "x.png").write_text("no image")
    assert run(["batch", "in", "--out", "out", "--part-pages", "2", "--format", "jsonl,parquet,text,pdf"]) == 1
    rows = pyarrow.dataset.dataset("out/parquet", format="parquet").to_table().sort_by("source").to_pylist()
    lines = [json.loads(row) for file in sorted(Path("out/jsonl").iterdir()) for row in file.read_bytes().splitlines()]
    assert without_nulls(rows) == without_nulls(lines)
    assert sorted(tree(Path("out/text/in"))) == ["000.png.txt", "001.png.txt", "002.png.txt", "x.png.txt"]
    assert sorted(tree(Path("out/pdf/in"))) == ["000.png.pdf", "001.png.pdf", "002.png.pdf"]
    assert "in/x.png has no file in the format pdf" in caplog.text
    assert verify(Destination(Path("out"))).problems == []
    written_bytes = Path("out/pdf/in/001.png.pdf").stat().st_size
    Path("out/pdf/in/001.png.pdf").write_bytes(b"other")
    Path("out/text/in/002.png.txt").unlink()
    other = f"pdf/in/001.png.pdf is not what was written: it has 5 bytes, and {written_bytes} were written."
    assert verify(Destination(Path("out"))).problems == [
        f"pdf/_files/pdf-00000.jsonl: {other}",
        "text/_files/text-00001.jsonl: text/in/002.png.txt is not there.",
    ]


READ = page("正品促销 hello", "second")


def texts(data: bytes) -> list[list[str]]:
    """The text lines that pdfium extracts from each page."""
    with pypdfium2.PdfDocument(data) as document:
        return [found.get_textpage().get_text_range().split("\r\n") for found in document]


encoded = functools.partial(png, 200, 100, 255)
READ_TEXT = ["正品促销 hello", "second"]


@pytest.mark.parametrize(
    ("name", "outcomes", "data", "expected"),
    [
        *((f"scans/a{suffix}", [READ], encoded(suffix), [READ_TEXT]) for suffix in (".jpg", ".png", ".bmp", ".webp")),
        ("a.pdf", [READ, FAILED, page("third"), None], pdf(*[GRAY] * 4), [READ_TEXT, [""], ["third"], [""]]),
        ("none.pdf", [FAILED, FAILED], pdf(GRAY, GRAY), [[""], [""]]),
        ("empty.pdf", [page(), FAILED], pdf(GRAY, GRAY), [[""], [""]]),
        ("a.tif", [page("one"), FAILED, page("three")], tiff([200, 150, 100]), [["one"], [""], ["three"]]),
    ],
)
def test_a_source_becomes_a_pdf_with_the_text_of_its_pages(
    tmp_path: Path, name: str, outcomes: list[Outcome], data: bytes, expected: list[list[str]]
) -> None:
    write(tmp_path, "pdf", results(name, outcomes, data))
    made = tree(tmp_path)[name if name.endswith(".pdf") else f"{name}.pdf"]
    assert texts(made) == expected
    assert (made == data) == (name == "none.pdf")
    if name == "a.tif":
        with pikepdf.open(io.BytesIO(made)) as document:
            pictures = [len(found.obj["/Resources"].get("/XObject", {})) for found in document.pages]
        assert pictures == [1, 0, 1]


def gone() -> bytes:
    raise SourceGone("a.png has changed since the run was planned.")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        # A failed page is not decoded again.
        (results("a.bmp", [FAILED], encoded(".bmp")), "broken_image"),
        (results("a.png", [FAILED], b"no image"), "unsupported_image"),
        (results("a.pdf", [READ], b"%PDF-1.7 and no more"), "broken_image"),
        (replace(results("a.png", [READ], b""), load=gone), "source_gone"),
    ],
)
def test_a_source_that_cannot_become_a_pdf_is_listed_with_its_error(
    file: FileResults, code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listing = write(tmp_path, "pdf", file, results("b.png", [READ], encoded(".png")))
    bad, good = (json.loads(row) for row in tree(tmp_path)[listing.name].splitlines())
    assert (bad["source"], bad["error"]["code"]) == (file.file.name, code)
    assert good["file"] == "b.png.pdf"
    assert sorted(tree(tmp_path)) == [listing.name, "b.png.pdf"]
    assert f"{file.file.name} has no file in the format pdf" in caplog.text


def test_lack_of_resources_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay = Mock(side_effect=ResourcesExhausted("No process.", "Try again."))
    monkeypatch.setattr("ocrsvc.formats.pdf.searchable._lay_text", lay)
    with pytest.raises(OcrsvcError, match="No process"):
        write(tmp_path, "pdf", results("a.pdf", [READ], pdf(GRAY)))
    assert tree(tmp_path) == {}


ODD = st.sampled_from(
    [
        *("/", "..", ".", "@", "@root", "@up", "%2E", "~0123456789abcdef", "a.txt", ".pdf", ".PNG", "%", "://"),
        *("_ocrsvc", "_files", "Unfinished"),
    ]
)
NAMES = st.lists(st.one_of(ODD, st.text(string.ascii_letters + "/.%@~ _#:\\é中\ud800\n", max_size=12)), min_size=1).map(
    "".join
)


@pytest.mark.parametrize(("name", "expected"), read_data("batch_outputs.json")["output file names"])
def test_an_output_file_is_named_after_its_source(name: str, expected: str) -> None:
    assert source_path(name, ".pdf" if expected.lower().endswith(".pdf") else ".txt") == expected


@pytest.mark.parametrize(("sources", "root"), read_data("batch_outputs.json")["the common folder of sources"])
def test_absolute_sources_are_named_from_their_common_folder(sources: list[str], root: str) -> None:
    assert common_folder(sources) == root


@given(NAMES, st.sampled_from(ENDINGS))
def test_no_name_escapes_the_destination(name: str, ending: str) -> None:
    path = source_path(name, ending)
    parts = path.split("/")
    assert not {"", "_ocrsvc", "_files", "unfinished"} & {part.lower() for part in parts}
    assert not any(part.startswith(".") for part in parts)
    assert all(len(part.encode()) <= 210 for part in parts)
    assert len(path.encode()) <= 820
    assert path.lower().endswith(ending)


@given(NAMES, NAMES, st.sampled_from(ENDINGS), st.sampled_from(ENDINGS))
def test_two_sources_never_share_an_output_path(one: str, two: str, first: str, second: str) -> None:
    if (one, first) == (two, second):
        return
    path, other = source_path(one, first), source_path(two, second)
    assert path != other
    assert not other.startswith(f"{path}/")


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["folder"] * 300), "中" * 200 + "/" + "文" * 300])
def test_long_names_are_truncated_and_stay_unique(name: str) -> None:
    path = source_path(name, ".hocr")
    assert max(len(part.encode()) for part in path.split("/")) <= 210
    assert path != source_path(f"{name}x", ".hocr")
