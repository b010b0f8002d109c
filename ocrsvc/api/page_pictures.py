"""Renders pages of documents as JPEGs, because browsers cannot show PDF or TIFF."""

import re
from typing import Final

from flask import Response

from ocrsvc.errors import BadOption
from ocrsvc.formats.drawing import draw_page, drawing_bytes
from ocrsvc.http.request import request
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Image, Page

MAX_PICTURE_SIDE_PX: Final = 1600
"""Longest side of a page picture in pixels: twice its displayed size on most screens."""

_PAGE_NUMBER: Final = re.compile("[1-9][0-9]{0,6}")


def respond_with_picture(reader: Reader, file: bytes, number: str) -> Response:
    """The page with this number, by default the first, as a JPEG. Raises BadOption, and as `Reader.read`."""
    if not _PAGE_NUMBER.fullmatch(number or "1"):
        raise BadOption(f"'page' is {number[:40]!r}: accepted is a page number from 1.")
    page = int(number or 1) if may_have_pages(file) else None
    with reader.decoded_image(file, page, request.left_s, request.context) as image:
        response = Response(_picture_of(image), content_type="image/jpeg")
    response.headers["Cache-Control"] = "no-store"
    return response


def _picture_of(image: Image) -> bytes:
    """The page as a JPEG, shrunk to MAX_PICTURE_SIDE_PX. Raises QueueFull, BodyTooLarge."""
    scale = min(1.0, MAX_PICTURE_SIDE_PX / max(image.width, image.height))
    page = Page(max(1, round(image.width * scale)), max(1, round(image.height * scale)), 0, ())
    with request.share.part() as held, held.holding(drawing_bytes(image.pixels, page)):
        return draw_page(image.pixels, page)
