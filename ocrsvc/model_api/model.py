"""The model "ocr": reads the images of a request into pages, whichever protocol carried it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.options import read_options
from ocrsvc.model_api.metadata import NAME, VERSION
from ocrsvc.model_api.served_models import ONLY, ServedModel, ServedModels
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.records import Page, ReadOptions
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics_store import MetricsStore, WorkerMetrics, count_model_request, count_version
from ocrsvc.telemetry.model_metrics import MODEL_SECONDS

if TYPE_CHECKING:
    # Loaded where there is a model repository alone.
    from ocrsvc.model_api.administration import ModelAdministration

OPTION_NAMES: Final = (
    "rotate",
    "detect",
    "upright_boxes",
    "max_side",
    "min_confidence",
    "decoder",
    "unwarp",
    "spaces",
    "region",
    "mask",
)
"""Those that change what the tensors hold; words, tables and regions have none."""

MODEL_OPTION_NAMES: Final = ("tier", "lang")
"""Those that choose among models, where there are several. The model itself is in the request's path."""


@dataclass(frozen=True, slots=True)
class Inference:
    """What was read of a request's images, a page each, and the name and the version of the model that read them."""

    pages: list[Page]
    name: str
    version: str


class OcrModel:
    """The model, over a reader; shared by all threads.

    Args:
        reader: Reads the images.
        store: Where the requests of the whole service are counted.
        worker_metrics: What this process counts them with.
        models: The models that there are; by default the one.
        administration: Loads and unloads them; None where there is no repository.
    """

    def __init__(
        self,
        reader: Reader,
        store: MetricsStore,
        worker_metrics: WorkerMetrics,
        models: ServedModels | None = None,
        administration: ModelAdministration | None = None,
    ) -> None:
        self.reader = reader
        self.store = store
        self.models = models or ServedModels(lambda: reader.ready)
        self.administration = administration
        self._worker_metrics = worker_metrics

    @property
    def ready(self) -> bool:
        """Whether the engine of this worker is warm."""
        return self.reader.ready

    def infer(
        self,
        images: Sequence[bytes],
        options: ReadOptions,
        limit_s: float,
        context: RequestContext,
        served: ServedModel = ONLY,
    ) -> Inference:
        """One page for each image; the first image that fails fails the request, because no tensor can say so.

        Args:
            images: Image files.
            options: For all of them.
            limit_s: Seconds within which the answer is worth having.
            context: Whether still somebody waits for it.
            served: What the request names, for which it is counted when it fails.

        Raises:
            OcrsvcError: As Reader.read; of several images it says which one.
        """
        began_s = time.monotonic()
        try:
            readings = self._read(images, options, limit_s, context)
        except OcrsvcError:
            spent_s = time.monotonic() - began_s
            self._worker_metrics.record((), ((MODEL_SECONDS.of("fail"), spent_s),))
            if served is not ONLY:
                count_version(self._worker_metrics, served.name, str(served.number), (), spent_s)
            raise
        spent_s = time.monotonic() - began_s
        count_model_request(self._worker_metrics, readings, spent_s)
        pages = [reading.page for reading in readings]
        if not self.models.has_repository:
            return Inference(pages, NAME, VERSION)
        engine = readings[0].engine
        count_version(self._worker_metrics, engine.model, engine.version, readings, spent_s)
        return Inference(pages, engine.model, engine.version)

    def _read(
        self, images: Sequence[bytes], options: ReadOptions, limit_s: float, context: RequestContext
    ) -> list[Reading]:
        if len(images) == 1:
            return [self.reader.read(images[0], options, limit_s, context)]
        readings: list[Reading] = []
        for number, outcome in enumerate(self.reader.read_many(images, options, limit_s, context), start=1):
            if isinstance(outcome, OcrsvcError):
                outcome.detail = f"Image {number} of {len(images)}: {outcome.detail}"
                raise outcome
            readings.append(outcome)
        return readings


def make_model(settings: Settings, reader: Reader, store: MetricsStore, worker_metrics: WorkerMetrics) -> OcrModel:
    """The model of a worker, over its repository if the settings name one; arguments as of OcrModel."""
    if settings.models is None:
        return OcrModel(reader, store, worker_metrics)
    from ocrsvc.model_api.administration import ModelAdministration

    models = ServedModels(lambda: reader.ready, lambda: reader.worker_models)
    return OcrModel(reader, store, worker_metrics, models, ModelAdministration(settings, models))


def options_in(parameters: Mapping[str, object], *, has_models: bool = False) -> ReadOptions:
    """The reading options among a request's parameters; all others belong to somebody else.

    Args:
        parameters: Of the request.
        has_models: Whether there is a model repository; without one, tier and lang belong to somebody else too.

    Raises:
        BadOption: A value is not accepted.
    """
    names = (*OPTION_NAMES, *MODEL_OPTION_NAMES) if has_models else OPTION_NAMES
    return read_options([(name, parameters[name]) for name in names if name in parameters]).read


def limit_in(parameters: Mapping[str, object], limit_s: float) -> float:
    """The lesser of `limit_s` and the parameter `timeout`, whole microseconds (0 is none). Raises BadOption."""
    sent = parameters.get("timeout", 0)
    if isinstance(sent, str) and sent.isascii() and sent.isdecimal() and len(sent) < 20:
        sent = int(sent)
    if type(sent) is not int or sent < 0:
        raise BadOption("The parameter 'timeout' is not a whole number of microseconds.", "Send 5000000 for 5 seconds.")
    return min(limit_s, sent / 1e6) if sent else limit_s
