"""Proves the versions that have come, one at a time on the machine, and keeps what was found where all workers see it.

Whoever gets the lock proves; the kernel gives it to another worker should this one die. A version that was refused is
not tried again before its files change, or what the verdict depends on (`verdict_basis.py`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ocrsvc.model_repository.repository import BadVersion
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.catalogue import Catalogue
from ocrsvc.model_serving.control import ModelControl
from ocrsvc.model_serving.machine_lock import PROOF, machine_lock
from ocrsvc.model_serving.proof.judgement import Judgement
from ocrsvc.model_serving.proof.prover import Stopped
from ocrsvc.model_serving.state import Verdict
from ocrsvc.model_serving.verdict_basis import mended, outdated_verdicts, without_verdicts, written_ns
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_PROOF_SECONDS, MODEL_REFUSALS

LOGGER: Final = logging.getLogger("ocrsvc.models")

RETRY_S: Final = 60.0
"""After which a version is tried again that the machine did not let be tried."""

MOST_BAD: Final = 100
"""Versions that cannot be opened at all, the first by name, of which that is kept and logged: none of them serves, and
however many there are, they leave room for the verdicts on others."""

MOST_REASON: Final = 1000
"""Characters: names in a model's files can be long."""

_OF_FILES: Final = frozenset({"files", "reference"})

Prove = Callable[[ModelVersion, ModelVersion | None], Judgement]


class CandidateProver:
    """Of one worker; for one thread at a time.

    Args:
        control: Says what there is, and takes what is found.
        prove: Makes a proof of a version beside the one that serves; see `proof/prover.py`.
        basis: What verdicts depend on; see `verdict_basis.py`.
        metrics: Of this worker.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        control: ModelControl,
        prove: Prove,
        basis: str,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._prove, self._basis = control, prove, basis
        self._metrics, self._clock = metrics, clock
        self._not_before_s: dict[str, float] = {}
        self._killed: set[str] = set()

    def forget_outdated(self) -> None:
        """Have versions proved again whose refusals do not hold any more. Raises OperatorError."""
        store = self._control.store
        outdated = outdated_verdicts(store.read(), self._basis)
        if outdated:
            LOGGER.info(
                "%d models that were refused are tried again: the machine or its programs changed", len(outdated)
            )
            store.change(lambda state: without_verdicts(state, outdated_verdicts(state, self._basis)))

    def forget_mended(self, catalogue: Catalogue) -> None:
        """Have versions proved again that were refused for files which were written since. Raises OperatorError."""
        if digests := mended(catalogue.scan.versions, catalogue.state):
            told = ", ".join(str(version) for version in catalogue.scan.versions if version.digest in digests)
            LOGGER.info("%s: refused, and tried again: what that was for has changed", told)
            versions = catalogue.scan.versions
            for digest in digests:
                self._not_before_s.pop(digest, None)
            self._control.store.change(lambda state: without_verdicts(state, mended(versions, state)))

    def is_wanted(self, catalogue: Catalogue, name: str | None = None) -> bool:
        """Whether there is anything to prove or to note now, of one model or of all."""
        return self._next(catalogue, name) is not None or bool(_new_bad(catalogue, name))

    def run(self, name: str | None = None) -> None:
        """Prove what there is of one model or of all, unless another worker does.

        Raises:
            OcrsvcError: The repository cannot be listed, or what was found not be kept.
        """
        with machine_lock(self._control.store.folder, PROOF) as is_ours:
            if is_ours:
                with contextlib.suppress(Stopped):
                    self._prove_all(name)

    def _prove_all(self, name: str | None) -> None:
        """Raises Stopped, OcrsvcError."""
        self._note_bad(self._control.rescan())
        while (candidate := self._next(self._control.rescan(), name)) is not None:
            self._prove_one(candidate)

    def _next(self, catalogue: Catalogue, name: str | None) -> ModelVersion | None:
        now_s = self._clock()
        wanted = (one for one in catalogue.candidates if name in (None, one.name))
        return next((one for one in wanted if self._not_before_s.get(one.digest, now_s) <= now_s), None)

    def _prove_one(self, candidate: ModelVersion) -> None:
        """Raises Stopped, OcrsvcError."""
        catalogue, began_s = self._control.catalogue(), self._clock()
        model = catalogue.models[candidate.name]
        serving = model.target or next(iter(model.accepted), None)
        # Should the verdict not be kept, this worker does not begin again at once.
        self._not_before_s[candidate.digest] = began_s + RETRY_S
        written = {kind: written_ns(candidate, kind) for kind in _OF_FILES}
        LOGGER.info("PROVING %s, beside %s", candidate, serving or "no other version")
        with self._control.store.proving(candidate.digest):
            found = self._prove(candidate, serving)
        spent_s = self._clock() - began_s
        if found.kind == "killed" and candidate.digest in self._killed:
            # Once may be bad luck.
            found = replace(found, kind="crash")
        if found.kind in ("gone", "unknown", "killed"):
            self._killed |= {candidate.digest} if found.kind == "killed" else set()
            self._not_before_s[candidate.digest] = self._clock() + RETRY_S
            LOGGER.warning("UNPROVED %s, and tried again later: %s", candidate, found.reason)
            return
        self._metrics.record((), [(MODEL_PROOF_SECONDS.of(), spent_s)])
        verdict = self._verdict(found.kind or "", found.reason, found.figures)
        verdict = verdict.model_copy(update={"written_ns": written.get(verdict.kind, 0)})
        keep_verdict(self._control, self._metrics, str(candidate), candidate.digest, verdict)

    def _note_bad(self, catalogue: Catalogue) -> None:
        """Versions that cannot be opened at all are refused, once. Raises OcrsvcError."""
        for bad in _new_bad(catalogue):
            verdict = self._verdict("open", bad.reason, {}).model_copy(update={"was_unreadable": True})
            keep_verdict(self._control, self._metrics, f"{bad.name}/{bad.number}", bad.digest, verdict)

    def _verdict(self, kind: str, reason: str, figures: Mapping[str, float]) -> Verdict:
        return make_verdict(kind, reason, self._basis, figures)


def make_verdict(kind: str, reason: str, basis: str, figures: Mapping[str, float] | None = None) -> Verdict:
    """A verdict of now.

    Args:
        kind: What a version is refused for; "" accepts it.
        reason: For people.
        basis: See `verdict_basis.py`.
        figures: What was measured.
    """
    found = dict(figures or {})
    told = reason if len(reason) <= MOST_REASON else f"{reason[:MOST_REASON]}…"
    return Verdict(accepted=not kind, reason=told, figures=found, at=time.time(), kind=kind, made_on=basis)


def keep_verdict(control: ModelControl, metrics: WorkerMetrics, version: str, digest: str, verdict: Verdict) -> None:
    """Keep a verdict on a version, log and count it. Raises OperatorError: the state cannot be written."""
    control.store.record_verdict(digest, verdict)
    if verdict.accepted:
        LOGGER.info("ACCEPTED %s: %s", version, verdict.reason)
        return
    LOGGER.error("REFUSED %s (%s): %s", version, verdict.kind, verdict.reason)
    metrics.count(MODEL_REFUSALS, verdict.kind)


def _new_bad(catalogue: Catalogue, name: str | None = None) -> list[BadVersion]:
    """Versions that cannot be opened, and have a manifest by which that can be kept."""
    bad = (one for one in catalogue.scan.bad[:MOST_BAD] if name in (None, one.name))
    return [one for one in bad if one.digest and one.digest not in catalogue.state.verdicts]
