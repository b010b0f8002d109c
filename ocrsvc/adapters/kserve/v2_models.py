"""Model metadata, configuration, statistics and inference of KServe v2 and Triton, shared by HTTP and gRPC."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from ocrsvc import __version__
from ocrsvc.adapters.model_protocols import ocr_model, tensors
from ocrsvc.adapters.model_protocols.ocr_model import SINGLE_MODEL, Inference, OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import Caller
from ocrsvc.adapters.model_protocols.tensors import (
    IMAGE,
    LANGUAGE,
    MAX_BATCH,
    NAME,
    PIXELS,
    PLATFORM,
    Array,
    BadTensor,
    NotOffered,
)
from ocrsvc.adapters.paddlex.http import infer as infer_as_paddlex
from ocrsvc.errors import UnknownModel
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.telemetry import model_metrics
from ocrsvc.telemetry.metric import Key, Metric
from ocrsvc.telemetry.metrics_store import Series

Node = dict[str, Any]


class _Named(Protocol):
    """An input tensor of an inference request, in the form that HTTP or gRPC gives it."""

    name: str


T = TypeVar("T", bound=_Named)

_EXTENSIONS: Final = ("model_repository", "model_configuration", "binary_tensor_data", "parameters", "statistics")
_CONFIG_TYPES: Final = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}
_STATES: Final = {
    "START": "LOADING",
    "LOADING": "LOADING",
    "AVAILABLE": "READY",
    "UNLOADING": "UNLOADING",
    "END": "UNAVAILABLE",
}


def find_model(model: OcrModel, name: str, version: str = "") -> ServedModel:
    """The model with this name and version. Raises UnknownModel; BadTensor for a non-numeric version."""
    if version and not (version.isascii() and version.isdecimal()):
        raise BadTensor(f"The model version {version[:40]!r} is not a whole number.", _versions_of(model, name))
    number = int(version or 0) if len(version) <= ocr_model.MAX_DIGITS else 0
    served = model.find(name, number if version else None)
    if served is not None:
        return served
    if version and model.find(name) is not None:
        raise UnknownModel(f"Request for unknown model: '{name}' version {version[:20]} is not found")
    raise UnknownModel(f"Request for unknown model: '{name[:100]}' is not found")


def _versions_of(model: OcrModel, name: str) -> str:
    if not model.has_repository:
        return f"The only version is {tensors.VERSION}."
    served = model.find(name)
    return f"Versions: {', '.join(map(str, served.numbers[:20]))}." if served is not None else "Send digits."


def server_metadata(*, has_repository: bool = False) -> Node:
    """The server's name, version and protocol extensions; a model repository adds `unload_dependents`."""
    extensions = [*_EXTENSIONS, *(("model_repository(unload_dependents)",) if has_repository else ())]
    return {"name": "ocrsvc", "version": __version__, "extensions": extensions}


def model_metadata(model: ServedModel = SINGLE_MODEL) -> Node:
    """The model's versions and tensors."""
    image, *outputs = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        for tensor in (IMAGE, *tensors.OUTPUTS)
    ]
    versions = [str(number) for number in model.numbers]
    return {"name": model.name, "versions": versions, "platform": PLATFORM, "inputs": [image], "outputs": outputs}


def model_config(model: ServedModel = SINGLE_MODEL) -> Node:
    """The model as a Triton configuration."""
    image, *outputs = [
        {"name": tensor.name, "data_type": _CONFIG_TYPES[tensor.datatype], "dims": list(tensor.dims)}
        for tensor in (IMAGE, *tensors.OUTPUTS)
    ]
    policy: Node = {"specific": {"versions": model.numbers}}
    if model is SINGLE_MODEL:
        policy = {"latest": {"num_versions": 1}}
    head = {"name": model.name, "platform": PLATFORM, "backend": PLATFORM, "version_policy": policy}
    return {**head, "max_batch_size": MAX_BATCH, "input": [image], "output": outputs}


def repository_index(model: OcrModel, *, only_ready: bool) -> list[Node]:
    """Triton's index: all versions of all models, or only those that serve."""
    entries: list[Node] = []
    for status in model.status():
        if status.state == "AVAILABLE" or not only_ready:
            state = _STATES[status.state]
            # Triton's reason for a model that was unloaded without an error.
            reason = status.reason if status.failed or state != "UNAVAILABLE" else "unloaded"
            entries.append({"name": status.name, "version": str(status.number), "state": state, "reason": reason})
    return entries


def statistics_of(model: OcrModel, name: str, version: str) -> Node:
    """Statistics of a version, a model or all models; each image counts as one execution. Raises as `find_model`."""
    if not model.has_repository:
        find_model(model, name or NAME, version)
        return model_statistics(model.store.read())
    served = [find_model(model, one, version) for one in ((name,) if name else model.names())]
    if not version:
        served = [replace(one, number=number) for one in served for number in one.numbers]
    series = model.store.read()
    return {"model_stats": [_version_statistics(series, one) for one in served]}


def model_statistics(series: Series) -> Node:
    """The statistics of the only model of a service without a repository."""

    def duration(key: Key) -> Node:
        *counts, seconds = series.get(key, (0.0,))
        return {"count": int(sum(counts)), "ns": round(seconds * 1e9)}

    success, fail = (duration(model_metrics.MODEL_SECONDS.of(outcome)) for outcome in ("success", "fail"))
    stages = [duration(model_metrics.MODEL_STAGE_SECONDS.of(stage)) for stage in ("queue", "decode", "engine")]
    last_ms = int(series.get(model_metrics.MODEL_LAST.of(), (0.0,))[0] * 1000)
    return {"model_stats": [_statistics(SINGLE_MODEL, success, fail, stages, last_ms)]}


