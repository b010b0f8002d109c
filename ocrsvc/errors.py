"""The errors of the service: whose fault each is, its HTTP status, and whether a retry can help.

The steps of one request, and the errors that belong to each:

    key    --(KeyMissing, KeyRefused, ScopeMissing, QuotaExceeded,
              KeysUnavailable)-----------------------------------------------> upload
    upload --(NothingSent, BadBase64, BadOption, BodyTooLarge, BodyTimeout,
              RequestStopsWorker)--------------------------------------------> bytes
    URL    --(UrlRefused, UrlUnavailable)------------------------------------> bytes
    bytes  --(UnsupportedImage, BrokenImage, EncryptedDocument,
              ImageTooLarge, TooManyPages, ResourcesExhausted)---------------> image
    image  --(UnknownModel, ModelUnavailable, QueueFull, TooManyAtOnce,
              NotReady)------------------------------------------------------> queue
    queue  --(DeadlineExceeded, ClientGone)----------------------------------> engine
    engine --(EngineFailed, ImageCrashesEngine)------------------------------> result

SettingsError and EngineUnavailable stop the start instead; they never answer a request. Unreachable is the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self


class OcrsvcError(Exception):
    """Base of every failure that ocrsvc raises on purpose; never raised itself.

    The detail is a sentence on what happened, with the facts; the remedy is what the person at fault can do about it.

    The class carries `status` (HTTP), `code` (short, stable, for programs), `title` (for people), `retryable` (whether
    the same request may succeed later) and `exit_code` (for the command line, after sysexits.h).
    """

    status: int = 500
    code: str = "internal"
    title: str = "Internal error"
    retryable: bool = False
    exit_code: int = 70

    def __init_subclass__(cls, **facts: object) -> None:
        super().__init_subclass__()
        for name, value in facts.items():
            setattr(cls, name, value)

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.detail = detail
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.detail} {self.remedy}".rstrip()

    def without_frames(self) -> Self:
        """Itself, to be kept as a value: frames that hold it, and with it what was sent, would wait for the collector.

        What is our fault, and logged, keeps them.
        """
        error: BaseException | None = None if self.status == OcrsvcError.status else self
        while error is not None:
            error.__traceback__, error = None, error.__cause__ or error.__context__
        return self


class OperatorError(OcrsvcError, exit_code=78):
    """The operator must act; stops the start."""


class SettingsError(OperatorError, code="bad_settings", title="The settings are wrong"):
    """A setting is unknown, malformed or out of bounds."""


class EngineUnavailable(OperatorError, code="engine_unavailable", title="The engine cannot be opened", exit_code=69):
    """The engine that the settings name cannot be opened on this machine."""


class BadModel(OperatorError, code="bad_model", title="The model cannot be used", exit_code=65):
    """A version of a model is incomplete, damaged, or described wrongly."""


class DamagedLedger(OperatorError, code="damaged_ledger", title="The ledger of the batch run is damaged", exit_code=65):
    """The plan or the ledger of a batch run holds what was never written there."""


class RunChanged(OperatorError, code="run_changed", title="The batch run began with something else", exit_code=65):
    """A batch run is to be gone on with, and its sources, settings or engine are others than those it began with."""


class StoreUnavailable(
    OperatorError, code="store_unavailable", title="The destination cannot be written", exit_code=74
):
    """What holds the output and the ledger of a batch run cannot be written: full, read-only, or out of reach."""


class ClusterUnavailable(OperatorError, code="cluster_unavailable", title="The cluster cannot be used", exit_code=69):
    """The Ray cluster that is to read a batch run cannot be reached, or has no room for an actor."""


class SourceGone(OperatorError, code="source_gone", title="The source cannot be read", exit_code=66):
    """A source of a batch run cannot be read: it is missing, forbidden, out of reach, or no longer what was planned."""


class BrokenArchive(SourceGone, status=422, code="broken_archive", title="The archive is damaged", exit_code=65):
    """An archive or a table of a batch run is cut off or damaged, or packed in a way that is not read."""


class CallerError(OcrsvcError, status=400, code="bad_request", title="Bad request", exit_code=65):
    """The request is at fault; sending it again unchanged gives the same answer."""


class NothingSent(CallerError, code="nothing_sent", title="No image was sent"):
    """The request carries no image."""


class BadBase64(CallerError, code="bad_base64", title="The base64 text cannot be decoded"):
    """The text that should be base64 is not."""


class BadOption(CallerError, code="bad_option", title="An option is wrong"):
    """An option is unknown, or its value is not one that it accepts."""


class UrlRefused(BadOption, code="url_refused", title="The URL is not asked"):
    """The URL is wrong, or leads to a host that this service does not ask; none was asked."""


class UrlUnavailable(CallerError, status=422, code="url_unavailable", title="The URL cannot be fetched"):
    """No file could be had from the URL, or nobody is there to be called back."""


class UnknownModel(CallerError, status=404, code="unknown_model", title="No such model"):
    """There is no model, version, label, tier or language of this name."""


class BodyTimeout(
    CallerError,
    status=408,
    code="body_timeout",
    title="The request did not arrive in time",
    retryable=True,
    exit_code=75,
):
    """The body did not arrive in time; on another try it may."""


class BodyTooLarge(CallerError, status=413, code="body_too_large", title="The request is too large"):
    """The body holds more bytes than OCRSVC_MAX_BODY_BYTES."""


class ImageTooLarge(CallerError, status=413, code="image_too_large", title="The image has too many pixels"):
    """The header declares more pixels than the limit; nothing was decoded."""


class UnsupportedImage(CallerError, status=415, code="unsupported_image", title="Not an image that this service reads"):
    """The bytes are not an image of a format that we read."""


class BrokenImage(CallerError, status=422, code="broken_image", title="The image is damaged"):
    """The bytes begin as an image of a known format but cannot be decoded."""


class EncryptedDocument(BrokenImage, code="encrypted_document", title="The document needs a password"):
    """The document needs a password."""


class TooManyPages(CallerError, status=413, code="too_many_pages", title="The document has too many pages"):
    """The document has more pages than are read at once."""


class PagesOverQuota(TooManyPages, code="pages_over_quota", title="More pages than the API key has in all"):
    """The request needs more pages than its API key has in a whole day or month: it can never succeed."""


class ImageCrashesEngine(
    CallerError, status=422, code="image_crashes_engine", title="The engine crashes on this image"
):
    """The engine crashed on this image, twice; it is not tried again for a while."""


class RequestStopsWorker(
    CallerError, status=422, code="request_stops_worker", title="This request stops the service's workers"
):
    """A request with this body kept a worker from answering at all; none is tried again for a while."""


class KeyReused(
    CallerError, status=422, code="idempotency_key_reused", title="The Idempotency-Key belongs to another job"
):
    """Another job was sent with the same Idempotency-Key before."""


class JobNotDone(
    CallerError, status=409, code="job_not_done", title="The job is not done", retryable=True, exit_code=75
):
    """The result of a job is asked for before it is read; later it is there."""


class JobFailed(CallerError, status=409, code="job_failed", title="The job has failed"):
    """The result of a job is asked for that has failed."""


class KeysNeeded(CallerError, status=403, code="keys_needed", title="Only with API keys", exit_code=77):
    """What is asked for is there for API keys only, and this service wants none."""


class JobsOff(CallerError, status=501, code="jobs_off", title="No jobs are taken in"):
    """The service takes in no documents that are read while nobody waits."""


class UnknownJob(CallerError, status=404, code="unknown_job", title="No such job"):
    """There is no job of this name, or it is not this caller's."""


