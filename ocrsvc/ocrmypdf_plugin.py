"""OCRmyPDF plug-in: `ocrmypdf --plugin ocrsvc.ocrmypdf_plugin` reads pages with ocrsvc.

Needs the extra `ocrmypdf`. `--ocrsvc-url` names a service to use; without it each OCRmyPDF process opens an engine.
"""

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
_DEFAULT_DPI: Final = 72.0
_TESSERACT_FONT: Final = "/f-0-0"
_ENGINE: Final = EngineInfo("ocrsvc", "", __version__, "", "", "")
_PAGE_S: Final = 600.0
_STOP_S: Final = 5.0
# OCRmyPDF's exception for each error class; the first class that matches counts.
_EXCEPTIONS: Final[tuple[tuple[type[OcrsvcError], type[exceptions.ExitCodeException]], ...]] = (
    (OperatorError, exceptions.MissingDependencyError),
    (BadOption, exceptions.BadArgsError),
    (CallerError, exceptions.InputFileError),
    (OcrsvcError, exceptions.SubprocessOutputError),
)
_TESSERACT: Final = "ocrmypdf.builtin_plugins.tesseract_ocr"


class OcrsvcEngine(OcrEngine):
    """OCRmyPDF's engine interface; raises OCRmyPDF's exceptions."""

    @staticmethod
    def version() -> str:
        """The version of ocrsvc."""
        return __version__

    @staticmethod
    def creator_tag(options: Any) -> str:
        """The program named as creator in the PDF's metadata."""
        del options
        return _NAME

    def __str__(self) -> str:
        """The engine's name in messages."""
        return _NAME

    @staticmethod
    def languages(options: Any) -> set[str]:
        """No languages, so that OCRmyPDF does not check --language; --ocrsvc-lang selects the language."""
        del options
        return set()

    @staticmethod
    def get_orientation(input_file: Path, options: Any) -> OrientationConfidence:
        """The page's rotation."""
        angle, confidence = orientation_of(read_image(input_file, options))
        return OrientationConfidence(angle=angle, confidence=confidence)

    @staticmethod
    def get_deskew(input_file: Path, options: Any) -> float:
        """The page's skew in degrees."""
        return skew_of(read_image(input_file, options))

    @staticmethod
    def supports_generate_ocr() -> bool:
        """True, because `generate_ocr` returns the element tree without intermediate files."""
        return True

    @staticmethod
    def generate_ocr(input_file: Path, options: Any, page_number: int = 0) -> tuple[OcrElement, str]:
        """The page's element tree and text."""
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
        """Write the page's text as an invisible layer on a blank page of the same size."""
        page, blank, text_pdf = read_image(input_file, options), io.BytesIO(), io.BytesIO()
        dpi = _dpi_of(input_file)
        with pikepdf.new() as pdf:
            pdf.add_blank_page(page_size=(page.width * _POINTS_PER_INCH / dpi, page.height * _POINTS_PER_INCH / dpi))
            pdf.save(blank)
        try:
            write_document("pdf", DocumentResult(blank.getvalue(), [page], 1, _ENGINE), text_pdf, _PAGE_S, no_check)
        except OcrsvcError as error:
            raise to_ocrmypdf_error(error) from error
        output_pdf.write_bytes(_with_tesseract_font(text_pdf))
        output_text.write_text(_text_of(page), encoding="utf-8")


def _has_tesseract() -> bool:
    return shutil.which("tesseract") is not None


@hookimpl
def initialize(plugin_manager: Any) -> None:
    """If Tesseract is not installed, disable its plug-in, which would stop OCRmyPDF."""
    if not _has_tesseract():
        plugin_manager.set_blocked(_TESSERACT)


@hookimpl
def register_options() -> dict[str, type]:
    """Register Tesseract's options if its plug-in is disabled, because OCRmyPDF reads these options with any engine."""
    return {} if _has_tesseract() else {"tesseract": TesseractOptions}


