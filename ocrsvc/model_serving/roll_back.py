"""Refuses a version that serves, because live traffic speaks against it or no worker can load it."""

from __future__ import annotations

import logging
from typing import Final

from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.candidate_prover import keep_verdict, make_verdict
from ocrsvc.model_serving.catalogue import Catalogue, make_catalogue
from ocrsvc.model_serving.control import ModelControl
from ocrsvc.model_serving.proof.measurement import RefusalKind
from ocrsvc.model_serving.state import Verdict
from ocrsvc.model_serving.version_switch import Loaded
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
        keep_verdict(self._control.store, self._metrics, str(version), version.digest, verdict)
        self._control.rescan()


def heir_of(catalogue: Catalogue, version: ModelVersion) -> ModelVersion | None:
    """What would serve if a version were refused; None where nothing would."""
    verdicts = {**catalogue.state.verdicts, version.digest: Verdict(accepted=False)}
    without = catalogue.state.model_copy(update={"verdicts": verdicts})
    model = make_catalogue(catalogue.scan, catalogue.policies, without).models.get(version.name)
    return model.target if model is not None else None
