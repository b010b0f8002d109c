"""The models of a worker: leases for requests, and loading at the start."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.open_engine import open_engine, runs_isolated
from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError, UnknownModel
from ocrsvc.models.loaded_models import Lease, LoadedModels, LoadTakesLong, VersionRetired
from ocrsvc.models.loaded_version import EngineThreads, ModelMemory
from ocrsvc.models.model_control import ModelControl, ModelList
from ocrsvc.models.model_name import WantedModel, parse_wanted_model
from ocrsvc.models.proof.verdicts import CrashGuard, Verdicts
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import StateStore, state_folder
from ocrsvc.models.version_selection import VersionSelector, list_models
from ocrsvc.results import Check, EngineInfo, ReadOptions, no_check
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metrics_store import WorkerMetrics

LOG: Final = logging.getLogger("ocrsvc.models")
_MEMORY_SHARE: Final = 0.5
_SELECTIONS: Final = 3  # tries to select another version before waiting for the selected one


class WorkerModels:
    """A worker's models, created after its fork. `preloads` are model names to load at the start. Thread-safe.

    `prove_until` tests a model's versions in child processes before the first one is loaded; see ModelWatcher.
    """

    def __init__(
        self, loaded: LoadedModels, control: ModelControl, selector: VersionSelector, preloads: Sequence[str] = ()
    ) -> None:
        self.loaded, self.control, self.selector = loaded, control, selector
        self._preloads = preloads
        self._default_info: EngineInfo | None = None
        self.prove_until: Callable[[str, Callable[[], bool]], object] = lambda _name, _is_enough: None

    @property
    def default(self) -> WantedModel:
        """The model for requests that name none."""
        return self.selector.default

    def lease(self, options: ReadOptions, deadline: float = math.inf, check: Check = no_check) -> Lease:
        """Lease the version for a request's options. Raises UnknownModel, and the errors of LoadedModels.lease."""
        for _ in range(_SELECTIONS):
            # Select again if the selected version was just replaced, or loads too slowly.
            with suppress(VersionRetired, LoadTakesLong):
                return self._lease_chosen(options, deadline, check, is_last=False)
        return self._lease_chosen(options, deadline, check, is_last=True)

    def _lease_chosen(self, options: ReadOptions, deadline: float, check: Check, *, is_last: bool) -> Lease:
        """Select a version and lease it. Raises as `lease`, and unless `is_last`, VersionRetired or LoadTakesLong."""
        version = self.selector.select(options)
        has_other = not (is_last or self.loaded.is_loaded(version)) and bool(self._others(version, options))
        try:
            return self.loaded.lease(version, deadline, check, reload=is_last, has_other=has_other)
        except LoadTakesLong:
            other = next(filter(self.loaded.is_loaded, self._others(version, options)), None)
            if other is None:
                raise
            return self.loaded.lease(other, deadline, check)
        except ModelUnavailable:
            for other in self._others(version, options):
                with suppress(ModelUnavailable):
                    return self.loaded.lease(other, deadline, check)
            raise

    def _others(self, version: ModelVersion, options: ReadOptions) -> list[ModelVersion]:
        """Other versions that may read the request, loaded ones first; none if the request names a version or label."""
        wanted = parse_wanted_model(options.model) if options.model is not None else self.default
        model = self.control.catalogue().models.get(version.name)
        if wanted.number is not None or wanted.label is not None or model is None:
            return []
        others = (other for other in model.accepted if other != version)
        return sorted(others, key=lambda other: not self.loaded.is_loaded(other))

    def load_ahead(self) -> None:
        """Load the default model and those of OCRSVC_MODELS_LOAD. Raises the error that prevents the default model."""
        default = self.default
        self.prove_until(default.name, lambda: self.selector.serving(default) is not None)
        failures = [failure for version in self._default_versions() if (failure := self._try_to_load(version))]
        serving = self.selector.serving(default)
        if serving is None:
            raise UnknownModel(
                f"OCRSVC_MODEL is {default}, which is not available.",
                f"{list_models(self.control.catalogue())} `ocrsvc models list` says why others do not serve.",
            )
        if not self.loaded.is_loaded(serving):
            raise failures[0] if failures else NotReady(f"The model {serving} is not loaded.")
        for version in self._preloaded_versions():
            if not self.loaded.is_loaded(version) and self.loaded.has_room_for(version):
                self._try_to_load(version)
            elif not self.loaded.is_loaded(version):
                LOG.error("The model %s is not loaded at the start: OCRSVC_MODELS_MEMORY has no room for it.", version)

    def describe(self) -> EngineInfo:
        """Describe the default model's engine; if it is not loaded, return the last description. Raises NotReady."""
        version = self.selector.serving(self.default)
        loaded_info = self.loaded.describe(version) if version is not None else None
        self._default_info = info = loaded_info or self._default_info
        if info is None:
            raise NotReady("The default model is not loaded yet.", "Send the request again in a moment.", 2)
        return info

    def list(self) -> ModelList:
        """The models that requests may name, with the status of each version. Raises BadModel."""
        if self.control.catalogue().scan.is_unnamed:
            return ModelList(None, ())
        return ModelList(str(self.default), tuple(self.control.status()))

    def _default_versions(self) -> Iterator[ModelVersion]:
        """The default model's versions to load: the serving one, those with traffic shares, others until one loads."""
        if (first := self.selector.serving(self.default)) is not None:
            yield first
        model = self.control.catalogue().models.get(self.default.name)
        if model is None:
            return
        if model.policy is not None:
            numbers = (model.labels.get(label, 0) for label in model.policy.shares)
            yield from (version for number in numbers if (version := model.find(number)))
        # Try replaced versions last: all available ones may fail to load, for lack of memory or for damaged files.
        rest = [version for version in model.accepted if version not in model.available]
        for version in (*model.available, *rest):
            serving = self.selector.serving(self.default)
            if serving is None or self.loaded.is_loaded(serving):
                return
            yield version

    def _preloaded_versions(self) -> Iterator[ModelVersion]:
        if "all" in self._preloads:
            yield from self.control.catalogue().available
            return
        for name in (name for name in self._preloads if name != "default"):
            version = self.selector.serving(parse_wanted_model(name))
            if version is not None:
                yield version
            else:
                LOG.error("OCRSVC_MODELS_LOAD names the model %s, which is not available.", name)

    def _try_to_load(self, version: ModelVersion) -> OcrsvcError | None:
        """Load a version; returns the error, which was logged, or None."""
        try:
            self.loaded.preload(version)
        except OcrsvcError as failure:
            return failure
        return None


