"""The request object that views use: body, deadline, priority, caller, and memory share."""

import time
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import parse_qsl

import flask
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.utils import get_content_length
from werkzeug.utils import cached_property
from werkzeug.wsgi import get_input_stream

from ocrsvc.access.admission import Admission
from ocrsvc.access.api_keys import KeyEntry
from ocrsvc.errors import BadOption, BodyTooLarge, CallerError, OcrsvcError, QueueFull
from ocrsvc.http.field_values import parse_decimal
from ocrsvc.http.options import CHOICE_OPTIONS, choice_of
from ocrsvc.http.parsed_body import Content, parse_body
from ocrsvc.http.received_body import ReceivedBody, too_large
from ocrsvc.masking.rules import kinds_of_header
from ocrsvc.results import Check, MaskKind, ModelChoice
from ocrsvc.serving.memory_budget import Budget, Share, network_of, unlimited
from ocrsvc.serving.request_guard import take_body
from ocrsvc.serving.work_queue import CLIENT_CHECK_S, PRIORITIES, UNCOUNTED, Priority, RequestContext, make_check
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.ledger import Ledger
from ocrsvc.telemetry.trace_context import TraceContext, request_id_of

Environ = dict[str, Any]

_STEP_BYTES: Final = 1 << 20
TIMEOUT_HEADER: Final = "X-Request-Timeout"
ELAPSED_HEADER: Final = "X-Request-Elapsed"
ID_HEADER: Final = "X-Request-Id"
TIMING_HEADER: Final = "Server-Timing"
PRIORITY_HEADER: Final = "X-Priority"
KEEP_HEADER: Final = "X-Keep-Result"


class Request(flask.Request):
    """Flask's request with additional data. Used by the thread that serves it; `context` may be used by any thread.

    Its head arrived at `began_s` and a thread took it at `taken_s` (`time.monotonic`). `received` is None under WSGI
    servers other than our event loop. `failures` are the errors in its response, for single images or for all of them;
    `stream_code` is the error that ended a streamed response.
    """

    def __init__(self, environ: Environ, settings: Settings, memory: Budget | None = None) -> None:
        super().__init__(environ)
        stream = environ.get("wsgi.input")
        self.received = stream if isinstance(stream, ReceivedBody) else None
        self.began_s = self.taken_s = time.monotonic()
        self.share = Share(memory) if memory else unlimited()
        if self.received is not None:
            self.share, self.began_s = self.received.share, self.received.began_s
        self.key: KeyEntry | None = None
        self.pages: Admission | None = None
        self.ledger = Ledger(self.began_s)
        self.trace: TraceContext | None = None
        self.wants_stages = False
        self.admitted_caller: str | None = None
        self.failures: list[OcrsvcError] = []
        self.response: flask.Response | None = None
        self.is_streaming = False
        self.stream_code = ""
        self.streamed_bytes = 0
        self.max_body_bytes = settings.max_body_bytes
        self._settings = settings
        self._content: Content | OcrsvcError | None = None

    # werkzeug's cached_property: before Python 3.12, that of functools takes one lock for all requests.
    @cached_property
    def id(self) -> str:
        """The client's X-Request-Id if it is at most 128 visible ASCII characters, else a new id."""
        return request_id_of(self.environ.get("HTTP_X_REQUEST_ID", ""))

    @cached_property
    def deadline(self) -> float:
        """The `time.monotonic` by which the response must be ready: arrival plus time limit. Raises BadOption."""
        timeout, elapsed = (self.environ.get(f"HTTP_X_REQUEST_{name}") for name in ("TIMEOUT", "ELAPSED"))
        return self.began_s + allowed_s(timeout, self._settings.deadline_s, elapsed)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 if it has passed. Raises BadOption."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def priority(self) -> Priority:
        """The priority in the header, interactive by default, at most that of the API key. Raises BadOption."""
        return self.allowed_priority(parse_priority(self.environ.get("HTTP_X_PRIORITY", "interactive")))

    def allowed_priority(self, priority: Priority) -> Priority:
        """The given priority, or the highest that the API key allows if that is lower."""
        return priority if self.key is None or self.key.priority == "interactive" else "batch"

    @property
    def mask(self) -> tuple[MaskKind, ...]:
        """The kinds of text to mask: header X-Mask and query field `mask`, for all wire formats. Raises BadOption."""
        header = self.environ.get("HTTP_X_MASK")
        in_query = self.args.getlist("mask") if self.environ.get("QUERY_STRING") else ()
        return tuple(kind for value in (*in_query, header) if value is not None for kind in kinds_of_header(value))

    @property
    def choice(self) -> ModelChoice | None:
        """The query's choice of model, tier and language; None without a model repository. Raises BadOption."""
        if self._settings.models is None or not self.environ.get("QUERY_STRING"):
            return None
        values = [(name, value) for name in CHOICE_OPTIONS for value in self.args.getlist(name)]
        return choice_of(values) if values else None

    @property
    def caller(self) -> str:
        """The name by which limits count the caller: API key, else the header set by caller_header, else IP network."""
        if self.key is not None:
            return self.key.caller
        header = self._settings.caller_header
        value: str = self.environ.get("HTTP_" + header.upper().replace("-", "_"), "") if header else ""
        return value.rpartition(",")[2].strip() or network_of(self.environ.get("REMOTE_ADDR", ""))

    @property
    def client_name(self) -> str | None:
        """The API key's name that the setting tls_names assigns to the client certificate."""
        return self.received.client_name if self.received is not None else None

    @property
    def context(self) -> RequestContext:
        """The request's context for the reader, from its headers and key. Raises BadOption."""
        pages = self.pages or UNCOUNTED
        keeps = KEEP_HEADER in self.headers
        return RequestContext(
            self.priority, self.is_gone, self.share, pages, self.mask, self.ledger, self.choice, keeps_result=keeps
        )

    def make_check(self) -> Check:
        """A function that long work calls; it raises DeadlineExceeded, or ClientGone if the client has disconnected."""
        return make_check(self.context, self.deadline, time.monotonic)

    def is_gone(self) -> bool:
        """Whether the client has closed its connection; False if unknown. Never blocks; for any thread.

        Always False in the first quarter of a second, because clients may close their sending side after the request.
        """
        is_new = time.monotonic() - self.taken_s < CLIENT_CHECK_S
        return not is_new and self.received is not None and self.received.is_gone()

    @property
    def content(self) -> Content:
        """The body, parsed at the first use. Raises as `take_body` and `parse_body`."""
        if self._content is None:
            try:
                deadline, body, query = self.deadline, self.take_body(), self.environ.get("QUERY_STRING", "")
                fields = tuple(parse_qsl(query, keep_blank_values=True))
                content_type = self.environ.get("CONTENT_TYPE", "")
                self._content = parse_body(body, content_type, fields, self.share, deadline)
            except OcrsvcError as error:
                self._content = error
        if isinstance(self._content, OcrsvcError):
            raise self._content
        return self._content

    def take_body(self) -> bytes:
        """The complete body, for views that do not use `content`; can be taken only once.

        Raises BodyTooLarge, BodyTimeout (late or slow body), QueueFull (no memory left), RequestStopsWorker (the same
        body has stopped a worker), CallerError (incomplete body), and BadOption (malformed X-Request-Timeout).
        """
        # Refuse a malformed X-Request-Timeout even if the view has nothing to wait for.
        _ = self.deadline
        received = self.received
        body = read_body(self.environ, self.max_body_bytes, self.share) if received is None else received.take()
        take_body(body, self.id)
        return body

    def end(self) -> None:
        """Free the body, also in the tracebacks of errors. Our event loop releases the share of the memory itself."""
        for failure in self.failures:
            failure.without_frames()
        self._content, self.failures = None, []
        if self.received is None:
            self.share.release()


