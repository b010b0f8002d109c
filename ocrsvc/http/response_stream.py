"""Streamed responses: their memory, their end, and Flask's context, which is kept until the last piece.

No thread waits for a slow client: unsent pieces stay in the request's memory account, and the event loop sends them
after the last one was produced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, cast

from flask import Response
from flask.ctx import RequestContext
from flask.globals import request_ctx

from ocrsvc.errors import ClientGone, OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import Request, current_request

# Key in the WSGI environ: true if the response is produced while it is sent.
STREAMS: Final = "ocrsvc.streams"
# Time to send a piece; for a slow client the rest is sent with the next piece.
_PUSH_S: Final = 0.1
# Share of the request memory that pieces for slow clients may fill.
_WAITING_SHARE: Final = 0.5


class SentPieces:
    """Sends the pieces of one response, counted in the request's memory account. For the request's thread."""

    def __init__(self, request: Request) -> None:
        self._share, self._received = request.share, request.received
        self._held_bytes = 0
        self.count_bytes = 0

    def send(self, piece: bytes) -> Iterator[bytes]:
        """Send a piece, and release the memory of what has left. Raises as `Share.take`, ClientGone."""
        self._share.take(len(piece), _WAITING_SHARE)
        self._held_bytes += len(piece)
        yield piece
        self.count_bytes += len(piece)
        waiting_bytes = 0 if self._received is None else self._received.push(_PUSH_S)
        self._share.give_back(self._held_bytes - waiting_bytes)
        self._held_bytes = waiting_bytes


def ended_pieces(
    request: Request,
    pieces: Iterator[bytes],
    last_piece: Callable[[], bytes],
    error_piece: Callable[[OcrsvcError], bytes],
) -> Iterator[bytes]:
    """The pieces, then the last piece, or a piece with the error that ended them, as the status was already sent."""
    sent = SentPieces(request)
    try:
        for piece in pieces:
            yield from sent.send(piece)
        if request.pages is not None:
            request.pages.settle(succeeded=True)
        yield from sent.send(last_piece())
    except (ClientGone, GeneratorExit) as error:
        _end(request, ClientGone.code)
        if isinstance(error, GeneratorExit):
            raise
    except Exception as error:  # noqa: BLE001  the edge of the web, after the status was sent
        failure = failure_of(error)
        _end(request, failure.code)
        yield error_piece(failure)
    finally:
        request.streamed_bytes = sent.count_bytes


def _end(request: Request, code: str) -> None:
    """Record the code that ended the response, and count its pages even if it ended early."""
    request.stream_code = code
    if request.pages is not None:
        with suppress(OcrsvcError):
            request.pages.settle(succeeded=True)


def stream_response(pieces: Iterator[bytes], content_type: str, on_end: Callable[[], object]) -> Response:
    """A response whose pieces are produced while it is sent, in the request's thread; `on_end` is called at its end."""
    request = current_request()
    request.is_streaming = request.environ[STREAMS] = True
    response = Response(pieces, content_type=content_type)
    # Neither werkzeug, to compute the length, nor nginx may collect all pieces.
    response.implicit_sequence_conversion = False
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(on_end)
    response.call_on_close(_keep_context())
    return response


def _keep_context() -> Callable[[], object]:
    """Keep Flask's context, and put off its teardown, which counts the request, to the returned function's call."""
    # Flask's own stream_with_context runs the teardown twice, before the first piece and after the last.
    context = cast(RequestContext, request_ctx._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001
    request = context.request
    # `push` matches the path again, which would undo the router's choice of an adapter.
    kept = request.url_rule, request.view_args, request.routing_exception
    context.push()
    request.url_rule, request.view_args, request.routing_exception = kept
    return context.pop
