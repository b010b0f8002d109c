"""Counts leases, loads and unloads of models in the metrics, under the names of a bounded number of models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from ocrsvc.errors import OcrsvcError
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.loaded_models import LoadedModels
from ocrsvc.model_serving.model_loader import LoadObserver
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import (
    MODEL_LEASES,
    MODEL_LOAD_SECONDS,
    MODEL_LOADS,
    MODEL_UNLOADS,
    MODELS_BYTES,
    MODELS_LIMIT,
    MODELS_LOADED,
)

MOST_NAMES: Final = 32
"""Models that have series of their own in a worker; their names are an operator's."""
OTHERS: Final = "other"

# As much of a name as a series has room for.
_NAME_CHARACTERS: Final = 48


class LoadMetrics(LoadObserver):
    """For any thread.

    Args:
        worker_metrics: Of this worker.
    """

    def __init__(self, worker_metrics: WorkerMetrics) -> None:
        self._metrics = worker_metrics
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def note_lease(self, version: ModelVersion, *, is_hit: bool) -> None:
        """See LoadObserver."""
        self._metrics.count(MODEL_LEASES, self._name(version), "hit" if is_hit else "miss")

    def note_load(self, version: ModelVersion, seconds: float, failure: OcrsvcError | None) -> None:
        """See LoadObserver."""
        self._metrics.count(MODEL_LOADS, self._name(version), "success" if failure is None else "fail")
        if failure is None:
            self._metrics.record((), ((MODEL_LOAD_SECONDS.of(), seconds),))

    def note_unload(self, version: ModelVersion, why: str) -> None:
        """See LoadObserver."""
        self._metrics.count(MODEL_UNLOADS, self._name(version), why)

    def _name(self, version: ModelVersion) -> str:
        """The model's name; that of all others, where many have been seen already."""
        name = version.name[:_NAME_CHARACTERS]
        if name not in self._names:
            with self._lock:
                if len(self._names) >= MOST_NAMES:
                    return OTHERS
                self._names.add(name)
        return name


def read_loaded(models: LoadedModels) -> Iterator[tuple[Metric, float]]:
    """The gauges of what a worker has loaded."""
    loaded = [one for one in models.list() if one.size_bytes]
    yield MODELS_LOADED, len(loaded)
    yield MODELS_BYTES, sum(one.size_bytes for one in loaded)
    yield MODELS_LIMIT, models.budget_bytes or 0
