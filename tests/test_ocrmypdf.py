"""The OCRmyPDF plug-in: its engine interface, and whole runs, in OCRmyPDF's processes and with a service."""

import os
import subprocess
from pathlib import Path

import pikepdf
import pypdfium2
import pytest
from documents import GRAY, pdf
from image_support import box
from ocrmypdf import OcrClass, OcrElement
from ocrmypdf.exceptions import BadArgsError, InputFileError, MissingDependencyError, SubprocessOutputError
from ocrmypdf.hocrtransform import HocrParser
from support import ROOT, run_program, run_server

from ocrsvc import errors, ocrmypdf_plugin
from ocrsvc.integrations.ocrmypdf_elements import orientation_of, skew_of, to_tree
from ocrsvc.ocrmypdf_plugin import OcrsvcEngine, to_ocrmypdf_error
from ocrsvc.results import Box, Line, Page, Word


def skewed_box(left: float, top: float, right: float, bottom: float, down: float) -> Box:
    """A box whose right side is `down` px lower than its left one."""
    return ((left, top), (right, top + down), (right, bottom + down), (left, bottom))


WORDS = (
    Word("one", 0.9, box(10, 10, 40, 20)),
    Word("正", 0.8, box(50, 10, 60, 20)),
    Word("品", 0.7, box(60, 10, 70, 20)),
)
PAGE = Page(100, 50, 0, (Line("one 正品", 0.9, box(10, 10, 70, 20), WORDS), Line("whole", 0.5, box(10, 30, 40, 40))))


@pytest.mark.parametrize(("asked", "is_ours"), [("auto", True), ("tesseract", False), ("none", False)])
def test_ocr_engine_option_selects_another_engine(asked: str, is_ours: bool) -> None:
    options = type("Options", (), {"ocr_engine": asked})
    assert isinstance(ocrmypdf_plugin.get_ocr_engine(options), OcrsvcEngine) is is_ours


def test_words_are_split_at_spaces_and_a_line_without_words_is_one() -> None:
    tree = to_tree(PAGE, 300.0, 4)
    assert (tree.ocr_class, tree.dpi, tree.page_number) == (OcrClass.PAGE, 300.0, 4)
    lines = tree.iter_by_class(OcrClass.LINE)
    assert [[word.text for word in line.children] for line in lines] == [["one", "正品"], ["whole"]]
    joined = lines[0].children[1]
    assert joined.bbox is not None
    assert (joined.bbox.left, joined.bbox.right, joined.confidence) == (50, 70, 0.7)


def test_a_page_without_text_has_no_paragraph() -> None:
    blank = Page(10, 10, 0, ())
    assert to_tree(blank, 72.0, 0).children == []
    assert (orientation_of(blank), skew_of(blank)) == ((0, 0.0), 0.0)


def test_vertical_lines_have_an_angle_and_skewed_ones_a_baseline() -> None:
    up = Line("upwards", 0.9, ((10, 90), (10, 10), (20, 10), (20, 90)))
    leans = Line("leaning", 0.9, skewed_box(0, 10, 100, 20, 10))
    first, second = to_tree(Page(100, 100, 0, (up, leans)), 72.0, 0).iter_by_class(OcrClass.LINE)
    assert (first.textangle, first.baseline) == (90.0, None)
    assert second.textangle is None
    assert second.baseline is not None
    # The baseline falls by 10 px in 100 and starts 10 px above the lowest corner.
    assert (second.baseline.slope, second.baseline.intercept) == (0.1, -10)


@pytest.mark.parametrize(("down", "degrees"), [(0, 0), (10, 5.711), (-10, -5.711)])
def test_skew_is_the_median_of_the_lines(down: float, degrees: float) -> None:
    lines = [Line("a line", 0.9, skewed_box(0, 10 * at, 100, 10 * at + 8, down)) for at in range(3)]
    outlier = Line("a line", 0.9, skewed_box(0, 0, 100, 8, 70))
    short = [Line("ab", 0.9, skewed_box(0, 0, 10, 8, 9))] * 5
    assert skew_of(Page(100, 100, 0, (*lines, outlier, *short))) == pytest.approx(degrees, abs=0.001)


