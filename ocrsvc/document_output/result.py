"""What was read of a document, as the writers of its files take it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page

PictureOf = Callable[[Page], bytes]
"""Draws a page as an image file, with what is masked in black. Raises as reading it does."""


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """One document and the pages of it that were read.

    Attributes:
        file: The whole file that was sent: a PDF, a TIFF or another image.
        pages: In order, each with its number in the file; gone through once for each file that is made. Pages that are
            missing were not asked for, or could not be read.
        count: How many pages these are.
        engine: What read them.
        failed: Numbers of pages that were asked for and could not be read. A searchable PDF shows them without text.
        picture_of: What shows a page where its own picture must not be seen, since something on it is masked; None
            where nothing is.
        dpi: Pixels an inch of pages that were drawn, for `picture_of`.
    """

    file: bytes
    pages: Iterable[Page]
    count: int
    engine: EngineInfo
    failed: Collection[int] = ()
    picture_of: PictureOf | None = None
    dpi: int = 200
