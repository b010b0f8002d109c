"""Answers that leave in pieces: their memory, how they end, and Flask's context, which lives until then.

Nobody waits for a client that reads slowly: what it has not taken is kept, in its request's account of memory, and the
event loop sends it when all pieces are made.
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
"""Of WSGI's environ: whether the answer is made while it is sent."""

# A client that reads gets all of a large piece at once; for one that does not, the rest waits until the next.
_PUSH_S: Final = 0.1
# Of the memory for requests, what slow readers leave waiting fills no more.
_WAITING_SHARE: Final = 0.5


class SentPieces:
    """The pieces of one answer, in its request's account of memory. For the thread of the request."""

    def __init__(self, asked: Request) -> None:
        self._share, self._received = asked.share, asked.received
        self._held_bytes = 0
        self.count_bytes = 0

    def send(self, piece: bytes) -> Iterator[bytes]:
        """The piece, once there is memory for it; what the client took of all of them is free again after it.

        Raises ClientGone, QueueFull and BodyTooLarge.
        """
        self._share.take(len(piece), _WAITING_SHARE)
        self._held_bytes += len(piece)
        yield piece
        self.count_bytes += len(piece)
        waiting_bytes = 0 if self._received is None else self._received.push(_PUSH_S)
        self._share.give_back(self._held_bytes - waiting_bytes)
        self._held_bytes = waiting_bytes


def ended_pieces(
    asked: Request,
    pieces: Iterator[bytes],
    last_piece: Callable[[], bytes],
    error_piece: Callable[[OcrsvcError], bytes],
) -> Iterator[bytes]:
    """The pieces, one for each page, and a last one or one that says what ended them once the status has left.

    For the thread of the request. The pages count for the caller's key, those of an answer that ends early too; the log
    and the metrics have how it ended.
    """
    sent = SentPieces(asked)
    try:
        for piece in pieces:
            yield from sent.send(piece)
        _settle(asked)
        yield from sent.send(last_piece())
    except (ClientGone, GeneratorExit) as error:
        # Nobody reads the rest; what was read counts.
        _end(asked, ClientGone.code)
        if isinstance(error, GeneratorExit):
            raise
    except Exception as error:  # noqa: BLE001  the edge of the web, once the status has left
        failure = failure_of(error)
        _end(asked, failure.code)
        yield error_piece(failure)
    finally:
        asked.streamed_bytes = sent.count_bytes


def _end(asked: Request, code: str) -> None:
    asked.stream_code = code
    with suppress(OcrsvcError):
        _settle(asked)


def _settle(asked: Request) -> None:
    """Count the pages for the caller's key. Raises KeysUnavailable."""
    if asked.pages is not None:
        asked.pages.settle(succeeded=True)


def stream_response(pieces: Iterator[bytes], content_type: str, on_end: Callable[[], object]) -> Response:
    """An answer whose pieces are made when they are sent, in its request's thread, and closed when the client goes."""
    asked = current_request()
    asked.is_streaming = asked.environ[STREAMS] = True
    response = Response(pieces, content_type=content_type)
    # Whoever asked for its length would collect all pieces.
    response.implicit_sequence_conversion = False
    # nginx would, too.
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(on_end)
    response.call_on_close(_keep_context())
    return response


def _keep_context() -> Callable[[], object]:
    """Keep Flask's context until what comes back is called: its ends, which count the request, run then.

    Flask's own stream_with_context runs them twice, before the first piece and after the last.
    """
    context = cast(RequestContext, request_ctx._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001
    asked = context.request
    # To enter it matches the path again, and who answers it may have been chosen by more.
    kept = asked.url_rule, asked.view_args, asked.routing_exception
    context.push()
    asked.url_rule, asked.view_args, asked.routing_exception = kept
    return context.pop
