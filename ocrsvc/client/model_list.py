"""Parses what GET /v1/ocr/models answers: the models that requests may name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from ocrsvc.client.response import Data, parsed
from ocrsvc.errors import ServerError

MODELS_PATH: Final = "/v1/ocr/models"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        name, version: Which; `model="NAME/VERSION"` names it.
        state: START, LOADING, AVAILABLE, UNLOADING or END; requests may name it while it is AVAILABLE.
        labels: Those that stand for it; `model="NAME:LABEL"` names it, too.
        engine: That reads with it; None where it is damaged.
        title: For people.
        tier: tiny, small or medium, if it is one of those.
        languages: That it reads, as tags in small letters.
        licence: Under which it may be used.
    """

    name: str
    version: int
    state: str
    labels: tuple[str, ...]
    engine: str | None
    title: str
    tier: str | None
    languages: tuple[str, ...]
    licence: str


@dataclass(frozen=True, slots=True)
class ModelList:
    """The models of a service: the one that reads what names none, if it can be named, and every version."""

    default: str | None
    models: tuple[ModelVersion, ...]


def model_list_of(status: int, retry_after: str | None, body: bytes) -> ModelList:
    """The models that an answer lists. Raises as `response.answer_of`."""
    data = parsed(status, retry_after, body)
    try:
        return ModelList(data["default"], tuple(map(_version_of, data["models"])))
    except (KeyError, TypeError) as error:
        raise ServerError("The answer is not one of this service.", "Check its address and version.") from error


def _version_of(data: Data) -> ModelVersion:
    values: dict[str, Any] = {field.name: data[field.name] for field in fields(ModelVersion)}
    return ModelVersion(**values | {name: tuple(values[name]) for name in ("labels", "languages")})
