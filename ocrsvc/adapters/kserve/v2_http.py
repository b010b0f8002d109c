"""KServe v2 (the Open Inference Protocol) and Triton's HTTP API (port 8000), with the binary tensor extension."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, TypeVar

import orjson
from flask import Blueprint, Response
from pydantic import BaseModel, ValidationError

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.kserve import v2_models
from ocrsvc.adapters.kserve.v2_models import InferRequest, find_model
from ocrsvc.adapters.model_protocols import rest, tensors
from ocrsvc.adapters.model_protocols.ocr_model import Inference, OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import caller_of_request
from ocrsvc.adapters.model_protocols.tensors import IMAGE, Array, BadTensor
from ocrsvc.errors import BodyTooLarge, CallerError
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text, shown
from ocrsvc.http.parsed_body import is_image, parse_json
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE
from ocrsvc.serving.memory_budget import Share

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
BINARY_TYPE: Final = "application/octet-stream"
MAX_ID: Final = 1024
_REMEDY: Final = "See the Open Inference Protocol."

_MODEL: Final = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REPOSITORY: Final = r"/v2/repository/models/(?P<name>[^/]+)"
_DIGITS: Final = re.compile(r"[0-9]{1,12}")
B = TypeVar("B", bound=BaseModel)


class _LoadRequest(BaseModel):
    """The body of a request to load a model."""

    parameters: dict[str, Any] | None = None


class _Output(_LoadRequest):
    """An output tensor that the client requests."""

    name: str


class _Input(_Output):
    """An input tensor; its binary data, if any, follows the JSON in the body."""

    datatype: str
    shape: list[Any]
    data: list[Any] = []


class _Head(BaseModel):
    """The JSON of an inference request."""

    id: int | float | bool | str | None = None
    parameters: dict[str, Any] | None = None
    inputs: list[_Input]
    outputs: list[_Output] | None = None


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    """An inference request. `outputs`: whether each requested output is returned as binary; `binary`: the default."""

    infer: InferRequest
    id: object = None
    outputs: Mapping[str, bool] = field(default_factory=dict)
    binary: bool = False


def make_kserve_v2(context: AdapterContext) -> Blueprint:
    """Make the routes below /v2."""
    model = context.model

    def for_model(answer: Callable[[ServedModel], Response]) -> rest.View:
        return lambda name, version: answer(find_model(model, name, version or ""))

    def infer(served: ServedModel) -> Response:
        header_length = request.headers.get(HEADER_LENGTH)
        parsed = rest.parse_received(lambda body: _parse_request(body, header_length, request.share))
        return _answer(parsed, *v2_models.infer_arrays(model, served, parsed.infer, request.left_s, request.context))

    def model_ready(served: ServedModel) -> Response:
        return rest.answer_ready({"name": served.name, "ready": model.ready}, ready=model.ready)

    def statistics(name: str = "", version: str | None = None) -> Response:
        return rest.json_answer(v2_models.statistics_of(model, name, version or ""))

    def index() -> Response:
        asked = rest.parse_received(lambda body: parse_json(body, request.share) if body else {})
        return rest.json_answer(v2_models.repository_index(model, only_ready=asked.get("ready") is True))

    return rest.serve_paths(
        "kserve_v2",
        # The last path has a rule of its own, because its requests need an API key with the scope `operate`.
        ("/v2", "/v2/<path:rest>", "/v2/repository/models/<path:rest>"),
        (
            ("GET", r"/v2/?", lambda: rest.json_answer(v2_models.server_metadata(has_repository=model.has_repository))),
            ("GET", r"/v2/health/live", lambda: rest.answer_ready({"live": True}, ready=True)),
            ("GET", r"/v2/health/ready", lambda: rest.answer_ready({"ready": model.ready}, ready=model.ready)),
            ("GET", r"/v2/models", lambda: rest.json_answer({"models": model.names()})),
            ("GET", r"/v2/models/stats", statistics),
            ("GET", _MODEL, for_model(lambda served: rest.json_answer(v2_models.model_metadata(served)))),
            ("GET", _MODEL + "/ready", for_model(model_ready)),
            ("GET", _MODEL + "/config", for_model(lambda served: rest.json_answer(v2_models.model_config(served)))),
            ("GET", _MODEL + "/stats", statistics),
            ("POST", _MODEL + "/infer", for_model(infer)),
            ("POST", r"/v2/repository/index", index),
            ("POST", _REPOSITORY + "/load", lambda name: _load(model, name)),
            ("POST", _REPOSITORY + "/unload", lambda name: _unload(model, name)),
        ),
    )


def _load(model: OcrModel, name: str) -> Response:
    names: list[str] = []
    if model.has_repository:
        members = rest.parse_received(lambda body: parse_json(body, request.share) if body else {})
        names = list(_validated(_LoadRequest, members).parameters or ())
    v2_models.load_model(model, name, names, caller_of_request)
    return Response(content_type=JSON_TYPE)


def _unload(model: OcrModel, name: str) -> Response:
    v2_models.unload_model(model, name, caller_of_request)
    return Response(content_type=JSON_TYPE)


def _validated(kind: type[B], value: object) -> B:
    """Validate a JSON object. Raises CallerError, which names the wrong member."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        why = "Input should be an object" if first["type"] == "model_type" else first["msg"]
        raise CallerError(f"{'.'.join(map(str, first['loc']))}: {why}.", _REMEDY) from None


