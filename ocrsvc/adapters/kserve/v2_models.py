"""Models in the words of the KServe v2 protocol and of Triton: which there are, loading, unloading and inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from ocrsvc.adapters.kserve.v2_metadata import model_statistics, version_statistics
from ocrsvc.adapters.model_protocols.ocr_model import (
    MOST_DIGITS,
    OcrModel,
    ServedModel,
    ServedModels,
    limit_in,
    options_in,
)
from ocrsvc.adapters.model_protocols.operators import Caller
from ocrsvc.adapters.model_protocols.tensors import (
    IMAGE,
    JSON_IN,
    JSON_OUT,
    NAME,
    VERSION,
    Array,
    BadTensor,
    NotOffered,
    Shape,
    arrays_of,
    image_of,
    wanted_outputs,
)
from ocrsvc.adapters.paddlex.http import infer as infer_as_paddlex
from ocrsvc.errors import UnknownModel
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.serving.work_queue import RequestContext

Node = dict[str, Any]

UNLOADED: Final = "unloaded"
"""Triton's reason for a model that is not loaded, and that nothing is wrong with."""

_STATES: Final = {
    "START": "LOADING",
    "LOADING": "LOADING",
    "AVAILABLE": "READY",
    "UNLOADING": "UNLOADING",
    "END": "UNAVAILABLE",
}
_FILE: Final = "file:"

T = TypeVar("T")


def find_model(models: ServedModels, name: str, version: str = "") -> ServedModel:
    """What a name, with a version or without, stands for. Raises UnknownModel; BadTensor for a version of no digits."""
    if version and not (version.isascii() and version.isdecimal()):
        raise BadTensor(f"The model version {version[:40]!r} is not a whole number.", _versions_of(models, name))
    number = int(version or 0) if len(version) <= MOST_DIGITS else 0
    found = models.find(name, number if version else None)
    if found is not None:
        return found
    if version and models.find(name) is not None:
        raise UnknownModel(f"Request for unknown model: '{name}' version {version[:20]} is not found")
    raise UnknownModel(f"Request for unknown model: '{name[:100]}' is not found")


def repository_index(models: ServedModels, *, only_ready: bool) -> list[Node]:
    """Every version of every model, or those that serve."""
    return [_entry(one) for one in models.status() if one.state == "AVAILABLE" or not only_ready]


def statistics_of(model: OcrModel, name: str, version: str) -> Node:
    """What was counted of a version, or of all that serve of a model, or without a name of all that serve.

    Raises as `find_model`.
    """
    if not model.models.has_repository:
        find_model(model.models, name or NAME, version)
        return model_statistics(model.store.read())
    found = [find_model(model.models, one, version) for one in ((name,) if name else model.models.names())]
    if not version:
        found = [replace(one, number=number) for one in found for number in one.numbers]
    return version_statistics(model.store.read(), found)


def load_model(model: OcrModel, name: str, parameters: Iterable[str], caller: Callable[[], Caller]) -> None:
    """Have a model serve; where there is no repository, it does. `parameters` are names, `caller` says who asks.

    Raises as `ModelOperations.load`; NotOffered for a model that comes with the request.
    """
    if model.operations is None:
        find_model(model.models, name)
        return
    for parameter in parameters:
        if parameter == "config" or parameter.startswith(_FILE):
            raise NotOffered(
                f"load of model '{name[:100]}' with the parameter '{parameter[:40]}' is not supported.",
                "A model is what its folder in the repository holds: put a new version there.",
            )
    model.operations.load(caller(), _known(model.models, name))


def unload_model(model: OcrModel, name: str, caller: Callable[[], Caller]) -> None:
    """Have a model serve no more. Raises as `ModelOperations.unload`; NotOffered where there is no repository."""
    if model.operations is None:
        find_model(model.models, name)
        raise NotOffered(f"unload of model '{name}' is not supported.", "Stop the service.")
    model.operations.unload(caller(), _known(model.models, name))


def _known(models: ServedModels, name: str) -> str:
    """The name in the repository. Raises UnknownModel where there is nothing of it, also nothing damaged."""
    own = models.own_name(name)
    if not models.status(own):
        raise UnknownModel(f"failed to load '{name[:100]}', no such model in the repository")
    return own


def _entry(one: VersionStatus) -> Node:
    state = _STATES[one.state]
    reason = one.reason if one.failed or state != "UNAVAILABLE" else UNLOADED
    return {"name": one.name, "version": str(one.number), "state": state, "reason": reason}


def _versions_of(models: ServedModels, name: str) -> str:
    if not models.has_repository:
        return f"The one version is {VERSION}."
    found = models.find(name)
    return f"Versions: {', '.join(map(str, found.numbers[:20]))}." if found is not None else "Send digits."


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference request.

    Its one input is named as an image or as PaddleX's JSON; the elements of that came in the shape `batch`. No names of
    outputs ask for all. Reading options and a timeout are taken from the parameters.
    """

    name: str
    elements: Sequence[bytes]
    batch: Shape
    outputs: Sequence[str]
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class InferredArrays:
    """The outputs asked for, and the name and the version of the model that read them."""

    arrays: list[Array]
    name: str
    version: str


def only_input(inputs: Sequence[T]) -> T:
    """The one input of a request. Raises BadTensor."""
    if len(inputs) != 1:
        raise BadTensor(f"expected 1 inputs but got {len(inputs)} inputs for model '{NAME}'.", f"Send {IMAGE.name!r}.")
    return inputs[0]


def checked_parameters(of_output: Mapping[str, object]) -> Mapping[str, object]:
    """The parameters of an output that is asked for. Raises NotOffered."""
    if of_output.get("classification"):
        raise NotOffered("The classification extension is not supported.", "Ask for the output as it is.")
    return of_output


def infer_arrays(
    model: OcrModel, served: ServedModel, asked: InferRequest, limit_s: float, context: RequestContext
) -> InferredArrays:
    """The outputs asked for, of the model that the request names, within `limit_s` or what the request itself says.

    Raises OcrsvcError: as OcrModel.infer; BadTensor for outputs that there are not; BadOption.
    """
    limit_s = limit_in(asked.parameters, limit_s)
    wanted = wanted_outputs(asked.outputs, asked.name)
    if asked.name == JSON_IN:
        if len(asked.elements) != 1:
            raise BadTensor(f"'{JSON_IN}' takes one request of PaddleX's at a time.", "Send several requests.")
        # As PaddleX's "high-stability serving" puts its JSON into tensors of a model.
        _, answer = infer_as_paddlex(asked.elements[0], model.reader, limit_s, context, served.option)
        array = Array(JSON_OUT, "BYTES", asked.batch, [answer.decode()])
        return InferredArrays([array], served.name, str(served.number))
    images = [image_of(element, context.share) for element in asked.elements]
    options = replace(options_in(asked.parameters, has_models=model.models.has_repository), model=served.option)
    read = model.infer(images, options, limit_s, context, served)
    return InferredArrays(arrays_of(read.pages, wanted, asked.batch), read.name, read.version)
