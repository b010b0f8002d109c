"""Searchable PDFs as output of `ocrsvc batch`: one of each source, whatever became of its pages."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pikepdf
import pypdfium2
import pytest
from batch_outputs_support import Outcome, page, results, tree, write
from documents import GRAY, pdf, tiff

from ocrsvc.batch.outputs.output_formats import FileResults
from ocrsvc.errors import BrokenImage, OcrsvcError, ResourcesExhausted, SourceGone

FAILED = BrokenImage("This page is damaged.")
READ = page("正品促销 hello", "second")


def texts(data: bytes) -> list[list[str]]:
    """The lines that pdfium finds on each page."""
    with pypdfium2.PdfDocument(data) as document:
        return [found.get_textpage().get_text_range().split("\r\n") for found in document]


def encoded(suffix: str) -> bytes:
    return cv2.imencode(suffix, np.full((100, 200, 3), 255, np.uint8))[1].tobytes()


def written(folder: Path, name: str, outcomes: Sequence[Outcome], data: bytes) -> bytes | None:
    """The PDF of a source, if there is one."""
    write(folder, "pdf", results(name, outcomes, data))
    return tree(folder).get(f"{name}.pdf")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif", ".webp"])
def test_a_picture_becomes_a_page_with_its_text(suffix: str, tmp_path: Path) -> None:
    made = written(tmp_path, f"scans/a{suffix}", [READ], encoded(suffix))
    assert made is not None
    assert texts(made) == [["正品促销 hello", "second"]]


def test_the_pages_of_a_pdf_that_were_read_have_text_and_the_others_stay(tmp_path: Path) -> None:
    made = written(tmp_path, "a.pdf", [READ, FAILED, page("third"), None], pdf(GRAY, GRAY, GRAY, GRAY))
    assert made is not None
    assert texts(made) == [["正品促销 hello", "second"], [""], ["third"], [""]]


def test_a_pdf_none_of_whose_pages_was_read_stays_as_it_is(tmp_path: Path) -> None:
    data = pdf(GRAY, GRAY)
    assert written(tmp_path, "a.pdf", [FAILED, FAILED], data) == data
    assert written(tmp_path, "empty.pdf", [page(), FAILED], data) is not None


def test_the_pages_of_a_tiff_are_those_of_its_pdf(tmp_path: Path) -> None:
    made = written(tmp_path, "a.tif", [page("one"), FAILED, page("three")], tiff([200, 150, 100]))
    assert made is not None
    assert texts(made) == [["one"], [""], ["three"]]
    with pikepdf.open(io.BytesIO(made)) as document:
        pictures = [len(found.obj["/Resources"].get("/XObject", {})) for found in document.pages]
    assert pictures == [1, 0, 1]


def test_a_jpeg_that_could_not_be_read_is_shown_as_it_is(tmp_path: Path) -> None:
    made = written(tmp_path, "a.jpg", [FAILED], encoded(".jpg"))
    assert made is not None
    assert texts(made) == [[""]]
    with pypdfium2.PdfDocument(made) as document:
        assert document[0].render().to_numpy().mean() > 250


def gone() -> bytes:
    raise SourceGone("a.png has changed since the run was planned.")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        # What could not be read once is not decoded again here.
        (results("a.bmp", [FAILED], encoded(".bmp")), "broken_image"),
        (results("a.png", [FAILED], b"no image"), "unsupported_image"),
        (results("a.pdf", [READ], b"%PDF-1.7 and no more"), "broken_image"),
        (replace(results("a.png", [READ], b""), load=gone), "source_gone"),
    ],
)
def test_a_source_that_cannot_be_a_pdf_costs_itself_alone_and_is_named(
    file: FileResults, code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listing = write(tmp_path, "pdf", file, results("b.png", [READ], encoded(".png")))
    bad, good = (json.loads(row) for row in tree(tmp_path)[listing.name].splitlines())
    assert (bad["source"], bad["error"]["code"]) == (file.file.name, code)
    assert good["file"] == "b.png.pdf"
    assert sorted(tree(tmp_path)) == [listing.name, "b.png.pdf"]
    assert f"{file.file.name} has no file in the format pdf" in caplog.text


def test_what_the_machine_lacks_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lay(*_arguments: object) -> None:
        raise ResourcesExhausted("No process.", "Try again.")

    monkeypatch.setattr("ocrsvc.formats.pdf.searchable._lay_text", lay)
    with pytest.raises(OcrsvcError, match="No process"):
        write(tmp_path, "pdf", results("a.pdf", [READ], pdf(GRAY)))
    assert tree(tmp_path) == {}


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    files = [
        results("a.pdf", [READ, FAILED], pdf(GRAY, GRAY)),
        results("b.tif", [READ, READ], tiff([200, 150])),
        results("c.jpg", [READ], encoded(".jpg")),
    ]
    assert write(tmp_path / "once", "pdf", *files) == write(tmp_path / "again", "pdf", *files)
    assert tree(tmp_path / "once") == tree(tmp_path / "again")


def test_pages_that_are_read_later_are_in_the_pdf_then(tmp_path: Path) -> None:
    data = pdf(GRAY, GRAY)
    begun = written(tmp_path, "a.pdf", [READ, None], data)
    done = written(tmp_path, "a.pdf", [READ, READ], data)
    assert begun is not None
    assert done is not None
    assert [len(texts(made)[1]) for made in (begun, done)] == [1, 2]
