"""TensorFlow Serving's REST API (port 8501), and KServe v1, which shares its paths and JSON."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.model_protocols import rest, tensors
from ocrsvc.adapters.model_protocols.ocr_model import MAX_DIGITS, OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.tensors import IMAGE, MAX_BATCH, BadTensor, NotOffered, Tensor, image_of
from ocrsvc.errors import CallerError, UnknownModel
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import shown
from ocrsvc.http.parsed_body import parse_json
from ocrsvc.http.request import request
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.results import Page, ReadOptions
from ocrsvc.serving.memory_budget import Share

OTHER_VERBS: Final = "classify|regress"
ROW_NAMES: Final = ("text", "scores", "boxes", "counts")

_MODEL: Final = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"

SIGNATURE: Final = "serving_default"
METHOD: Final = "tensorflow/serving/predict"
DTYPES: Final = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT", "INT32": "DT_INT32"}


def make_tfserving(context: AdapterContext) -> Blueprint:
    """Make the routes of predictions, status and metadata below /v1/models."""
    model = context.model

    def malformed() -> Response:
        raise CallerError(f"Malformed request: {request.method} {request.path[:200]}")

    routes: list[rest.Route] = [
        ("POST", _MODEL + ":predict", partial(_predict, model)),
        ("POST", _MODEL + f":(?P<verb>{OTHER_VERBS})", partial(_wrong_method, model)),
        ("GET", _MODEL, partial(_status, model)),
        ("GET", _MODEL + "/metadata", partial(_metadata, model)),
        *((method, ".*", malformed) for method in ("GET", "POST")),
    ]
    return rest.serve_paths("tfserving", ("/v1/models/<path:rest>",), routes, re.IGNORECASE)


def make_kserve_v1(context: AdapterContext) -> Blueprint:
    """Make the routes of KServe v1: list of models, readiness and predictions."""
    model, path = context.model, r"/v1/models/(?P<name>[^/:]+)"

    def explain(name: str) -> Response:
        find_servable(model, name)
        raise NotOffered("Explanations are not supported.", "Use :predict.")

    routes: list[rest.Route] = [
        ("GET", "/v1/models", lambda: rest.json_answer({"models": model.names()})),
        ("GET", path, partial(_status, model)),
        ("POST", path + ":predict", partial(_predict, model)),
        ("POST", path + ":explain", explain),
    ]
    if "tfserving" in context.settings.adapters:
        # Flask sends the paths that both adapters have here: also answer the verbs that only TensorFlow Serving has.
        routes.append(("POST", path + f":(?P<verb>{OTHER_VERBS})", partial(_wrong_method, model)))
    return rest.serve_paths("kserve_v1", ("/v1/models", "/v1/models/<name>"), routes)


def _metadata(model: OcrModel, name: str, version: str | None, label: str | None) -> Response:
    find_versions(model, name)
    served = find_servable(model, name, version, label)
    spec = {"name": served.name, "signature_name": "", "version": str(served.number)}
    signatures = {"signature_def": {"signature_def": {SIGNATURE: signature_of()}}}
    return rest.json_answer({"model_spec": spec, "metadata": signatures})


def _predict(model: OcrModel, name: str, version: str | None = None, label: str | None = None) -> Response:
    """Predict; the response is by row or by column, as in the request (`instances` or `inputs`). Raises OcrsvcError."""
    served = find_servable(model, name, version, label)
    by_rows, images = rest.parse_received(lambda body: _parse_request(body, request.share))
    options = ReadOptions(model=served.option)
    pages = model.infer(images, options, request.left_s, request.context, served).pages
    answer = {"predictions": [_row(page) for page in pages]} if by_rows else {"outputs": _columns(pages)}
    return rest.json_answer(answer)


def _status(model: OcrModel, name: str, version: str | None = None, label: str | None = None) -> Response:
    """The versions' states; HTTP 503 if none serves and the request names no version or label. Raises UnknownModel."""
    statuses, versions = find_versions(model, name, version, label), []
    for status in statuses:
        failure = failure_of_version(status)
        error = {"error_code": "FAILED_PRECONDITION" if failure else "OK", "error_message": failure}
        versions.append({"version": str(status.number), "state": status.state, "status": error})
    ready = any(status.state == "AVAILABLE" for status in statuses)
    members = {"name": statuses[0].name, "ready": ready, "model_version_status": versions}
    names_version = model.has_repository and (version or label) is not None
    return rest.answer_ready(members, ready=ready or names_version)


def _wrong_method(
    model: OcrModel, name: str, version: str | None = None, label: str | None = None, verb: str = ""
) -> Response:
    """Raise TensorFlow Serving's error for classify and regress, which the model does not support."""
    find_servable(model, name, version, label)
    expected = f"Expected {verb.lower()} signature method_name to be tensorflow/serving/{verb.lower()}."
    raise BadTensor(f"{expected} Was: {METHOD}", "Use :predict.")


