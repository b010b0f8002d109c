"""Errors that /openapi.json must describe, by operation."""

from collections.abc import Sequence
from typing import Final

from ocrsvc import errors

Errors = Sequence[type[errors.OcrsvcError]]

_REQUEST_ERRORS: Final[Errors] = (
    *(errors.CallerError, errors.NothingSent, errors.BadBase64, errors.BadOption, errors.UrlRefused),
    *(errors.UnknownModel, errors.BodyTimeout, errors.BodyTooLarge, errors.RequestStopsWorker, errors.TooManyAtOnce),
)
_FILE_ERRORS: Final[Errors] = (
    *(errors.UnsupportedImage, errors.BrokenImage, errors.EncryptedDocument),
    *(errors.ImageTooLarge, errors.TooManyPages),
)
# OcrsvcError is the answer to an unexpected exception.
_SERVICE_ERRORS: Final[Errors] = (
    *(errors.QueueFull, errors.NotReady, errors.ResourcesExhausted, errors.DeadlineExceeded, errors.OcrsvcError),
)

READING_ERRORS: Final[Errors] = (
    *(*_REQUEST_ERRORS, *_FILE_ERRORS, *_SERVICE_ERRORS, errors.UrlUnavailable, errors.ImageCrashesEngine),
    *(errors.ClientGone, errors.EngineFailed, errors.ModelUnavailable),
)
KEY_ERRORS: Final[Errors] = (
    *(errors.KeyMissing, errors.KeyRefused, errors.ScopeMissing),
    *(errors.PagesOverQuota, errors.QuotaExceeded, errors.KeysUnavailable),
)
SUBMIT_ERRORS: Final[Errors] = (
    *(*_REQUEST_ERRORS, *_FILE_ERRORS, *_SERVICE_ERRORS),
    *(errors.KeyReused, errors.TooManyJobs, errors.JobsOff),
)
FIND_JOB_ERRORS: Final[Errors] = (errors.UnknownJob, errors.JobsOff)
JOB_RESULT_ERRORS: Final[Errors] = (
    *(*FIND_JOB_ERRORS, errors.BadOption, errors.JobNotDone, errors.JobFailed),
    *(errors.QueueFull, errors.DeadlineExceeded),
)
