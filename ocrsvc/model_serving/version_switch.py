"""Has a worker follow what may serve: the newest version is loaded beside the one that serves, which then leaves.

Requests go to what is loaded (`router.py`), so a version takes traffic as soon as it is loaded, and the one before it
is closed when its last request has ended. One that proved itself and cannot be loaded here takes none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from ocrsvc.errors import OcrsvcError
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.catalogue import Catalogue, Model

LOGGER: Final = logging.getLogger("ocrsvc.models")

LOAD_S: Final = 600.0
"""The most that loading may take, draining what has to make room included."""

LONGEST_WAIT_S: Final = 60.0
"""That a worker waits for its turn."""

MOST_FAILURES: Final = 5
"""Times that a worker tries to load a version before it is refused."""

_FIRST_WAIT_S: Final = 1.0
_WAIT_FACTOR: Final = 3.0
_LONGEST_BACKOFF_S: Final = 60.0


class Loaded(Protocol):
    """What this worker has loaded; see `LoadedModels`."""

    def versions(self) -> tuple[ModelVersion, ...]:
        """Those that requests can read with now, without those that leave."""
        ...

    def has_room_for(self, version: ModelVersion) -> bool:
        """Whether one more can be loaded, and all others stay."""
        ...

    def preload(self, version: ModelVersion, deadline: float = ...) -> None:
        """Load one. Raises OcrsvcError."""
        ...

    def retire(self, version: ModelVersion) -> None:
        """Close one when its last request has ended."""


@dataclass(slots=True)
class _Failed:
    """How often a version could not be loaded here, and when it is tried again, in monotonic seconds."""

    count: int
    again_s: float


class VersionSwitch:
    """Of one worker; for its watcher's thread.

    Args:
        loaded: What it has loaded.
        turn: Whether it is this worker's turn to load, within a `with`: workers that load at the same time would take
            the processors from those who read.
        on_switch: Called with the version that serves now, and the one that did.
        on_unusable: Called with a version that this worker has tried to load MOST_FAILURES times, and the reason.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        loaded: Loaded,
        turn: Callable[[], AbstractContextManager[bool]],
        on_switch: Callable[[ModelVersion, ModelVersion], object],
        on_unusable: Callable[[ModelVersion, str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loaded, self._turn, self._clock = loaded, turn, clock
        self._on_switch, self._on_unusable = on_switch, on_unusable
        self._failed: dict[str, _Failed] = {}
        self._serving: dict[str, ModelVersion] = {}
        self._waits_since_s: float | None = None

    def follow(self, catalogue: Catalogue) -> None:
        """Load what is to serve in place of what is loaded, and have that leave."""
        for name in {version.name for version in self._loaded.versions()}:
            model = catalogue.models.get(name)
            if model is not None:
                self._follow_model(catalogue, model)

    def is_behind(self, catalogue: Catalogue) -> bool:
        """Whether there is anything to load, to close or to note; cheap enough to be asked all the time."""
        loaded = self._loaded.versions()
        models = {version.name: catalogue.models.get(version.name) for version in loaded}
        return any(model is not None and self._is_model_behind(catalogue, model) for model in models.values())

    def _is_model_behind(self, catalogue: Catalogue, model: Model) -> bool:
        target, loaded = model.target, self._loaded_of(model)
        if target is None:
            return any(catalogue.is_unloaded(version) for version in loaded)
        if target not in loaded:
            failed = self._failed.get(target.digest)
            return failed is None or self._clock() >= failed.again_s
        return self._serving.get(model.name) != target or any(version not in model.available for version in loaded)

    def _follow_model(self, catalogue: Catalogue, model: Model) -> None:
        target = model.target
        if target is None:
            # Nothing takes its place: it leaves only if it must not serve at all.
            self._retire([version for version in self._loaded_of(model) if catalogue.is_unloaded(version)])
        elif target in self._loaded_of(model) or self._load(target, self._loaded_of(model)):
            self._note_serving(target, self._loaded_of(model))
            self._retire([version for version in self._loaded_of(model) if version not in model.available])

    def _loaded_of(self, model: Model) -> list[ModelVersion]:
        return [version for version in self._loaded.versions() if version.name == model.name]

    def _note_serving(self, target: ModelVersion, loaded: list[ModelVersion]) -> None:
        others = [version for version in loaded if version != target]
        before = self._serving.get(target.name) or next(iter(others), target)
        self._serving[target.name] = target
        if before != target:
            self._on_switch(target, before)

    def _retire(self, versions: list[ModelVersion]) -> None:
        for version in versions:
            self._loaded.retire(version)

    def _load(self, target: ModelVersion, loaded: list[ModelVersion]) -> bool:
        """Load what is to serve when it is this worker's turn; whether it is loaded."""
        failed = self._failed.get(target.digest)
        if failed is not None and self._clock() < failed.again_s:
            return False
        if self._waits_since_s is None:
            self._waits_since_s = self._clock()
        with self._turn() as is_ours:
            if not is_ours and self._clock() - self._waits_since_s < LONGEST_WAIT_S:
                return False
            self._waits_since_s = None
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
        count = self._failed[version.digest].count + 1 if version.digest in self._failed else 1
        wait_s = min(_LONGEST_BACKOFF_S, _FIRST_WAIT_S * _WAIT_FACTOR ** min(count - 1, 16))
        self._failed[version.digest] = _Failed(count, self._clock() + wait_s)
        LOGGER.error("%s has proved itself, and cannot be loaded in this worker (%d times): %s", version, count, error)
        if count >= MOST_FAILURES:
            self._on_unusable(version, f"It has proved itself, and a worker cannot load it: {error}")
