"""Watches the repository in each worker: has new versions proved, follows what was decided, rolls back what fails.

One thread looks at the state file ten times a second and at the repository every OCRSVC_MODELS_POLL_S: one look at each
manifest. What takes long has a thread of its own while it does: a version that is loaded, and one that is proved.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from ocrsvc.errors import OcrsvcError
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.candidate_prover import CandidateProver
from ocrsvc.model_serving.catalogue import Catalogue
from ocrsvc.model_serving.control import CHECK_S, ModelControl
from ocrsvc.model_serving.live_checks import LiveChecks, make_live_checks
from ocrsvc.model_serving.machine_lock import LOAD, machine_lock
from ocrsvc.model_serving.proof.prover import Prover
from ocrsvc.model_serving.repository_changes import Mark, look_at_policies, look_at_repository
from ocrsvc.model_serving.roll_back import RollBack
from ocrsvc.model_serving.verdict_basis import basis_of
from ocrsvc.model_serving.version_switch import Loaded, VersionSwitch
from ocrsvc.model_serving.worker_models import WorkerModels
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_REFUSED, MODEL_SWAPS

LOGGER: Final = logging.getLogger("ocrsvc.models")

# Another worker may prove; then this one looks whether it still does.
_TURN_S: Final = 1.0
_RETRY_S: Final = 10.0
_END_S: Final = 2.0


class ModelWatcher:
    """Of one worker. `start` it after the fork, once something is loaded.

    Args:
        control: Says what there is.
        prover: Proves what comes.
        switch: Loads what is to serve, and has what it replaces leave.
        roll_back: Refuses a version for the reason that live traffic has given. Raises OcrsvcError.
        checks: What live traffic says.
        metrics: Of this worker.
        poll_s: Between two looks at the repository.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        control: ModelControl,
        prover: CandidateProver,
        switch: VersionSwitch,
        roll_back: Callable[[ModelVersion, str], object],
        checks: LiveChecks,
        metrics: WorkerMetrics,
        poll_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._prover, self._switch = control, prover, switch
        self._roll_back, self._checks, self._metrics = roll_back, checks, metrics
        self._poll_s, self._clock = poll_s, clock
        self._done = threading.Event()
        self._seen: frozenset[Mark] | None = None
        self._policies: frozenset[Mark] | None = None
        self._look_s = self._prove_s = -math.inf
        self._last_error = ""
        self._failed: list[tuple[ModelVersion, str]] = []
        self._thread = _Background("models-watch")
        self._proving, self._switching = _Background("models-proof"), _Background("models-switch")

    def start(self) -> None:
        """Watch from now on."""
        self._control.is_watched = True
        self._thread.begin(self._run)

    def stop(self) -> None:
        """End, and end a proof that is under way; another worker makes it. Safe to call when never started."""
        self._done.set()
        for thread in (self._thread, self._proving, self._switching):
            thread.wait(_END_S)

    def is_stopping(self) -> bool:
        """Whether this worker is to go."""
        return self._done.is_set()

    def look(self) -> None:
        """One round; what takes long is begun. Raises OcrsvcError; a later round may go well."""
        catalogue = self.refresh()
        if self.is_behind(catalogue):
            self._switching.begin(self.follow)
        if self._clock() >= self._prove_s and self._prover.is_wanted(catalogue):
            self._prove_s = self._clock() + _TURN_S
            self._proving.begin(self._prove)

    def is_behind(self, catalogue: Catalogue) -> bool:
        """Whether there is anything to load, to close, or to roll back."""
        self._failed += self._checks.take_failures()
        return bool(self._failed) or self._switch.is_behind(catalogue)

    def follow(self) -> None:
        """Roll back what live traffic speaks against, and load what is to serve."""
        try:
            while self._failed:
                self._roll_back(*self._failed[0])
                del self._failed[0]
            self._switch.follow(self._control.catalogue())
        except (OcrsvcError, OSError) as error:
            self._note_error(error)

    def prove_until(self, name: str, is_enough: Callable[[], bool]) -> None:
        """Prove what there is of a model, or wait until another worker has, while that is not enough. Before `start`.

        Args:
            name: Of the model.
            is_enough: Asked after each round; what has no verdict after the last one gets none.

        Raises:
            OcrsvcError: The repository cannot be listed, or the state not written.
        """
        catalogue = self._control.rescan()
        while not is_enough() and self._prover.is_wanted(catalogue, name) and not self.is_stopping():
            self._prover.run(name)
            self._done.wait(CHECK_S)
            catalogue = self._control.rescan()

    def refresh(self) -> Catalogue:
        """What there is, reading the repository again only if something in it has changed. Raises OcrsvcError."""
        if self._clock() - self._look_s < self._poll_s or self._control.folder is None:
            return self._noted(self._control.latest())
        seen, policies = look_at_repository(self._control.folder), look_at_policies(self._control.folder)
        if policies != self._policies:
            self._control.reread_policies()
        if seen != self._seen:
            self._control.rescan()
        self._look_s, self._seen, self._policies = self._clock(), seen, policies
        return self._noted(self._control.latest())

    def _noted(self, catalogue: Catalogue) -> Catalogue:
        """The catalogue, and in the metrics how many versions of it are refused."""
        there = [version.digest for version in catalogue.scan.versions] + [bad.digest for bad in catalogue.scan.bad]
        verdicts = catalogue.state.verdicts
        refused = sum(digest in verdicts and not verdicts[digest].accepted for digest in there)
        self._metrics.put(MODEL_REFUSED, refused)
        return catalogue

    def _prove(self) -> None:
        try:
            self._prover.run()
        except (OcrsvcError, OSError) as error:
            self._prove_s = self._clock() + _RETRY_S
            LOGGER.error("No model can be proved now: %s", error)

    def _run(self) -> None:
        with suppress(OcrsvcError, OSError):
            self._prover.forget_outdated()
        wait_s = 0.0
        while not self._done.wait(wait_s):
            wait_s = CHECK_S
            try:
                self.look()
            except (OcrsvcError, OSError) as error:
                self._note_error(error)
                wait_s = _RETRY_S

    def _note_error(self, error: Exception) -> None:
        """The same one is logged once."""
        if str(error) != self._last_error:
            LOGGER.error("The models stay as they are: %s", error)
        self._last_error = str(error)


class _Background:
    """Runs one thing at a time in a thread of its own, which ends with it.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, call: Callable[[], object]) -> None:
        """Begin, unless the last thing is still under way."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=call, name=self._name, daemon=True)
            self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until it has ended, but for no longer than this."""
        if self._thread is not None:
            self._thread.join(timeout_s)


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

    prover = CandidateProver(control, Prover(settings, plan, is_stopping).prove, basis, metrics)
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
