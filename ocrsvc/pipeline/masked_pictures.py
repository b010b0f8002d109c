"""Draws the pages of a document with what is masked in black, for files that show the pages themselves."""

from __future__ import annotations

import time
from dataclasses import replace

from ocrsvc.formats.document import PictureOf
from ocrsvc.formats.drawing import draw_page, drawing_bytes
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Page
from ocrsvc.serving.work_queue import RequestContext, make_check


def picture_maker(reader: Reader, file: bytes, deadline: float, context: RequestContext) -> PictureOf:
    """What draws a page of a document until a moment of `time.monotonic`, in the account of the request that waits.

    It raises DeadlineExceeded, ClientGone, QueueFull, and what decoding raises.
    """
    check = make_check(context, deadline, time.monotonic)

    def picture_of(page: Page) -> bytes:
        bare = replace(page, lines=())
        left_s = max(0.0, deadline - time.monotonic())
        with (
            reader.decoded_image(file, page.number, left_s, context) as image,
            context.share.holding(drawing_bytes(image.pixels, bare)),
        ):
            return draw_page(image.pixels, bare, check)

    return picture_of
