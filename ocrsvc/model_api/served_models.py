"""The models that the protocols of models offer: those of the repository, and `ocr`, which stands for the default one.

Without a repository there is one model, `ocr`, in its version 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from ocrsvc.errors import NotReady
from ocrsvc.model_api.metadata import NAME, VERSION
from ocrsvc.model_repository.reasons import without_paths
from ocrsvc.model_repository.wanted_model import WantedModel
from ocrsvc.model_serving.model_status import State, VersionStatus

if TYPE_CHECKING:
    # Loaded where there is a repository alone.
    from ocrsvc.model_repository.version import ModelVersion
    from ocrsvc.model_serving.control import ModelControl
    from ocrsvc.model_serving.router import ModelRouter

LABEL: Final = "stable"
"""The one version label where there is no repository: TensorFlow Serving's own examples use it for what serves."""

MOST_DIGITS: Final = 20
"""Of a version's number that is looked at; there is none with more."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a name stands for.

    Attributes:
        name: Of the model, as it is answered.
        number: Of the version that would read now.
        numbers: Of all versions that may serve, ascending.
        option: The reading option `model` that stands for it; None leaves the choice to the service.
    """

    name: str
    number: int
    numbers: tuple[int, ...]
    option: str | None = None


ONLY: Final = ServedModel(NAME, int(VERSION), (int(VERSION),))


class Loading(Protocol):
    """What a worker has loaded."""

    def preload(self, version: ModelVersion, deadline: float = ...) -> None:
        """Load a version, waiting until then on the monotonic clock. Raises OcrsvcError."""
        ...


class OpenedModels(Protocol):
    """The models of a repository, once a worker has opened it."""

    @property
    def control(self) -> ModelControl:
        """How they are, and controls them."""
        ...

    @property
    def router(self) -> ModelRouter:
        """Which version a name stands for."""
        ...

    @property
    def loaded(self) -> Loading:
        """What this worker has loaded of them."""
        ...


class ServedModels:
    """The models by name; for any thread.

    Args:
        is_ready: Whether this worker reads at all.
        opened: The models of the repository, None before they are opened; None in its place without a repository.
    """

    def __init__(self, is_ready: Callable[[], bool], opened: Callable[[], OpenedModels | None] | None = None) -> None:
        self._is_ready, self._opened = is_ready, opened

    @property
    def has_repository(self) -> bool:
        """Whether there may be other models than `ocr`."""
        return self._opened is not None

    def opened(self) -> OpenedModels:
        """The models of the repository. Raises NotReady before they are opened."""
        found = self._opened() if self._opened is not None else None
        if found is None:
            raise NotReady("The models of this worker are not opened yet.", "Send the request again in a moment.", 2)
        return found

    def names(self) -> list[str]:
        """The models that may serve. Raises NotReady."""
        if not self.has_repository:
            return [NAME]
        return sorted(name for name, model in self.opened().control.catalogue().models.items() if model.available)

    def find(self, name: str, number: int | None = None, label: str | None = None) -> ServedModel | None:
        """What a name, with a version's number or label, stands for now; None where there is none. Raises NotReady."""
        if not self.has_repository:
            is_known = name == NAME and number in (None, ONLY.number) and label in (None, LABEL)
            return ONLY if is_known else None
        wanted = self._wanted(name, number, label)
        version = self.opened().router.serving(wanted)
        if version is None:
            return None
        available = self.opened().control.catalogue().models[version.name].available
        numbers = tuple(sorted(one.number for one in available))
        is_default = name != version.name and number is None and label is None
        return ServedModel(version.name, version.number, numbers, None if is_default else str(wanted))

    def status(self, name: str | None = None) -> list[VersionStatus]:
        """How every version is, of one model or of all; empty for a model that there is not. Raises NotReady."""
        if not self.has_repository:
            state: State = "AVAILABLE" if self._is_ready() else "LOADING"
            return [VersionStatus(NAME, ONLY.number, state, "", (LABEL,))] if name in (None, NAME) else []
        wanted = None if name is None else self.own_name(name)
        every = self.opened().control.status()
        # Whoever may read is told; an engine's complaint may name files of the server.
        found = [replace(one, reason=without_paths(one.reason)) for one in every if wanted in (None, one.name)]
        if self._is_ready():
            return found
        return [replace(one, state="LOADING") if one.state == "AVAILABLE" else one for one in found]

    def own_name(self, name: str) -> str:
        """The name of a model in the repository: `ocr` is the default one, unless there is one of that name."""
        if name != NAME or NAME in self.opened().control.catalogue().models:
            return name
        return self.opened().router.default.name

    def _wanted(self, name: str, number: int | None, label: str | None) -> WantedModel:
        """What is named; `ocr` alone is the default model as the settings name it, with its version or label."""
        own = self.own_name(name)
        if name != own and number is None and label is None:
            return self.opened().router.default
        return WantedModel(own, number, label)
