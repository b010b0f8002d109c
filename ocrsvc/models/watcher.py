"""Watches the repository in each worker: has new versions proved, follows what was decided, refuses what does not load.

One thread looks at the state file ten times a second and reads the repository every OCRSVC_MODELS_POLL_S. What takes
long has a thread of its own while it does: a version that is loaded, and one that is proved.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError
from ocrsvc.models.catalogue import Catalogue, Model
from ocrsvc.models.loaded_models import LoadedModels
from ocrsvc.models.model_control import CHECK_S, ModelControl
from ocrsvc.models.proof.prover import Judgement, Prover
from ocrsvc.models.proof.verdicts import MOST_REASON, CandidateProver, Verdicts
from ocrsvc.models.repository import BadVersion
from ocrsvc.models.worker_models import WorkerModels
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_REFUSALS, MODEL_REFUSED, MODEL_SWAPS

LOGGER: Final = logging.getLogger("ocrsvc.models")
LOAD_LOCK: Final = "load.lock"
# The most that loading may take, draining what has to make room included.
LOAD_S: Final = 600.0
# How long a worker waits for its turn to load.
LONGEST_WAIT_S: Final = 60.0
# Times that a worker tries to load a version before it is refused.
MOST_FAILURES: Final = 5
_FIRST_WAIT_S: Final = 1.0
_WAIT_FACTOR: Final = 3.0
_LONGEST_BACKOFF_S: Final = 60.0
# Another worker may prove; then this one looks whether it still does.
_TURN_S: Final = 1.0
_RETRY_S: Final = 10.0
_END_S: Final = 2.0
# Versions that cannot be opened at all, the first by name, that are logged.
_MOST_BAD: Final = 100


@dataclass(slots=True)
class _Failed:
    """How often a version could not be loaded here, how often by its own fault, and when it is tried again."""

    tries: int = 0
    own_fault: int = 0
    again_s: float = 0.0


class VersionSwitch:
    """Switches a worker to what may serve: the newest version is loaded beside the one that serves, which then leaves.

    Requests go to what is loaded, so a version takes traffic as soon as it is, and the one before it is closed when its
    last request has ended. Workers take turns to load, which would take the processors from those who read. What this
    one has tried to load MOST_FAILURES times is `on_unusable`.
    """

    def __init__(
        self,
        loaded: LoadedModels,
        turn: Callable[[], AbstractContextManager[object]],
        on_switch: Callable[[ModelVersion, ModelVersion], object],
        on_unusable: Callable[[ModelVersion, str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loaded, self._turn, self._clock = loaded, turn, clock
        self._on_switch, self._on_unusable = on_switch, on_unusable
        self._failed: dict[str, _Failed] = {}
        self._serving: dict[str, ModelVersion] = {}

    def follow(self, catalogue: Catalogue) -> None:
        """Load what is to serve in place of what is loaded, and have that leave."""
        for model in self._models(catalogue):
            loaded, target = self._loaded_of(model), model.target
            if target is None:
                # Nothing replaces them: they leave only if they must not serve at all.
                self._retire([version for version in loaded if catalogue.is_unloaded(version)])
            elif target in loaded or self._load(target, loaded):
                self._note_serving(target)
                self._retire([version for version in self._loaded_of(model) if version not in model.available])

    def is_behind(self, catalogue: Catalogue) -> bool:
        """Whether there is anything to load, to close or to note; cheap enough to be asked all the time."""
        return any(self._is_model_behind(catalogue, model) for model in self._models(catalogue))

    def _models(self, catalogue: Catalogue) -> list[Model]:
        """The models of which versions are loaded."""
        names = {version.name for version in self._loaded.versions()}
        return [catalogue.models[name] for name in names if name in catalogue.models]

    def _is_model_behind(self, catalogue: Catalogue, model: Model) -> bool:
        target, loaded = model.target, self._loaded_of(model)
        if target is None:
            return any(catalogue.is_unloaded(version) for version in loaded)
        if target not in loaded:
            return self._clock() >= self._again_s(target)
        return self._serving.get(model.name) != target or any(version not in model.available for version in loaded)

    def _again_s(self, version: ModelVersion) -> float:
        failed = self._failed.get(version.digest)
        return failed.again_s if failed is not None else 0.0

    def _loaded_of(self, model: Model) -> list[ModelVersion]:
        return [version for version in self._loaded.versions() if version.name == model.name]

    def _note_serving(self, target: ModelVersion) -> None:
        others = (one for one in self._loaded.versions() if one.name == target.name and one != target)
        before = self._serving.get(target.name) or next(others, target)
        self._serving[target.name] = target
        if before != target:
            self._on_switch(target, before)

    def _retire(self, versions: list[ModelVersion]) -> None:
        for version in versions:
            self._loaded.retire(version)

    def _load(self, target: ModelVersion, loaded: list[ModelVersion]) -> bool:
        """Load what is to serve when it is this worker's turn, or others take too long; whether it is loaded."""
        if self._clock() < self._again_s(target):
            return False
        with self._turn():
            return self._load_now(target, loaded)

    def _load_now(self, target: ModelVersion, loaded: list[ModelVersion]) -> bool:
        """Where there is no room for both the old one leaves first: new requests wait, and it comes back on failure."""
        for version in loaded:
            self._serving.setdefault(version.name, version)
        if not self._loaded.has_room_for(target):
            self._retire(loaded)
        try:
            self._loaded.preload(target, self._clock() + LOAD_S)
        except OcrsvcError as error:
            self._note_failure(target, error)
            self._load_again(loaded)
            return False
        self._failed.pop(target.digest, None)
        return True

    def _load_again(self, before: list[ModelVersion]) -> None:
        there = self._loaded.versions()
        for version in before:
            if version not in there:
                try:
                    self._loaded.preload(version, self._clock() + LOAD_S)
                except OcrsvcError as error:
                    LOGGER.error("%s, which had made room, cannot be loaded again: %s", version, error)

    def _note_failure(self, version: ModelVersion, error: OcrsvcError) -> None:
        failed = self._failed.setdefault(version.digest, _Failed())
        failed.tries += 1
        # That others are being used, or that this worker ends, is not its fault.
        failed.own_fault += not isinstance(error, ModelUnavailable | NotReady)
        wait_s = min(_LONGEST_BACKOFF_S, _FIRST_WAIT_S * _WAIT_FACTOR ** min(failed.tries - 1, 16))
        failed.again_s = self._clock() + wait_s
        message = "%s has proved itself, and cannot be loaded in this worker (%d times): %s"
        LOGGER.error(message, version, failed.tries, error)
        if failed.own_fault >= MOST_FAILURES:
            self._on_unusable(version, f"It has proved itself, and a worker cannot load it: {error}")


