"""Watches the repository in each worker: tests new versions, follows decisions, refuses versions that do not load.

One thread checks the state file ten times per second and scans the repository every OCRSVC_MODELS_POLL_S. Loading
and testing (proving) a version run in their own threads.
"""

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
from ocrsvc.models.proof.prover import Prover
from ocrsvc.models.proof.verdicts import MAX_REASON, CandidateProver, Verdicts
from ocrsvc.models.repository import BadVersion
from ocrsvc.models.state import Judgement
from ocrsvc.models.worker_models import WorkerModels
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_REFUSALS, MODEL_REFUSED, MODEL_SWAPS

LOGGER: Final = logging.getLogger("ocrsvc.models")
LOAD_LOCK: Final = "load.lock"
LOAD_S: Final = 600.0  # time limit of a load, eviction of other versions included
LONGEST_WAIT_S: Final = 60.0  # longest wait for a worker's turn to load
MAX_FAILURES: Final = 5  # failed loads, by the version's own fault, after which it is refused
_FIRST_WAIT_S: Final = 1.0
_WAIT_FACTOR: Final = 3.0
_LONGEST_BACKOFF_S: Final = 60.0
_TURN_S: Final = 1.0  # interval between attempts to prove versions, because another worker may hold the lock
_RETRY_S: Final = 10.0
_END_S: Final = 2.0
_MAX_BAD: Final = 100  # largest number of unusable versions that are logged


@dataclass(slots=True)
class _Failed:
    """The failed loads of one version in this worker."""

    tries: int = 0  # all failed loads
    own_fault: int = 0  # those that the version itself caused
    retry_at_s: float = 0.0  # time of the next try


class VersionSwitch:
    """Switches a worker's models: loads the version that should serve beside the old one, then retires the old one.

    Requests go to loaded versions, so a version takes traffic when it is loaded, and the old one is closed when its
    last request ends. Workers take turns to load, as loading takes CPU time from reading. After MAX_FAILURES failed
    loads, `on_unusable` is called.
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
        """Load the versions that should serve, and retire the others."""
        for model in self._models(catalogue):
            loaded, target = self._loaded_of(model), model.target
            if target is None:
                # Without a replacement, only versions that an operator unloaded are retired.
                self._retire([version for version in loaded if catalogue.is_unloaded(version)])
            elif target in loaded or self._load(target, loaded):
                self._note_serving(target)
                self._retire([version for version in self._loaded_of(model) if version not in model.available])

    def is_behind(self, catalogue: Catalogue) -> bool:
        """Whether `follow` has something to do; cheap enough for frequent calls."""
        return any(self._is_model_behind(catalogue, model) for model in self._models(catalogue))

    def _models(self, catalogue: Catalogue) -> list[Model]:
        """The catalogue's models of which this worker has loaded a version."""
        names = {version.name for version in self._loaded.versions()}
        return [catalogue.models[name] for name in names if name in catalogue.models]

    def _is_model_behind(self, catalogue: Catalogue, model: Model) -> bool:
        target, loaded = model.target, self._loaded_of(model)
        if target is None:
            return any(catalogue.is_unloaded(version) for version in loaded)
        if target not in loaded:
            return self._clock() >= self._retry_at_s(target)
        return self._serving.get(model.name) != target or any(version not in model.available for version in loaded)

    def _retry_at_s(self, version: ModelVersion) -> float:
        failed = self._failed.get(version.digest)
        return failed.retry_at_s if failed is not None else 0.0

    def _loaded_of(self, model: Model) -> list[ModelVersion]:
        return [version for version in self._loaded.versions() if version.name == model.name]

    def _note_serving(self, target: ModelVersion) -> None:
        others = (other for other in self._loaded.versions() if other.name == target.name and other != target)
        before = self._serving.get(target.name) or next(others, target)
        self._serving[target.name] = target
        if before != target:
            self._on_switch(target, before)

    def _retire(self, versions: list[ModelVersion]) -> None:
        for version in versions:
            self._loaded.retire(version)

    def _load(self, target: ModelVersion, loaded: list[ModelVersion]) -> bool:
        """Load a version at this worker's turn, or after LONGEST_WAIT_S; returns whether it is loaded."""
        if self._clock() < self._retry_at_s(target):
            return False
        with self._turn():
            return self._load_now(target, loaded)

    def _load_now(self, target: ModelVersion, loaded: list[ModelVersion]) -> bool:
        """Load a version; if memory does not suffice for two, close the old version first, and reload it on failure."""
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

    def _load_again(self, versions: list[ModelVersion]) -> None:
        loaded = self._loaded.versions()
        for version in versions:
            if version not in loaded:
                try:
                    self._loaded.preload(version, self._clock() + LOAD_S)
                except OcrsvcError as error:
                    LOGGER.error("%s, which was closed to make room, cannot be loaded again: %s", version, error)

    def _note_failure(self, version: ModelVersion, error: OcrsvcError) -> None:
        failed = self._failed.setdefault(version.digest, _Failed())
        failed.tries += 1
        # Not the version's fault: versions in use leave no room (ModelUnavailable), or the worker is ending (NotReady).
        failed.own_fault += not isinstance(error, ModelUnavailable | NotReady)
        wait_s = min(_LONGEST_BACKOFF_S, _FIRST_WAIT_S * _WAIT_FACTOR ** min(failed.tries - 1, 16))
        failed.retry_at_s = self._clock() + wait_s
        LOGGER.error("%s passed its proof, but this worker cannot load it (try %d): %s", version, failed.tries, error)
        if failed.own_fault >= MAX_FAILURES:
            self._on_unusable(version, f"It passed its proof, but a worker cannot load it: {error}")


