"""Routes, compressed bodies and {"error": …} responses of the REST model protocols."""

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import orjson
from flask import Blueprint, Response
from werkzeug.exceptions import MethodNotAllowed, NotFound

from ocrsvc.adapters.context import make_blueprint
from ocrsvc.adapters.model_protocols.tensors import NotOffered
from ocrsvc.errors import BodyTooLarge, CallerError, NotReady, OcrsvcError
from ocrsvc.http.parsed_body import limited_parsing
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, is_wrong_path
from ocrsvc.serving.decompression import Damaged, TooLarge, decompress

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")

T = TypeVar("T")
View = Callable[..., Response]
Route = tuple[str, str, View]
"""Method, pattern of the whole path, and view; named groups are the view's arguments."""

_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
# A shorter response fits into one packet uncompressed.
_MIN_COMPRESSED_BYTES: Final = 1400


def serve_paths(name: str, roots: Sequence[str], routes: Sequence[Route], flags: int = 0) -> Blueprint:
    """Make an adapter's blueprint from path patterns; other paths below the roots get an error in its JSON format.

    Flask's rules support neither `:verb` suffixes with their own errors nor a 404 in an adapter's format.
    """
    table = [(method, re.compile(pattern, flags), view) for method, pattern, view in routes]

    def view(**_: str) -> Response:
        path = request.path
        matches = [(method, view, match) for method, pattern, view in table if (match := pattern.fullmatch(path))]
        for method, chosen, match in matches:
            if method == ("GET" if request.method == "HEAD" else request.method):
                return chosen(**match.groupdict())
        if matches:
            raise MethodNotAllowed([method for method, _, _ in matches])
        raise NotFound

    blueprint = make_blueprint(name, _failure)
    for root in roots:
        blueprint.add_url_rule(root, root, view, methods=METHODS)
    return blueprint


def _failure(failure: OcrsvcError) -> Response:
    return as_json({"error": failure.title if is_wrong_path(failure) else str(failure)}, failure.status)


def json_answer(answer: object, status: int = 200) -> Response:
    """A JSON response, compressed if the client accepts it; members may be numpy arrays."""
    body = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return compressed(Response(body, status, content_type=JSON_TYPE))


def compressed(response: Response) -> Response:
    """Compress a response if the client accepts it and it is long enough."""
    body, accepted = response.get_data(), request.accept_encodings
    encoding = next((name for name in ("gzip", "deflate") if accepted[name] > 0), None) if accepted else None
    if encoding and len(body) >= _MIN_COMPRESSED_BYTES:
        compressor = zlib.compressobj(1, wbits=31 if encoding == "gzip" else 15)
        response.set_data(compressor.compress(body) + compressor.flush())
        response.headers.update({"Content-Encoding": encoding, "Vary": "Accept-Encoding"})
    return response


def parse_received(parse: Callable[[bytes], T]) -> T:
    """Parse the decompressed body, then free it. Raises OcrsvcError."""
    body = _decompressed(request.take_body())
    with limited_parsing(request.share, len(body), request.deadline):
        return parse(body)


def _decompressed(body: bytes) -> bytes:
    """Decompress the body; the request's share of the memory budget then holds its decompressed size only."""
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if not body or encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW_BITS:
        raise NotOffered(f"Unknown Content-Encoding {encoding[:40]!r}.", "Send gzip, deflate or an uncompressed body.")
    max_bytes = request.max_body_bytes
    try:
        decompressed = decompress(body, _WINDOW_BITS[encoding], max_bytes, request.share)
    except TooLarge as error:
        raise BodyTooLarge(f"The decompressed body exceeds {max_bytes} bytes.", "Send a smaller image.") from error
    except Damaged as error:
        raise CallerError(f"The compressed body is damaged: {error}.", "Send it again.") from error
    request.share.give_back(len(body))
    return decompressed


def answer_ready(members: dict[str, Any], *, ready: bool) -> Response:
    """The response to a readiness probe: JSON with status 200 or 503."""
    return json_answer(members, 200 if ready else NotReady.status)
