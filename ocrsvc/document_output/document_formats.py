"""The files that can be made of what was read of a document: the output formats, and searchable PDF.

Imports none of the writers, so that the command line can name the formats without a numeric library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ocrsvc.formats.output_formats import OUTPUT_FORMATS
from ocrsvc.registry import resolve

if TYPE_CHECKING:
    from ocrsvc.document_output.result import DocumentResult
    from ocrsvc.records import Check, ReadOptions


class Output(Protocol):
    """Where a file is written to, from its beginning to its end."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take all of the bytes. Raises OSError."""


Writer: TypeAlias = "Callable[[DocumentResult, Output, float, Check], None]"
"""Writes one file: of what was read, where to, within how many seconds, and what it asks meanwhile."""


@dataclass(frozen=True, slots=True)
class DocumentFormat:
    """One kind of file.

    Attributes:
        media_type: The Content-Type of an answer, also what a client accepts that wants it.
        suffix: The end of a file's name.
        label: Its name on the web page.
        help: What it is, for people.
        writer: "module:function", which is a Writer; empty for an output format, which is text.
        needs: Options of a reading that are asked for with it, whatever a request says of them.
    """

    media_type: str
    suffix: str
    label: str
    help: str
    writer: str = ""
    needs: tuple[str, ...] = ()


DOCUMENT_FORMATS: Final[Mapping[str, DocumentFormat]] = {
    **{
        name: DocumentFormat(form.media_type, form.suffix, form.label, form.help, needs=form.needs)
        for name, form in OUTPUT_FORMATS.items()
    },
    "pdf": DocumentFormat(
        "application/pdf",
        ".pdf",
        "Searchable PDF",
        "the pages as they are, with their text to be found and copied",
        "ocrsvc.document_output.searchable:write_searchable_pdf",
        # Text by lines alone would be marked in the wrong place.
        ("words",),
    ),
}
"""By name, as the option `format` has it, in the order in which they are listed to people."""


def needs_of(formats: Iterable[str]) -> dict[str, bool]:
    """What pages must be read with for these formats: options of a reading, all of them true."""
    return {need: True for name in formats if name in DOCUMENT_FORMATS for need in DOCUMENT_FORMATS[name].needs}


def options_for(formats: Iterable[str], options: ReadOptions) -> ReadOptions:
    """How pages are read for these formats: as is asked for, and with what the formats need."""
    more: dict[str, Any] = {name: True for name in needs_of(formats) if not getattr(options, name)}
    return replace(options, **more)


def write_document(name: str, result: DocumentResult, output: Output, limit_s: float, check: Check) -> None:
    """Write the file of this format; memory holds one page of it at a time, beside the file that was sent.

    Args:
        name: One of DOCUMENT_FORMATS.
        result: What was read.
        output: Where to.
        limit_s: Seconds within which it is worth having.
        check: Asked now and then; what it raises ends it.

    Raises:
        BrokenImage: The file that was sent cannot be written on.
        DeadlineExceeded: It takes longer.
        ResourcesExhausted: There is no process or memory for it.
        OSError: From the output.
    """
    if writer := DOCUMENT_FORMATS[name].writer:
        resolve(writer)(result, output, limit_s, check)
        return
    for part in OUTPUT_FORMATS[name].parts(result.pages, result.count, result.engine):
        check()
        output.write(part.encode())
