"""TurboOCR's errors: its codes, and its statuses where ours are finer."""

from __future__ import annotations

from typing import Final

from flask import Response

from ocrsvc import errors
from ocrsvc.adapters.format_values import Coded, code_in
from ocrsvc.errors import OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.responses import as_json

CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.NothingSent, "MISSING_IMAGE"),
    (errors.BadBase64, "BASE64_DECODE_FAILED"),
    (errors.UnsupportedImage, "IMAGE_DECODE_FAILED"),
    (errors.BrokenImage, "IMAGE_DECODE_FAILED"),
    (errors.ImageTooLarge, "DIMENSIONS_TOO_LARGE"),
    (errors.TooManyPages, "PDF_TOO_LARGE"),
    (errors.BadOption, "INVALID_PARAMETER"),
    (errors.NotReady, "NOT_READY"),
    (errors.DeadlineExceeded, "INFERENCE_TIMEOUT"),
    (errors.Refused, "SERVER_BUSY"),
    (errors.EngineFailed, "INFERENCE_ERROR"),
)
# The original answers 400 to every file that cannot be read.
_BAD_FILES: Final = (errors.UnsupportedImage, errors.BrokenImage, errors.ImageTooLarge, errors.TooManyPages)


def code_of(error: BaseException) -> str:
    """The original's code for an error, else our own in capitals."""
    own = error.code.upper() if isinstance(error, OcrsvcError) else "INFERENCE_ERROR"
    return str(code_in(CODES, error, "INVALID_JSON") or own)


def status_of(failure: OcrsvcError) -> int:
    """The HTTP status: 400 for every file that cannot be read."""
    return 400 if isinstance(failure, _BAD_FILES) and not isinstance(failure, errors.BodyTooLarge) else failure.status


def as_original(error: OcrsvcError) -> OcrsvcError:
    """The error with the status of `status_of`, for gRPC."""
    return error if status_of(error) == error.status else Coded(code_of(error), error.detail, error.remedy)


def error_members(error: Exception, failure: OcrsvcError | None = None) -> dict[str, object]:
    """An error in an answer; `failure` is its `failure_of`."""
    return {"error": {"code": code_of(error), "message": str(failure or failure_of(error))}}


def answer_failure(error: Exception) -> Response:
    """Any exception as the original's error answer; for Flask's `errorhandler`."""
    failure = failure_of(error)
    return as_json(error_members(error, failure), status_of(failure))
