"""Models as clients of serving protocols see them: the repository's, or without a repository `ocr` version 1."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ocrsvc.adapters.model_protocols.operators import ModelOperations
from ocrsvc.adapters.model_protocols.tensors import NAME, VERSION
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.options import read_options
from ocrsvc.models.model_control import State, VersionStatus
from ocrsvc.models.model_name import WantedModel, without_paths
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Page, Reading, ReadOptions
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics_store import MetricsStore, WorkerMetrics, count_model_request, count_version
from ocrsvc.telemetry.model_metrics import MODEL_SECONDS

OPTION_NAMES: Final = (
    *("rotate", "detect", "upright_boxes", "max_side", "min_confidence"),
    *("decoder", "unwarp", "spaces", "region", "mask"),
)
"""The reading options that affect the output tensors, which contain no words, tables or layout."""

MODEL_OPTION_NAMES: Final = ("tier", "lang")
"""The options that choose among a repository's models; the model's name is in the request itself."""

LABEL: Final = "stable"
"""The only version label without a repository; TensorFlow Serving's examples use it."""

MAX_DIGITS: Final = 20
"""Maximum number of digits of a version number."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model version that serves. `numbers`: the model's available versions; `option`: value of the option `model`."""

    name: str
    number: int
    numbers: tuple[int, ...]
    option: str | None = None


SINGLE_MODEL: Final = ServedModel(NAME, int(VERSION), (int(VERSION),))


@dataclass(frozen=True, slots=True)
class Inference:
    """The page of each image, and the name and version of the model that read them."""

    pages: list[Page]
    name: str
    version: str


class OcrModel:
    """Presents the reader as models with tensors, for any thread; without a repository, as the one model `ocr`.

    `store` has the metrics of all workers, `operations` loads and unloads models of the repository. Methods raise
    NotReady before the worker's models are opened.
    """

    def __init__(
        self,
        reader: Reader,
        store: MetricsStore,
        worker_metrics: WorkerMetrics,
        operations: ModelOperations | None = None,
    ) -> None:
        self.reader, self.store, self.operations = reader, store, operations
        self.has_repository, self._worker_metrics = reader.has_models, worker_metrics

    @property
    def ready(self) -> bool:
        """Whether the engine of this worker is warm."""
        return self.reader.ready

    def names(self) -> list[str]:
        """The names of the models that have an available version."""
        if not self.has_repository:
            return [NAME]
        models = self.reader.worker_models.control.catalogue().models
        return sorted(name for name, model in models.items() if model.available)

    def find(self, name: str, number: int | None = None, label: str | None = None) -> ServedModel | None:
        """The model with this name and version or label, or None."""
        if not self.has_repository:
            is_known = name == NAME and number in (None, SINGLE_MODEL.number) and label in (None, LABEL)
            return SINGLE_MODEL if is_known else None
        opened, repository_name = self.reader.worker_models, self.repository_name(name)
        # `ocr` without version or label means OCRSVC_MODEL, which may name a version or label of the default model.
        is_default = name != repository_name and number is None and label is None
        wanted = opened.default if is_default else WantedModel(repository_name, number, label)
        version = opened.selector.serving(wanted)
        if version is None:
            return None
        numbers = tuple(sorted(one.number for one in opened.control.catalogue().models[version.name].available))
        return ServedModel(version.name, version.number, numbers, None if is_default else str(wanted))

    def status(self, name: str | None = None) -> list[VersionStatus]:
        """The states of one model's versions, or of all models; empty for an unknown one."""
        if not self.has_repository:
            state: State = "AVAILABLE" if self.ready else "LOADING"
            return [VersionStatus(NAME, SINGLE_MODEL.number, state, "", (LABEL,))] if name in (None, NAME) else []
        wanted = None if name is None else self.repository_name(name)
        every = self.reader.worker_models.control.status()
        # Clients must not see paths of the server in an engine's message.
        statuses = [replace(one, reason=without_paths(one.reason)) for one in every if wanted in (None, one.name)]
        if self.ready:
            return statuses
        return [replace(one, state="LOADING") if one.state == "AVAILABLE" else one for one in statuses]

    def repository_name(self, name: str) -> str:
        """The model's name in the repository; `ocr` is the default model unless a model has that name."""
        opened = self.reader.worker_models
        return name if name != NAME or NAME in opened.control.catalogue().models else opened.default.name

    def infer(
        self,
        images: Sequence[bytes],
        options: ReadOptions,
        limit_s: float,
        context: RequestContext,
        served: ServedModel = SINGLE_MODEL,
    ) -> Inference:
        """Read images. One failed image fails the request: tensors cannot hold errors. Raises as Reader.read."""
        began_s, metrics = time.monotonic(), self._worker_metrics
        try:
            readings = self._read(images, options, limit_s, context)
        except OcrsvcError:
            spent_s = time.monotonic() - began_s
            metrics.record((), ((MODEL_SECONDS.of("fail"), spent_s),))
            if served is not SINGLE_MODEL:
                count_version(metrics, served.name, str(served.number), (), spent_s)
            raise
        spent_s = time.monotonic() - began_s
        count_model_request(metrics, readings, spent_s)
        pages, engine = [reading.page for reading in readings], readings[0].engine
        if not self.has_repository:
            return Inference(pages, NAME, VERSION)
        count_version(metrics, engine.model, engine.version, readings, spent_s)
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
    """Make a worker's OcrModel, which loads and unloads models only if there is a model repository."""
    operations = None if settings.models is None else ModelOperations(settings, lambda: reader.worker_models)
    return OcrModel(reader, store, worker_metrics, operations)


def options_from_parameters(parameters: Mapping[str, object], *, has_models: bool = False) -> ReadOptions:
    """The reading options among a request's parameters; `tier` and `lang` only if `has_models`. Raises BadOption."""
    names = (*OPTION_NAMES, *MODEL_OPTION_NAMES) if has_models else OPTION_NAMES
    return read_options([(name, parameters[name]) for name in names if name in parameters]).read


def timeout_from_parameters(parameters: Mapping[str, object], limit_s: float) -> float:
    """The smaller of `limit_s` and the parameter `timeout` in microseconds (0: no limit). Raises BadOption."""
    timeout_us = parameters.get("timeout", 0)
    if isinstance(timeout_us, str) and timeout_us.isascii() and timeout_us.isdecimal() and len(timeout_us) < 20:
        timeout_us = int(timeout_us)
    if type(timeout_us) is not int or timeout_us < 0:
        raise BadOption("The parameter 'timeout' is not a whole number of microseconds.", "Send 5000000 for 5 seconds.")
    return min(limit_s, timeout_us / 1e6) if timeout_us else limit_s