class ModelWatcher:
    """Watches the repository for one worker. `start` it after the fork, when a model is loaded."""

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
        """Start the thread that watches the repository."""
        self._thread.begin(self._run)

    def stop(self) -> None:
        """Stop watching, and abort the test of a version, which another worker will repeat. Safe if never started."""
        self._done.set()
        for thread in (self._thread, self._proving, self._switching):
            thread.wait(_END_S)

    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._done.is_set()

    def look(self) -> None:
        """Check the repository once, and start to load or test new versions in other threads. Raises OcrsvcError."""
        catalogue = self.refresh()
        if self.switch.is_behind(catalogue):
            self._switching.begin(self.follow)
        else:
            self._last_error = ""
        if self._clock() >= self._prove_s and self.prover.is_wanted(catalogue):
            self._prove_s = self._clock() + _TURN_S
            self._proving.begin(self._prove)

    def follow(self) -> None:
        """Load the versions that should serve, and retire the others; logs errors."""
        try:
            self.switch.follow(self._control.catalogue())
        except Exception as error:  # noqa: BLE001  a later round tries again
            self._note_error(error)

    def prove_until(self, name: str, is_enough: Callable[[], bool]) -> None:
        """Before `start`: test a model's versions on reference pages, here or in other workers, until `is_enough()`."""
        catalogue = self._control.rescan()
        while not is_enough() and self.prover.is_wanted(catalogue, name) and not self.is_stopping():
            self.prover.run(name)
            self._done.wait(CHECK_S)
            catalogue = self._control.rescan()

    def refresh(self) -> Catalogue:
        """The current catalogue; scans the repository at most every OCRSVC_MODELS_POLL_S. Raises OcrsvcError."""
        catalogue = self._control.latest()
        if self._clock() - self._look_s >= self._poll_s:
            catalogue = self._control.reread()
            self._look_s = self._clock()
            self._verdicts.forget_outdated(catalogue)
            catalogue = self._control.latest()
        for bad in (version for version in catalogue.scan.bad[:_MAX_BAD] if version not in self._bad):
            LOGGER.error("REFUSED %s/%s (open): %s", bad.name, bad.number, bad.reason[:MAX_REASON])
            self._metrics.count(MODEL_REFUSALS, "open")
        self._bad = frozenset(catalogue.scan.bad)
        refused = sum(map(catalogue.is_refused, catalogue.scan.versions))
        self._metrics.put(MODEL_REFUSED, refused + len(catalogue.scan.bad))
        return catalogue

    def _refuse_unusable(self, version: ModelVersion, reason: str) -> None:
        """Refuse a version that this worker cannot load, if another version can replace it. Raises OcrsvcError."""
        successor = self._control.rescan().successor_of(version)
        if successor is None:
            LOGGER.error("%s is not refused, for no other version may serve: %s", version, reason)
            return
        # Load the successor before requests need it.
        self._loaded.preload(successor)
        self._verdicts.keep(version, Judgement("open", reason), self._verdicts.cache_key_of(version))
        self._control.rescan()

    def _note_switch(self, version: ModelVersion, before: ModelVersion) -> None:
        LOGGER.info("SERVING %s in place of %s", version, before)
        self._metrics.count(MODEL_SWAPS)

    def _prove(self) -> None:
        try:
            self.prover.run()
        except (OcrsvcError, OSError) as error:
            self._prove_s = self._clock() + _RETRY_S
            LOGGER.error("Models cannot be proved now: %s", error)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._done.wait(wait_s):
            wait_s = CHECK_S
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  this thread must survive
                self._note_error(error)
                wait_s = _RETRY_S

    def _note_error(self, error: Exception) -> None:
        """Log an error, unless it repeats the last one."""
        if str(error) != self._last_error:
            unexpected = None if isinstance(error, OcrsvcError | OSError) else error
            LOGGER.error("The models cannot be updated: %s", error, exc_info=unexpected)
        self._last_error = str(error)


class _Background:
    """Runs one call at a time in its own thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, call: Callable[[], object]) -> None:
        """Start a thread that runs `call`; do nothing while the previous call still runs."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=call, name=self._name, daemon=True)
            self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the running call, if any, has ended, at most `timeout_s`."""
        if self._thread is not None:
            self._thread.join(timeout_s)


def watch_models(settings: Settings, plan: ThreadPlan, models: WorkerModels, metrics: WorkerMetrics) -> ModelWatcher:
    """Make the watcher of a worker's models, which tests new versions before they are loaded; `start` it later."""
    watcher = ModelWatcher(settings, plan, models.control, models.loaded, metrics)
    models.prove_until = watcher.prove_until
    return watcher
