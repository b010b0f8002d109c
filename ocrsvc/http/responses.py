"""Helpers of the native API and the adapters for reading images and making responses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
import pybase64
from flask import Response
from werkzeug.wsgi import wrap_file

from ocrsvc.errors import BadBase64, BrokenImage, CallerError, OcrsvcError, UnknownModel, UnsupportedImage
from ocrsvc.formats.drawing import draw_page, drawing_bytes
from ocrsvc.http.request import request
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import MAX_SIDE_PX, MIN_SIDE_PX, Check, Image, Page, Reading, ReadOptions, Rotate
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import RequestContext

JSON_TYPE: Final = "application/json"
# Errors of uploads that are no readable image.
NO_IMAGE: Final = (BadBase64, UnsupportedImage, BrokenImage)
_SHORT_FILE_BYTES: Final = 1 << 16


def read_pages(
    reader: Reader,
    data: bytes,
    options: ReadOptions,
    limit_s: float,
    context: RequestContext,
    most: int | None = None,
    *,
    partial: bool = False,
) -> FileRead:
    """Read a file's first `most` pages, by default as many as the settings allow. Raises as `Reader.read_files`."""
    if may_have_pages(data):
        return reader.read_files([data], options, limit_s, context, max_pages=most, partial=partial)[0]
    return FileRead("image", 1, ((1, reader.read(data, options, limit_s, context)),))


def read_images(
    reader: Reader, images: Sequence[bytes | OcrsvcError], options: ReadOptions
) -> list[Reading | OcrsvcError]:
    """Read images of this thread's request; each gives a reading or its error. Raises as `Reader.read_many`."""
    files = [image for image in images if isinstance(image, bytes)]
    outcomes = iter(reader.read_many(files, options, request.left_s, request.context))
    return [next(outcomes) if isinstance(image, bytes) else image for image in images]


def as_json(answer: object, status: int = 200) -> Response:
    """A response of compact JSON."""
    return Response(orjson.dumps(answer), status, content_type=JSON_TYPE)


def drawn_page(image: Image, page: Page, held: Share, check: Check, prefix: bytes = b"") -> bytes:
    """Draw a frame around each line on the image; returns a JSON string of `prefix` and the JPEG in base64.

    `held` counts the text and its copy until the response is made; `check` is called before each line. Raises
    QueueFull and BodyTooLarge without memory.
    """
    with held.holding(drawing_bytes(image.pixels, page)):
        jpeg = draw_page(image.pixels, page, check)
        # Base64 has four characters for three bytes.
        held.take(2 * 4 * -(-len(jpeg) // 3))
        return b"".join((b'"', prefix, pybase64.b64encode(jpeg), b'"'))


def file_response(path: Path, content_type: str) -> Response:
    """A response with a file's content; a large file is read while it is sent. Raises FileNotFoundError."""
    size_bytes = path.stat().st_size
    if size_bytes <= _SHORT_FILE_BYTES:
        return Response(path.read_bytes(), content_type=content_type)
    response = Response(wrap_file(request.environ, path.open("rb")), content_type=content_type, direct_passthrough=True)
    response.content_length = size_bytes
    return response


def is_reported_in_a_200(error: Exception) -> bool:
    """Whether wire formats with their own error codes report this error in an HTTP 200: callers' mistakes only.

    401, 403, 408, 413, 429, 503 and 504 keep their status, because proxies, browsers and retries depend on it.
    """
    return isinstance(error, CallerError) and error.status not in {401, 403, 408, 413}


def is_wrong_path(failure: OcrsvcError) -> bool:
    """Whether the original product's router would refuse the request: unknown path or method."""
    return failure.status in {404, 405} and not isinstance(failure, UnknownModel)


def rotate_option(asked: bool | None) -> Rotate:  # noqa: FBT001  a wire format's own flag, passed on
    """The option `rotate`: automatic unless the wire format's flag is explicitly false."""
    return "0" if asked is False else "auto"


def clamp_side_px(side_px: float) -> int:
    """The nearest `max_side` that `ReadOptions` accepts."""
    return int(min(max(side_px, MIN_SIDE_PX), MAX_SIDE_PX))


def is_url(text: object) -> bool:
    """Whether a text is an http or https URL, not base64."""
    head = text[:8].lower() if isinstance(text, str | bytes) else ""
    if isinstance(head, bytes):
        head = head.decode("latin-1")
    return head.startswith(("http://", "https://"))
