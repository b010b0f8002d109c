"""Models in the words of KServe v2 and Triton; descriptions are the members of the JSON and of gRPC's messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from ocrsvc import __version__
from ocrsvc.adapters.model_protocols import ocr_model, tensors
from ocrsvc.adapters.model_protocols.ocr_model import ONLY, Inference, OcrModel, ServedModel, ServedModels
from ocrsvc.adapters.model_protocols.operators import Caller
from ocrsvc.adapters.model_protocols.tensors import IMAGE, MAX_BATCH, NAME, PLATFORM, Array, BadTensor, NotOffered
from ocrsvc.adapters.paddlex.http import infer as infer_as_paddlex
from ocrsvc.errors import UnknownModel
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.telemetry import model_metrics
from ocrsvc.telemetry.metric import Key, Metric
from ocrsvc.telemetry.metrics_store import Series

Node = dict[str, Any]
T = TypeVar("T")

UNLOADED: Final = "unloaded"
"""Triton's reason for a model that is not loaded, and that has no error."""

_EXTENSIONS: Final = ("model_repository", "model_configuration", "binary_tensor_data", "parameters", "statistics")
_CONFIG_TYPES: Final = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}
_STATES: Final = {
    "START": "LOADING",
    "LOADING": "LOADING",
    "AVAILABLE": "READY",
    "UNLOADING": "UNLOADING",
    "END": "UNAVAILABLE",
}


def find_model(models: ServedModels, name: str, version: str = "") -> ServedModel:
    """The model with this name and version. Raises UnknownModel; BadTensor for a version that is no number."""
    if version and not (version.isascii() and version.isdecimal()):
        raise BadTensor(f"The model version {version[:40]!r} is not a whole number.", _versions_of(models, name))
    number = int(version or 0) if len(version) <= ocr_model.MOST_DIGITS else 0
    found = models.find(name, number if version else None)
    if found is not None:
        return found
    if version and models.find(name) is not None:
        raise UnknownModel(f"Request for unknown model: '{name}' version {version[:20]} is not found")
    raise UnknownModel(f"Request for unknown model: '{name[:100]}' is not found")


def _versions_of(models: ServedModels, name: str) -> str:
    if not models.has_repository:
        return f"The one version is {tensors.VERSION}."
    found = models.find(name)
    return f"Versions: {', '.join(map(str, found.numbers[:20]))}." if found is not None else "Send digits."


def server_metadata(*, has_repository: bool = False) -> Node:
    """The server's name, version and extensions; one more where models can be unloaded."""
    extensions = [*_EXTENSIONS, *(("model_repository(unload_dependents)",) if has_repository else ())]
    return {"name": "ocrsvc", "version": __version__, "extensions": extensions}


def model_metadata(model: ServedModel = ONLY) -> Node:
    """The model's versions and tensors."""
    inputs, *outputs = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        for tensor in (IMAGE, *tensors.OUTPUTS)
    ]
    versions = [str(number) for number in model.numbers]
    return {"name": model.name, "versions": versions, "platform": PLATFORM, "inputs": [inputs], "outputs": outputs}


def model_config(model: ServedModel = ONLY) -> Node:
    """The model as a Triton configuration."""
    image, *outputs = [
        {"name": tensor.name, "data_type": _CONFIG_TYPES[tensor.datatype], "dims": list(tensor.dims)}
        for tensor in (IMAGE, *tensors.OUTPUTS)
    ]
    policy: Node = {"latest": {"num_versions": 1}} if model is ONLY else {"specific": {"versions": model.numbers}}
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": policy,
        "max_batch_size": MAX_BATCH,
        "input": [image],
        "output": outputs,
    }


def repository_index(models: ServedModels, *, only_ready: bool) -> list[Node]:
    """Every version of every model, or those that serve."""
    return [_entry(one) for one in models.status() if one.state == "AVAILABLE" or not only_ready]


def _entry(one: VersionStatus) -> Node:
    state = _STATES[one.state]
    reason = one.reason if one.failed or state != "UNAVAILABLE" else UNLOADED
    return {"name": one.name, "version": str(one.number), "state": state, "reason": reason}


def statistics_of(model: OcrModel, name: str, version: str) -> Node:
    """The counts of a version, of a model, or of all that serve; an image is one execution. Raises as `find_model`."""
    if not model.models.has_repository:
        find_model(model.models, name or NAME, version)
        return model_statistics(model.store.read())
    found = [find_model(model.models, one, version) for one in ((name,) if name else model.models.names())]
    if not version:
        found = [replace(one, number=number) for one in found for number in one.numbers]
    series = model.store.read()
    return {"model_stats": [_version_statistics(series, one) for one in found]}


def model_statistics(series: Series) -> Node:
    """The counts of the one model, in Triton's shape."""

    def duration(key: Key) -> Node:
        *counts, seconds = series.get(key, (0.0,))
        return {"count": int(sum(counts)), "ns": round(seconds * 1e9)}

    success, fail = (duration(model_metrics.MODEL_SECONDS.of(outcome)) for outcome in ("success", "fail"))
    queue, decode, engine = (
        duration(model_metrics.MODEL_STAGE_SECONDS.of(stage)) for stage in ("queue", "decode", "engine")
    )
    last_ms = int(series.get(model_metrics.MODEL_LAST.of(), (0.0,))[0] * 1000)
    return {"model_stats": [_statistics(ONLY, success, fail, (queue, decode, engine), last_ms)]}