def open_worker_models(
    settings: Settings,
    plan: ThreadPlan,
    threads: EngineThreads,
    denylist: CrashDenylist | None = None,
    metrics: WorkerMetrics | None = None,
    key: ModelKey | None = None,
    engine_opener: Callable[[], Engine] | None = None,
) -> WorkerModels:
    """Open the models of OCRSVC_MODELS, or an engine's own model; nothing is loaded yet.

    Raises BadModel, SettingsError for invalid policies, OperatorError without a folder for the state.
    """

    def open_version(version: ModelVersion) -> Engine:
        if engine_opener is not None:
            return engine_opener()
        return open_engine(settings, plan, denylist, None if folder is None else version)

    folder = settings.models if engine_opener is None else None

    def copies_of(version: ModelVersion) -> int:
        return plan.engine_threads if runs_isolated(settings, version.description.engine) else 1

    memory = ModelMemory(None if folder is None else memory_budget(settings, plan), copies=copies_of)
    # At most half of the request threads may wait for loads; the others serve requests to loaded models.
    max_waiting = max(1, min(settings.queue_size, plan.threads) // 2)
    loaded = LoadedModels(
        open_version, threads, memory, load_limit_s=settings.boot_limit_s, max_waiting=max_waiting, metrics=metrics
    )
    if folder is None:
        control = ModelControl(ModelRepository(None, engine=settings.engine), None, loaded.is_loaded)
        [version] = control.catalogue().scan.versions
        return WorkerModels(loaded, control, VersionSelector(control, WantedModel(version.name)))
    store = StateStore(state_folder(folder, settings.models_state))
    loaded.guard = CrashGuard(store.folder, Verdicts(settings, store)).loading
    control = ModelControl(ModelRepository(folder, key), store, loaded.is_loaded, ignores_bad_policies=True)
    loaded.is_pinned = lambda version: control.catalogue().is_pinned(version)
    selector = VersionSelector(control, parse_wanted_model(settings.model))
    return WorkerModels(loaded, control, selector, settings.models_load)


def memory_budget(settings: Settings, plan: ThreadPlan) -> int:
    """Memory limit of one worker's models together.

    By default, the models of all workers and of one replacement worker may fill half of the memory. The rest is for
    requests, and for growth of workers before they are replaced.
    """
    memory_bytes = read_memory_bytes()
    given = bytes_of(settings.models_memory, memory_bytes)
    return int(_MEMORY_SHARE * memory_bytes) // (plan.workers + 1) if given is None else given