def _version_statistics(series: Series, model: ServedModel) -> Node:
    def counted(metric: Metric, *labels: str) -> float:
        return series.get(metric.of(model.name, str(model.number), *labels), (0.0,))[0]

    def spent(stage: str, count: float) -> Node:
        return {"count": int(count), "ns": round(counted(model_metrics.VERSION_SECONDS, stage) * 1e9)}

    images, requests = counted(model_metrics.VERSION_IMAGES), model_metrics.VERSION_REQUESTS
    success, fail = (spent(outcome, counted(requests, outcome)) for outcome in ("success", "fail"))
    stages = [spent(stage, images) for stage in ("queue", "decode", "engine")]
    # The time of a version's last request is not recorded, so it is reported as 0.
    return _statistics(model, success, fail, stages, 0)


def _statistics(model: ServedModel, success: Node, fail: Node, stages: list[Node], last_ms: int) -> Node:
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
    """Load a model of the repository. Raises as `ModelOperations.load`; NotOffered if the request contains a model."""
    if model.operations is None:
        find_model(model, name)
        return
    for parameter in parameters:
        if parameter == "config" or parameter.startswith("file:"):
            raise NotOffered(
                f"load of model '{name[:100]}' with the parameter '{parameter[:40]}' is not supported.",
                "Put a new version into the model's folder in the repository.",
            )
    model.operations.load(caller(), _repository_name(model, name))


def unload_model(model: OcrModel, name: str, caller: Callable[[], Caller]) -> None:
    """Unload a model. Raises as `ModelOperations.unload`; NotOffered without a repository."""
    if model.operations is None:
        find_model(model, name)
        raise NotOffered(f"unload of model '{name}' is not supported.", "Stop the service.")
    model.operations.unload(caller(), _repository_name(model, name))


def _repository_name(model: OcrModel, name: str) -> str:
    """The model's name in the repository. Raises UnknownModel if it has no version there, not even a damaged one."""
    repository_name = model.repository_name(name)
    if not model.status(repository_name):
        raise UnknownModel(f"failed to load '{name[:100]}', no such model in the repository")
    return repository_name


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An inference request. `elements` of its input tensor, of shape `batch`, are image files or PaddleX's JSON.

    If `datatype` is UINT8, `tensors.pixels_to_file` made the image file from the pixels sent. Empty `outputs` request
    all outputs; `language` is the text in the input `lang_type`.
    """

    name: str
    elements: Sequence[bytes]
    batch: tensors.Shape
    outputs: Sequence[str]
    parameters: Mapping[str, object]
    datatype: str = IMAGE.datatype
    language: str = ""


def split_inputs(inputs: Sequence[T]) -> tuple[T, T | None]:
    """A request's image input, and its input `lang_type` if it has one. Raises BadTensor."""
    languages = [tensor for tensor in inputs if tensor.name == LANGUAGE]
    others = [tensor for tensor in inputs if tensor.name != LANGUAGE]
    if not others:
        raise BadTensor(f"missing required input '{IMAGE.name}' for model '{NAME}'.", "Send the image in it.")
    if len(others) > 1 or len(languages) > 1:
        raise BadTensor(f"expected 1 inputs but got {len(inputs)} inputs for model '{NAME}'.", f"Send {IMAGE.name!r}.")
    return others[0], next(iter(languages), None)


def check_output_parameters(parameters: Mapping[str, object]) -> None:
    """Raises NotOffered if a requested output asks for the classification extension."""
    if parameters.get("classification"):
        raise NotOffered("The classification extension is not supported.", "Request the output without it.")


def infer_arrays(
    model: OcrModel, served: ServedModel, infer_request: InferRequest, limit_s: float, context: RequestContext
) -> tuple[list[Array], Inference]:
    """Read a request; return output tensors, pages and model. Raises BadTensor, BadOption, and as OcrModel.infer."""
    limit_s = ocr_model.timeout_from_parameters(infer_request.parameters, limit_s)
    if infer_request.name == tensors.JSON_IN:
        tensors.requested_outputs(infer_request.outputs, (tensors.JSON_OUT,))
        if len(infer_request.elements) != 1:
            raise BadTensor(f"'{tensors.JSON_IN}' takes one PaddleX request.", "Send several requests.")
        # PaddleX's "high-stability serving" sends its JSON in a tensor.
        _, answer = infer_as_paddlex(infer_request.elements[0], model.reader, limit_s, context, served.option)
        array = Array(tensors.JSON_OUT, "BYTES", infer_request.batch, [answer.decode()])
        return [array], Inference([], served.name, str(served.number))
    is_pixels = infer_request.datatype == PIXELS
    available = tensors.PIXEL_OUTPUTS if is_pixels else tensors.OUTPUT_NAMES
    outputs = tensors.requested_outputs(infer_request.outputs, available)
    images = [tensors.image_of(element, context.share) for element in infer_request.elements]
    language = {"lang": infer_request.language} if infer_request.language else {}
    options = ocr_model.options_from_parameters(
        {**language, **infer_request.parameters}, has_models=model.has_repository
    )
    inference = model.infer(images, replace(options, model=served.option), limit_s, context, served)
    if is_pixels:
        return tensors.arrays_of_pixels(inference.pages[0], outputs), inference
    return tensors.arrays_of(inference.pages, outputs, infer_request.batch), inference
