"""Helpers of the native API and the adapters for reading images, and for making responses, streamed ones too.

A streamed response keeps Flask's context until the last piece. No thread waits for a slow client: unsent pieces stay in
the request's memory account, and the event loop sends them after the last one was produced.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import orjson
import pybase64
from flask import Response, ctx
from flask.globals import request_ctx
from werkzeug.wsgi import wrap_file

from ocrsvc.errors import BadBase64, BrokenImage, CallerError, ClientGone, OcrsvcError, UnknownModel, UnsupportedImage
from ocrsvc.formats.drawing import draw_page, drawing_bytes
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import Request, current_request, request
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import MAX_SIDE_PX, MIN_SIDE_PX, Check, Image, Page, Reading, ReadOptions, Rotate
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import RequestContext

JSON_TYPE: Final = "application/json"
# Errors of uploads that are no readable image.
NO_IMAGE: Final = (BadBase64, UnsupportedImage, BrokenImage)
_SHORT_FILE_BYTES: Final = 1 << 16
# Key in the WSGI environ: true if the response is produced while it is sent.
STREAMS: Final = "ocrsvc.streams"
# Time to send a piece; for a slow client the rest is sent with the next piece.
_PUSH_S: Final = 0.1
# Share of the request memory that pieces for slow clients may fill.
_WAITING_SHARE: Final = 0.5


def read_pages(
    reader: Reader,
    data: bytes,
    options: ReadOptions,
    limit_s: float,
    context: RequestContext,
    most: int | None = None,
    *,
    partial: bool = False,
) -> FileRead:
    """Read a file's first `most` pages, by default as many as the settings allow. Raises as `Reader.read_files`."""
    if may_have_pages(data):
        return reader.read_files([data], options, limit_s, context, max_pages=most, partial=partial)[0]
    return FileRead("image", 1, ((1, reader.read(data, options, limit_s, context)),))


def read_images(
    reader: Reader, images: Sequence[bytes | OcrsvcError], options: ReadOptions
) -> list[Reading | OcrsvcError]:
    """Read images of this thread's request; each gives a reading or its error. Raises as `Reader.read_many`."""
    files = [image for image in images if isinstance(image, bytes)]
    outcomes = iter(reader.read_many(files, options, request.left_s, request.context))
    return [next(outcomes) if isinstance(image, bytes) else image for image in images]


def as_json(answer: object, status: int = 200) -> Response:
    """A response of compact JSON."""
    return Response(orjson.dumps(answer), status, content_type=JSON_TYPE)


def drawn_page(image: Image, page: Page, held: Share, check: Check, prefix: bytes = b"") -> bytes:
    """Draw a frame around each line on the image; returns a JSON string of `prefix` and the JPEG in base64.

    `held` counts the text and its copy until the response is made; `check` is called before each line. Raises
    QueueFull and BodyTooLarge without memory.
    """
    with held.holding(drawing_bytes(image.pixels, page)):
        jpeg = draw_page(image.pixels, page, check)
        # Base64 has four characters for three bytes.
        held.take(2 * 4 * -(-len(jpeg) // 3))
        return b"".join((b'"', prefix, pybase64.b64encode(jpeg), b'"'))


def file_response(path: Path, content_type: str) -> Response:
    """A response with a file's content; a large file is read while it is sent. Raises FileNotFoundError."""
    size_bytes = path.stat().st_size
    if size_bytes <= _SHORT_FILE_BYTES:
        return Response(path.read_bytes(), content_type=content_type)
    response = Response(wrap_file(request.environ, path.open("rb")), content_type=content_type, direct_passthrough=True)
    response.content_length = size_bytes
    return response


def is_reported_in_a_200(error: Exception) -> bool:
    """Whether wire formats with their own error codes report this error in an HTTP 200: callers' mistakes only.

    401, 403, 408, 413, 429, 503 and 504 keep their status, because proxies, browsers and retries depend on it.
    """
    return isinstance(error, CallerError) and error.status not in {401, 403, 408, 413}


def is_wrong_path(failure: OcrsvcError) -> bool:
    """Whether the original product's router would refuse the request: unknown path or method."""
    return failure.status in {404, 405} and not isinstance(failure, UnknownModel)


def rotate_option(asked: bool | None) -> Rotate:  # noqa: FBT001  a wire format's own flag, passed on
    """The option `rotate`: automatic unless the wire format's flag is explicitly false."""
    return "0" if asked is False else "auto"


def clamp_side_px(side_px: float) -> int:
    """The nearest `max_side` that `ReadOptions` accepts."""
    return int(min(max(side_px, MIN_SIDE_PX), MAX_SIDE_PX))


def is_url(text: object) -> bool:
    """Whether a text is an http or https URL, not base64."""
    head = text[:8].lower() if isinstance(text, str | bytes) else ""
    if isinstance(head, bytes):
        head = head.decode("latin-1")
    return head.startswith(("http://", "https://"))


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
    context = cast(ctx.RequestContext, request_ctx._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001
    request = context.request
    # `push` matches the path again, which would undo the router's choice of an adapter.
    kept = request.url_rule, request.view_args, request.routing_exception
    context.push()
    request.url_rule, request.view_args, request.routing_exception = kept
    return context.pop
