"""The plug-in of OCRmyPDF: `ocrmypdf --plugin ocrsvc.ocrmypdf_plugin` has this service's engines read.

Needs the extra `ocrmypdf`. With `--ocrsvc-url` a service reads, else an engine in each of OCRmyPDF's processes.
"""

from __future__ import annotations

import atexit
import io
import math
import os
import shutil
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pikepdf
from ocrmypdf import OcrElement, exceptions, hookimpl
from ocrmypdf.builtin_plugins.tesseract_ocr import TesseractOptions
from ocrmypdf.pluginspec import OcrEngine, OrientationConfidence
from PIL import Image

from ocrsvc import __version__
from ocrsvc.cli.service import Access
from ocrsvc.errors import BadOption, CallerError, OcrsvcError, OperatorError
from ocrsvc.formats.document import DocumentResult, text_parts, write_document
from ocrsvc.integrations.ocrmypdf_elements import orientation_of, skew_of, to_tree
from ocrsvc.plugins import output_formats
from ocrsvc.results import EngineInfo, Page, ReadOptions, no_check
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

_NAME: Final = f"ocrsvc {__version__}"
_POINTS_PER_INCH: Final = 72
_NO_DPI: Final = 72.0
_TESSERACT_FONT: Final = "/f-0-0"
_ENGINE: Final = EngineInfo("ocrsvc", "", __version__, "", "", "")
_PAGE_S: Final = 600.0
_STOP_S: Final = 5.0
# The first that fits.
_RAISED: Final[tuple[tuple[type[OcrsvcError], type[exceptions.ExitCodeException]], ...]] = (
    (OperatorError, exceptions.MissingDependencyError),
    (BadOption, exceptions.BadArgsError),
    (CallerError, exceptions.InputFileError),
    (OcrsvcError, exceptions.SubprocessOutputError),
)
_TESSERACT: Final = "ocrmypdf.builtin_plugins.tesseract_ocr"


class OcrsvcEngine(OcrEngine):
    """OCRmyPDF's contract of an engine, over this service's; raises OCRmyPDF's exceptions."""

    @staticmethod
    def version() -> str:
        """Of this service."""
        return __version__

    @staticmethod
    def creator_tag(options: Any) -> str:
        """What stands in the PDF's metadata."""
        del options
        return _NAME

    def __str__(self) -> str:
        """For messages."""
        return _NAME

    @staticmethod
    def languages(options: Any) -> set[str]:
        """None, by which OCRmyPDF checks nothing: one model reads many languages, and --ocrsvc-lang chooses others."""
        del options
        return set()

    @staticmethod
    def get_orientation(input_file: Path, options: Any) -> OrientationConfidence:
        """How the page was turned."""
        angle, confidence = orientation_of(read_image(input_file, options))
        return OrientationConfidence(angle=angle, confidence=confidence)

    @staticmethod
    def get_deskew(input_file: Path, options: Any) -> float:
        """By how much the page leans."""
        return skew_of(read_image(input_file, options))

    @staticmethod
    def supports_generate_ocr() -> bool:
        """Yes: the tree of elements, without files between."""
        return True

    @staticmethod
    def generate_ocr(input_file: Path, options: Any, page_number: int = 0) -> tuple[OcrElement, str]:
        """The tree of elements of a page, and its text."""
        page = read_image(input_file, options)
        return to_tree(page, _dpi_of(input_file), page_number), _text_of(page)

    @staticmethod
    def generate_hocr(input_file: Path, output_hocr: Path, output_text: Path, options: Any) -> None:
        """Write the page as hOCR."""
        page = read_image(input_file, options)
        output_hocr.write_text("".join(text_parts(output_formats()["hocr"], [page], 1, _ENGINE)), encoding="utf-8")
        output_text.write_text(_text_of(page), encoding="utf-8")

    @staticmethod
    def generate_pdf(input_file: Path, output_pdf: Path, output_text: Path, options: Any) -> None:
        """Write the text of the page, and nothing that is seen, on a page of its size."""
        page, laid = read_image(input_file, options), io.BytesIO()
        blank = DocumentResult(_blank_pdf(page, _dpi_of(input_file)), [page], 1, _ENGINE)
        try:
            write_document("pdf", blank, laid, _PAGE_S, no_check)
        except OcrsvcError as error:
            raise raised_as(error) from error
        output_pdf.write_bytes(_as_tesseract_writes(laid))
        output_text.write_text(_text_of(page), encoding="utf-8")


def _has_tesseract() -> bool:
    return shutil.which("tesseract") is not None


