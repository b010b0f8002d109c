"""The serving protocols' models: the repository's, and `ocr`, an alias of the default; else `ocr` in version 1."""

from __future__ import annotations

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
from ocrsvc.models.worker_models import WorkerModels
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
"""The options that change the tensors; words, tables and regions have none."""

MODEL_OPTION_NAMES: Final = ("tier", "lang")
"""The options that choose among models, where there are several. The model itself is in the request's path."""

LABEL: Final = "stable"
"""The one version label without a repository, which TensorFlow Serving's own examples use."""

MOST_DIGITS: Final = 20
"""A longer number is no version's."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A version that would read now, all `numbers` that may serve, ascending, and its reading option `model`."""

    name: str
    number: int
    numbers: tuple[int, ...]
    option: str | None = None


ONLY: Final = ServedModel(NAME, int(VERSION), (int(VERSION),))


@dataclass(frozen=True, slots=True)
class Inference:
    """A page for each image, and the name and the version of the model that read them."""

    pages: list[Page]
    name: str
    version: str


class ServedModels:
    """The models by name; for any thread. `has_repository` says whether there are others than `ocr`."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self.has_repository = reader, reader.has_models

    def opened(self) -> WorkerModels:
        """The worker's models. Raises NotReady before they are opened."""
        return self._reader.worker_models

    def names(self) -> list[str]:
        """The models that may serve. Raises NotReady."""
        if not self.has_repository:
            return [NAME]
        return sorted(name for name, model in self.opened().control.catalogue().models.items() if model.available)

    def find(self, name: str, number: int | None = None, label: str | None = None) -> ServedModel | None:
        """The model with this name, and this version or label; None where there is none. Raises NotReady."""
        if not self.has_repository:
            is_known = name == NAME and number in (None, ONLY.number) and label in (None, LABEL)
            return ONLY if is_known else None
        opened, own = self.opened(), self.own_name(name)
        # `ocr` alone is the default model as the settings name it, with its version or label.
        is_default = name != own and number is None and label is None
        wanted = opened.default if is_default else WantedModel(own, number, label)
        version = opened.selector.serving(wanted)
        if version is None:
            return None
        numbers = tuple(sorted(one.number for one in opened.control.catalogue().models[version.name].available))
        return ServedModel(version.name, version.number, numbers, None if is_default else str(wanted))

    def status(self, name: str | None = None) -> list[VersionStatus]:
        """The states of a model's versions, or of all; empty for an unknown model. Raises NotReady."""
        if not self.has_repository:
            state: State = "AVAILABLE" if self._reader.ready else "LOADING"
            return [VersionStatus(NAME, ONLY.number, state, "", (LABEL,))] if name in (None, NAME) else []
        wanted = None if name is None else self.own_name(name)
        every = self.opened().control.status()
        # An engine's message may name files of the server, which clients must not see.
        found = [replace(one, reason=without_paths(one.reason)) for one in every if wanted in (None, one.name)]
        if self._reader.ready:
            return found
        return [replace(one, state="LOADING") if one.state == "AVAILABLE" else one for one in found]

    def own_name(self, name: str) -> str:
        """The name of a model in the repository: `ocr` is the default one, unless there is one of that name."""
        if name != NAME or NAME in self.opened().control.catalogue().models:
            return name
        return self.opened().default.name


class OcrModel:
    """The reader as a model with tensors; `store` counts for the whole service, `operations` need a repository."""

    def __init__(
        self,
        reader: Reader,
        store: MetricsStore,
        worker_metrics: WorkerMetrics,
        operations: ModelOperations | None = None,
    ) -> None:
        self.reader, self.store, self.operations = reader, store, operations
        self.models = ServedModels(reader)
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
        """A page for each image; one that fails fails the request, as no tensor can say so. Raises as Reader.read."""
        began_s, metrics = time.monotonic(), self._worker_metrics
        try:
            readings = self._read(images, options, limit_s, context)
        except OcrsvcError:
            spent_s = time.monotonic() - began_s
            metrics.record((), ((MODEL_SECONDS.of("fail"), spent_s),))
            if served is not ONLY:
                count_version(metrics, served.name, str(served.number), (), spent_s)
            raise
        spent_s = time.monotonic() - began_s
        count_model_request(metrics, readings, spent_s)
        pages, engine = [reading.page for reading in readings], readings[0].engine
        if not self.models.has_repository:
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
    """The model of a worker, over its repository if there is one."""
    operations = None if settings.models is None else ModelOperations(settings, lambda: reader.worker_models)
    return OcrModel(reader, store, worker_metrics, operations)


def options_in(parameters: Mapping[str, object], *, has_models: bool = False) -> ReadOptions:
    """The reading options among parameters, tier and lang with a repository only. Raises BadOption."""
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
