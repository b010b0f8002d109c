"""Answers that leave in pieces: their memory, how they end, and Flask's context, which lives until then.

No thread waits for a slow client: pieces that it has not taken stay in its request's memory account, and the event loop
sends them when all are made.
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

STREAMS: Final = "ocrsvc.streams"
"""In WSGI's environ: whether the answer is made while it is sent."""

# A client that reads gets all of a large piece at once; for one that does not, the rest waits until the next.
_PUSH_S: Final = 0.1
# Slow readers may fill this part of the memory for requests.
_WAITING_SHARE: Final = 0.5


class SentPieces:
    """The pieces of one answer, in its request's account of memory. For the thread of the request."""

    def __init__(self, request: Request) -> None:
        self._share, self._received = request.share, request.received
        self._held_bytes = 0
        self.count_bytes = 0

    def send(self, piece: bytes) -> Iterator[bytes]:
        """Send a piece, once there is memory for it, and release what the client has taken. Raises OcrsvcError."""
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
    """The pieces, one for each page, and a last one, or one with the error that ended them after the status has left.

    For the thread of the request. Its pages count for the caller's key also if the answer ends early.
    """
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
    except Exception as error:  # noqa: BLE001  the edge of the web, once the status has left
        failure = failure_of(error)
        _end(request, failure.code)
        yield error_piece(failure)
    finally:
        request.streamed_bytes = sent.count_bytes


def _end(request: Request, code: str) -> None:
    """Note what ended the answer; the pages that were read count."""
    request.stream_code = code
    if request.pages is not None:
        with suppress(OcrsvcError):
            request.pages.settle(succeeded=True)


def stream_response(pieces: Iterator[bytes], content_type: str, on_end: Callable[[], object]) -> Response:
    """An answer whose pieces are made when they are sent, in its request's thread, and closed when the client goes."""
    request = current_request()
    request.is_streaming = request.environ[STREAMS] = True
    response = Response(pieces, content_type=content_type)
    # Asking for its length would collect all pieces, and nginx would, too.
    response.implicit_sequence_conversion = False
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(on_end)
    response.call_on_close(_keep_context())
    return response


def _keep_context() -> Callable[[], object]:
    """Keep Flask's context until the returned function is called; its teardown, which counts the request, runs then.

    Flask's own stream_with_context runs it twice, before the first piece and after the last.
    """
    context = cast(RequestContext, request_ctx._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001
    request = context.request
    # Entering it matches the path again, by which alone the adapter may not have been chosen.
    kept = request.url_rule, request.view_args, request.routing_exception
    context.push()
    request.url_rule, request.view_args, request.routing_exception = kept
    return context.pop
