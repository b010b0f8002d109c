"""TensorFlow Serving's REST API (port 8501). KServe v1 has its paths and its JSON.

Predictions have one row form in both, so a response is the union of what either's clients read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import orjson
from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel, ServedModels
from ocrsvc.adapters.model_protocols.rest import answer_ready, compressed, json_answer, parse_received, serve_paths
from ocrsvc.adapters.model_protocols.tensors import (
    IMAGE,
    MAX_BATCH,
    OUTPUT_NAMES,
    OUTPUTS,
    BadTensor,
    Tensor,
    arrays_of,
    image_of,
)
from ocrsvc.adapters.tfserving.servables import failure_of_version, find_servable, find_versions
from ocrsvc.errors import CallerError, UnknownModel
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import shown
from ocrsvc.http.json_body import parse_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.records import Page, ReadOptions
from ocrsvc.serving.memory_budget import Share

SIGNATURE: Final = "serving_default"
METHOD: Final = "tensorflow/serving/predict"
OTHER_VERBS: Final = "classify|regress"
ROW_NAMES: Final = ("text", "scores", "boxes", "counts")
DTYPES: Final = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT", "INT32": "DT_INT32"}

_MODEL: Final = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"


def make_tfserving(context: AdapterContext) -> Blueprint:
    """Predictions, status and metadata below /v1/models, over a model."""
    model = context.model
    blueprint = Blueprint("tfserving", __name__)

    def run(name: str, version: str | None, label: str | None) -> Response:
        return predict(model, name, version, label)

    def metadata(name: str, version: str | None, label: str | None) -> Response:
        return _metadata(model, name, version, label)

    def wrong(name: str, version: str | None, label: str | None, verb: str) -> Response:
        return wrong_method(model, name, version, label, verb)

    def model_status(name: str, version: str | None, label: str | None) -> Response:
        return status(model, name, version, label)

    serve_paths(
        blueprint,
        ("/v1/models/<path:rest>",),
        (
            ("POST", _MODEL + ":predict", run),
            ("POST", _MODEL + f":(?P<verb>{OTHER_VERBS})", wrong),
            ("GET", _MODEL, model_status),
            ("GET", _MODEL + "/metadata", metadata),
            ("GET", ".*", _malformed),
            ("POST", ".*", _malformed),
        ),
        re.IGNORECASE,
    )
    return blueprint


def _malformed() -> Response:
    raise CallerError(f"Malformed request: {request.method} {request.path[:200]}")


def _metadata(model: OcrModel, name: str, version: str | None, label: str | None) -> Response:
    check_known(model.models, name)
    served = find_servable(model.models, name, version, label)
    signature = {
        "inputs": {IMAGE.name: _tensor(IMAGE)},
        "outputs": {output.name: _tensor(output) for output in OUTPUTS},
        "method_name": METHOD,
    }
    spec = {"name": served.name, "signature_name": "", "version": str(served.number)}
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


def predict(model: OcrModel, name: str, version: str | None, label: str | None) -> Response:
    """Answer a request's images in its own form, by rows or by columns. Raises OcrsvcError."""
    served = find_servable(model.models, name, version, label)
    by_rows, images = parse_received(lambda body: _read_request(body, request.share))
    options = ReadOptions(model=served.option)
    pages = model.infer(images, options, request.left_s, request.context, served).pages
    answer = {"predictions": [_row(page) for page in pages]} if by_rows else {"outputs": _columns(pages)}
    return compressed(Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), content_type=JSON_TYPE))


def status(model: OcrModel, name: str, version: str | None = None, label: str | None = None) -> Response:
    """How the versions are, for clients of either protocol. Raises UnknownModel.

    Where one version is named the answer is there, however that is; else it says by its status whether any serves.
    """
    found = find_versions(model.models, name, version, label)
    ready = any(one.state == "AVAILABLE" for one in found)
    members = {"name": found[0].name, "ready": ready, "model_version_status": [_status(one) for one in found]}
    is_asked_for = model.models.has_repository and (version or label) is not None
    return answer_ready(members, ready=ready or is_asked_for)


