"""What did the client send: which images, which fields, by when does it want the answer, and under which id?

Knows no endpoint: each door says which fields it reads.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from binascii import a2b_qp
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import parse_qsl

import numpy as np
import orjson

from ocrsvc.errors import BadOption, BodyTooLarge, CallerError, NothingSent, OcrsvcError
from ocrsvc.imaging.base64text import decode_base64
from ocrsvc.imaging.decode import FORMATS
from ocrsvc.imaging.document import is_pdf
from ocrsvc.serving.guard import take_body
from ocrsvc.serving.queue import PRIORITIES, Priority, Wish
from ocrsvc.web.body import is_gone, read_body, received, share_of
from ocrsvc.web.multipart import MAX_PARTS, Part, split_parts

Environ = dict[str, Any]

TIMEOUT_HEADER: Final = "X-Request-Timeout"
ID_HEADER: Final = "X-Request-Id"
PRIORITY_HEADER: Final = "X-Priority"

_ID_KEY: Final = "ocrsvc.request_id"
_DEADLINE_KEY: Final = "ocrsvc.deadline"
_SEEN_KEY: Final = "ocrsvc.seen"
_SANE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_DECIMAL: Final = re.compile(r"(?:[0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
_FORM: Final = re.compile(rb"[\w.\-\[\]%+]{1,64}=")
# Escapes that base64 does not need: whoever repairs base64 later looks at each of them by itself.
_DEAR_ESCAPE: Final = re.compile(rb"%(?!2[BbFf]|3[Dd]|0[AaDd])")
# To JSON 640.0 is as whole as 640; beyond this a float is no exact number of anything.
_EXACT: Final = 2**53
MAX_ESCAPES: Final = 100_000
_STRAY_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_OWN_TO_QUOTED_PRINTABLE: Final = (b"=", b"\r", b"\n")
_PERCENT_TO_EQUALS: Final = np.uint8(ord("%") ^ ord("="))
# The values of a JSON body, between which they stand, cost as much; it needs a few for each image and option.
MAX_JSON_COMMAS: Final = 10_000
_BOM: Final = b"\xef\xbb\xbf"
_LITTLE: Final = 4096
_STAND_IN: Final = b"the long text"
_STAND_IN_TEXT: Final = _STAND_IN.decode()


@dataclass(frozen=True, slots=True)
class Incoming:
    """What one request carries.

    Attributes:
        raw: The body, when it is the image itself.
        files: Parts of a form that have a file name.
        fields: Names and values from the query string, then from the body: str, bytes, or what JSON knows.
    """

    raw: bytes | None = None
    files: tuple[Part, ...] = ()
    fields: tuple[tuple[str, object], ...] = ()


def receive(environ: Environ, max_body_bytes: int, deadline: float) -> Incoming:
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
    seen = environ.pop(_SEEN_KEY, None)
    if isinstance(seen, OcrsvcError):
        raise seen
    return seen if isinstance(seen, Incoming) else _take_apart(environ, max_body_bytes, deadline)


def glance(environ: Environ, max_body_bytes: int, limit_s: float) -> Incoming | None:
    """What `receive` will give or raise, for whoever has to choose a door first; None where it will raise.

    Args:
        environ: Of the request.
        max_body_bytes: The largest body.
        limit_s: Seconds that the whole request may take.
    """
    try:
        seen = environ[_SEEN_KEY] = _take_apart(environ, max_body_bytes, deadline_of(environ, limit_s))
    except OcrsvcError as error:
        environ[_SEEN_KEY] = error
        return None
    return seen


def _take_apart(environ: Environ, max_body_bytes: int, _deadline: float) -> Incoming:
    body = read_body(environ, max_body_bytes)
    take_body(body, request_id(environ))
    query = tuple(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    content_type = environ.get("CONTENT_TYPE", "")
    mimetype = content_type.partition(";")[0].strip().lower()
    if not body:
        return Incoming(fields=query)
    if mimetype.startswith("multipart/"):
        parts = split_parts(body, content_type)
        texts = tuple((part.name, part.data) for part in parts if part.filename is None)
        return Incoming(files=tuple(part for part in parts if part.filename is not None), fields=query + texts)
    if mimetype.startswith("image/") or mimetype == "application/octet-stream" or is_image(body):
        return Incoming(raw=body, fields=query)
    if mimetype.endswith("json") or body[:64].lstrip(_BOM + b" \t\r\n").startswith(b"{"):
        return Incoming(fields=query + tuple(parse_json(body).items()))
    if mimetype == "application/x-www-form-urlencoded" and _FORM.match(body):
        return Incoming(fields=query + tuple(_parse_form(body)))
    return Incoming(raw=body, fields=query)


def first_image(incoming: Incoming, file_fields: Collection[str], text_fields: Collection[str]) -> bytes:
    """The one image that counts where only one is read; see `images_or_errors`. Raises its error."""
    image = images_or_errors(incoming, file_fields, text_fields)[0]
    if isinstance(image, OcrsvcError):
        raise image
    return image


def images_or_errors(
    incoming: Incoming, file_fields: Collection[str], text_fields: Collection[str]
) -> list[bytes | OcrsvcError]:
    """The images of a request in order, files before text; in place of base64 that cannot be decoded, its error.

    Args:
        incoming: The request.
        file_fields: Names under which files are read.
        text_fields: Names under which base64 text is read; bytes that are an image are taken as they are.

    Raises:
        NothingSent: There is no image.
        CallerError: A field holds something other than text.
    """
    files: list[bytes | OcrsvcError] = [part.data for part in incoming.files if part.name in file_fields and part.data]
    texts = [text for name, value in incoming.fields if name in text_fields for text in _texts(name, value)]
    images = files + [_image_of(text) for text in texts]
    if incoming.raw is not None:
        images.insert(0, incoming.raw)
    if not images:
        raise _nothing_sent(incoming, file_fields)
    if len(images) > MAX_PARTS:
        raise BodyTooLarge(f"The request holds more than {MAX_PARTS} images.", "Send several requests.")
    return images


def is_image(data: bytes) -> bool:
    """Do the first bytes belong to a format that is read, of an image or a document?"""
    return any(pattern.match(data) for pattern, _ in FORMATS) or is_pdf(data)


def last_field(incoming: Incoming, name: str) -> str | None:
    """The last value sent under a name, as stripped text; None if there is none."""
    values = [value for key, value in incoming.fields if key == name]
    return as_text(values[-1]).strip() if values else None


def as_text(value: object) -> str:
    """A field's value as text; what JSON knows, as JSON writes it, but whole numbers always without a point."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return value if isinstance(value, str) else orjson.dumps(value).decode()


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