def _parse_request(body: bytes, header_length: str | None, share: Share) -> _HttpRequest:
    """Parse JSON, JSON followed by binary tensors, or one binary tensor. Raises CallerError, QueueFull."""
    head_bytes, raw = _split(body, header_length)
    share.take(len(raw))
    if header_length is not None and not head_bytes:
        # The body is an image file, with or without its length as a prefix of four bytes.
        is_prefixed = not is_image(raw) and int.from_bytes(raw[:4], "little") == len(raw) - 4
        return _HttpRequest(InferRequest(IMAGE.name, [bytes(raw[4 if is_prefixed else 0 :])], (1,), (), {}))
    head = _validated(_Head, _parse_head(head_bytes, share))
    if isinstance(head.id, str) and len(head.id) > MAX_ID:
        raise CallerError(f"'id' is longer than {MAX_ID} characters.", _REMEDY)
    (tensor, language), parameters = v2_models.split_inputs(head.inputs), head.parameters or {}
    parts = _binary_parts(head.inputs, raw)
    elements, batch = _elements(tensor, parts, share)
    lang = "" if language is None else as_text(_elements(language, parts, share)[0][0])
    binary = parameters.get("binary_data_output") is True
    outputs = {}
    for output in head.outputs or ():
        v2_models.check_output_parameters(output.parameters or {})
        outputs[output.name] = (output.parameters or {}).get("binary_data", binary) is True
    infer = InferRequest(tensor.name, elements, batch, list(outputs), parameters, tensor.datatype, lang)
    return _HttpRequest(infer, head.id, outputs, binary)


def _parse_head(head_bytes: bytes, share: Share) -> dict[str, object]:
    """Parse the JSON of a request. Raises as `parse_json`."""
    try:
        return parse_json(head_bytes, share)
    except BodyTooLarge as error:
        error.remedy = f"Send several requests, or pixels as binary data behind the JSON, with {HEADER_LENGTH}."
        raise


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """Split a body into the JSON and the binary data after it. Raises CallerError."""
    if header_length is None:
        return body, memoryview(b"")
    if not _DIGITS.fullmatch(header_length) or int(header_length) > len(body):
        raise CallerError(
            f"{HEADER_LENGTH} is {header_length[:40]!r}, but the body has {len(body)} bytes.",
            "Send the length in bytes of the JSON that starts the body.",
        )
    return body[: int(header_length)], memoryview(body)[int(header_length) :]


def _binary_parts(inputs: Sequence[_Input], raw: memoryview) -> dict[str, memoryview]:
    """Split the bytes after the JSON among the inputs with binary data; returns them by input. Raises BadTensor."""
    sizes = {
        tensor.name: tensor.parameters["binary_data_size"]
        for tensor in inputs
        if tensor.parameters and "binary_data_size" in tensor.parameters
    }
    are_whole = all(type(size) is int and size >= 0 for size in sizes.values())
    if sizes and (not are_whole or sum(sizes.values()) != len(raw)):
        raise BadTensor(
            f"binary_data_size is {' and '.join(shown(size)[:40] for size in sizes.values())}, "
            f"but {len(raw)} bytes follow the JSON.",
            f"Send {HEADER_LENGTH}, and the tensor's bytes behind the JSON.",
        )
    ends = accumulate(sizes.values())
    return {name: raw[end - size : end] for (name, size), end in zip(sizes.items(), ends, strict=True)}


def _elements(tensor: _Input, parts: Mapping[str, memoryview], share: Share) -> tuple[list[bytes], tensors.Shape]:
    """The input's elements, from the data after the JSON or from the JSON itself, and its shape.

    Raises BadTensor, QueueFull.
    """
    shape = tensors.check_input(tensor.name, tensor.datatype, tensor.shape)
    if tensor.datatype == tensors.PIXELS:
        return [tensors.pixels_to_file(parts.get(tensor.name), shape)], shape
    parameters, count = tensor.parameters or {}, math.prod(shape)
    if tensor.name in parts:
        return tensors.unpack_elements(parts[tensor.name], count), shape
    texts = _flat(tensor.data)
    if len(texts) != count:
        raise BadTensor(f"The shape has {count} elements, but data has {len(texts)}.", f"Send {count} elements.")
    if parameters.get("content_type") == "base64":
        return [decode_base64(text, share) for text in texts], shape
    share.take(sum(map(len, texts)))
    return [text.encode("utf-8", "surrogatepass") for text in texts], shape


def _flat(values: list[object], depth: int = 0) -> list[str]:
    """Flatten nested lists of strings. Raises BadTensor."""
    texts: list[str] = []
    for value in values:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list) and depth < 8:
            texts += _flat(value, depth + 1)
        else:
            raise BadTensor(f"data of '{IMAGE.name}' has values that are not strings.", "Send base64 strings.")
    return texts


def _answer(parsed: _HttpRequest, outputs: Sequence[Array], inference: Inference) -> Response:
    raw: list[bytes] = []
    head: dict[str, object] = {"id": parsed.id} if parsed.id else {}
    head |= {"model_name": inference.name, "model_version": inference.version}
    head["outputs"] = [_output(array, raw, binary=parsed.outputs.get(array.name, parsed.binary)) for array in outputs]
    members = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if not raw:
        return rest.compressed(Response(members, content_type=JSON_TYPE))
    response = Response(b"".join([members, *raw]), content_type=BINARY_TYPE)
    response.headers[HEADER_LENGTH] = str(len(members))
    return rest.compressed(response)


def _output(array: Array, raw: list[bytes], *, binary: bool) -> dict[str, object]:
    """Describe an output in JSON; if it is binary, append its bytes to `raw`."""
    output: dict[str, object] = {"name": array.name, "datatype": array.datatype, "shape": array.shape}
    if binary:
        raw.append(tensors.pack(array))
        return output | {"parameters": {"binary_data_size": len(raw[-1])}}
    values = array.values
    return output | {"data": values if isinstance(values, list) else values.ravel()}