def _version_statistics(series: Series, model: ServedModel) -> Node:
    def counted(metric: Metric, *labels: str) -> float:
        return series.get(metric.of(model.name, str(model.number), *labels), (0.0,))[0]

    def spent(stage: str, count: float) -> Node:
        return {"count": int(count), "ns": round(counted(model_metrics.VERSION_SECONDS, stage) * 1e9)}

    images, requests = counted(model_metrics.VERSION_IMAGES), model_metrics.VERSION_REQUESTS
    success, fail = (spent(outcome, counted(requests, outcome)) for outcome in ("success", "fail"))
    stages = (spent("queue", images), spent("decode", images), spent("engine", images))
    # The time of a version's last request is not kept.
    return _statistics(model, success, fail, stages, 0)


def _statistics(model: ServedModel, success: Node, fail: Node, stages: tuple[Node, Node, Node], last_ms: int) -> Node:
    queue, decode, engine = stages
    images, nothing = engine["count"], {"count": 0, "ns": 0}
    steps: Node = {"compute_input": decode, "compute_infer": engine, "compute_output": {"count": images, "ns": 0}}
    return {
        "name": model.name,
        "version": str(model.number),
        "last_inference": last_ms,
        "inference_count": images,
        "execution_count": images,
        "inference_stats": {
            "success": success,
            "fail": fail,
            **{name: {**step, "count": success["count"]} for name, step in {"queue": queue, **steps}.items()},
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "batch_stats": [{"batch_size": 1, **steps}] if images else [],
    }


def load_model(model: OcrModel, name: str, parameters: Iterable[str], caller: Callable[[], Caller]) -> None:
    """Load a model of the repository. Raises as `ModelOperations.load`; NotOffered for a model in the request."""
    if model.operations is None:
        find_model(model.models, name)
        return
    for parameter in parameters:
        if parameter == "config" or parameter.startswith("file:"):
            raise NotOffered(
                f"load of model '{name[:100]}' with the parameter '{parameter[:40]}' is not supported.",
                "A model is what its folder in the repository holds: put a new version there.",
            )
    model.operations.load(caller(), _known(model.models, name))


def unload_model(model: OcrModel, name: str, caller: Callable[[], Caller]) -> None:
    """Unload a model. Raises as `ModelOperations.unload`; NotOffered without a repository."""
    if model.operations is None:
        find_model(model.models, name)
        raise NotOffered(f"unload of model '{name}' is not supported.", "Stop the service.")
    model.operations.unload(caller(), _known(model.models, name))


def _known(models: ServedModels, name: str) -> str:
    """The name in the repository. Raises UnknownModel where it has no version, not even a damaged one."""
    own = models.own_name(name)
    if not models.status(own):
        raise UnknownModel(f"failed to load '{name[:100]}', no such model in the repository")
    return own


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An image, or PaddleX's JSON in a tensor of the shape `batch`; no `outputs` ask for all."""

    name: str
    elements: Sequence[bytes]
    batch: tensors.Shape
    outputs: Sequence[str]
    parameters: Mapping[str, object]


def only_input(inputs: Sequence[T]) -> T:
    """The one input of a request. Raises BadTensor."""
    if len(inputs) != 1:
        raise BadTensor(f"expected 1 inputs but got {len(inputs)} inputs for model '{NAME}'.", f"Send {IMAGE.name!r}.")
    return inputs[0]


def checked_parameters(of_output: Mapping[str, object]) -> Mapping[str, object]:
    """The parameters of a requested output. Raises NotOffered."""
    if of_output.get("classification"):
        raise NotOffered("The classification extension is not supported.", "Ask for the output as it is.")
    return of_output


def infer_arrays(
    model: OcrModel, served: ServedModel, asked: InferRequest, limit_s: float, context: RequestContext
) -> tuple[list[Array], Inference]:
    """The requested outputs and the model that read them. Raises as OcrModel.infer; BadTensor, BadOption."""
    limit_s = ocr_model.limit_in(asked.parameters, limit_s)
    wanted = tensors.wanted_outputs(asked.outputs, asked.name)
    if asked.name == tensors.JSON_IN:
        if len(asked.elements) != 1:
            raise BadTensor(f"'{tensors.JSON_IN}' takes one request of PaddleX's at a time.", "Send several requests.")
        # As PaddleX's "high-stability serving" puts its JSON into tensors of a model.
        _, answer = infer_as_paddlex(asked.elements[0], model.reader, limit_s, context, served.option)
        array = Array(tensors.JSON_OUT, "BYTES", asked.batch, [answer.decode()])
        return [array], Inference([], served.name, str(served.number))
    images = [tensors.image_of(element, context.share) for element in asked.elements]
    options = replace(
        ocr_model.options_in(asked.parameters, has_models=model.models.has_repository), model=served.option
    )
    read = model.infer(images, options, limit_s, context, served)
    return tensors.arrays_of(read.pages, wanted, asked.batch), read
