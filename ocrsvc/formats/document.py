"""A recognized document, and how it is written in an output format."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from ocrsvc.plugins import OutputFormat, needs_of, output_formats, resolve
from ocrsvc.results import Check, EngineInfo, Page, ReadOptions


class Output(Protocol):
    """A file that is only written, sequentially."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write all of the bytes. Raises OSError."""


PictureOf = Callable[[Page], bytes]
"""Draws a page as an image file with masked parts in black. Raises as reading the page does."""


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """A recognized document: the file as sent, and the pages that were read, in order.

    Pages are iterated once per output file. A searchable PDF shows the `failed` pages without text. If parts of pages
    are masked, the original must not be shown, and `picture_of` draws pages at `dpi`.
    """

    file: bytes
    pages: Iterable[Page]
    count: int
    engine: EngineInfo
    failed: Collection[int] = ()
    picture_of: PictureOf | None = None
    dpi: int = 200


Writer = Callable[[DocumentResult, Output, float, Check], None]
"""Writes one file of a document to an output within a time limit in seconds; the check ends it early by raising."""


def options_for(formats: Iterable[str], options: ReadOptions) -> ReadOptions:
    """Add to the options what these formats need, such as words."""
    needs: dict[str, Any] = {name: True for name in needs_of(formats) if not getattr(options, name)}
    return replace(options, **needs)


def write_document(name: str, result: DocumentResult, output: Output, limit_s: float, check: Check) -> None:
    """Write a document in an output format within `limit_s` seconds; calls `check` between pages.

    Holds the sent file and one page of output in memory. Raises BrokenImage if text cannot be added to the file,
    DeadlineExceeded, ResourcesExhausted, and OSError from the output.
    """
    form = output_formats()[name]
    if form.writer:
        resolve(form.writer)(result, output, limit_s, check)
        return
    for part in text_parts(form, result.pages, result.count, result.engine):
        check()
        output.write(part.encode())


def text_parts(form: OutputFormat, pages: Iterable[Page], count: int, engine: EngineInfo) -> Iterator[str]:
    """Yield the output of a text format, page by page; `count` is the number of pages."""
    return cast(Iterator[str], resolve(form.text)(pages, count, engine))


def page_without_words(page: Page) -> Page:
    """The page without the words of its lines."""
    if not any(line.words for line in page.lines):
        return page
    return replace(page, lines=tuple(replace(line, words=None) for line in page.lines))
