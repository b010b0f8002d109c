"""Parses what a client sent: its images, its fields, its deadline, its priority and its request id.

Knows no endpoint: each API adapter names the fields that it reads.
"""

from __future__ import annotations

import math
import re
import reprlib
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qsl

import orjson

from ocrsvc.errors import BadBase64, BadOption, BodyTooLarge, CallerError, NothingSent, OcrsvcError
from ocrsvc.http.body import is_gone, read_body, received, share_of
from ocrsvc.http.json_body import parse_json
from ocrsvc.http.multipart import MAX_PARTS, Part, split_parts
from ocrsvc.imaging.base64text import decode_base64
from ocrsvc.imaging.decode import FORMATS
from ocrsvc.imaging.document import is_pdf
from ocrsvc.imaging.percent import part_of, unquote
from ocrsvc.serving.memory_budget import Share, unlimited
from ocrsvc.serving.request_guard import take_body, waiting
from ocrsvc.serving.work_queue import PRIORITIES, Priority, RequestContext, deadline_passed

Environ = dict[str, Any]

TIMEOUT_HEADER: Final = "X-Request-Timeout"
ID_HEADER: Final = "X-Request-Id"
PRIORITY_HEADER: Final = "X-Priority"

_ID_KEY: Final = "ocrsvc.request_id"
_DEADLINE_KEY: Final = "ocrsvc.deadline"
_PARSED_KEY: Final = "ocrsvc.seen"
_SANE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_DECIMAL: Final = re.compile(r"(?:[0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
_FORM: Final = re.compile(rb"[\w.\-\[\]%+]{1,64}=")
# To JSON 640.0 is as whole as 640; beyond this a float is no exact number of anything.
_EXACT: Final = 2**53
_LARGE_BYTES: Final = 1 << 20
_LARGE_BODY_PERMITS: Final = threading.Semaphore(2)
MAX_TEXT: Final = 1 << 20
"""Letters of a field that is no image, at most: a number, a word, a list of pages."""
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What one request carries.

    Attributes:
        raw: The body, when it is the image itself.
        files: Parts of a form that have a file name.
        fields: Names and values from the query string, then from the body: str, bytes, or what JSON knows.
        share: The request's account of memory.
    """

    raw: bytes | None = None
    files: tuple[Part, ...] = ()
    fields: tuple[tuple[str, object], ...] = ()
    share: Share = field(default_factory=unlimited, compare=False)


def receive(environ: Environ, max_body_bytes: int, deadline: float) -> ParsedRequest:
    """Read and take apart what the request carries.

    The bytes decide before the Content-Type does: many clients label an image, or JSON, as a form.

    Args:
        environ: Of the request.
        max_body_bytes: The largest body.
        deadline: When the body must be there, on `time.monotonic`; see `deadline_of`.

    Raises:
        BodyTooLarge: The body is larger than `max_body_bytes`.
        BodyTimeout: The body does not arrive in time.
        QueueFull: The bodies of other requests hold the memory that this one needs.
        RequestStopsWorker: A request with this body has stopped a worker.
        CallerError: The body ends early, or is not the form or JSON that it should be.
    """
    seen = environ.pop(_PARSED_KEY, None)
    if isinstance(seen, OcrsvcError):
        raise seen
    return seen if isinstance(seen, ParsedRequest) else _parse_request(environ, max_body_bytes, deadline)


def parse_early(environ: Environ, max_body_bytes: int, limit_s: float) -> ParsedRequest | None:
    """What `receive` will return, for routing, which chooses the adapter first; None where it will raise.

    Args:
        environ: Of the request.
        max_body_bytes: The largest body.
        limit_s: Seconds that the whole request may take.
    """
    try:
        seen = environ[_PARSED_KEY] = _parse_request(environ, max_body_bytes, deadline_of(environ, limit_s))
    except OcrsvcError as error:
        environ[_PARSED_KEY] = error
        return None
    return seen


def _parse_request(environ: Environ, max_body_bytes: int, deadline: float) -> ParsedRequest:
    body = read_body(environ, max_body_bytes)
    take_body(body, request_id(environ))
    query = tuple(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    share = share_of(environ)
    content_type = environ.get("CONTENT_TYPE", "")
    mimetype = content_type.partition(";")[0].strip().lower()
    if not body:
        return ParsedRequest(fields=query, share=share)
    if mimetype.startswith("multipart/"):
        with limited_parsing(share, len(body), deadline):
            share.take(len(body))
            parts = split_parts(body, content_type)
        texts = tuple((part.name, part.data) for part in parts if part.filename is None)
        files = tuple(part for part in parts if part.filename is not None)
        return ParsedRequest(files=files, fields=query + texts, share=share)
    if mimetype.startswith("image/") or mimetype == "application/octet-stream" or is_image(body):
        return ParsedRequest(raw=body, fields=query, share=share)
    if mimetype.endswith("json") or body[:64].lstrip(_BOM + b" \t\r\n").startswith(b"{"):
        with limited_parsing(share, len(body), deadline):
            return ParsedRequest(fields=query + tuple(parse_json(body, share).items()), share=share)
    if mimetype == "application/x-www-form-urlencoded" and _FORM.match(body):
        with limited_parsing(share, len(body), deadline):
            share.take(len(body))
            return ParsedRequest(fields=query + tuple(_parse_form(body)), share=share)
    return ParsedRequest(raw=body, fields=query, share=share)


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
            is_permitted = _LARGE_BODY_PERMITS.acquire(timeout=min(left_s(deadline), threading.TIMEOUT_MAX))
        if not is_permitted:
            raise deadline_passed()
        try:
            yield
        finally:
            _LARGE_BODY_PERMITS.release()
    share.give_back(size_bytes)


def first_image(parsed: ParsedRequest, file_fields: Collection[str], text_fields: Collection[str]) -> bytes:
    """The one image that counts where only one is read; see `images_or_errors`. Raises its error."""
    image = images_or_errors(parsed, file_fields, text_fields)[0]
    if isinstance(image, OcrsvcError):
        raise image
    return image


def images_or_errors(
    parsed: ParsedRequest, file_fields: Collection[str], text_fields: Collection[str]
) -> list[bytes | OcrsvcError]:
    """The images of a request in order, files before text; in place of base64 that cannot be decoded, its error.

    Args:
        parsed: The request.
        file_fields: Names under which files are read.
        text_fields: Names under which base64 text is read; bytes that are an image are taken as they are.

    Raises:
        NothingSent: There is no image.
        CallerError: A field holds something other than text.
        BodyTooLarge: There are more than MAX_PARTS, or they need more memory than there may ever be.
        QueueFull: Other requests hold the memory that they need.
    """
    files: list[bytes | OcrsvcError] = [part.data for part in parsed.files if part.name in file_fields and part.data]
    texts = [text for name, value in parsed.fields if name in text_fields for text in _texts(name, value)]
    if len(texts) > MAX_PARTS:
        raise BodyTooLarge(f"The request holds more than {MAX_PARTS} images.", "Send several requests.")
    images = files + [_image_of(text, parsed.share) for text in texts]
    if parsed.raw is not None:
        images.insert(0, parsed.raw)
    if not images:
        raise _nothing_sent(parsed, file_fields)
    return images


def is_image(data: bytes | memoryview) -> bool:
    """Whether the first bytes belong to a format that is read, of an image or a document."""
    return any(pattern.match(data) for pattern, _ in FORMATS) or is_pdf(data)


def last_field(parsed: ParsedRequest, name: str) -> str | None:
    """The last value sent under a name, as stripped text; None if there is none."""
    values = [value for key, value in parsed.fields if key == name]
    return as_text(values[-1]).strip() if values else None


def as_text(value: object) -> str:
    """A field's value as text; numbers as JSON writes them, but whole ones always without a point; lists in short.

    Raises:
        BadOption: It is longer than MAX_TEXT.
    """
    if isinstance(value, str | bytes):
        if len(value) > MAX_TEXT:
            raise BadOption(f"A field that is no image has more than {MAX_TEXT} letters.", "Send a shorter text.")
        return value if isinstance(value, str) else value.decode("utf-8", "replace")
    if isinstance(value, list | dict):
        # No option is one: this is for the message that says so.
        return shown(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return orjson.dumps(value).decode()


def shown(value: object) -> str:
    """A value for a message: a text itself, anything else in short, however large it is."""
    return value if isinstance(value, str) else reprlib.repr(value)


def request_id(environ: Environ) -> str:
    """The id of this request: the client's own if it is at most 128 visible ASCII characters, else a new one."""
    known = environ.get(_ID_KEY)
    if known is None:
        sent = environ.get("HTTP_X_REQUEST_ID", "")
        known = environ[_ID_KEY] = sent if _SANE_ID.fullmatch(sent) else uuid.uuid4().hex
    return str(known)


def deadline_of(environ: Environ, limit_s: float) -> float:
    """When the answer must be there, on `time.monotonic`, counted from the head of the request on. Raises BadOption.

    The first call of a request decides; later ones give the same.
    """
    if _DEADLINE_KEY not in environ:
        body = received(environ)
        began_s = time.monotonic() if body is None else body.began_s
        environ[_DEADLINE_KEY] = began_s + allowed_s(environ, limit_s)
    return float(environ[_DEADLINE_KEY])


def left_s(deadline: float) -> float:
    """Seconds until a deadline; 0 if it has passed."""
    return max(0.0, deadline - time.monotonic())


def allowed_s(environ: Environ, limit_s: float) -> float:
    """Seconds that this request may take: `limit_s`, or less if the client says so. Raises BadOption."""
    sent = environ.get("HTTP_X_REQUEST_TIMEOUT")
    if sent is None:
        return limit_s
    try:
        asked_s = parse_decimal(sent)
    except ValueError:
        asked_s = 0.0
    if asked_s == 0:
        raise BadOption(
            f"{TIMEOUT_HEADER} is {sent[:100]!r}: accepted is a plain decimal number of seconds above 0, such as 2.5."
        )
    return min(asked_s, limit_s)


def priority_of(environ: Environ) -> Priority:
    """The priority that the header asks for, interactive without one. Raises BadOption."""
    sent = environ.get("HTTP_X_PRIORITY")
    if sent is None:
        return "interactive"
    if sent.strip().lower() not in PRIORITIES:
        raise BadOption(f"{PRIORITY_HEADER} is {sent[:40]!r}: accepted is {' or '.join(PRIORITIES)}.")
    return cast(Priority, sent.strip().lower())


def context_of(environ: Environ, priority: Priority | None = None) -> RequestContext:
    """How the reader is to treat this request: the given priority or the header's, until the client hangs up.

    Raises:
        BadOption: The header's priority is none.
    """
    return RequestContext(priority or priority_of(environ), partial(is_gone, environ), share_of(environ))


def parse_decimal(text: str) -> float:
    """A number such as 5, 0.25, .5 or, as generated clients write small ones, 1.0E-5.

    Raises:
        ValueError: It is none, or too large; also for Python's other ways of writing one: 1_0, inf.
    """
    if not _DECIMAL.fullmatch(text) or math.isinf(value := float(text)):
        raise ValueError(text)
    return value


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


def _texts(name: str, value: object) -> list[str | bytes]:
    """The non-blank texts in a field: one, or a list of them."""
    values: Sequence[object] = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | bytes | None) for item in values):
        raise CallerError(
            f"The field {name!r} holds something other than text.", "Send base64 text, or a list of base64 texts."
        )
    return [item for item in values if isinstance(item, str | bytes) and not _is_blank(item)]


def _is_blank(text: str | bytes) -> bool:
    return len(text) < 64 and not text.strip()


def _image_of(text: str | bytes, share: Share) -> bytes | OcrsvcError:
    if isinstance(text, bytes) and is_image(text):
        return text
    try:
        return decode_base64(text, share)
    except (BadBase64, NothingSent) as error:
        return error


def _nothing_sent(parsed: ParsedRequest, file_fields: Collection[str]) -> NothingSent:
    names = {part.name for part in parsed.files} | {name for name, _ in parsed.fields}
    seen = ", ".join(repr(name[:40]) for name in sorted(names)[:10]) or "none"
    return NothingSent(
        f"The request carries no image; fields that it has: {seen}.",
        f"Send a multipart file in the field {' or '.join(map(repr, file_fields))}, base64 text, or the image as body.",
    )
