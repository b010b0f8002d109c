"""Parsing of request bodies (a form, a JSON object, or the image itself), and access to their fields and images.

Multipart forms (RFC 7578) are split by werkzeug's decoder with stricter limits; JSON has limits on time and memory.
"""

import io
import re
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import orjson
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Event, Field, File, MultipartDecoder, NeedData, State

from ocrsvc.errors import BadBase64, BodyTooLarge, CallerError, NothingSent, OcrsvcError
from ocrsvc.http.base64text import decode_base64, unquote_plus
from ocrsvc.http.field_values import as_text, parse_flag
from ocrsvc.imaging.codecs.decode import FORMATS
from ocrsvc.imaging.document import is_pdf
from ocrsvc.serving.memory_budget import Share, unlimited
from ocrsvc.serving.request_guard import waiting
from ocrsvc.serving.work_queue import deadline_passed

Fields = tuple[tuple[str, object], ...]

MAX_IMAGES: Final = 1000

_FORM: Final = re.compile(rb"[\w.\-\[\]%+]{1,64}=")
_LARGE_BYTES: Final = 1 << 20
_LARGE_BODY_PERMITS: Final = threading.Semaphore(2)
MAX_PARTS: Final = 1000
MAX_HEADER_BYTES: Final = 8192
# Limit for the headers of all parts: parsing a byte of headers takes a hundred times as long as a byte of a file.
MAX_HEADERS_BYTES: Final = 1 << 19
MAX_HEADERS: Final = 64
MAX_PARAMETERS: Final = 64
# Longest multipart boundary; RFC 2046 section 5.1.1 allows 70 bytes.
_MAX_BOUNDARY_BYTES: Final = 256
# Bytes passed to the multipart decoder at a time; small, because each call copies the bytes not decoded yet.
_STEP_BYTES: Final = 1 << 16
# Longest delimiter: the boundary with the dashes around it and white space.
_MAX_DELIMITER_BYTES: Final = 1024
# Error texts for bodies that end in these decoder states; in all other states the closing boundary is missing.
_ENDS: Final = {
    State.PREAMBLE: "the boundary in Content-Type does not occur in it",
    State.PART: "the headers of a part do not end",
}
# Limits on characters of JSON that may each create a Python object; a request needs a few per image and option.
_BOUNDS: Final = (
    (b",", "commas", 50_000),
    (b'"', "quotes", 50_000),
    (b"[", "lists", 10_000),
    (b"{", "objects", 10_000),
)

BOM: Final = b"\xef\xbb\xbf"
# Matches characters above U+FFFF, in UTF-8 or as a pair of \u escapes.
_WIDEST: Final = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")
_ESCAPE: Final = re.compile(rb"\\u")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form. `filename` is the name that the client sent, used only in results; None for a text field."""

    name: str
    filename: str | None
    data: bytes


class _Decoder(MultipartDecoder):
    """werkzeug's decoder with limits on headers; it accepts headers that are not UTF-8, as old clients send them."""

    _headers_bytes = 0

    def _parse_headers(self, data: bytes | bytearray) -> Headers:
        self._headers_bytes += len(data)
        if len(data) > MAX_HEADER_BYTES:
            raise ValueError(f"the headers of a part have more than {MAX_HEADER_BYTES} bytes")
        if self._headers_bytes > MAX_HEADERS_BYTES:
            raise ValueError(f"the headers of its parts have more than {MAX_HEADERS_BYTES} bytes")
        if max(data.count(b"\n"), data.count(b"\r")) >= MAX_HEADERS:
            raise ValueError(f"a part has more than {MAX_HEADERS} header lines")
        if data.count(b";") > MAX_PARAMETERS:
            raise ValueError("a Content-Disposition header has too many parameters")
        return super()._parse_headers(data.decode("utf-8", "replace").encode())


def split_parts(body: bytes, content_type: str) -> list[Part]:
    """Split a complete body into its parts, in order. Raises CallerError, BodyTooLarge."""
    boundary = parse_options_header(content_type)[1].get("boundary", "").encode("latin-1", "replace")
    if not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES:
        raise CallerError(
            f"The multipart Content-Type has no boundary of 1 to {_MAX_BOUNDARY_BYTES} characters.",
            "Let the HTTP client set Content-Type itself, with the boundary that it uses.",
        )
    decoder = _Decoder(boundary, 2 * _STEP_BYTES, max_parts=MAX_PARTS)
    parts: list[Part] = []
    data = io.BytesIO()
    try:
        for event in _events(decoder, body):
            if isinstance(event, Field | File):
                if event.name is None:
                    raise ValueError("a part has no name")
                head, data = event, io.BytesIO()
            elif isinstance(event, Data):
                data.write(event.data)
                if not event.more_data:
                    parts.append(Part(head.name, getattr(head, "filename", None), data.getvalue()))
    except RequestEntityTooLarge as error:
        if len(parts) < MAX_PARTS:
            raise _malformed(_ENDS.get(decoder.state, str(error))) from error
        raise BodyTooLarge(f"The form has more than {MAX_PARTS} parts.", "Send several requests.") from error
    except ValueError as error:
        raise _malformed(str(error)) from error
    return parts


