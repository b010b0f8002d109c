"""The service's error classes: who is at fault, the HTTP status, and whether a retry can help.

SettingsError and EngineUnavailable stop the start and never occur in a response. Only clients raise Unreachable.
"""

from collections.abc import Mapping
from typing import Self


class OcrsvcError(Exception):
    """Base of all errors that ocrsvc raises on purpose.

    `detail` says what happened, `remedy` what to do. Each class has a `status` (HTTP), `code` (short and stable, for
    programs), `title` (for people), `retryable` (whether the same request may succeed later) and `exit_code` (of
    commands, as in sysexits.h).
    """

    status: int = 500
    code: str = "internal"
    title: str = "Internal error"
    retryable: bool = False
    exit_code: int = 70

    def __init_subclass__(cls, **facts: object) -> None:
        super().__init_subclass__()
        # If a class names no exit code of its own, a retryable error ends a command with EX_TEMPFAIL (75).
        for name, value in ({"exit_code": 75, **facts} if facts.get("retryable") else facts).items():
            setattr(cls, name, value)

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.detail = detail
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.detail} {self.remedy}".rstrip()

    def without_frames(self) -> Self:
        """Remove the tracebacks, so that the error can be stored: their frames would keep the request's data in memory.

        Internal errors keep their tracebacks for the log. Returns the error itself.
        """
        error: BaseException | None = None if self.status == OcrsvcError.status else self
        while error is not None:
            error.__traceback__, error = None, error.__cause__ or error.__context__
        return self


class OperatorError(OcrsvcError, exit_code=78):
    """An error that the operator must fix; it stops the service's start or a command."""


class SettingsError(OperatorError, code="bad_settings", title="The settings are wrong"):
    """A setting is unknown, malformed or out of range."""


class EngineUnavailable(OperatorError, code="engine_unavailable", title="The engine cannot be opened", exit_code=69):
    """The engine that the settings name cannot be opened on this machine."""


class BadModel(OperatorError, code="bad_model", title="The model cannot be used", exit_code=65):
    """A model version is incomplete, damaged, or has a wrong description."""


class DamagedRun(OperatorError, code="damaged_run", title="A file of the batch run is damaged", exit_code=65):
    """The plan, a manifest or a stored result of a batch run is damaged."""


class RunChanged(OperatorError, code="run_changed", title="The batch run had other settings", exit_code=65):
    """A batch run cannot be resumed, because its sources, settings or engine have changed."""


class StoreUnavailable(
    OperatorError, code="store_unavailable", title="The destination cannot be written", exit_code=74
):
    """The destination of a batch run's output cannot be read or written: full, read-only, or unreachable."""


class ClusterUnavailable(OperatorError, code="cluster_unavailable", title="The cluster cannot be used", exit_code=69):
    """The Ray cluster for a batch run cannot be reached, or lacks resources for an actor."""


class SourceGone(OperatorError, code="source_gone", title="The source cannot be read", exit_code=66):
    """A source of a batch run cannot be read: missing, forbidden, unreachable, or changed since the plan."""


class BrokenArchive(SourceGone, status=422, code="broken_archive", title="The archive is damaged", exit_code=65):
    """An archive or table of a batch run is truncated, damaged, or compressed in an unsupported way."""


class CallerError(OcrsvcError, status=400, code="bad_request", title="Bad request", exit_code=65):
    """The request is wrong; sending it again unchanged gives the same error."""


class NothingSent(CallerError, code="nothing_sent", title="No image was sent"):
    """The request has no image."""


class BadBase64(CallerError, code="bad_base64", title="The base64 text cannot be decoded"):
    """A text that should be base64 cannot be decoded."""


class BadOption(CallerError, code="bad_option", title="An option is wrong"):
    """An option is unknown, or its value is not accepted."""


class UrlRefused(BadOption, code="url_refused", title="The URL is not allowed"):
    """The URL is malformed, or its host is not allowed; the service has not connected to it."""


class UrlUnavailable(CallerError, status=422, code="url_unavailable", title="The URL cannot be fetched"):
    """The URL's host cannot be reached, or did not return the file."""


class UnknownModel(CallerError, status=404, code="unknown_model", title="No such model"):
    """There is no model, version, label, tier or language with this name."""


class BodyTimeout(
    CallerError, status=408, code="body_timeout", title="The request did not arrive in time", retryable=True
):
    """The request body arrived too slowly, or was not complete at the deadline."""


class BodyTooLarge(CallerError, status=413, code="body_too_large", title="The request is too large"):
    """The body exceeds OCRSVC_MAX_BODY_BYTES, or another limit on its size."""


class ImageTooLarge(CallerError, status=413, code="image_too_large", title="The image has too many pixels"):
    """The image's header declares more pixels than the limit; nothing was decoded."""


class UnsupportedImage(CallerError, status=415, code="unsupported_image", title="Not an image that this service reads"):
    """The data is not an image or document of a supported format."""


class BrokenImage(CallerError, status=422, code="broken_image", title="The image is damaged"):
    """The data begins like a supported image but cannot be decoded."""


class EncryptedDocument(BrokenImage, code="encrypted_document", title="The document needs a password"):
    """The document needs a password."""


