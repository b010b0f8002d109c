"""Helpers of the native API and the adapters: read images, and make plain and streamed responses.

A streamed response keeps Flask's context until the last piece. No thread waits for a slow client: the request's memory
share counts unsent pieces, and the event loop sends them after the last piece was produced.
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
# Errors of uploads that are not a readable image.
NO_IMAGE: Final = (BadBase64, UnsupportedImage, BrokenImage)
_SHORT_FILE_BYTES: Final = 1 << 16
# Key in the WSGI environ; its value is true if the response is produced while it is sent.
STREAMS: Final = "ocrsvc.streams"
# Longest time to send a piece; a slow client gets the rest with the next piece.
_PUSH_S: Final = 0.1
# Largest fraction of the request memory for pieces of responses that clients have not received yet.
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
    """Read a file's first `most` pages, by default up to the limit in the settings. Raises as `Reader.read_files`."""
    if may_have_pages(data):
        return reader.read_files([data], options, limit_s, context, max_pages=most, partial=partial)[0]
    return FileRead("image", 1, ((1, reader.read(data, options, limit_s, context)),))


def read_images(
    reader: Reader, images: Sequence[bytes | OcrsvcError], options: ReadOptions
) -> list[Reading | OcrsvcError]:
    """Read the images of this thread's request; return a reading or an error for each. Raises as `Reader.read_many`."""
    files = [image for image in images if isinstance(image, bytes)]
    outcomes = iter(reader.read_many(files, options, request.left_s, request.context))
    return [next(outcomes) if isinstance(image, bytes) else image for image in images]


def as_json(answer: object, status: int = 200) -> Response:
    """A response with compact JSON."""
    return Response(orjson.dumps(answer), status, content_type=JSON_TYPE)


def drawn_page(image: Image, page: Page, held: Share, check: Check, prefix: bytes = b"") -> bytes:
    """Draw a frame around each line on the image; return a JSON string of `prefix` and the JPEG in base64.

    `held` counts the JSON text and its copy in the response; `check` is called before each line. Raises QueueFull and
    BodyTooLarge if memory runs out.
    """
    with held.holding(drawing_bytes(image.pixels, page)):
        jpeg = draw_page(image.pixels, page, check)
        # Two copies of the base64 text, which has four characters for three bytes.
        held.take(2 * 4 * -(-len(jpeg) // 3))
        return b"".join((b'"', prefix, pybase64.b64encode(jpeg), b'"'))


def file_response(path: Path, content_type: str) -> Response:
    """A response with the content of a file, which is read while it is sent if large. Raises FileNotFoundError."""
    size_bytes = path.stat().st_size
    if size_bytes <= _SHORT_FILE_BYTES:
        return Response(path.read_bytes(), content_type=content_type)
    response = Response(wrap_file(request.environ, path.open("rb")), content_type=content_type, direct_passthrough=True)
    response.content_length = size_bytes
    return response


def is_reported_in_a_200(error: Exception) -> bool:
    """Whether adapters with their own error codes report this error with HTTP status 200: only errors of the caller.

    401, 403, 408, 413, 429, 503 and 504 keep their status, because proxies, browsers and retries depend on it. 499
    ends the request, because its client is gone.
    """
    return isinstance(error, CallerError) and error.status not in {401, 403, 408, 413, 499}


def is_wrong_path(failure: OcrsvcError) -> bool:
    """Whether the error is an unknown path or method, which the router of the emulated product would report."""
    return failure.status in {404, 405} and not isinstance(failure, UnknownModel)


def rotate_option(asked: bool | None) -> Rotate:  # noqa: FBT001  a wire format's own flag, passed on
    """The option `rotate`: "auto" unless the wire format's flag is explicitly false."""
    return "0" if asked is False else "auto"


def clamp_side_px(side_px: float) -> int:
    """The nearest `max_side` that `ReadOptions` accepts."""
    return int(min(max(side_px, MIN_SIDE_PX), MAX_SIDE_PX))


def is_url(text: object) -> bool:
    """Whether a value is text that starts like an http or https URL; base64 text never does."""
    head = text[:8].lower() if isinstance(text, str | bytes) else ""
    if isinstance(head, bytes):
        head = head.decode("latin-1")
    return head.startswith(("http://", "https://"))


class SentPieces:
    """Sends the pieces of one response; the request's memory share counts unsent ones. For the request's thread."""

    def __init__(self, request: Request) -> None:
        self._share, self._received = request.share, request.received
        self._held_bytes = 0
        self.count_bytes = 0

    def send(self, piece: bytes) -> Iterator[bytes]:
        """Send a piece, and release the memory of sent bytes. Raises as `Share.take`, and ClientGone."""
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
    """The pieces, then the last piece; an error becomes the last piece, because the HTTP status was already sent."""
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
    """Record the error code that ended the response early, and count its pages against the key's limits anyway."""
    request.stream_code = code
    if request.pages is not None:
        with suppress(OcrsvcError):
            request.pages.settle(succeeded=True)


def stream_response(pieces: Iterator[bytes], content_type: str, on_end: Callable[[], object]) -> Response:
    """A response whose pieces the request's thread produces while sending; `on_end` is called at the end."""
    request = current_request()
    request.is_streaming = request.environ[STREAMS] = True
    response = Response(pieces, content_type=content_type)
    # Stop werkzeug and nginx from collecting all pieces before they send any.
    response.implicit_sequence_conversion = False
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(on_end)
    response.call_on_close(_keep_context())
    return response


def _keep_context() -> Callable[[], object]:
    """Keep Flask's context; call the returned function for its teardown, which counts the request."""
    # Flask's own `stream_with_context` would run the teardown twice, before the first piece and after the last.
    context = cast(ctx.RequestContext, request_ctx._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001
    request = context.request
    # Restore these after `push`, which matches the path again and so loses which adapter was chosen for the request.
    kept = request.url_rule, request.view_args, request.routing_exception
    context.push()
    request.url_rule, request.view_args, request.routing_exception = kept
    return context.pop
