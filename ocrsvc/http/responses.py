"""Helpers that the API adapters share, for reading requests and for making responses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import orjson
from flask import Response, request

from ocrsvc.errors import BadBase64, BrokenImage, CallerError, UnsupportedImage
from ocrsvc.http.error_responses import Failure
from ocrsvc.http.request import ParsedRequest, is_image, last_field
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.pipeline.read import FileRead, Reader
from ocrsvc.records import ReadOptions, Rotate
from ocrsvc.serving.work_queue import RequestContext

JSON_TYPE: Final = "application/json"
# What says of an upload that it is no image, whichever way.
NO_IMAGE: Final = (BadBase64, UnsupportedImage, BrokenImage)

_TRUE: Final = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE: Final = frozenset({"false", "0", "no", "off", "f", "n"})
# The sides between which an engine can be told to look at a smaller copy.
_MIN_SIDE_PX: Final = 16
_MAX_SIDE_PX: Final = 65_535
_MAX_ACCEPT: Final = 4096


def read_pages(
    reader: Reader, data: bytes, options: ReadOptions, limit_s: float, context: RequestContext, most: int | None = None
) -> FileRead:
    """The first `most` pages of a file, or all that the settings allow. Raises as `Reader.read` for an image."""
    if may_have_pages(data):
        return reader.read_files([data], options, limit_s, context, most=most)[0]
    return FileRead("image", 1, ((1, reader.read(data, options, limit_s, context)),))


def as_json(answer: object, status: int = 200, content_type: str = JSON_TYPE) -> Response:
    """The answer as compact JSON in UTF-8."""
    return Response(orjson.dumps(answer), status, content_type=content_type)


def with_headers(response: Response, failure: Failure) -> Response:
    """The response with the headers that the failure asks for: Retry-After, Allow."""
    response.headers.extend(failure.headers)
    return response


def is_told_in_a_200(error: Exception) -> bool:
    """Is this the kind of failure that formats with error codes of their own put into an HTTP 200?

    Only what the caller got wrong. What the service refuses keeps its status: 403, 408, 413, 429, 503 and 504 are what
    proxies, browsers and retries look at.
    """
    return isinstance(error, CallerError) and error.status not in {403, 408, 413}


def parse_flag(text: str) -> bool:
    """A truth value in any of the words that pydantic takes. Raises ValueError."""
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def flag(incoming: ParsedRequest, name: str) -> bool | None:
    """The truth value in a field; None for one that is missing or empty. Raises ValueError."""
    text = last_field(incoming, name)
    return parse_flag(text) if text else None


def turning(asked: bool | None) -> Rotate:  # noqa: FBT001  a wire format's own flag, passed on
    """Shall the engine find out how the page is turned? Only an explicit no switches that off."""
    return "0" if asked is False else "auto"


def within_bounds_px(side_px: float) -> int:
    """A longest side that `ReadOptions` takes: the nearest one."""
    return int(min(max(side_px, _MIN_SIDE_PX), _MAX_SIDE_PX))


def cut_accepted() -> None:
    """Of what a client accepts its first types count: 64 KiB of them would take 0.2 s. For Flask's `before_request`."""
    for name in ("HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING"):
        sent = request.environ.get(name, "")
        if len(sent) > _MAX_ACCEPT:
            request.environ[name] = sent[:_MAX_ACCEPT].rpartition(",")[0]


def looks_like_a_url(text: object) -> bool:
    """Is this text an address instead of base64? Addresses are never fetched: the service would reach for a caller."""
    head = text[:8].lower() if isinstance(text, str | bytes) else ""
    if isinstance(head, bytes):
        head = head.decode("latin-1")
    return head.startswith(("http://", "https://"))


def any_file(incoming: ParsedRequest, besides: Collection[str] = ()) -> bytes | None:
    """The first file of a form, whatever its field is called; else a body that is an image."""
    for part in incoming.files:
        if part.data and part.name not in besides:
            return part.data
    return incoming.raw if incoming.raw is not None and is_image(incoming.raw) else None