def _parse_request(body: bytes, share: Share) -> tuple[bool, list[bytes]]:
    """Parse a request; return whether it is by row (`instances`), and its images. Raises CallerError, QueueFull."""
    members = parse_json(body, share)
    check_signature(members.get("signature_name"))
    by_rows = "instances" in members
    if by_rows == ("inputs" in members):
        raise CallerError("Missing 'inputs' or 'instances' key", "Send one of them.")
    values = members["instances"] if by_rows else _unwrapped(members["inputs"])
    if not isinstance(values, list):
        if by_rows:
            raise BadTensor("The value of 'instances' is not a list.", 'Send {"instances": [{"b64": "…"}]}.')
        values = [values]
    if not 1 <= len(values) <= MAX_BATCH:
        raise BadTensor(f"The request has {len(values)} images; accepted are 1 to {MAX_BATCH}.")
    return by_rows, [_image(_unwrapped(value) if by_rows else value, share) for value in values]


def _unwrapped(value: object) -> Any:
    """The value of an input, which may be sent as {name: value}. Raises BadTensor for another name."""
    if not isinstance(value, dict) or set(value) == {"b64"}:
        return value
    if set(value) != {IMAGE.name}:
        names = ", ".join(repr(str(name)[:40]) for name in list(value)[:5])
        raise BadTensor(f"The inputs are {names or 'missing'}; expected is {IMAGE.name!r} alone.")
    return value[IMAGE.name]


def _image(value: object, share: Share) -> bytes:
    """The image file in {"b64": …} or a string, also as a list's only element. Raises CallerError, QueueFull."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        return decode_base64(value["b64"], share)
    if isinstance(value, str):
        share.take(len(value))
        return image_of(value.encode(), share)
    raise BadTensor('An image is neither {"b64": …} nor a string.', 'Send {"b64": "<base64 of the image file>"}.')


def _row(page: Page) -> dict[str, object]:
    """The outputs of one image, its lists not padded to the length of other images' lists."""
    arrays = {array.name: array.values[0] for array in tensors.arrays_of([page], ROW_NAMES, (1,))}
    return {**arrays, "texts": [line.text for line in page.lines]}


def _columns(pages: Sequence[Page]) -> dict[str, object]:
    """The outputs of all images: for each output, a list with one entry per image."""
    columns: dict[str, object] = {}
    for array in tensors.arrays_of(pages, tensors.OUTPUT_NAMES, (len(pages),)):
        columns[array.name] = values = array.values
        if isinstance(values, list) and len(array.shape) > 1:
            width = array.shape[-1]
            columns[array.name] = [values[row * width : (row + 1) * width] for row in range(len(pages))]
    return columns


def find_servable(model: OcrModel, name: str, version: str | None = None, label: str | None = None) -> ServedModel:
    """The model version that a request names. Raises UnknownModel."""
    served = model.find(name, _number(version), label)
    if served is not None:
        return served
    is_known = bool(model.status(name))
    if version and is_known:
        raise _no_version(name, version)
    if label and is_known:
        raise UnknownModel(f"Unrecognized servable version label: {label[:100]}")
    place = f"Specific({name[:100]}, {version[:20]})" if version else f"Latest({name[:100]})"
    raise UnknownModel(f"Servable not found for request: {place}")


def find_versions(
    model: OcrModel, name: str, version: str | None = None, label: str | None = None
) -> Sequence[VersionStatus]:
    """The states of the versions that a request names, newest first. Raises UnknownModel."""
    every = model.status(name)
    if not every:
        raise UnknownModel(f"Could not find any versions of model {name[:100]}")
    if label:
        return [one for one in every if one.number == find_servable(model, name, None, label).number]
    chosen = [one for one in every if version is None or one.number == _number(version)]
    if version and not chosen:
        raise _no_version(name, version)
    return list(reversed(chosen))


def failure_of_version(status: VersionStatus) -> str:
    """The version's error message; "" if the version has no error or was unloaded."""
    return status.reason if status.failed else ""


def check_signature(signature: object) -> None:
    """Raises BadTensor for a signature other than `serving_default`."""
    if signature not in (None, "", SIGNATURE):
        name = shown(signature)[:100]
        raise BadTensor(f'Serving signature name: "{name}" not found in signature def', f"Use {SIGNATURE}.")


def signature_of() -> dict[str, Any]:
    """The signature of every model: its inputs and outputs."""
    outputs = {output.name: _tensor(output) for output in tensors.OUTPUTS}
    return {"inputs": {IMAGE.name: _tensor(IMAGE)}, "outputs": outputs, "method_name": METHOD}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor's TensorInfo. An image is one element, so the tensor of images has only the batch dimension."""
    lengths = tensor.shape[:1] if tensor.dims == (1,) else tensor.shape
    shape = {"dim": [{"size": str(length), "name": ""} for length in lengths], "unknown_rank": False}
    return {"dtype": DTYPES[tensor.datatype], "tensor_shape": shape, "name": f"{tensor.name}:0"}


def _number(version: str | None) -> int | None:
    """Convert a version's digits to a number; 0, which no version has, for too many digits."""
    if not version:
        return None
    return int(version) if len(version) <= MAX_DIGITS else 0


def _no_version(name: str, version: str) -> UnknownModel:
    return UnknownModel(f"Could not find version {version[:20]} of model {name}")