request: Final = cast(Request, flask.request)
"""This thread's request, through Flask's proxy."""


def current_request() -> Request:
    """This thread's request, not Flask's proxy to it, which costs a lookup per attribute."""
    return cast(Request, cast(Any, flask.request)._get_current_object())  # noqa: SLF001  documented by werkzeug


def read_body(environ: Environ, max_bytes: int, share: Share) -> bytes:
    """Read the body from `wsgi.input`, under WSGI servers other than ours. Raises as `take_body`."""
    pieces: list[bytes] = []
    length = get_content_length(environ.get("CONTENT_LENGTH"), environ.get("HTTP_TRANSFER_ENCODING"))
    try:
        stream = get_input_stream(environ, max_content_length=max_bytes + 1)
        while piece := stream.read(_STEP_BYTES):
            share.take(len(piece))
            pieces.append(piece)
    except (QueueFull, BodyTooLarge):
        raise
    except RequestEntityTooLarge:
        raise too_large(length, max_bytes) from None
    except Exception as error:
        # WSGI servers raise various errors for malformed chunks and closed connections: the client's fault.
        raise CallerError("The body cannot be read completely.", "Send the request again.") from error
    body = b"".join(pieces)
    if len(body) > max_bytes:
        raise too_large(length, max_bytes)
    return body


def allowed_s(timeout: str | None, limit_s: float, elapsed: str | None = None) -> float:
    """Time limit in seconds: X-Request-Timeout minus X-Request-Elapsed, at most `limit_s`. Raises BadOption."""
    if timeout is None:
        return limit_s
    timeout_s = _parse_seconds(TIMEOUT_HEADER, timeout, "seconds above 0, such as 2.5", above=0.0)
    elapsed_s = _parse_seconds(ELAPSED_HEADER, "0" if elapsed is None else elapsed, "seconds, such as 0.25")
    return min(max(0.0, timeout_s - elapsed_s), limit_s)


def _parse_seconds(header: str, text: str, accepted: str, above: float = -1.0) -> float:
    with suppress(ValueError):
        if (value := parse_decimal(text)) > above:
            return value
    raise BadOption(f"{header} is {text[:100]!r}: accepted is a plain decimal number of {accepted}.")


def parse_priority(text: str) -> Priority:
    """Parse the name of a priority. Raises BadOption."""
    name = text.strip().lower()
    if name not in PRIORITIES:
        raise BadOption(f"{PRIORITY_HEADER} is {text[:40]!r}: accepted is {' or '.join(PRIORITIES)}.")
    return name