class ClientGone(CallerError, status=499, code="client_gone", title="The client has gone"):
    """The client has closed its connection; nobody reads the answer. The status is nginx's, for logs only."""


class KeyMissing(CallerError, status=401, code="key_missing", title="An API key is needed", exit_code=77):
    """The service wants an API key, and the request carries none."""


class KeyRefused(CallerError, status=401, code="key_refused", title="The API key is not valid", exit_code=77):
    """The request's API key is not valid; whether it is wrong, revoked or expired is not said."""


class ScopeMissing(CallerError, status=403, code="scope_missing", title="The API key is not for this", exit_code=77):
    """The request's API key is valid, and not for this."""


class ServerError(OcrsvcError):
    """The service is at fault."""


class Refused(ServerError, status=503, retryable=True, exit_code=75):
    """The service is healthy but will not take this request now; after so many whole seconds a retry is worth it."""

    def __init__(self, detail: str, remedy: str = "", retry_after_s: int = 1) -> None:
        super().__init__(detail, remedy)
        self.retry_after_s = retry_after_s


class QueueFull(Refused, code="queue_full", title="The service is busy"):
    """Every place in front of the engine is taken."""


class TooManyAtOnce(Refused, status=429, code="too_many_at_once", title="Too many requests at once"):
    """This caller has as many requests under way as one caller may."""


class TooManyJobs(Refused, status=429, code="too_many_jobs", title="Too many jobs at once"):
    """This caller has as many jobs, or pages of jobs, waiting as one caller may."""


class QuotaExceeded(Refused, status=429, code="quota_exceeded", title="A limit of the API key is reached"):
    """The request's API key has used up one of its limits; RateLimit headers of the answer say so to programs."""

    def __init__(
        self, detail: str, remedy: str = "", retry_after_s: int = 1, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail, remedy, retry_after_s)
        self.headers = headers or {}


class KeysUnavailable(Refused, code="keys_unavailable", title="API keys cannot be checked"):
    """The store of the API keys does not answer, and nobody is admitted without it.

    The reason is for operators: it names the store, so that no client is told.
    """

    def __init__(
        self,
        detail: str = "The store of the API keys does not answer.",
        remedy: str = "Send the request again in a moment.",
        retry_after_s: int = 2,
        reason: str = "",
    ) -> None:
        super().__init__(detail, remedy, retry_after_s)
        self.reason = reason or detail


class NotReady(Refused, code="not_ready", title="The service is not ready"):
    """The engine of this worker is not warm yet, or the worker is shutting down."""


class ModelUnavailable(Refused, code="model_unavailable", title="The model is not loaded"):
    """The model that is to read cannot be loaded now; others are."""


class ResourcesExhausted(Refused, code="resources_exhausted", title="The service lacks resources"):
    """The system has no process, file descriptor or memory left for this request, or gives them too slowly."""


class DeadlineExceeded(
    ServerError, status=504, code="deadline_exceeded", title="The deadline passed", retryable=True, exit_code=75
):
    """The answer did not come before the deadline of the request."""


class Unreachable(
    OcrsvcError, status=503, code="unreachable", title="The service cannot be reached", retryable=True, exit_code=69
):
    """The connection to the service failed, or broke before the answer; raised by the client, never answered."""


class NotConnected(Unreachable):
    """No connection to the service came about: nothing was sent."""


class ServicesGone(Unreachable, code="services_gone", title="No service answers", exit_code=75):
    """No service has answered anything for as long as a batch run waits; raised by the run, never answered."""


class EngineFailed(ServerError, status=500, code="engine_failed", title="The engine failed on this image"):
    """The engine gave an error or nonsense for this image; its neighbours are not touched."""
