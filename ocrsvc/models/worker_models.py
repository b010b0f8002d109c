"""The models of a worker: a lease on the version that reads a request, and what is loaded at the start."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.open_engine import open_engine
from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError, UnknownModel
from ocrsvc.models.loaded_models import Lease, LoadedModels, LoadTakesLong, VersionRetired
from ocrsvc.models.loaded_version import EngineThreads, ModelMemory
from ocrsvc.models.model_control import ModelControl, ModelList
from ocrsvc.models.model_name import WantedModel, parse_wanted_model
from ocrsvc.models.proof.verdicts import CrashGuard, Verdicts
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import StateStore, state_folder
from ocrsvc.models.version_selection import VersionSelector, there_is
from ocrsvc.results import Check, EngineInfo, ReadOptions, no_check
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.metrics_store import WorkerMetrics

LOG: Final = logging.getLogger("ocrsvc.models")
_ALL: Final = "all"
_DEFAULT: Final = "default"
_MEMORY_SHARE: Final = 0.5
_RESOLVED_AGAIN: Final = 3


class WorkerModels:
    """Made in a worker, after its fork, with what is loaded ahead (OCRSVC_MODELS_LOAD); any thread may call.

    `prove_until` has versions of a model proved until there is one to begin with; see `ModelWatcher.prove_until`.
    """

    def __init__(
        self, loaded: LoadedModels, control: ModelControl, selector: VersionSelector, ahead: Sequence[str] = ()
    ) -> None:
        self.loaded, self.control, self.selector = loaded, control, selector
        self._ahead = ahead
        self._default_info: EngineInfo | None = None
        self.prove_until: Callable[[str, Callable[[], bool]], object] = lambda _name, _is_enough: None

    @property
    def default(self) -> WantedModel:
        """The model of requests that name none."""
        return self.selector.default

    def lease(self, options: ReadOptions, deadline: float = math.inf, check: Check = no_check) -> Lease:
        """The right to read with the version that a request's options choose. Raises UnknownModel, and as `check`."""
        for _ in range(_RESOLVED_AGAIN):
            # Another one may just have replaced it; or it came back into its place, and is not loaded yet.
            with suppress(VersionRetired, LoadTakesLong):
                return self._lease_chosen(options, deadline, check, is_last=False)
        return self._lease_chosen(options, deadline, check, is_last=True)

    def _lease_chosen(self, options: ReadOptions, deadline: float, check: Check, *, is_last: bool) -> Lease:
        """As `lease`. Raises VersionRetired and LoadTakesLong, too, but for the last time."""
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
        """What may read instead of a version, what is loaded first; nothing where the request names just that one."""
        wanted = parse_wanted_model(options.model) if options.model is not None else self.default
        model = self.control.catalogue().models.get(version.name)
        if wanted.number is not None or wanted.label is not None or model is None:
            return []
        others = (one for one in model.accepted if one != version)
        return sorted(others, key=lambda one: not self.loaded.is_loaded(one))

    def load_ahead(self) -> None:
        """Load the default model, and what else is to be there. Raises what keeps the former from being loaded."""
        default = self.default
        self.prove_until(default.name, lambda: self.selector.serving(default) is not None)
        failures = [failure for version in self._default_versions() if (failure := self._try_to_load(version))]
        serving = self.selector.serving(default)
        if serving is None:
            raise UnknownModel(
                f"OCRSVC_MODEL is {default}, which is not available.",
                f"{there_is(self.control.catalogue())} What keeps others from serving: `ocrsvc models list`.",
            )
        if not self.loaded.is_loaded(serving):
            raise failures[0] if failures else NotReady(f"The model {serving} is not loaded.")
        for version in self._versions_ahead():
            if self.loaded.is_loaded(version):
                continue
            if self.loaded.has_room_for(version):
                self._try_to_load(version)
            else:
                LOG.error("The model %s is not loaded ahead: OCRSVC_MODELS_MEMORY has no room for it.", version)

    def describe(self) -> EngineInfo:
        """The engine of requests that name no model; the one before where it is not loaded. Raises NotReady."""
        version = self.selector.serving(self.default)
        found = self.loaded.describe(version) if version is not None else None
        self._default_info = info = found or self._default_info
        if info is None:
            raise NotReady("The default model is not loaded yet.", "Send the request again in a moment.", 2)
        return info

    def list(self) -> ModelList:
        """What requests may name, and how each version is. Raises BadModel."""
        if self.control.catalogue().scan.is_unnamed:
            return ModelList(None, ())
        return ModelList(str(self.default), tuple(self.control.status()))

    def _default_versions(self) -> Iterator[ModelVersion]:
        """Those that read requests without a name, by shares too; others of the model while none could be loaded."""
        if (first := self.selector.serving(self.default)) is not None:
            yield first
        model = self.control.catalogue().models.get(self.default.name)
        if model is None:
            return
        if model.policy is not None:
            yield from (one for label in model.policy.shares if (one := model.find(model.labels.get(label, 0))))
        # One that was accepted may fail here, by too little memory or files that were damaged since.
        rest = [version for version in model.accepted if version not in model.available]
        for version in (*model.available, *rest):
            serving = self.selector.serving(self.default)
            if serving is None or self.loaded.is_loaded(serving):
                return
            yield version

    def _versions_ahead(self) -> Iterator[ModelVersion]:
        if _ALL in self._ahead:
            yield from self.control.catalogue().available
            return
        for name in self._ahead:
            version = None if name == _DEFAULT else self.selector.serving(parse_wanted_model(name))
            if version is not None:
                yield version
            elif name != _DEFAULT:
                LOG.error("OCRSVC_MODELS_LOAD names the model %s, which is not available.", name)

    def _try_to_load(self, version: ModelVersion) -> OcrsvcError | None:
        """Load a version; what keeps it from that was logged."""
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
    """The models of the repository that the settings name, or the one model of an engine; nothing is loaded yet.

    Raises BadModel, SettingsError for wrong policies, OperatorError where there is no place for the state.
    """

    def open_version(version: ModelVersion) -> Engine:
        if engine_opener is not None:
            return engine_opener()
        return open_engine(settings, plan, denylist, None if folder is None else version)

    folder = settings.models if engine_opener is None else None
    copies = plan.engine_threads if settings.isolation == "process" else 1
    memory = ModelMemory(None if folder is None else memory_budget(settings, plan), copies=copies)
    # The other threads are for models that are loaded.
    most_waiting = max(1, min(settings.queue_size, plan.threads) // 2)
    loaded = LoadedModels(
        open_version,
        threads,
        memory,
        load_limit_s=settings.boot_limit_s,
        most_waiting=most_waiting,
        metrics=metrics,
    )
    if folder is None:
        control = ModelControl(ModelRepository(None, engine=settings.engine), None, loaded.is_loaded)
        [version] = control.catalogue().scan.versions
        return WorkerModels(loaded, control, VersionSelector(control, WantedModel(version.name)))
    store = StateStore(state_folder(folder, settings.models_state))
    loaded.guard = CrashGuard(store.folder, Verdicts(settings, store)).loading
    control = ModelControl(ModelRepository(folder, key), store, loaded.is_loaded, goes_on=True)
    loaded.is_pinned = lambda version: control.catalogue().is_pinned(version)
    selector = VersionSelector(control, parse_wanted_model(settings.model))
    return WorkerModels(loaded, control, selector, settings.models_load)


def memory_budget(settings: Settings, plan: ThreadPlan) -> int:
    """What the models of one worker may take together, in bytes.

    By default the models of all workers and of one successor fill half of the memory: the other half is for requests,
    and for what workers may grow before they are replaced.
    """
    memory_bytes = read_memory_bytes()
    given = bytes_of(settings.models_memory, memory_bytes)
    return int(_MEMORY_SHARE * memory_bytes) // (plan.workers + 1) if given is None else given
