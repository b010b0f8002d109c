"""TensorFlow Serving's REST API (port 8501)."""

from __future__ import annotations

import re
from typing import Final

from flask import Blueprint, Response, request

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.tfserving.predict import (
    METHOD,
    OTHER_VERBS,
    SIGNATURE,
    check_version,
    predict,
    status,
    wrong_method,
)
from ocrsvc.errors import CallerError
from ocrsvc.model_api.metadata import IMAGE, NAME, OUTPUTS, VERSION, Tensor, UnknownModel
from ocrsvc.model_api.rest_common import json_answer, serve_paths

DTYPES: Final = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT", "INT32": "DT_INT32"}

_MODEL: Final = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"


def make_tfserving(context: AdapterContext) -> Blueprint:
    """Predictions, status and metadata below /v1/models, over a model."""
    model = context.model
    blueprint = Blueprint("tfserving", __name__)

    def run(name: str, version: str | None, label: str | None) -> Response:
        return predict(model, name, version, label)

    def model_status(name: str, version: str | None, label: str | None) -> Response:
        return status(model, name, version, label)

    serve_paths(
        blueprint,
        ("/v1/models/<path:rest>",),
        (
            ("POST", _MODEL + ":predict", run),
            ("POST", _MODEL + f":(?P<verb>{OTHER_VERBS})", wrong_method),
            ("GET", _MODEL, model_status),
            ("GET", _MODEL + "/metadata", _metadata),
            ("GET", ".*", _malformed),
            ("POST", ".*", _malformed),
        ),
        re.IGNORECASE,
    )
    return blueprint


def _malformed() -> Response:
    raise CallerError(f"Malformed request: {request.method} {request.path[:200]}")


def _metadata(name: str, version: str | None, label: str | None) -> Response:
    if name != NAME:
        raise UnknownModel(f"Could not find any versions of model {name[:100]}")
    check_version(version, label)
    signature = {
        "inputs": {IMAGE.name: _tensor(IMAGE)},
        "outputs": {output.name: _tensor(output) for output in OUTPUTS},
        "method_name": METHOD,
    }
    spec = {"name": NAME, "signature_name": "", "version": VERSION}
    return json_answer({"model_spec": spec, "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}}})


def _tensor(tensor: Tensor) -> dict[str, object]:
    """A tensor's description. One image is one element here, so that a batch of them has one length."""
    lengths = tensor.shape[:1] if tensor.dims == (1,) else tensor.shape
    dims = [{"size": str(length), "name": ""} for length in lengths]
    return {
        "dtype": DTYPES[tensor.datatype],
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": f"{tensor.name}:0",
    }
