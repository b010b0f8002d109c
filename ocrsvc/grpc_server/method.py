"""gRPC methods, their calls, and the conversion of errors to status codes."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from ocrsvc.access.api_keys import Scope
from ocrsvc.errors import OcrsvcError
from ocrsvc.results import MaskKind
from ocrsvc.serving.memory_budget import Share, unlimited
from ocrsvc.serving.work_queue import UNCOUNTED, PageAccount, Priority, RequestContext
from ocrsvc.telemetry.ledger import NO_LEDGER, Ledger
from ocrsvc.telemetry.loggable import loggable_error

LOGGER: Final = logging.getLogger("ocrsvc.rpc")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The data of a gRPC call, for its method; `deadline` is in monotonic seconds.

    `gone` is set when the client cancels or disconnects. `key` is the name of the API key in use, `client_name` that of
    the key for the client's verified TLS certificate. `address` is the client's, empty on a Unix socket.
    """

    deadline: float
    gone: threading.Event = field(default_factory=threading.Event)
    share: Share = field(default_factory=unlimited)
    pages: PageAccount = UNCOUNTED
    priority: Priority = "interactive"
    mask: tuple[MaskKind, ...] = ()
    ledger: Ledger = NO_LEDGER
    client_name: str | None = None
    address: str = ""
    is_forwarded: bool = False
    key: str = ""

    @property
    def context(self) -> RequestContext:
        """The request context of this call, for reading pages."""
        return RequestContext(self.priority, self.gone.is_set, self.share, self.pages, self.mask, self.ledger)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class Method:
    """A gRPC method: the message class of its requests, and a function that answers a request or raises.

    `answer` runs in a pool thread; `quick` methods, which need no engine, run on the loop's thread. A `streaming`
    method answers any number of requests in order. Metrics count calls under `adapter`; API keys need `scope`;
    `error_fields` gives additional trailers of a failed call.
    """

    request: Any
    answer: Callable[[Any, Call], Any]
    quick: bool = False
    streaming: bool = False
    adapter: str = "grpc"
    scope: Scope = "read"
    error_fields: Callable[[BaseException], Mapping[str, str]] = lambda _error: {}


Methods = Mapping[str, Method]
"""Methods by path, such as "/inference.GRPCInferenceService/ModelInfer"."""


class Code(IntEnum):
    """The gRPC status codes that the service uses."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_CODES: Final = {
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    413: Code.RESOURCE_EXHAUSTED,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    500: Code.INTERNAL,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


def code_of(error: OcrsvcError) -> Code:
    """The status code that corresponds to an error's HTTP status."""
    return _CODES.get(error.status, Code.INVALID_ARGUMENT)


class CallFailed(Exception):
    """Raised to end a call with this status and message."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


def failure_of(error: BaseException) -> CallFailed:
    """Convert an exception to a status; log it if it is the service's fault."""
    if isinstance(error, CallFailed):
        return error
    if isinstance(error, OcrsvcError):
        code = code_of(error)
        if code is Code.INTERNAL:
            LOGGER.error("failed %s: %s", error.code, error.detail, exc_info=loggable_error(error))
        return CallFailed(code, str(error.without_frames()))
    LOGGER.error("unexpected error", exc_info=loggable_error(error))
    return CallFailed(Code.INTERNAL, "Internal error; see the service's log.")