def _events(decoder: MultipartDecoder, body: bytes) -> Iterator[Event]:
    """The decoder's events. Raises ValueError, and RequestEntityTooLarge if the decoder would buffer too much."""
    end, marker = 0, b"--" + decoder.boundary
    while end < len(body):
        begin, end = end, min(end + _STEP_BYTES, len(body))
        if end < len(body):
            # End this piece of the body before a delimiter, because the decoder mistakes a cut delimiter for data.
            last = body.rfind(marker, end - _MAX_DELIMITER_BYTES, end + len(marker) - 1)
            end = end if last < 0 else last - len(b"\r\n")
        decoder.receive_data(body[begin:end])
        while not isinstance(event := decoder.next_event(), NeedData):
            yield event
        if decoder.state == State.EPILOGUE:
            return
    raise ValueError(_ENDS.get(decoder.state, "it ends before its closing boundary"))


def _malformed(what: str) -> CallerError:
    return CallerError(f"The multipart body is malformed: {what}.", "Send a form as in RFC 7578.")


def parse_json(body: bytes, share: Share | None = None) -> dict[str, object]:
    """Parse a JSON object. Raises as `parse_any_json`, and CallerError for any other value."""
    value = parse_any_json(body, share)
    if not isinstance(value, dict):
        raise CallerError("The JSON body is not an object.", 'Send an object such as {"image": "<base64>"}.')
    return value


def parse_any_json(body: bytes, share: Share | None = None) -> object:
    """Parse any JSON value in UTF-8, with or without a byte order mark, in linear time.

    Takes the largest possible memory of its strings from `share`. Raises CallerError for malformed JSON, BodyTooLarge
    for too many values, and as `Share.take`.
    """
    for character, name, limit in _BOUNDS:
        if _has_more(body, character, limit):
            raise BodyTooLarge(f"The JSON body has more than {limit} {name}.", "Send several requests.")
    # Python's strings take 1, 2 or 4 bytes per character, as their widest character needs. The search for a single
    # backslash comes first because it is much faster, and most bodies have none.
    is_narrow = body.isascii() and (b"\\" not in body or not _occurs(_ESCAPE, body))
    share = share or unlimited()
    share.take(len(body) * (1 if is_narrow else 4 if _occurs(_WIDEST, body) else 2))
    # Count a second copy of the body, which the parser makes.
    with share.holding(len(body)):
        try:
            return orjson.loads(body.removeprefix(BOM))
        except orjson.JSONDecodeError as error:
            # Drop the cause (`from None`), because orjson's error holds the whole body.
            raise CallerError(
                f"The body is not JSON: {error.msg} at character {error.pos}.",
                'Send an object such as {"image": "<base64>"}.',
            ) from None


def _occurs(pattern: re.Pattern[bytes], body: bytes) -> bool:
    """Whether a pattern of at most 4 bytes occurs; searched in steps, because other threads wait during each."""
    return any(pattern.search(body, at, at + _STEP_BYTES + 3) for at in range(0, len(body), _STEP_BYTES))


