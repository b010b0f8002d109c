"""How versions of models are, and the list of them that clients get, with a repository or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ocrsvc.model_repository.version import ModelVersion

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
"""TensorFlow Serving's: waits for its proof; is proved; may serve; leaves; is not wanted, refused, or damaged."""

STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """How one version is.

    Attributes:
        name, number: Which.
        state: As State says.
        reason: Why it does not serve, in a sentence; "" where it does.
        labels: Those that stand for it.
        version: Itself; None where it is damaged.
        figures: What its proof measured.
        failed: Whether it does not serve because something is wrong with it.
    """

    name: str
    number: int
    state: State
    reason: str
    labels: tuple[str, ...] = ()
    version: ModelVersion | None = None
    figures: Mapping[str, float] | None = None
    failed: bool = False


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
