"""Takes a request body apart: a form, a JSON object, or the image itself."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ocrsvc.errors import BodyTooLarge
from ocrsvc.http.field_values import as_text
from ocrsvc.http.json_body import BOM, parse_json
from ocrsvc.http.multipart import MAX_PARTS, split_parts
from ocrsvc.http.parsed_body import Content, is_image
from ocrsvc.http.percent_encoding import part_of, unquote
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.request_guard import waiting
from ocrsvc.serving.work_queue import deadline_passed

Fields = tuple[tuple[str, object], ...]

_FORM: Final = re.compile(rb"[\w.\-\[\]%+]{1,64}=")
_LARGE_BYTES: Final = 1 << 20
_LARGE_BODY_PERMITS: Final = threading.Semaphore(2)


def parse_body(body: bytes, content_type: str, query: Fields, share: Share, deadline: float) -> Content:
    """What a request carries.

    The bytes decide before the Content-Type does: many clients label an image, or JSON, as a form.

    Args:
        body: The whole body, counted in the share.
        content_type: The header.
        query: Names and values in the query string.
        share: The request's account of memory.
        deadline: When nobody waits any more, on `time.monotonic`.

    Raises:
        BodyTooLarge: It has too many parts, or would need more memory than there may ever be.
        QueueFull: Other requests hold the memory that it needs.
        DeadlineExceeded: Other large bodies were parsed until the deadline.
        CallerError: It is not the form or JSON that it should be.
    """
    mimetype = content_type.partition(";")[0].strip().lower()
    if not body:
        return Content(fields=query, share=share)
    if mimetype.startswith("multipart/"):
        with limited_parsing(share, len(body), deadline):
            share.take(len(body))
            parts = split_parts(body, content_type)
        texts = tuple((part.name, part.data) for part in parts if part.filename is None)
        return Content(None, tuple(part for part in parts if part.filename is not None), query + texts, share)
    if mimetype.startswith("image/") or mimetype == "application/octet-stream" or is_image(body):
        return Content(body, fields=query, share=share)
    if mimetype.endswith("json") or body[:64].lstrip(BOM + b" \t\r\n").startswith(b"{"):
        with limited_parsing(share, len(body), deadline):
            return Content(fields=query + tuple(parse_json(body, share).items()), share=share)
    if mimetype == "application/x-www-form-urlencoded" and _FORM.match(body):
        with limited_parsing(share, len(body), deadline):
            share.take(len(body))
            return Content(fields=query + tuple(_parse_form(body)), share=share)
    return Content(body, fields=query, share=share)


@contextmanager
def limited_parsing(share: Share, size_bytes: int, deadline: float) -> Iterator[None]:
    """Permission to parse a body, of which nothing is left when the block ends: its bytes are given back then.

    Small bodies need none. Of large ones few are parsed at once: all threads of a process share one interpreter.

    Args:
        share: Holds the body.
        size_bytes: Of the body.
        deadline: When nobody waits any more, on `time.monotonic`.

    Raises:
        DeadlineExceeded: There was none before the deadline.
    """
    if size_bytes <= _LARGE_BYTES:
        yield
    else:
        with waiting():
            left_s = max(0.0, deadline - time.monotonic())
            is_permitted = _LARGE_BODY_PERMITS.acquire(timeout=min(left_s, threading.TIMEOUT_MAX))
        if not is_permitted:
            raise deadline_passed()
        try:
            yield
        finally:
            _LARGE_BODY_PERMITS.release()
    share.give_back(size_bytes)


def _parse_form(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and values of an urlencoded body. Raises BodyTooLarge for more than MAX_PARTS of them."""
    at = 0
    for _ in range(MAX_PARTS + 1):
        end = body.find(b"&", at)
        end = len(body) if end < 0 else end
        if end > at:
            equals = body.find(b"=", at, end)
            equals = end if equals < 0 else equals
            yield as_text(unquote(body[at:equals])), unquote(part_of(body, equals + 1, end))
        if end == len(body):
            return
        at = end + 1
    raise BodyTooLarge(f"The form has more than {MAX_PARTS} fields.", "Send several requests.")
