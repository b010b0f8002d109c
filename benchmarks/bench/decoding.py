"""A reader for fuzzing adapters: it decodes images as the real reader does, and returns a fixed text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, decode, decode_pixels
from ocrsvc.imaging.document import Document, chosen_pages, open_document
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.models.model_control import ModelList
from ocrsvc.pipeline.documents import FileRead, PageRead
from ocrsvc.results import EngineInfo, Image, Line, Page, Reading, Timing
from ocrsvc.serving.limiter import Limiter
from ocrsvc.settings.settings import Settings

MAX_PAGES = 50


class DecodingReader:
    """Implements the reader interface that adapters use; every decodable image reads as two fixed lines."""

    ready = True
    has_models = False

    def __init__(self) -> None:
        self.settings = Settings(max_pages=MAX_PAGES)
        self._limits = PixelLimits(1_000_000)
        self.pdf_making = Limiter(1, 1)
        self._info = EngineInfo("ready", "none", "1", "cpu", "none", "none")

    def read(self, data: bytes, *_asked: object) -> Reading:
        """Two fixed lines for any decodable image."""
        return self._reading(decode(data, self._limits, gray=True))

    def read_many(self, datas: Sequence[bytes], *_asked: object) -> list[Any]:
        """Read each image by itself; a failure becomes that image's entry."""
        return [self._read_or_error(data) for data in datas]

    def read_files(
        self,
        files: Sequence[bytes | OcrsvcError],
        _options: object = None,
        _limit_s: float = 0.0,
        _context: object = None,
        ranges: Ranges = ALL,
        most: int | None = None,
        *,
        partial: bool = False,  # noqa: ARG002  nothing is late here
    ) -> list[FileRead]:
        """Read the pages of each file, except PDFs, whose child process would take most of the time."""
        return [self._read_file(file, ranges, most) for file in files]

    def read_files_by_page(self, files: Sequence[bytes | OcrsvcError], *asked: Any) -> Iterator[PageRead]:
        """The results of `read_files`, page by page."""
        for at, file in enumerate(self.read_files(files, *asked), start=1):
            for number, outcome in file.pages:
                yield PageRead(number, file.total, len(file.pages), outcome, at)

    def check_model(self, _options: object) -> None:
        """Accept every model name."""

    @contextmanager
    def open_document(self, file: bytes, *_asked: object) -> Iterator[Document]:
        """Open any document except a PDF."""
        yield open_document(file, self._limits, 0, bool, bool)

    @contextmanager
    def decoded_image(self, data: bytes, *_asked: object, **_more: object) -> Iterator[Image]:
        """The decoded image; for a document, its first page."""
        yield decode(data, self._limits, gray=True)

    def check_capacity(self, _priority: object) -> None:
        """Never raise: there is always room."""

    def describe(self) -> EngineInfo:
        """The engine description that readings carry as well."""
        return self._info

    def models(self) -> ModelList:
        """An empty list: no model can be chosen."""
        return ModelList(None, ())

    def _read_file(self, file: bytes | OcrsvcError, ranges: Ranges, most: int | None) -> FileRead:
        try:
            if isinstance(file, OcrsvcError):
                raise file
            document = open_document(file, self._limits, 0, bool, bool)
            numbers = chosen_pages(document, ranges, most or MAX_PAGES, cut=most is not None)
            pages = [document.open(number, gray=True, check=bool, take=bool) for number in numbers]
            images = [page if isinstance(page, Image) else decode_pixels(page, gray=True) for page in pages]
            readings = [self._reading(image, number) for number, image in zip(numbers, images, strict=True)]
            return FileRead(document.kind, document.count, tuple(zip(numbers, readings, strict=True)))
        except OcrsvcError as error:
            return FileRead("image", 1, ((1, error),))

    def _reading(self, image: Image, number: int = 1) -> Reading:
        box = ((0.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0))
        lines = (Line("正品", 0.9, box), Line("'\"\\\n", 0.5, box))
        page = Page(image.width, image.height, 0, lines, number=number)
        return Reading(page, self._info, Timing(0.0, 0.0, 0.0, 0.0))

    def _read_or_error(self, data: bytes) -> Any:
        try:
            return self.read(data)
        except Exception as error:  # noqa: BLE001  one image's failure is one entry, as in the real reader
            return error
