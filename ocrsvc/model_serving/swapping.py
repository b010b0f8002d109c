"""Puts together what swaps the versions of models in a worker: proofs, the switch, and roll-back."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.catalogue import Catalogue, make_catalogue
from ocrsvc.model_serving.control import ModelControl
from ocrsvc.model_serving.live_checks import Band, LiveChecks
from ocrsvc.model_serving.machine_lock import LOAD, machine_lock
from ocrsvc.model_serving.proof.measurement import RefusalKind
from ocrsvc.model_serving.proof.prover import Prover
from ocrsvc.model_serving.state import Verdict
from ocrsvc.model_serving.verdict_basis import basis_of
from ocrsvc.model_serving.version_prover import VersionProver, keep_verdict, make_verdict
from ocrsvc.model_serving.version_switch import Loaded, VersionSwitch, current_of
from ocrsvc.model_serving.watcher import ModelWatcher
from ocrsvc.model_serving.worker_models import WorkerModels
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metrics import MODEL_SWAPS
from ocrsvc.telemetry.metrics_store import WorkerMetrics

LOGGER: Final = logging.getLogger("ocrsvc.models")


class RollBack:
    """Refuses versions that were accepted, as long as another can take their place.

    Args:
        control: Takes the verdict, which all workers follow.
        loaded: What this worker has loaded.
        metrics: Of this worker.
        basis: See `verdict_basis.py`.
    """

    def __init__(self, control: ModelControl, loaded: Loaded, metrics: WorkerMetrics, basis: str) -> None:
        self._control, self._loaded, self._metrics, self._basis = control, loaded, metrics, basis

    def by_traffic(self, version: ModelVersion, reason: str) -> None:
        """Live traffic says that it is worse than the one before. Raises OcrsvcError."""
        self._refuse(version, "live", f"It was rolled back. {reason}")

    def unusable(self, version: ModelVersion, reason: str) -> None:
        """A worker cannot load it. Raises OcrsvcError."""
        self._refuse(version, "open", reason)

    def _refuse(self, version: ModelVersion, kind: RefusalKind, reason: str) -> None:
        catalogue = self._control.rescan()
        heir = heir_of(catalogue, version)
        if heir is None:
            LOGGER.error("%s stays, because no other version of it may serve: %s", version, reason)
            return
        # Before anybody needs it.
        self._loaded.preload(heir)
        verdict = make_verdict(kind, reason, self._basis)
        keep_verdict(self._control, self._metrics, str(version), version.digest, verdict)
        self._control.rescan()


def heir_of(catalogue: Catalogue, version: ModelVersion) -> ModelVersion | None:
    """What would serve if a version were refused; None where nothing would."""
    verdicts = {**catalogue.state.verdicts, version.digest: Verdict(accepted=False)}
    without = catalogue.state.model_copy(update={"verdicts": verdicts})
    model = make_catalogue(catalogue.scan, catalogue.policies, without).models.get(version.name)
    return current_of(model) if model is not None else None


def make_live_checks(settings: Settings) -> LiveChecks:
    """What is told of each page that is read."""
    band = Band(settings.models_live_pages, settings.models_live_errors, settings.models_live_confidence)
    return LiveChecks(band)


def make_watcher(
    settings: Settings,
    plan: ThreadPlan,
    control: ModelControl,
    loaded: Loaded,
    checks: LiveChecks,
    metrics: WorkerMetrics,
) -> ModelWatcher:
    """The watcher of a worker, which is to be started.

    Args:
        settings, plan: Of this worker.
        control, loaded: What there is, and what of it is loaded.
        checks: What is told of each page.
        metrics: Of this worker.
    """
    basis = basis_of(settings)
    roll_back = RollBack(control, loaded, metrics, basis)

    def note_switch(version: ModelVersion, before: ModelVersion) -> None:
        LOGGER.info("SERVING %s in place of %s", version, before)
        metrics.count(MODEL_SWAPS)
        checks.begin_trial(version, before)

    def is_stopping() -> bool:
        return watcher.is_stopping()

    prover = VersionProver(control, Prover(settings, plan, is_stopping).prove, basis, metrics)
    turn = partial(machine_lock, control.store.folder, LOAD)
    switch = VersionSwitch(loaded, turn, note_switch, roll_back.unusable)
    control.loaded_versions = loaded.versions
    watcher = ModelWatcher(control, prover, switch, roll_back.by_traffic, checks, metrics, settings.models_poll_s)
    return watcher


def watch_models(settings: Settings, plan: ThreadPlan, models: WorkerModels, metrics: WorkerMetrics) -> ModelWatcher:
    """Have the models of a worker watched, proved before the first is loaded, and judged by what they read.

    Args:
        settings, plan, metrics: As for `make_watcher`.
        models: Nothing of them is loaded yet.
    """
    models.checks = make_live_checks(settings)
    watcher = make_watcher(settings, plan, models.control, models.loaded, models.checks, metrics)
    models.prove_until = watcher.prove_until
    return watcher
