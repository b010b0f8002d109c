"""What went wrong with a request to an object store: whether another try may help, and the OSError that says it."""

from __future__ import annotations

import errno
from typing import Any, Final

from ocrsvc.batch.objects.url import without_secrets

_TRANSIENT_STATUS: Final = frozenset({408, 425, 429})
_PRECONDITION_FAILED: Final = 412
_BEYOND_END: Final = 416
_SERVER_ERROR: Final = 500
_TRANSIENT_CODES: Final = frozenset(
    {
        "BadDigest",
        "ConditionalRequestConflict",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "XAmzContentSHA256Mismatch",
    }
)
"""Of S3's answers: those of faults on the way or of load, whatever their HTTP status is."""

_TRANSIENT_CLASSES: Final = frozenset(
    {
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectionError",
        "HTTPClientError",
        "IncompleteRead",
        "IncompleteReadError",
        "RemoteProtocolError",
        "RequestException",
        "ResponseParserError",
        "ResponseStreamingError",
        "ServiceRequestError",
        "ServiceResponseError",
        "TimeoutError",
        "TransportError",
    }
)
"""By name, of aiohttp, botocore, Azure, Google, requests and httpx, which need not all be installed."""

_TRANSIENT_ERRNO: Final = frozenset(
    {errno.EBUSY, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNABORTED}
    | {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EREMOTEIO}
)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: timeouts, lost connections, load, faults of the server."""
    said = _answer(error)
    if said.get("code") in _TRANSIENT_CODES:
        return True
    status = said.get("status")
    if isinstance(status, int):
        return status >= _SERVER_ERROR or status in _TRANSIENT_STATUS
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return any(base.__name__ in _TRANSIENT_CLASSES for base in type(error).__mro__)


def has_answer(error: BaseException) -> bool:
    """Whether a server answered, though not with what was asked for."""
    return bool(_answer(error)) or isinstance(error, (FileNotFoundError, FileExistsError, PermissionError))


def is_refused(error: BaseException) -> bool:
    """Whether the condition of a request did not hold: an object exists, or has another version."""
    return isinstance(error, FileExistsError) or _answer(error).get("status") == _PRECONDITION_FAILED


def is_beyond_end(error: BaseException) -> bool:
    """Whether a read began where the object has ended."""
    return _answer(error).get("status") == _BEYOND_END


def os_error_of(error: BaseException, what: str) -> OSError:
    """The OSError that says what went wrong, of the same kind where there is one.

    FileExistsError says that the condition of a request did not hold.

    Args:
        error: Of a library.
        what: The request, such as "GET s3://bucket/name".
    """
    text = without_secrets(f"{what}: {str(error) or type(error).__name__}")[:600]
    if is_refused(error):
        return FileExistsError(errno.EEXIST, text)
    for kind in (FileNotFoundError, FileExistsError, PermissionError, TimeoutError):
        if isinstance(error, kind):
            return kind(_ERRNO[kind], text)
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"):
        return PermissionError(errno.EACCES, text)
    if is_transient(error):
        return TimeoutError(errno.ETIMEDOUT, text)
    return OSError(getattr(error, "errno", None) or errno.EIO, text)


_ERRNO: Final[dict[type[OSError], int]] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}


def _answer(error: BaseException) -> dict[str, Any]:
    """Status and code of the answer that an error was made of, where there was one."""
    for found in (error, error.__cause__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            said = response.get("Error", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return {"status": status, "code": said.get("Code")}
        for name in ("status_code", "status", "code"):
            status = getattr(found, name, None)
            if isinstance(status, int):
                return {"status": status}
            if isinstance(status, str) and status.isdecimal():
                return {"status": int(status)}
    return {}
