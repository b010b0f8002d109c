"""How the model describes itself to clients of the KServe v2 protocol and of Triton.

As the members of JSON objects, which are those of the protocol's gRPC messages too.
"""

from __future__ import annotations

from typing import Any, Final

from ocrsvc import __version__
from ocrsvc.model_api.metadata import IMAGE, MAX_BATCH, NAME, OUTPUTS, PLATFORM, VERSION, Tensor
from ocrsvc.telemetry.metrics import MODEL_LAST, MODEL_SECONDS, MODEL_STAGE_SECONDS, Key
from ocrsvc.telemetry.metrics_store import Series

Node = dict[str, Any]

SERVER: Final = "ocrsvc"
EXTENSIONS: Final = ("model_repository", "model_configuration", "binary_tensor_data", "parameters", "statistics")
CONFIG_TYPES: Final = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}


def server_metadata() -> Node:
    """The server's name and version, and the extensions that it has."""
    return {"name": SERVER, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata() -> Node:
    """The model's versions and tensors."""
    return {
        "name": NAME,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [_tensor(IMAGE)],
        "outputs": [_tensor(output) for output in OUTPUTS],
    }


def model_config() -> Node:
    """The model as a Triton configuration would describe it."""
    return {
        "name": NAME,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
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
    images, nothing = engine["count"], {"count": 0, "ns": 0}
    steps: Node = {"compute_input": decode, "compute_infer": engine, "compute_output": {"count": images, "ns": 0}}
    return {
        "model_stats": [
            {
                "name": NAME,
                "version": VERSION,
                "last_inference": int(series.get(MODEL_LAST.of(), (0.0,))[0] * 1000),
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
        ]
    }


def repository_index(*, ready: bool, only_ready: bool) -> list[Node]:
    """The models that there are: one; none when only ready ones are asked for and it is not."""
    if only_ready and not ready:
        return []
    return [{"name": NAME, "version": VERSION, "state": "READY" if ready else "LOADING", "reason": ""}]


def _tensor(tensor: Tensor) -> Node:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _config_tensor(tensor: Tensor) -> Node:
    return {"name": tensor.name, "data_type": CONFIG_TYPES[tensor.datatype], "dims": list(tensor.dims)}


def _duration(series: Series, key: Key) -> Node:
    """The number of observations of a histogram, and their sum in nanoseconds."""
    *counts, seconds = series.get(key, (0.0,))
    return {"count": int(sum(counts)), "ns": round(seconds * 1e9)}
