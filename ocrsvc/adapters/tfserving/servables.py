"""Which servables there are and how they are, in TensorFlow Serving's words; over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Sequence

from ocrsvc.adapters.model_protocols.ocr_model import MOST_DIGITS, ServedModel, ServedModels
from ocrsvc.errors import UnknownModel
from ocrsvc.models.model_control import VersionStatus


def find_servable(models: ServedModels, name: str, version: str | None = None, label: str | None = None) -> ServedModel:
    """What a request names, to predict. Raises UnknownModel."""
    number = _number(version)
    found = models.find(name, number, label)
    if found is not None:
        return found
    if not models.status(name):
        place = f"Specific({name[:100]}, {version[:20]})" if version else f"Latest({name[:100]})"
        raise UnknownModel(f"Servable not found for request: {place}")
    if version:
        raise _no_version(name, version)
    if label:
        raise UnknownModel(f"Unrecognized servable version label: {label[:100]}")
    raise UnknownModel(f"Servable not found for request: Latest({name[:100]})")


def find_versions(
    models: ServedModels, name: str, version: str | None = None, label: str | None = None
) -> Sequence[VersionStatus]:
    """How the versions are that a request names, the newest first. Raises UnknownModel."""
    every = models.status(name)
    if not every:
        raise UnknownModel(f"Could not find any versions of model {name[:100]}")
    if label:
        return [one for one in every if one.number == find_servable(models, name, None, label).number]
    chosen = [one for one in every if version is None or one.number == _number(version)]
    if version and not chosen:
        raise _no_version(name, version)
    return list(reversed(chosen))


def failure_of_version(one: VersionStatus) -> str:
    """What is wrong with it; "" where nothing is: what was unloaded, or is not wanted, ended well."""
    return one.reason if one.failed else ""


def _number(version: str | None) -> int | None:
    """Of a version in digits; one that is too long is a version that there is not."""
    if not version:
        return None
    return int(version) if len(version) <= MOST_DIGITS else 0


def _no_version(name: str, version: str) -> UnknownModel:
    return UnknownModel(f"Could not find version {version[:20]} of model {name}")
