"""What clients are told of the models that a service has, with a repository or without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ocrsvc.model_repository.version import ModelVersion

if TYPE_CHECKING:
    # Loaded where there is a repository alone.
    from ocrsvc.model_serving.control import VersionStatus

STATES: Final = ("START", "LOADING", "AVAILABLE", "UNLOADING", "END")
"""TensorFlow Serving's, as `control.State` has them."""


@dataclass(frozen=True, slots=True)
class ModelList:
    """Every version that there is, ascending by name and number.

    Attributes:
        default: The model that reads what names none, as a request would name it; None where none can be named.
        versions: How each one is.
    """

    default: str | None
    versions: tuple[VersionStatus, ...]

    @property
    def available(self) -> tuple[ModelVersion, ...]:
        """Those that requests may name."""
        return tuple(one.version for one in self.versions if one.state == "AVAILABLE" and one.version is not None)

    @property
    def languages(self) -> tuple[str, ...]:
        """Those that requests may name, each once."""
        return tuple(dict.fromkeys(tag for version in self.available for tag in version.description.languages))
