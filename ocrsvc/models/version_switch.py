"""Switches a worker to what may serve: the newest version is loaded beside the one that serves, which then leaves.

Requests go to what is loaded (`version_selection.py`), so a version takes traffic as soon as it is loaded, and the one
before it is closed when its last request has ended. One that proved itself and cannot be loaded here takes none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError
from ocrsvc.models.catalogue import Catalogue, Model
from ocrsvc.models.loaded_models import LoadedModels

LOGGER: Final = logging.getLogger("ocrsvc.models")

LOAD_LOCK: Final = "load.lock"

LOAD_S: Final = 600.0
"""The most that loading may take, draining what has to make room included."""

LONGEST_WAIT_S: Final = 60.0
"""How long a worker waits for its turn to load."""

MOST_FAILURES: Final = 5
"""Times that a worker tries to load a version before it is refused."""

_FIRST_WAIT_S: Final = 1.0
_WAIT_FACTOR: Final = 3.0
_LONGEST_BACKOFF_S: Final = 60.0


@dataclass(slots=True)
class _Failed:
    """How often a version could not be loaded here, how often by its own fault, and when it is tried again."""

    tries: int = 0
    own_fault: int = 0
    again_s: float = 0.0


class VersionSwitch:
    """Belongs to one worker; for its watcher's thread.

    Args:
        turn: Waits for this worker's turn to load, which lasts for a `with`: workers that load at the same time would
            take the processors from those who read.
        on_switch: Called with the version that serves now, and the one that did.
        on_unusable: Called with a version that this worker has tried to load MOST_FAILURES times, and the reason.
        clock: Monotonic seconds.
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
        """Load what is to serve; whether that went well. What had to make room for it is loaded again if not.

        Without room for both the old one leaves first: its requests are answered, new ones wait for the new one.
        """
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
