"""POST /v1/ocr/picture: one page of the file that is sent as a JPEG, for the web page, whose browser cannot draw it."""

from __future__ import annotations

import re
from typing import Final

from flask import Blueprint, Response

from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.formats.drawing import draw_page, drawing_bytes
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Image, Page

PATH: Final = "/v1/ocr/picture"
LONGEST_PX: Final = 1600
"""The longest side of a picture: twice the pixels that a page has on most screens."""
_NUMBER: Final = re.compile("[1-9][0-9]{0,6}")


def add_page_pictures(api: Blueprint, reader: Reader) -> None:
    """Add the route to the native API: the body is the file, `page` in the query is the page's number, from 1."""

    @api.post(PATH)
    def page_picture() -> Response:
        content = request.content
        data, number = _file_of(content), _number_of(content)
        limit_s, context = request.left_s, request.context
        with reader.decoded_image(data, number if may_have_pages(data) else None, limit_s, context) as image:
            jpeg = _picture_of(image)
        response = Response(jpeg, content_type="image/jpeg")
        response.headers["Cache-Control"] = "no-store"
        return response


def _file_of(content: Content) -> bytes:
    """The body. Raises NothingSent."""
    if content.raw is None:
        raise NothingSent("The request carries no file.", "Send the file as the body.")
    return content.raw


def _number_of(content: Content) -> int:
    """Which page is wanted, from 1. Raises BadOption."""
    text = content.text("page") or "1"
    if not _NUMBER.fullmatch(text):
        raise BadOption(f"'page' is {text[:40]!r}: accepted is the number of a page, from 1.")
    return int(text)


def _picture_of(image: Image) -> bytes:
    """The page, shrunk where it is larger. Raises QueueFull, BodyTooLarge where there is no memory for it."""
    scale = min(1.0, LONGEST_PX / max(image.width, image.height))
    page = Page(max(1, round(image.width * scale)), max(1, round(image.height * scale)), 0, ())
    with request.share.part() as held, held.holding(drawing_bytes(image.pixels, page)):
        return draw_page(image.pixels, page)
