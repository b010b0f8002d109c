"""Opens the files of a request as documents, and yields the pages to read and the text that documents contain."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass

from ocrsvc.errors import ClientGone, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import Document, DocumentPage, chosen_pages, is_pdf, open_document
from ocrsvc.imaging.page_ranges import Ranges
from ocrsvc.imaging.pdf.own_text import OwnPage, needs_pixels, takes_own_text
from ocrsvc.pipeline.decode_job import ReadRequest
from ocrsvc.results import Page, Reading
from ocrsvc.serving.limiter import Limiter
from ocrsvc.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class FileRead:
    """The results of one PDF, TIFF or image: its requested pages by number, or an error for page 1 if unreadable."""

    kind: str
    total: int
    pages: tuple[tuple[int, Reading | OcrsvcError], ...]

    @property
    def readings(self) -> list[Reading]:
        """The results of the pages that were read."""
        return [outcome for _, outcome in self.pages if isinstance(outcome, Reading)]

    @property
    def errors(self) -> list[tuple[int, OcrsvcError]]:
        """The page numbers and errors of the pages that could not be read."""
        return [(number, outcome) for number, outcome in self.pages if isinstance(outcome, OcrsvcError)]


@dataclass(frozen=True, slots=True)
class PageRead:
    """The result of one page. The file has `total` pages, of which `chosen` were requested; files count from 1."""

    number: int
    total: int
    chosen: int
    outcome: Reading | OcrsvcError
    file: int = 1


def numbered_pages(chosen: Sequence[tuple[str, int, Sequence[int]]]) -> Iterator[tuple[int, int]]:
    """Yield (file index, page number) for each page in `chosen`, a list that may grow during the iteration."""
    for file, (_, _, numbers) in enumerate(chosen):
        for number in numbers:
            yield file, number


class Documents:
    """Opens documents; thread-safe. At most `max_pdfs` PDFs are open at once, because each needs a child process."""

    def __init__(self, settings: Settings, limits: PixelLimits, max_pdfs: int) -> None:
        self._settings, self._limits = settings, limits
        self._pdf_limiter = Limiter(max_pdfs, settings.queue_size // 2)

    @contextmanager
    def open(self, file: bytes, request: ReadRequest) -> Iterator[Document]:
        """Open a file as a document. Raises the errors of `open_document` and of the request's check."""
        # Check the deadline here: opening a small file does not, and a request may have a thousand small files.
        request.check()
        permit = self._pdf_limiter.take(request.check) if is_pdf(file) else nullcontext()
        with permit, request.context.share.part() as held:
            request.context.ledger.enter("decode")
            document = open_document(file, self._limits, self._settings.pdf_dpi, request.check, held.take)
            with closing(document):
                yield document

    def pages(
        self,
        files: Iterable[bytes | OcrsvcError],
        ranges: Ranges,
        max_pages: int | None,
        request: ReadRequest,
        chosen: list[tuple[str, int, Sequence[int]]],
    ) -> Generator[DocumentPage | OcrsvcError, None, None]:
        """Yield the pages to read, or a file's error; appends each file's kind, page count and pages to `chosen`."""
        allowed = self._settings.max_pages
        for file in files:
            kind, total = "image", 1
            try:
                if isinstance(file, OcrsvcError):
                    raise file
                with self.open(file, request) as document:
                    kind, total = document.kind, document.count
                    limit = min(max_pages or allowed, allowed)
                    numbers = chosen_pages(document, ranges, limit, cut=max_pages is not None)
                    request.context.pages.expect(len(numbers))
                    chosen.append((kind, total, numbers))
                    for number in numbers:
                        yield DocumentPage(document, number)
            except ClientGone:
                raise
            except OcrsvcError as error:
                chosen.append((kind, total, [1]))
                yield error


def find_own_page(page: DocumentPage, request: ReadRequest) -> OwnPage | None:
    """A PDF page's text layer; None for an image or if none is requested. Raises as `Document.own_page`."""
    if not takes_own_text(request.options):
        return None
    request.context.ledger.enter("decode")
    with request.context.share.part() as held:
        return page.document.own_page(page.number, request.options, request.check, held.take)


def whole_page(own: OwnPage | None, number: int, request: ReadRequest) -> Page | None:
    """The finished page if the document's own text is all that was requested; None if an engine must read it."""
    if own is None or not own.text.is_all or needs_pixels(request.options):
        return None
    request.context.ledger.enter("answer")
    return Page(own.width, own.height, own.text.angle, own.text.lines, number)
