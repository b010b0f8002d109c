"""Which servables there are, how they are, and what they take and give, in TensorFlow Serving's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ocrsvc.adapters.model_protocols.ocr_model import MOST_DIGITS, ServedModel, ServedModels
from ocrsvc.adapters.model_protocols.tensors import IMAGE, OUTPUTS, BadTensor, Tensor
from ocrsvc.errors import UnknownModel
from ocrsvc.http.field_values import shown
from ocrsvc.models.model_control import VersionStatus

SIGNATURE: Final = "serving_default"
METHOD: Final = "tensorflow/serving/predict"
DTYPES: Final = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT", "INT32": "DT_INT32"}


def find_servable(models: ServedModels, name: str, version: str | None = None, label: str | None = None) -> ServedModel:
    """What a request names, to predict. Raises UnknownModel."""
    found = models.find(name, _number(version), label)
    if found is not None:
        return found
    is_known = bool(models.status(name))
    if version and is_known:
        raise _no_version(name, version)
    if label and is_known:
        raise UnknownModel(f"Unrecognized servable version label: {label[:100]}")
    place = f"Specific({name[:100]}, {version[:20]})" if version else f"Latest({name[:100]})"
    raise UnknownModel(f"Servable not found for request: {place}")


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


def check_signature(signature: object) -> None:
    """Raises BadTensor unless this is the one signature, or none."""
    if signature not in (None, "", SIGNATURE):
        name = shown(signature)[:100]
        raise BadTensor(f'Serving signature name: "{name}" not found in signature def', f"Use {SIGNATURE}.")


def signature_of() -> dict[str, Any]:
    """The one signature: what every model takes and gives."""
    outputs = {output.name: _tensor(output) for output in OUTPUTS}
    return {"inputs": {IMAGE.name: _tensor(IMAGE)}, "outputs": outputs, "method_name": METHOD}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor's description. One image is one element here, so that a batch of them has one length."""
    lengths = tensor.shape[:1] if tensor.dims == (1,) else tensor.shape
    shape = {"dim": [{"size": str(length), "name": ""} for length in lengths], "unknown_rank": False}
    return {"dtype": DTYPES[tensor.datatype], "tensor_shape": shape, "name": f"{tensor.name}:0"}


def _number(version: str | None) -> int | None:
    """Of a version in digits; one that is too long is a version that there is not."""
    if not version:
        return None
    return int(version) if len(version) <= MOST_DIGITS else 0


def _no_version(name: str, version: str) -> UnknownModel:
    return UnknownModel(f"Could not find version {version[:20]} of model {name}")