class ModelWatcher:
    """Belongs to one worker. `start` it after the fork, once something is loaded."""

    def __init__(
        self,
        settings: Settings,
        plan: ThreadPlan,
        control: ModelControl,
        loaded: LoadedModels,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._loaded, self._metrics = control, loaded, metrics
        self._poll_s, self._clock = settings.models_poll_s, clock
        self._verdicts = Verdicts(settings, control.store, metrics)
        self.prover = CandidateProver(
            control, Prover(settings, plan, self.is_stopping).prove, self._verdicts, metrics, clock
        )
        turn = partial(control.store.locked, LOAD_LOCK, wait_s=LONGEST_WAIT_S)
        self.switch = VersionSwitch(loaded, turn, self._note_switch, self._refuse_unusable, clock)
        control.loaded_versions = loaded.versions
        self._done = threading.Event()
        self._look_s = self._prove_s = -math.inf
        self._bad: frozenset[BadVersion] = frozenset()
        self._last_error = ""
        self._thread = _Background("models-watch")
        self._proving, self._switching = _Background("models-proof"), _Background("models-switch")

    def start(self) -> None:
        """Watch from now on."""
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
        if self.switch.is_behind(catalogue):
            self._switching.begin(self.follow)
        else:
            self._last_error = ""
        if self._clock() >= self._prove_s and self.prover.is_wanted(catalogue):
            self._prove_s = self._clock() + _TURN_S
            self._proving.begin(self._prove)

    def follow(self) -> None:
        """Load what is to serve, and have what it replaces leave."""
        try:
            self.switch.follow(self._control.catalogue())
        except Exception as error:  # noqa: BLE001  it is tried again
            self._note_error(error)

    def prove_until(self, name: str, is_enough: Callable[[], bool]) -> None:
        """Before `start`: prove what there is of a model, or wait until another worker has, until that is enough."""
        catalogue = self._control.rescan()
        while not is_enough() and self.prover.is_wanted(catalogue, name) and not self.is_stopping():
            self.prover.run(name)
            self._done.wait(CHECK_S)
            catalogue = self._control.rescan()

    def refresh(self) -> Catalogue:
        """The models now; the repository is read again every OCRSVC_MODELS_POLL_S. Raises OcrsvcError."""
        catalogue = self._control.latest()
        if self._clock() - self._look_s >= self._poll_s:
            catalogue = self._control.reread()
            self._look_s = self._clock()
            self._verdicts.forget_outdated(catalogue)
            catalogue = self._control.latest()
        for bad in (one for one in catalogue.scan.bad[:_MOST_BAD] if one not in self._bad):
            LOGGER.error("REFUSED %s/%s (open): %s", bad.name, bad.number, bad.reason[:MOST_REASON])
            self._metrics.count(MODEL_REFUSALS, "open")
        self._bad = frozenset(catalogue.scan.bad)
        refused = sum(map(catalogue.is_refused, catalogue.scan.versions))
        self._metrics.put(MODEL_REFUSED, refused + len(catalogue.scan.bad))
        return catalogue

    def _refuse_unusable(self, version: ModelVersion, reason: str) -> None:
        """Refuse a version that cannot be loaded here, as long as another can replace it. Raises OcrsvcError."""
        heir = self._control.rescan().heir_of(version)
        if heir is None:
            LOGGER.error("%s stays, because no other version of it may serve: %s", version, reason)
            return
        # Before any request needs it.
        self._loaded.preload(heir)
        self._verdicts.keep(version, Judgement("open", reason), self._verdicts.basis_of(version))
        self._control.rescan()

    def _note_switch(self, version: ModelVersion, before: ModelVersion) -> None:
        LOGGER.info("SERVING %s in place of %s", version, before)
        self._metrics.count(MODEL_SWAPS)

    def _prove(self) -> None:
        try:
            self.prover.run()
        except (OcrsvcError, OSError) as error:
            self._prove_s = self._clock() + _RETRY_S
            LOGGER.error("No model can be proved now: %s", error)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._done.wait(wait_s):
            wait_s = CHECK_S
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  without this thread no version would ever come or go
                self._note_error(error)
                wait_s = _RETRY_S

    def _note_error(self, error: Exception) -> None:
        """The same one is logged once."""
        if str(error) != self._last_error:
            unforeseen = None if isinstance(error, OcrsvcError | OSError) else error
            LOGGER.error("The models stay as they are: %s", error, exc_info=unforeseen)
        self._last_error = str(error)


class _Background:
    """Runs one thing at a time in a thread of its own, which ends with it."""

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


def watch_models(settings: Settings, plan: ThreadPlan, models: WorkerModels, metrics: WorkerMetrics) -> ModelWatcher:
    """The watcher of a worker's models, of which nothing is loaded yet: they are proved before; to be started."""
    watcher = ModelWatcher(settings, plan, models.control, models.loaded, metrics)
    models.prove_until = watcher.prove_until
    return watcher
