"""How the model describes itself to clients of the KServe v2 protocol and of Triton.

As the members of JSON objects, which are those of the protocol's gRPC messages too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ocrsvc import __version__
from ocrsvc.adapters.model_protocols.ocr_model import ONLY, ServedModel
from ocrsvc.adapters.model_protocols.tensors import IMAGE, MAX_BATCH, OUTPUTS, PLATFORM, Tensor
from ocrsvc.telemetry.metric import Key, Metric
from ocrsvc.telemetry.metrics_store import Series
from ocrsvc.telemetry.model_metrics import (
    MODEL_LAST,
    MODEL_SECONDS,
    MODEL_STAGE_SECONDS,
    VERSION_IMAGES,
    VERSION_REQUESTS,
    VERSION_SECONDS,
)

Node = dict[str, Any]

SERVER: Final = "ocrsvc"
EXTENSIONS: Final = ("model_repository", "model_configuration", "binary_tensor_data", "parameters", "statistics")
UNLOADING: Final = "model_repository(unload_dependents)"
CONFIG_TYPES: Final = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}


def server_metadata(*, has_repository: bool = False) -> Node:
    """The server's name and version, and the extensions that it has; one more where models can be unloaded."""
    extensions = [*EXTENSIONS, *((UNLOADING,) if has_repository else ())]
    return {"name": SERVER, "version": __version__, "extensions": extensions}


def model_metadata(model: ServedModel = ONLY) -> Node:
    """The model's versions and tensors."""
    return {
        "name": model.name,
        "versions": [str(number) for number in model.numbers],
        "platform": PLATFORM,
        "inputs": [_tensor(IMAGE)],
        "outputs": [_tensor(output) for output in OUTPUTS],
    }


def model_config(model: ServedModel = ONLY) -> Node:
    """The model as a Triton configuration would describe it."""
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}}
        if model is ONLY
        else {"specific": {"versions": model.numbers}},
        "max_batch_size": MAX_BATCH,
        "input": [_config_tensor(IMAGE)],
        "output": [_config_tensor(output) for output in OUTPUTS],
    }


def model_statistics(series: Series) -> Node:
    """The counts, in Triton's shape. An image is one execution: nothing is batched for the engine here."""
    success, fail = (_duration(series, MODEL_SECONDS.of(outcome)) for outcome in ("success", "fail"))
    queue, decode, engine = (
        _duration(series, MODEL_STAGE_SECONDS.of(stage)) for stage in ("queue", "decode", "engine")
    )
    last = int(series.get(MODEL_LAST.of(), (0.0,))[0] * 1000)
    return {"model_stats": [_statistics(ONLY, success, fail, (queue, decode, engine), last)]}


def version_statistics(series: Series, models: Iterable[ServedModel]) -> Node:
    """The same of each of these versions."""
    return {"model_stats": [_statistics_of(series, model) for model in models]}


def _statistics_of(series: Series, model: ServedModel) -> Node:
    place = model.name, str(model.number)

    def counted(metric: Metric, *labels: str) -> float:
        return series.get(metric.of(*place, *labels), (0.0,))[0]

    def spent(stage: str, count: float) -> Node:
        return {"count": int(count), "ns": round(counted(VERSION_SECONDS, stage) * 1e9)}

    images = counted(VERSION_IMAGES)
    success, fail = (spent(outcome, counted(VERSION_REQUESTS, outcome)) for outcome in ("success", "fail"))
    steps = (spent("queue", images), spent("decode", images), spent("engine", images))
    # When a version read the last time is not counted.
    return _statistics(model, success, fail, steps, 0)


def _statistics(model: ServedModel, success: Node, fail: Node, stages: tuple[Node, Node, Node], last_ms: int) -> Node:
    """Of one version: its requests, and its images in the queue, being decoded, and in the engine."""
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


def _tensor(tensor: Tensor) -> Node:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _config_tensor(tensor: Tensor) -> Node:
    return {"name": tensor.name, "data_type": CONFIG_TYPES[tensor.datatype], "dims": list(tensor.dims)}


def _duration(series: Series, key: Key) -> Node:
    """The number of observations of a histogram, and their sum in nanoseconds."""
    *counts, seconds = series.get(key, (0.0,))
    return {"count": int(sum(counts)), "ns": round(seconds * 1e9)}
