"""The parts of a gRPC service: methods, the calls that they answer, and the statuses of failed calls."""

from __future__ import annotations

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
    """A call as its method sees it; `deadline` is in monotonic seconds.

    `gone` is set once the client has cancelled it or disconnected. `client_name` is the key of its verified TLS
    certificate, `key` the one that admitted it; `address` is the peer's, empty on a Unix socket.
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
        """The call as the reader sees it."""
        return RequestContext(self.priority, self.gone.is_set, self.share, self.pages, self.mask, self.ledger)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 if it has passed."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service: the class of its requests, and a function that answers one or raises.

    It answers in a pool thread, or in the loop if it is `quick`: without the engine and at once. A `streaming` method
    answers any number of requests in their order. Calls count under `adapter`, and their API keys must allow `scope`;
    `error_fields` are trailers beside the status of a failed call.
    """

    request: Any
    answer: Callable[[Any, Call], Any]
    quick: bool = False
    streaming: bool = False
    adapter: str = "grpc"
    scope: Scope = "read"
    error_fields: Callable[[BaseException], Mapping[str, str]] = lambda _error: {}


Methods = Mapping[str, Method]
"""By path, such as "/inference.GRPCInferenceService/ModelInfer"."""


class Code(IntEnum):
    """gRPC's status codes, as far as they are used here."""

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


_OF_STATUS: Final = {
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


class CallFailed(Exception):
    """A call that ends with this status, and a message for people, instead of an answer."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


def failure_of(error: BaseException) -> CallFailed:
    """Any exception as a status; faults of the service are logged."""
    if isinstance(error, CallFailed):
        return error
    if isinstance(error, OcrsvcError):
        code = _OF_STATUS.get(error.status, Code.INVALID_ARGUMENT)
        if code is Code.INTERNAL:
            LOGGER.error("failed %s: %s", error.code, error.detail, exc_info=loggable_error(error))
        return CallFailed(code, str(error.without_frames()))
    LOGGER.error("unexpected error", exc_info=loggable_error(error))
    return CallFailed(Code.INTERNAL, "Something went wrong here; it is in the service's log.")