def _status(one: VersionStatus) -> dict[str, object]:
    failure = failure_of_version(one)
    state = {"error_code": "FAILED_PRECONDITION" if failure else "OK", "error_message": failure}
    return {"version": str(one.number), "state": one.state, "status": state}


def wrong_method(
    model: OcrModel, name: str, version: str | None = None, label: str | None = None, verb: str = ""
) -> Response:
    """Raises what TensorFlow Serving says of the other verbs to a model that only predicts."""
    find_servable(model.models, name, version, label)
    verb = verb.lower()
    raise BadTensor(
        f"Expected {verb} signature method_name to be tensorflow/serving/{verb}. Was: {METHOD}", "Use :predict."
    )


def check_known(models: ServedModels, name: str) -> None:
    """Raises UnknownModel unless there is a model of this name, in whatever state."""
    if not models.status(name):
        raise UnknownModel(f"Could not find any versions of model {name[:100]}")


def check_signature(signature: object) -> None:
    """Raises BadTensor unless this is the one signature, or none."""
    if signature not in (None, "", SIGNATURE):
        name = shown(signature)[:100]
        raise BadTensor(f'Serving signature name: "{name}" not found in signature def', f"Use {SIGNATURE}.")


def _read_request(body: bytes, share: Share) -> tuple[bool, list[bytes]]:
    """Whether the images came by rows, and they. Raises CallerError, QueueFull."""
    sent = parse_json(body, share)
    check_signature(sent.get("signature_name"))
    if ("instances" in sent) == ("inputs" in sent):
        raise CallerError("Missing 'inputs' or 'instances' key", "Send one of them.")
    values = _rows(sent["instances"]) if "instances" in sent else _column(sent["inputs"])
    if not 1 <= len(values) <= MAX_BATCH:
        raise BadTensor(f"The request holds {len(values)} images; accepted are 1 to {MAX_BATCH}.")
    return "instances" in sent, [_image(value, share) for value in values]


def _rows(instances: object) -> list[Any]:
    """The value of each instance: the instance itself, or what it has under the input's name."""
    if not isinstance(instances, list):
        raise BadTensor("The value of 'instances' is not a list.", 'Send {"instances": [{"b64": "…"}]}.')
    return [_unwrapped(instance) for instance in instances]


def _column(inputs: object) -> list[Any]:
    values = _unwrapped(inputs)
    return values if isinstance(values, list) else [values]


def _unwrapped(value: object) -> Any:
    """What an object holds under the name of the one input; raises BadTensor for another name."""
    if not isinstance(value, dict) or set(value) == {"b64"}:
        return value
    if set(value) != {IMAGE.name}:
        names = ", ".join(repr(str(name)[:40]) for name in list(value)[:5])
        raise BadTensor(f"The inputs are named {names or 'nothing'}; the one input is {IMAGE.name!r}.")
    return value[IMAGE.name]


def _image(value: object, share: Share) -> bytes:
    """The image file in {"b64": …}, in a text, or in either as the only element of a list.

    Raises:
        CallerError: It is no image.
        QueueFull: Other requests hold the memory.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        return decode_base64(value["b64"], share)
    if isinstance(value, str):
        share.take(len(value))
        return image_of(value.encode(), share)
    raise BadTensor('An image is neither {"b64": …} nor a text.', 'Send {"b64": "<base64 of the image file>"}.')


def _row(page: Page) -> dict[str, object]:
    """The outputs for one image, as long as it has lines."""
    return {array.name: array.values[0] for array in arrays_of([page], ROW_NAMES, (1,))} | {
        "texts": [line.text for line in page.lines]
    }


def _columns(pages: Sequence[Page]) -> dict[str, object]:
    """The outputs of all images, each as one nested list."""
    columns: dict[str, object] = {}
    for array in arrays_of(pages, OUTPUT_NAMES, (len(pages),)):
        values = array.values
        columns[array.name] = _folded(values, array.shape) if isinstance(values, list) else values
    return columns


def _folded(values: list[str], shape: tuple[int, ...]) -> list[Any]:
    if len(shape) == 1:
        return values
    return [values[row * shape[1] : (row + 1) * shape[1]] for row in range(shape[0])]
