"""Errors that /openapi.json describes, by the operations that raise them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ocrsvc import errors

Errors = Sequence[type[errors.OcrsvcError]]

READING_ERRORS: Final[Errors] = (
    errors.CallerError,
    errors.NothingSent,
    errors.BadBase64,
    errors.BadOption,
    errors.UrlRefused,
    errors.UrlUnavailable,
    errors.UnknownModel,
    errors.BodyTimeout,
    errors.BodyTooLarge,
    errors.ImageTooLarge,
    errors.UnsupportedImage,
    errors.BrokenImage,
    errors.EncryptedDocument,
    errors.TooManyPages,
    errors.ImageCrashesEngine,
    errors.RequestStopsWorker,
    errors.TooManyAtOnce,
    errors.ClientGone,
    errors.OcrsvcError,
    errors.EngineFailed,
    errors.QueueFull,
    errors.NotReady,
    errors.ModelUnavailable,
    errors.ResourcesExhausted,
    errors.DeadlineExceeded,
)

"""OcrsvcError stands for the unexpected."""

KEY_ERRORS: Final[Errors] = (
    errors.KeyMissing,
    errors.KeyRefused,
    errors.ScopeMissing,
    errors.PagesOverQuota,
    errors.QuotaExceeded,
    errors.KeysUnavailable,
)

SUBMIT_ERRORS: Final[Errors] = (
    errors.CallerError,
    errors.NothingSent,
    errors.BadBase64,
    errors.BadOption,
    errors.UrlRefused,
    errors.UnknownModel,
    errors.BodyTimeout,
    errors.BodyTooLarge,
    errors.UnsupportedImage,
    errors.BrokenImage,
    errors.EncryptedDocument,
    errors.ImageTooLarge,
    errors.TooManyPages,
    errors.RequestStopsWorker,
    errors.KeyReused,
    errors.TooManyAtOnce,
    errors.TooManyJobs,
    errors.QueueFull,
    errors.NotReady,
    errors.ResourcesExhausted,
    errors.JobsOff,
    errors.DeadlineExceeded,
    errors.OcrsvcError,
)

FIND_JOB_ERRORS: Final[Errors] = (errors.UnknownJob, errors.JobsOff)

JOB_RESULT_ERRORS: Final[Errors] = (
    errors.BadOption,
    *FIND_JOB_ERRORS,
    errors.JobNotDone,
    errors.JobFailed,
    errors.QueueFull,
    errors.DeadlineExceeded,
)