def wish_of(environ: Environ, priority: Priority | None = None) -> Wish:
    """How the reader is to treat this request: the given priority or the header's, until the client hangs up.

    Raises:
        BadOption: The header's priority is none.
    """
    return Wish(priority or priority_of(environ), partial(is_gone, environ), share_of(environ))


def parse_decimal(text: str) -> float:
    """A number such as 5, 0.25, .5 or, as generated clients write small ones, 1.0E-5.

    Raises:
        ValueError: It is none, or too large; also for Python's other ways of writing one: 1_0, inf.
    """
    if not _DECIMAL.fullmatch(text) or math.isinf(value := float(text)):
        raise ValueError(text)
    return value


def parse_json(body: bytes) -> dict[str, object]:
    """The JSON object in a body. Raises CallerError, and BodyTooLarge for one that would take long to take apart."""
    found = _little_but_one_text(body)
    if found is not None:
        return found
    if _count(body, b",") > MAX_JSON_COMMAS:
        raise BodyTooLarge(f"The JSON body has more than {MAX_JSON_COMMAS} commas.", "Send several requests.")
    try:
        value = orjson.loads(body.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        raise CallerError(f"The body is not JSON: {error}.", 'Send an object such as {"image": "<base64>"}.') from error
    if not isinstance(value, dict):
        raise CallerError("The JSON body is not an object.", 'Send an object such as {"image": "<base64>"}.')
    return value


def _little_but_one_text(body: bytes) -> dict[str, object] | None:
    """The JSON object in a body that is nearly all one text, as an image in base64 is; None for what is not, or wrong.

    That text is not parsed, only searched for what would have to be undone, in a third of the time.
    """
    begin, end = body.rfind(b'"', 0, len(body) // 2), body.find(b'"', len(body) // 2)
    rest = body[: begin + 1] + _STAND_IN + body[end:]
    if not (0 <= begin < end and len(rest) < _LITTLE < end - begin) or b"\\" in body:
        return None
    signs = memoryview(body)[begin + 1 : end]
    if rest.count(_STAND_IN) > 1 or np.frombuffer(signs, np.uint8).min() < ord(" "):
        return None
    try:
        # Where the text is none, but stands between two, this is no JSON.
        value, text = orjson.loads(rest), str(signs, "ascii")
    except ValueError:
        return None
    return value if isinstance(value, dict) and _put_in(value, text) else None


def _put_in(value: dict[str, object], text: str) -> bool:
    """Whether the stand-in was somewhere among the values, where the text is now."""
    places: list[Any] = [value]
    for place in places:
        for key, item in place.items() if isinstance(place, dict) else enumerate(place):
            if item == _STAND_IN_TEXT:
                place[key] = text
                return True
            if isinstance(item, dict | list):
                places.append(item)
    return False


def _parse_form(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and values of an urlencoded body. Raises CallerError for what would take long to take apart."""
    if _count(body, b"%") > MAX_ESCAPES and _has_more_dear_escapes(body):
        raise CallerError(
            f"The form has more than {MAX_ESCAPES} escapes that base64 does not need.",
            "Send the image as a multipart file, as base64, or as the body itself.",
        )
    if b"&" in body and _count(body, b"&") > MAX_PARTS:
        raise BodyTooLarge(f"The form has more than {MAX_PARTS} fields.", "Send several requests.")
    for pair in _split(body, b"&"):
        name, _, value = pair.partition(b"=")
        yield as_text(_unquote(name)), _unquote(value)


def _split(body: bytes, sign: bytes) -> Iterator[bytes]:
    """The pieces between the signs that are not empty; of long pieces in a tenth of the time of `bytes.split`."""
    begin = 0
    while begin < len(body):
        end = body.find(sign, begin)
        end = len(body) if end < 0 else end
        if end > begin:
            yield body[begin:end]
        begin = end + 1


def _has_more_dear_escapes(body: bytes) -> bool:
    return next(islice(_DEAR_ESCAPE.finditer(body), MAX_ESCAPES, None), None) is not None


def _count(body: bytes, sign: bytes) -> int:
    """How often the sign occurs, in a fifth of the time of `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord(sign)))


def _unquote(text: bytes) -> bytes:
    """The bytes behind urlencoded text; an escape that is none stays as it is."""
    text = text.replace(b"+", b" ")
    return _without_escapes(text) if b"%" in text else text


def _without_escapes(text: bytes) -> bytes:
    """As urllib's `unquote_to_bytes`, but all escapes in one loop in C: base64 of a photo has thousands of them.

    Quoted-printable escapes a byte in the same way behind another sign, which binascii undoes.
    """
    for own in _OWN_TO_QUOTED_PRINTABLE:
        text = text.replace(own, b"%%%02X" % ord(own))
    plain, escapes = _undo_quoted_printable(text)
    if len(plain) == len(text) - 2 * escapes:
        return plain
    return _undo_quoted_printable(_STRAY_PERCENT.sub(b"%25", text))[0]


def _undo_quoted_printable(text: bytes) -> tuple[bytes, int]:
    """What it says when % stands for =, and how many there are."""
    signs = np.frombuffer(text, np.uint8)
    percents = signs == ord("%")
    return a2b_qp(signs ^ percents * _PERCENT_TO_EQUALS), int(np.count_nonzero(percents))


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


def _image_of(text: str | bytes) -> bytes | OcrsvcError:
    if isinstance(text, bytes) and is_image(text):
        return text
    try:
        return decode_base64(text)
    except OcrsvcError as error:
        return error


def _nothing_sent(incoming: Incoming, file_fields: Collection[str]) -> NothingSent:
    names = {part.name for part in incoming.files} | {name for name, _ in incoming.fields}
    seen = ", ".join(repr(name[:40]) for name in sorted(names)[:10]) or "none"
    return NothingSent(
        f"The request carries no image; fields that it has: {seen}.",
        f"Send a multipart file in the field {' or '.join(map(repr, file_fields))}, base64 text, or the image as body.",
    )
