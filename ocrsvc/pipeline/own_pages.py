"""Finds the text that a page of a request's PDF has itself, and the page that it makes where nothing else is wanted."""

from __future__ import annotations

from ocrsvc.imaging.document import DocumentPage
from ocrsvc.imaging.text_layer.own_text import OwnPage, needs_pixels, takes_own_text
from ocrsvc.pipeline.read_context import ReadRequest
from ocrsvc.records import Page


def find_own_page(page: DocumentPage, request: ReadRequest) -> OwnPage | None:
    """The page's own text; None where it is not asked for, or an image has none. Raises as `Document.own_page`."""
    if not takes_own_text(request.options):
        return None
    request.context.ledger.enter("decode")
    with request.context.share.part() as held:
        return page.document.own_page(page.number, request.options, request.check, held.take)


def whole_page(own: OwnPage | None, number: int, request: ReadRequest) -> Page | None:
    """The page with this number in its document, if its own text is all that is wanted of it."""
    if own is None or not own.text.is_all or needs_pixels(request.options):
        return None
    request.context.ledger.enter("answer")
    return Page(own.width, own.height, own.text.angle, own.text.lines, number)