@hookimpl
def add_options(parser: ArgumentParser) -> None:
    """Add the options --ocrsvc-*."""
    if not _has_tesseract():
        TesseractOptions.add_arguments_to_parser(parser)
    group = parser.add_argument_group("ocrsvc", "Options of the ocrsvc engine")
    group.add_argument("--ocrsvc-url", default="", help="address of a service to read with; by default an engine here")
    group.add_argument("--ocrsvc-key-file", default="", help="file with the service's API key")
    group.add_argument("--ocrsvc-lang", default="", help="language of the text, if there are several models")


@hookimpl
def get_ocr_engine(options: Any) -> OcrEngine | None:
    """This engine, unless --ocr-engine names another one."""
    return OcrsvcEngine() if getattr(options, "ocr_engine", "auto") == "auto" else None


def read_image(image: Path, options: Any) -> Page:
    """Read an image, words included, with a service or an engine as the options say. Raises OCRmyPDF's exceptions."""
    url, key_file, lang = (str(getattr(options, f"ocrsvc_{name}", None) or "") for name in ("url", "key_file", "lang"))
    try:
        if url:
            return _service_reader(url, key_file, lang or None)(image.read_bytes())
        return _engine_reader(int(getattr(options, "jobs", None) or 1), lang or None)(image.read_bytes())
    except OcrsvcError as error:
        raise to_ocrmypdf_error(error) from error


def to_ocrmypdf_error(error: OcrsvcError) -> exceptions.ExitCodeException:
    """Convert an error to OCRmyPDF's exception."""
    return next(kind for error_class, kind in _EXCEPTIONS if isinstance(error, error_class))(f"ocrsvc: {error}")


@cache
def _service_reader(url: str, key_file: str, lang: str | None) -> Callable[[bytes], Page]:
    """A function that reads images with services at comma-separated addresses. Raises OcrsvcError."""
    client = Access(key_file=Path(key_file) if key_file else None).client(url)
    atexit.register(client.close)
    return lambda image: client.read(image, timeout_s=_PAGE_S, words=True, lang=lang).pages[0].record()


@cache
def _engine_reader(jobs: int, lang: str | None) -> Callable[[bytes], Page]:
    """A function that reads images with an engine in this process, on 1/`jobs` of the CPUs. Raises OcrsvcError."""
    set_library_environment(os.environ)
    from ocrsvc.pipeline.read import Reader

    settings = read_settings(os.environ)
    reader = Reader(settings, plan_for(settings, workers=max(1, jobs)))
    reader.start()
    atexit.register(reader.stop, _STOP_S)
    return lambda image: reader.read(image, ReadOptions(words=True, lang=lang), _PAGE_S).page


def _text_of(page: Page) -> str:
    return f"{page.text}\n" if page.lines else ""


def _with_tesseract_font(text_pdf: io.BytesIO) -> bytes:
    """Merge a page's content streams, and name its font as Tesseract does: OCRmyPDF copies only that font name."""
    whole = io.BytesIO()
    with pikepdf.open(text_pdf) as pdf:
        page = pdf.pages[0]
        page.contents_coalesce()
        resources: Any = page.get("/Resources", pikepdf.Dictionary())
        fonts: Any = resources.get("/Font", pikepdf.Dictionary())
        for name in list(fonts.keys()):
            fonts[_TESSERACT_FONT] = fonts[name]
            del fonts[name]
            content = page.Contents.read_bytes().replace(name.encode() + b" ", _TESSERACT_FONT.encode() + b" ")
            page.Contents = pdf.make_stream(content)
        pdf.save(whole)
    return whole.getvalue()


def _dpi_of(image: Path) -> float:
    """The resolution that an image file states, in pixels per inch, or the default."""
    with Image.open(image) as opened:
        dpi = float(opened.info.get("dpi", (_DEFAULT_DPI, _DEFAULT_DPI))[0])
    return dpi if math.isfinite(dpi) and dpi > 0 else _DEFAULT_DPI