@hookimpl
def initialize(plugin_manager: Any) -> None:
    """Leave Tesseract's plug-in out where there is no Tesseract, for it would stop OCRmyPDF."""
    if not _has_tesseract():
        plugin_manager.set_blocked(_TESSERACT)


@hookimpl
def register_options() -> dict[str, type]:
    """The options of Tesseract's plug-in where that is left out: OCRmyPDF looks at them whoever reads."""
    return {} if _has_tesseract() else {"tesseract": TesseractOptions}


@hookimpl
def add_options(parser: ArgumentParser) -> None:
    """Declare the options that begin with --ocrsvc."""
    if not _has_tesseract():
        TesseractOptions.add_arguments_to_parser(parser)
    group = parser.add_argument_group("ocrsvc", "Reading by ocrsvc")
    group.add_argument("--ocrsvc-url", default="", help="address of a service that reads, instead of an engine here")
    group.add_argument("--ocrsvc-key-file", default="", help="file that holds the API key of the service")
    group.add_argument("--ocrsvc-lang", default="", help="language of the text, where there are models to choose from")


@hookimpl
def get_ocr_engine(options: Any) -> OcrEngine | None:
    """This engine, unless --ocr-engine names another."""
    return OcrsvcEngine() if getattr(options, "ocr_engine", "auto") == "auto" else None


def read_image(image: Path, options: Any) -> Page:
    """What is on an image, with words, read by whom the options name. Raises an exception of OCRmyPDF."""
    url, key_file, lang = (str(getattr(options, f"ocrsvc_{name}", None) or "") for name in ("url", "key_file", "lang"))
    try:
        if url:
            return _service_reader(url, key_file, lang or None)(image.read_bytes())
        return _engine_reader(int(getattr(options, "jobs", None) or 1), lang or None)(image.read_bytes())
    except OcrsvcError as error:
        raise raised_as(error) from error


def raised_as(error: OcrsvcError) -> exceptions.ExitCodeException:
    """The same failure in OCRmyPDF's terms, with the sentence."""
    return next(kind for own, kind in _RAISED if isinstance(error, own))(f"ocrsvc: {error}")


@cache
def _service_reader(url: str, key_file: str, lang: str | None) -> Callable[[bytes], Page]:
    """A service reads, or several with commas between their addresses. Raises OcrsvcError."""
    client = Access(key_file=Path(key_file) if key_file else None).client(url)
    atexit.register(client.close)
    return lambda image: client.read(image, timeout_s=_PAGE_S, words=True, lang=lang).pages[0].record()


@cache
def _engine_reader(jobs: int, lang: str | None) -> Callable[[bytes], Page]:
    """An engine in this process, which is one of so many and takes its share of the processor. Raises OcrsvcError."""
    set_library_environment(os.environ)
    from ocrsvc.pipeline.read import Reader

    settings = read_settings(os.environ)
    reader = Reader(settings, plan_for(settings, workers=max(1, jobs)))
    reader.start()
    atexit.register(reader.stop, _STOP_S)
    return lambda image: reader.read(image, ReadOptions(words=True, lang=lang), _PAGE_S).page


def _text_of(page: Page) -> str:
    return f"{page.text}\n" if page.lines else ""


def _blank_pdf(page: Page, dpi: float) -> bytes:
    whole = io.BytesIO()
    with pikepdf.new() as pdf:
        pdf.add_blank_page(page_size=(page.width * _POINTS_PER_INCH / dpi, page.height * _POINTS_PER_INCH / dpi))
        pdf.save(whole)
    return whole.getvalue()


def _as_tesseract_writes(laid: io.BytesIO) -> bytes:
    """The page in one stream with its font under Tesseract's name, which is all that OCRmyPDF takes over."""
    whole = io.BytesIO()
    with pikepdf.open(laid) as pdf:
        page = pdf.pages[0]
        page.contents_coalesce()
        resources: Any = page.get("/Resources", pikepdf.Dictionary())
        fonts: Any = resources.get("/Font", pikepdf.Dictionary())
        for name in list(fonts.keys()):
            fonts[_TESSERACT_FONT] = fonts[name]
            del fonts[name]
            drawn = page.Contents.read_bytes().replace(name.encode() + b" ", _TESSERACT_FONT.encode() + b" ")
            page.Contents = pdf.make_stream(drawn)
        pdf.save(whole)
    return whole.getvalue()


def _dpi_of(image: Path) -> float:
    """Pixels to an inch, as the file says."""
    with Image.open(image) as opened:
        found = opened.info.get("dpi", (_NO_DPI, _NO_DPI))
    dpi = float(found[0])
    return dpi if math.isfinite(dpi) and dpi > 0 else _NO_DPI