def test_orientation_is_opposite_to_the_pages_angle() -> None:
    assert orientation_of(Page(9, 9, 270, (Line("a", 0.5, box(0, 0, 1, 1)),))) == (90, 15.0)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (errors.EngineUnavailable("No engine."), MissingDependencyError),
        (errors.BadOption("No such language."), BadArgsError),
        (errors.BrokenImage("Damaged."), InputFileError),
        (errors.ImageTooLarge("Large."), InputFileError),
        (errors.QueueFull("Full.", retry_after_s=3), SubprocessOutputError),
        (errors.Unreachable("No answer."), SubprocessOutputError),
        (errors.EngineFailed("Failed."), SubprocessOutputError),
    ],
)
def test_errors_become_ocrmypdf_exceptions(error: errors.OcrsvcError, raised: type[Exception]) -> None:
    assert type(to_ocrmypdf_error(error)) is raised
    assert str(to_ocrmypdf_error(error)) == f"ocrsvc: {error}"


def test_invalid_service_is_reported(tmp_path: Path) -> None:
    options = type("Options", (), {"ocrsvc_url": "nowhere"})
    (tmp_path / "page.png").write_bytes(b"")
    with pytest.raises(BadArgsError, match="ocrsvc: "):
        OcrsvcEngine.generate_ocr(tmp_path / "page.png", options)


def ocrmypdf(*words: object, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    packages = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = ("-m", "ocrmypdf", "--plugin", "ocrsvc.ocrmypdf_plugin", "--output-type", "pdf", *words)
    return run_program(*command, env={"PATH": path, "PYTHONPATH": packages})


def texts(file: Path) -> list[str]:
    with pypdfium2.PdfDocument(file) as document:
        return [page.get_textpage().get_text_range().splitlines()[0].strip() for page in document]


def test_a_document_is_read_in_several_processes_without_tesseract(tmp_path: Path) -> None:
    (tmp_path / "two.pdf").write_bytes(pdf(GRAY, GRAY))
    words = ("--jobs", 2, "--sidecar", tmp_path / "text", tmp_path / "two.pdf", tmp_path / "out.pdf")
    done = ocrmypdf(*words, path="")
    assert done.returncode == 0, done.stderr
    sizes = texts(tmp_path / "out.pdf")
    assert len(sizes) == 2
    assert sizes[0] in (tmp_path / "text").read_text()
    with pikepdf.open(tmp_path / "out.pdf") as made:
        assert "ocrsvc" in str(made.docinfo["/Creator"])


def test_service_works_with_the_other_renderer(tmp_path: Path) -> None:
    (tmp_path / "one.pdf").write_bytes(pdf(GRAY))
    words = ("--pdf-renderer", "sandwich", tmp_path / "one.pdf", tmp_path / "out.pdf")
    with run_server({"OCRSVC_ENGINE": "fake"}) as server:
        done = ocrmypdf("--ocrsvc-url", server.url, *words)
        assert done.returncode == 0, done.stderr
        # The fake engine's first line is the image's size, such as 640x480.
        assert "x" in texts(tmp_path / "out.pdf")[0]


def test_hocr_is_parsed_by_ocrmypdf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocrmypdf_plugin, "read_image", lambda *_asked: PAGE)
    OcrsvcEngine.generate_hocr(tmp_path / "page.png", tmp_path / "hocr", tmp_path / "text", None)
    tree: OcrElement = HocrParser(tmp_path / "hocr").parse()
    assert [word.text for word in tree.iter_by_class(OcrClass.WORD)] == ["one", "正", "品", "whole"]
    assert (tmp_path / "text").read_text() == "one 正品\nwhole\n"