def _has_more(body: bytes, character: bytes, limit: int) -> bool:
    """Whether a byte occurs more than `limit` times; for rare bytes, `find` is ten times faster than `count`."""
    at = -1
    for _ in range(limit + 1):
        at = body.find(character, at + 1)
        if at < 0:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Content:
    """The content of one request: `raw` is the body if it is the image itself, `files` are parts with a file name.

    `fields` has query fields, then body fields; values are str, bytes or JSON. `share` holds the content's memory.
    """

    raw: bytes | None = None
    files: tuple[Part, ...] = ()
    fields: Fields = ()
    share: Share = field(default_factory=unlimited, compare=False)

    @property
    def members(self) -> dict[str, object]:
        """The last value of each field by name."""
        return dict(self.fields)

    def text(self, name: str) -> str | None:
        """The last value of a field as stripped text; None if the field is missing."""
        values = [value for key, value in self.fields if key == name]
        return as_text(values[-1]).strip() if values else None

    def flag(self, name: str) -> bool | None:
        """A field's last value as a boolean; None if it is missing or empty. Raises ValueError."""
        text = self.text(name)
        return parse_flag(text) if text else None

    def any_file(self) -> bytes | None:
        """The first non-empty file in any field of a form, or the body if it is an image; None without either."""
        raw = self.raw if self.raw is not None and is_image(self.raw) else None
        return next((part.data for part in self.files if part.data), raw)

    def first_image(self, file_fields: Collection[str], text_fields: Collection[str]) -> bytes:
        """The first of `images`. Raises as `images`, or the error in place of the first image."""
        image = self.images(file_fields, text_fields)[0]
        if isinstance(image, OcrsvcError):
            raise image
        return image

    def images(self, file_fields: Collection[str], text_fields: Collection[str]) -> list[bytes | OcrsvcError]:
        """The images in order, files before base64 texts; a text that cannot be decoded gives its error instead.

        A text field may also hold the image's bytes. Raises NothingSent, CallerError for a field that is not text,
        BodyTooLarge for more than MAX_IMAGES, and as `Share.take`.
        """
        images: list[bytes | OcrsvcError] = [] if self.raw is None else [self.raw]
        images += [part.data for part in self.files if part.name in file_fields and part.data]
        texts = [text for name, value in self.fields if name in text_fields for text in _texts(name, value)]
        if len(texts) > MAX_IMAGES:
            raise BodyTooLarge(f"The request holds more than {MAX_IMAGES} images.", "Send several requests.")
        for text in texts:
            try:
                data = text if isinstance(text, bytes) and is_image(text) else decode_base64(text, self.share)
                images.append(data)
            except (BadBase64, NothingSent) as error:
                images.append(error.without_frames())
        if images:
            return images
        if any(part.filename and part.name in file_fields for part in self.files):
            raise NothingSent("The file is empty.", "Send an image or a document.")
        if empty := next((name for name, value in self.fields if name in text_fields and value in ("", b"")), None):
            raise NothingSent(
                f"The field {empty!r} is empty.", "Send a file (with curl, file=@page.png) or base64 text."
            )
        names = {part.name for part in self.files} | {name for name, _ in self.fields}
        seen = ", ".join(repr(name[:40]) for name in sorted(names)[:10])
        raise NothingSent(
            f"The request has no image. Its fields: {seen}." if seen else "The file is empty, or none was sent.",
            f"Send a multipart file in the field {' or '.join(map(repr, file_fields))}, base64 text, "
            "or the image as body.",
        )

    def file_names(self, file_fields: Collection[str]) -> list[str]:
        """The file names of the images that were sent as files, in the order of `images`; "" for a raw body."""
        files = [part.filename or "" for part in self.files if part.name in file_fields and part.data]
        return [*([] if self.raw is None else [""]), *files]


def parse_body(body: bytes, content_type: str, query: Fields, share: Share, deadline: float) -> Content:
    """Parse a body, and take the memory of the result from `share`.

    The body's first bytes decide the format rather than Content-Type: many clients label images and JSON as forms.
    Raises CallerError, BodyTooLarge for too many parts, and as `limited_parsing` and `Share.take`.
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
    """Limit how many large bodies are parsed at once, because parsing holds the GIL; the block parses the body.

    Releases the body's bytes from `share` at the end. Raises DeadlineExceeded at the deadline (`time.monotonic`).
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


def is_image(data: bytes | memoryview) -> bool:
    """Whether the first bytes are those of an image or document format that the service reads."""
    return any(pattern.match(data) for pattern, _ in FORMATS) or is_pdf(data)


def _parse_form(body: bytes) -> Iterator[tuple[str, bytes]]:
    """The names and values in a urlencoded body. Raises BodyTooLarge for more than MAX_PARTS fields."""
    at = 0
    for _ in range(MAX_PARTS + 1):
        end = body.find(b"&", at)
        end = len(body) if end < 0 else end
        if end > at:
            name, _, value = body[at:end].partition(b"=")
            yield as_text(unquote_plus(name)), unquote_plus(value)
        if end == len(body):
            return
        at = end + 1
    raise BodyTooLarge(f"The form has more than {MAX_PARTS} fields.", "Send several requests.")


def _texts(name: str, value: object) -> list[str | bytes]:
    """The non-blank texts in a field's value, a text or a list of texts. Raises CallerError for other values."""
    values: Sequence[object] = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | bytes | None) for item in values):
        raise CallerError(f"The field {name!r} is not text.", "Send base64 text, or a list of base64 texts.")
    return [item for item in values if isinstance(item, str | bytes) and (len(item) >= 64 or item.strip())]
