"""REST protocols of models: paths with verbs, compressed bodies, and errors as {"error": …}."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from flask import Blueprint, Response
from werkzeug.exceptions import MethodNotAllowed, NotFound

from ocrsvc.adapters.model_protocols.tensors import NotOffered
from ocrsvc.errors import BodyTooLarge, CallerError, NotReady
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import limited_parsing
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.serving.decompression import Damaged, TooLarge, decompress

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")

T = TypeVar("T")
View = Callable[..., Response]
Route = tuple[str, str, View]
"""A method, a pattern for the whole path whose named groups are the view's arguments, and the view."""

_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
# A shorter answer fits into one packet as it is.
_LEAST_COMPRESSED_BYTES: Final = 1400


def serve_paths(blueprint: Blueprint, roots: Sequence[str], routes: Sequence[Route], flags: int = 0) -> None:
    """Serve patterns below some roots; other paths there are answered with an error in the shape of these protocols.

    Flask's rules know neither a colon and a verb whose wrong spelling is a 400, nor a 404 in an adapter's own shape.
    """
    table = [(method, re.compile(pattern, flags), view) for method, pattern, view in routes]

    def view(**_: str) -> Response:
        path = request.path
        found = [(method, view, match) for method, pattern, view in table if (match := pattern.fullmatch(path))]
        for method, chosen, match in found:
            if method == ("GET" if request.method == "HEAD" else request.method):
                return chosen(**match.groupdict())
        if found:
            raise MethodNotAllowed([method for method, _, _ in found])
        raise NotFound

    for root in roots:
        blueprint.add_url_rule(root, root, view, methods=METHODS)
    blueprint.register_error_handler(Exception, failure)


def failure(error: Exception) -> Response:
    """Any exception as {"error": …}, with its true status."""
    reported = failure_of(error)
    text = error.name if isinstance(error, NotFound | MethodNotAllowed) else str(reported)
    return as_json({"error": text}, reported.status)


def json_answer(answer: object, status: int = 200) -> Response:
    """JSON, compressed if the client accepts it."""
    return compressed(as_json(answer, status))


def compressed(response: Response) -> Response:
    """The answer, compressed if the client accepts it and it is long enough."""
    body, accepted = response.get_data(), request.accept_encodings
    encoding = next((name for name in ("gzip", "deflate") if accepted[name] > 0), None) if accepted else None
    if encoding and len(body) >= _LEAST_COMPRESSED_BYTES:
        compressor = zlib.compressobj(1, wbits=31 if encoding == "gzip" else 15)
        response.set_data(compressor.compress(body) + compressor.flush())
        response.headers.update({"Content-Encoding": encoding, "Vary": "Accept-Encoding"})
    return response


def parse_received(parse: Callable[[bytes], T]) -> T:
    """The result of `parse` for the whole decompressed body, which is freed. Raises OcrsvcError."""
    deadline, body = request.deadline, _decompressed(request.take_body())
    with limited_parsing(request.share, len(body), deadline):
        return parse(body)


def _decompressed(body: bytes) -> bytes:
    """The unpacked body, counted in place of the packed one."""
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if not body or encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW_BITS:
        raise NotOffered(f"The Content-Encoding {encoding[:40]!r} is not known.", "Send gzip, deflate, or neither.")
    most_bytes = request.max_body_bytes
    try:
        decompressed = decompress(body, _WINDOW_BITS[encoding], most_bytes, request.share)
    except TooLarge as error:
        raise BodyTooLarge(f"The body unpacks to more than {most_bytes} bytes.", "Send a smaller image.") from error
    except Damaged as error:
        raise CallerError(f"The compressed body is damaged: {error}.", "Send it again.") from error
    request.share.give_back(len(body))
    return decompressed


def answer_ready(members: dict[str, Any], *, ready: bool) -> Response:
    """The answer to probes: 200 or 503, and JSON that says so."""
    return json_answer(members, 200 if ready else NotReady.status)