class TooManyPages(CallerError, status=413, code="too_many_pages", title="The document has too many pages"):
    """The request asks for more pages of a document than the limit allows."""


class PagesOverQuota(TooManyPages, code="pages_over_quota", title="More pages than the API key has in all"):
    """The request needs more pages than its API key has per day or month, so it can never succeed."""


class ImageCrashesEngine(
    CallerError, status=422, code="image_crashes_engine", title="The engine crashes on this image"
):
    """The image is on the crash denylist: it crashed the engine twice, and is refused for a while."""


class RequestStopsWorker(
    CallerError, status=422, code="request_stops_worker", title="This request stops the service's workers"
):
    """The request body is on the crash denylist: it hung or crashed a worker, and is refused for a while."""


class KeyReused(
    CallerError, status=422, code="idempotency_key_reused", title="The Idempotency-Key belongs to another job"
):
    """The Idempotency-Key was already used for a different job."""


class JobNotDone(CallerError, status=409, code="job_not_done", title="The job is not done", retryable=True):
    """The result was requested of a job that is not done yet."""


class JobFailed(CallerError, status=409, code="job_failed", title="The job has failed"):
    """The result was requested of a job that has failed."""


class KeysNeeded(CallerError, status=403, code="keys_needed", title="Only with API keys", exit_code=77):
    """The request needs an API key, but this service has no keys."""


class JobsOff(CallerError, status=501, code="jobs_off", title="Jobs are off"):
    """This service does not accept jobs."""


class UnknownJob(CallerError, status=404, code="unknown_job", title="No such job"):
    """There is no job with this id, or it belongs to another caller."""


class ClientGone(CallerError, status=499, code="client_gone", title="The client has disconnected"):
    """The client has closed its connection. The status 499, as in nginx, appears only in logs."""


class KeyMissing(CallerError, status=401, code="key_missing", title="An API key is needed", exit_code=77):
    """The service needs an API key, and the request has none."""


class KeyRefused(CallerError, status=401, code="key_refused", title="The API key is not valid", exit_code=77):
    """The API key is unknown, revoked or expired; the error does not tell which, for secrecy."""


class ScopeMissing(CallerError, status=403, code="scope_missing", title="The API key is not for this", exit_code=77):
    """The API key is valid but does not allow this request."""


class ServerError(OcrsvcError):
    """The service is at fault."""


class Refused(ServerError, status=503, retryable=True):
    """The service is healthy but cannot accept this request now; `retry_after_s` becomes the header Retry-After."""

    def __init__(self, detail: str, remedy: str = "", retry_after_s: int = 1) -> None:
        super().__init__(detail, remedy)
        self.retry_after_s = retry_after_s


class QueueFull(Refused, code="queue_full", title="The service is busy"):
    """The queue, the memory or another resource is full."""


class TooManyAtOnce(Refused, status=429, code="too_many_at_once", title="Too many requests at once"):
    """The caller has reached its limit on concurrent requests."""


class TooManyJobs(Refused, status=429, code="too_many_jobs", title="Too many jobs at once"):
    """The caller has reached its limit on unfinished jobs or on their pages."""


class QuotaExceeded(Refused, status=429, code="quota_exceeded", title="A limit of the API key is reached"):
    """The API key has reached one of its limits; the response has RateLimit headers."""

    def __init__(
        self, detail: str, remedy: str = "", retry_after_s: int = 1, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail, remedy, retry_after_s)
        self.headers = headers or {}


class KeysUnavailable(Refused, code="keys_unavailable", title="API keys cannot be checked"):
    """The API key store does not respond, so no request is admitted.

    `reason` is for operators only, as it may contain the store's address.
    """

    def __init__(
        self,
        detail: str = "The API key store does not respond.",
        remedy: str = "Send the request again in a moment.",
        retry_after_s: int = 2,
        reason: str = "",
    ) -> None:
        super().__init__(detail, remedy, retry_after_s)
        self.reason = reason or detail


class NotReady(Refused, code="not_ready", title="The service is not ready"):
    """The worker's engine is still warming up, or the worker is shutting down."""


class ModelUnavailable(Refused, code="model_unavailable", title="The model is not loaded"):
    """The requested model is not loaded, and cannot be loaded now; loaded models still serve."""


class ResourcesExhausted(Refused, code="resources_exhausted", title="The service lacks resources"):
    """The operating system refuses a process, file descriptor or memory for this request, or is too slow."""


class DeadlineExceeded(ServerError, status=504, code="deadline_exceeded", title="The deadline passed", retryable=True):
    """The request's deadline passed before its response was ready."""


class Unreachable(
    OcrsvcError, status=503, code="unreachable", title="The service cannot be reached", retryable=True, exit_code=69
):
    """The connection to the service failed, or broke before the response. Only clients raise it."""


class NotConnected(Unreachable):
    """The service did not accept the connection, so the request was not sent."""


class ServicesGone(Unreachable, code="services_gone", title="No service answers", exit_code=75):
    """No service has responded for the time that a batch run waits. Only batch runs raise it."""


class EngineFailed(ServerError, status=500, code="engine_failed", title="The engine failed on this image"):
    """The engine failed, or returned an invalid page, for this image; other images are not affected."""
