"""The models of a worker: which version reads a request, and a lease on it; what is loaded when the worker is ready."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ocrsvc.engines.opening import open_engine
from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError, UnknownModel
from ocrsvc.model_repository.model_key import ModelKey
from ocrsvc.model_repository.repository import ModelRepository
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_repository.wanted_model import parse_wanted_model
from ocrsvc.model_serving.control import ModelControl
from ocrsvc.model_serving.live_checks import LiveChecks
from ocrsvc.model_serving.load_deaths import LoadDeaths
from ocrsvc.model_serving.loaded_models import Lease, LoadedModels, LoadTakesLong, VersionRetired
from ocrsvc.model_serving.loaded_version import EngineThreads
from ocrsvc.model_serving.model_loader import LoadObserver
from ocrsvc.model_serving.model_memory import ModelMemory
from ocrsvc.model_serving.model_status import ModelList
from ocrsvc.model_serving.router import ModelRouter, there_is
from ocrsvc.model_serving.state import StateStore, state_folder
from ocrsvc.model_serving.verdict_basis import basis_of
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Check, ReadOptions, no_check
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings
from ocrsvc.settings.types import bytes_of
from ocrsvc.system.memory import read_memory_bytes
from ocrsvc.system.thread_plan import ThreadPlan

LOG: Final = logging.getLogger("ocrsvc.models")

ALL: Final = "all"
DEFAULT: Final = "default"

_MEMORY_SHARE: Final = 0.5
_RESOLVED_AGAIN: Final = 3


class WorkerModels:
    """Made in a worker, after its fork; any thread may call.

    Args:
        loaded: What this worker has loaded.
        control: Says what there is, and what may serve.
        router: Chooses the version for each request.
        ahead: What OCRSVC_MODELS_LOAD says.

    Attributes:
        loaded, control, router: As above.
        checks: Is told of each page that is read; None where nothing judges a version by that.
        prove_until: Has versions of a model proved until there is one to begin with; see `ModelWatcher.prove_until`.
    """

    def __init__(
        self, loaded: LoadedModels, control: ModelControl, router: ModelRouter, ahead: Sequence[str] = (DEFAULT,)
    ) -> None:
        self.loaded, self.control, self.router = loaded, control, router
        self._ahead = ahead
        self._default_info: EngineInfo | None = None
        self.checks: LiveChecks | None = None
        self.prove_until: Callable[[str, Callable[[], bool]], object] = lambda _name, _is_enough: None

    def lease(self, options: ReadOptions, deadline: float = math.inf, check: Check = no_check) -> Lease:
        """The right to read with the version that a request's options choose.

        Raises:
            UnknownModel: There is none.
            OcrsvcError: As LoadedModels.lease, and as `check`.
        """
        for _ in range(_RESOLVED_AGAIN):
            # Another one may just have taken its place; or it came back into its place, and is not loaded yet.
            with suppress(VersionRetired, LoadTakesLong):
                return self._lease_chosen(options, deadline, check, is_last=False)
        return self._lease_chosen(options, deadline, check, is_last=True)

    def _lease_chosen(self, options: ReadOptions, deadline: float, check: Check, *, is_last: bool) -> Lease:
        """As `lease`. Raises VersionRetired and LoadTakesLong, too, but for the last time."""
        version = self.router.resolve(options)
        has_other = not (is_last or self.loaded.is_loaded(version)) and bool(self._others(version, options))
        try:
            return self.loaded.lease(version, deadline, check, reload=is_last, has_other=has_other)
        except LoadTakesLong:
            other = next(filter(self.loaded.is_loaded, self._others(version, options)), None)
            if other is None:
                raise
        except ModelUnavailable as failure:
            return self._lease_other(version, options, deadline, check, failure)
        return self.loaded.lease(other, deadline, check)

    def _lease_other(
        self, version: ModelVersion, options: ReadOptions, deadline: float, check: Check, failure: ModelUnavailable
    ) -> Lease:
        """A lease on the first version that can be loaded in place of one that cannot be; else raises its failure."""
        for other in self._others(version, options):
            try:
                return self.loaded.lease(other, deadline, check)
            except ModelUnavailable:
                continue
        raise failure

    def _others(self, version: ModelVersion, options: ReadOptions) -> list[ModelVersion]:
        """What may read instead of a version, what is loaded first; nothing where the request names just that one."""
        wanted = parse_wanted_model(options.model) if options.model is not None else self.router.default
        model = self.control.catalogue().models.get(version.name)
        if wanted.number is not None or wanted.label is not None or model is None:
            return []
        others = (one for one in model.accepted if one != version)
        return sorted(others, key=lambda one: not self.loaded.is_loaded(one))

    def load_ahead(self) -> None:
        """Load what requests without a name are read with, and what else is to be there from the beginning.

        Raises:
            OcrsvcError: What keeps the default model from being loaded. What is wrong with others is logged.
        """
        default = self.router.default
        self.prove_until(default.name, lambda: self.router.serving(default) is not None)
        failures = [failure for version in self._default_versions() if (failure := self._try_to_load(version))]
        serving = self.router.serving(self.router.default)
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
                LOG.error(
                    "The model %s is not loaded ahead: OCRSVC_MODELS_MEMORY has no room for it.",
                    version,
                )

    def describe(self) -> EngineInfo:
        """What reads requests that name no model; what did so last, where it is not loaded. Raises NotReady."""
        version = self.router.serving(self.router.default)
        found = self.loaded.describe(version) if version is not None else None
        self._default_info = info = found or self._default_info
        if info is None:
            raise NotReady("The default model is not loaded yet.", "Send the request again in a moment.", 2)
        return info

    def list(self) -> ModelList:
        """What requests may name, and how each version is. Raises BadModel."""
        return ModelList(str(self.router.default), tuple(self.control.status()))

    def _default_versions(self) -> Iterator[ModelVersion]:
        """Those that read requests without a name, by shares too; others of the model while none could be loaded."""
        first = self.router.serving(self.router.default)
        if first is not None:
            yield first
        model = self.control.catalogue().models.get(self.router.default.name)
        if model is None:
            return
        if model.policy is not None:
            yield from (one for label in model.policy.shares if (one := model.find(model.labels.get(label, 0))))
        # One that was accepted may fail here, by too little memory or files that were damaged since.
        rest = [version for version in model.accepted if version not in model.available]
        for version in (*model.available, *rest):
            serving = self.router.serving(self.router.default)
            if serving is None or self.loaded.is_loaded(serving):
                return
            yield version

    def _versions_ahead(self) -> Iterator[ModelVersion]:
        catalogue = self.control.catalogue()
        if ALL in self._ahead:
            yield from catalogue.available
            return
        for name in self._ahead:
            if name == DEFAULT:
                continue
            version = self.router.serving(parse_wanted_model(name))
            if version is None:
                LOG.error("OCRSVC_MODELS_LOAD names the model %s, which is not available.", name)
            else:
                yield version

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
    observer: LoadObserver | None = None,
    key: ModelKey | None = None,
) -> WorkerModels:
    """The models of the repository that the settings name; nothing is loaded yet.

    Args:
        settings: The effective settings.
        plan: Of this worker.
        threads: Its engine threads.
        denylist: As for `open_engine`.
        observer: Is told what is loaded.
        key: Decrypts encrypted versions.

    Raises:
        BadModel: The repository cannot be listed.
        SettingsError: Its policies are wrong.
        OperatorError: There is no place for its state.
    """
    assert settings.models is not None, "only called where there is a repository"
    copies = plan.engine_threads if settings.isolation == "process" else 1
    store = StateStore(state_folder(settings.models, settings.models_state))
    loaded = LoadedModels(
        lambda version: open_engine(settings, plan, denylist, version),
        threads,
        ModelMemory(memory_budget(settings, plan), copies=copies),
        load_limit_s=settings.boot_limit_s,
        # The other threads are for models that are loaded.
        most_waiting=max(1, min(settings.queue_size, plan.threads) // 2),
        observer=observer,
    )
    loaded.watching = LoadDeaths(store, basis_of(settings)).watching
    control = ModelControl(ModelRepository(settings.models, key), store, loaded.is_loaded, goes_on=True)
    loaded.is_pinned = lambda version: control.catalogue().is_pinned(version)
    router = ModelRouter(control.catalogue, control.latest, parse_wanted_model(settings.model), loaded.is_loaded)
    return WorkerModels(loaded, control, router, settings.models_load)


def memory_budget(settings: Settings, plan: ThreadPlan) -> int:
    """What the models of one worker may take together, in bytes.

    By default so much that the models of all workers and of one successor fill half of the memory: the other half is
    for requests, and for what workers may grow before they are replaced.
    """
    memory_bytes = read_memory_bytes()
    given = bytes_of(settings.models_memory, memory_bytes)
    return int(_MEMORY_SHARE * memory_bytes) // (plan.workers + 1) if given is None else given
