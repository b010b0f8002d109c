"""The gRPC status codes, and the one for each failure."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Final

from ocrsvc.errors import OcrsvcError
from ocrsvc.telemetry.loggable import loggable_error

LOGGER: Final = logging.getLogger("ocrsvc.rpc")


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
    """A call that ends with this status instead of an answer.

    Args:
        code: gRPC status.
        message: For people.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def failure_of(error: BaseException) -> CallFailed:
    """Any exception as a status; what is our fault is logged."""
    if isinstance(error, CallFailed):
        return error
    if isinstance(error, OcrsvcError):
        code = _OF_STATUS.get(error.status, Code.INVALID_ARGUMENT)
        if code is Code.INTERNAL:
            LOGGER.error("failed %s: %s", error.code, error.detail, exc_info=loggable_error(error))
        return CallFailed(code, str(error.without_frames()))
    LOGGER.error("unexpected error", exc_info=loggable_error(error))
    return CallFailed(Code.INTERNAL, "Something went wrong here; it is in the service's log.")
