"""KServe v2 (the Open Inference Protocol) over HTTP, and Triton's HTTP API (port 8000).

With the binary tensor extension, and Triton's model configuration, statistics and repository calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.kserve import v2_metadata
from ocrsvc.adapters.kserve.infer import InferredArrays, InferRequest, infer_arrays
from ocrsvc.adapters.kserve.v2_metadata import server_metadata
from ocrsvc.adapters.kserve.v2_models import find_model, load_model, repository_index, statistics_of, unload_model
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import caller_of_request
from ocrsvc.adapters.model_protocols.rest import (
    View,
    answer_ready,
    compressed,
    json_answer,
    parse_received,
    serve_paths,
)
from ocrsvc.adapters.model_protocols.tensors import (
    IMAGE,
    NAME,
    Array,
    BadTensor,
    NotOffered,
    check_input,
    pack,
    unpack_elements,
)
from ocrsvc.errors import CallerError
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import shown
from ocrsvc.http.json_body import parse_json
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE
from ocrsvc.serving.memory_budget import Share

T = TypeVar("T")

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
BINARY_TYPE: Final = "application/octet-stream"
MAX_ID: Final = 1024

_MODEL: Final = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REPOSITORY: Final = r"/v2/repository/models/(?P<name>[^/]+)"
_DIGITS: Final = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    """An inference request, and how it is to be answered.

    Attributes:
        asked: The request.
        id: For the answer.
        outputs: Whether each output asked for is answered as raw bytes.
        binary: Whether all others are.
    """

    asked: InferRequest
    id: object = None
    outputs: Mapping[str, bool] = field(default_factory=dict)
    binary: bool = False


def make_kserve_v2(context: AdapterContext) -> Blueprint:
    """Everything below /v2, over a model."""
    model, models = context.model, context.model.models
    blueprint = Blueprint("kserve_v2", __name__)

    def infer(name: str, version: str | None) -> Response:
        served = find_model(models, name, version or "")
        header_length = request.headers.get(HEADER_LENGTH)
        sent = parse_received(lambda body: _read_request(body, header_length, request.share))
        return _answer(sent, infer_arrays(model, served, sent.asked, request.left_s, request.context))

    def described(describe: Callable[[ServedModel], object]) -> View:
        def answer(name: str = NAME, version: str | None = None) -> Response:
            return json_answer(describe(find_model(models, name, version or "")))

        return answer

    def statistics(name: str = "", version: str | None = None) -> Response:
        return json_answer(statistics_of(model, name, version or ""))

    def model_ready(name: str, version: str | None) -> Response:
        served = find_model(models, name, version or "")
        return answer_ready({"name": served.name, "ready": model.ready}, ready=model.ready)

    def index() -> Response:
        only_ready = parse_received(lambda body: bool(body) and parse_json(body, request.share).get("ready") is True)
        return json_answer(repository_index(models, only_ready=only_ready))

    serve_paths(
        blueprint,
        # What wants the scope of operators has a rule of its own.
        ("/v2", "/v2/<path:rest>", "/v2/repository/models/<path:rest>"),
        (
            ("GET", r"/v2/?", lambda: json_answer(server_metadata(has_repository=models.has_repository))),
            ("GET", r"/v2/health/live", lambda: answer_ready({"live": True}, ready=True)),
            ("GET", r"/v2/health/ready", lambda: answer_ready({"ready": model.ready}, ready=model.ready)),
            ("GET", r"/v2/models", lambda: json_answer({"models": models.names()})),
            ("GET", r"/v2/models/stats", statistics),
            ("GET", _MODEL, described(v2_metadata.model_metadata)),
            ("GET", _MODEL + "/ready", model_ready),
            ("GET", _MODEL + "/config", described(v2_metadata.model_config)),
            ("GET", _MODEL + "/stats", statistics),
            ("POST", _MODEL + "/infer", infer),
            ("POST", r"/v2/repository/index", index),
            ("POST", _REPOSITORY + "/load", lambda name: _load(model, name)),
            ("POST", _REPOSITORY + "/unload", lambda name: _unload(model, name)),
        ),
    )
    return blueprint


def _load(model: OcrModel, name: str) -> Response:
    parameters = parse_received(_parameter_names) if model.models.has_repository else ()
    load_model(model, name, parameters, caller_of_request)
    return Response(content_type=JSON_TYPE)


def _unload(model: OcrModel, name: str) -> Response:
    unload_model(model, name, caller_of_request)
    return Response(content_type=JSON_TYPE)


def _parameter_names(body: bytes) -> list[str]:
    """Of a request to load a model, which may come without a body."""
    return list(_parameters(parse_json(body, request.share))) if body else []


def _read_request(body: bytes, header_length: str | None, share: Share) -> _HttpRequest:
    """The request in a body: JSON, JSON and raw tensors behind it, or one raw tensor alone.

    Raises:
        CallerError: It is none of these.
        QueueFull: Other requests hold the memory.
    """
    head_bytes, raw = _split(body, header_length)
    share.take(len(raw))
    if header_length is not None and not head_bytes:
        return _raw_request(raw)
    head = parse_json(head_bytes, share)
    tensor = _only_input(head)
    name = _member(tensor, "name", str)
    batch = check_input(name, _member(tensor, "datatype", str), _member(tensor, "shape", list))
    parameters = _parameters(head)
    binary = parameters.get("binary_data_output") is True
    elements, outputs = _elements(tensor, raw, math.prod(batch), share), _wanted(head, default=binary)
    return _HttpRequest(InferRequest(name, elements, batch, list(outputs), parameters), _id(head), outputs, binary)


def _id(head: Mapping[str, object]) -> object:
    """What the answer repeats."""
    sent = head.get("id")
    if isinstance(sent, list | dict) or (isinstance(sent, str) and len(sent) > MAX_ID):
        raise CallerError(f"'id' is not a text of at most {MAX_ID} letters.", "See the Open Inference Protocol.")
    return sent


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """The JSON, and what is behind it."""
    if header_length is None:
        return body, memoryview(b"")
    if not _DIGITS.fullmatch(header_length) or int(header_length) > len(body):
        raise CallerError(
            f"{HEADER_LENGTH} is {header_length[:40]!r}, and the body has {len(body)} bytes.",
            "Send the length of the JSON at the beginning of the body.",
        )
    return body[: int(header_length)], memoryview(body)[int(header_length) :]


def _raw_request(raw: memoryview) -> _HttpRequest:
    """The whole body is the one input: an image file, with or without its length in front."""
    image = raw
    if not is_image(raw) and int.from_bytes(raw[:4], "little") == len(raw) - 4:
        image = raw[4:]
    return _HttpRequest(InferRequest(IMAGE.name, [bytes(image)], (1,), (), {}))


def _only_input(head: Mapping[str, object]) -> Mapping[str, object]:
    inputs: list[object] = _member(head, "inputs", list)
    if len(inputs) != 1:
        raise BadTensor(f"expected 1 inputs but got {len(inputs)} inputs for model '{NAME}'.", f"Send {IMAGE.name!r}.")
    return _as_object(inputs[0], "inputs[0]")


def _elements(tensor: Mapping[str, object], raw: memoryview, count: int, share: Share) -> list[bytes]:
    """The elements of the input, from behind the JSON or out of it. Raises BadTensor, QueueFull."""
    parameters = _parameters(tensor)
    if "binary_data_size" in parameters:
        if parameters["binary_data_size"] != len(raw):
            sent_size = shown(parameters["binary_data_size"])[:40]
            raise BadTensor(
                f"binary_data_size is {sent_size}, and {len(raw)} bytes follow the JSON.",
                f"Send {HEADER_LENGTH}, and the tensors' bytes behind the JSON.",
            )
        return unpack_elements(raw, count)
    texts = _flat(_member(tensor, "data", list))
    if len(texts) != count:
        raise BadTensor(f"The shape stands for {count} elements, and data has {len(texts)}.", "Send as many.")
    if parameters.get("content_type") == "base64":
        return [decode_base64(text, share) for text in texts]
    share.take(sum(map(len, texts)))
    return [text.encode("utf-8", "surrogatepass") for text in texts]


def _flat(values: list[object], depth: int = 0) -> list[str]:
    """The texts in nested lists. Raises BadTensor."""
    texts: list[str] = []
    for value in values:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list) and depth < 8:
            texts += _flat(value, depth + 1)
        else:
            raise BadTensor(f"data of '{IMAGE.name}' holds something other than text.", "Send base64 text.")
    return texts


def _wanted(head: Mapping[str, object], *, default: bool) -> dict[str, bool]:
    """The outputs asked for, and whether each is answered as raw bytes. Raises NotOffered."""
    wanted = {}
    for item in _member(head, "outputs", list) if head.get("outputs") else []:
        output = _as_object(item, "outputs")
        own = _parameters(output)
        if own.get("classification"):
            raise NotOffered("The classification extension is not supported.", "Ask for the output as it is.")
        wanted[_member(output, "name", str)] = own.get("binary_data", default) is True
    return wanted


def _answer(sent: _HttpRequest, inferred: InferredArrays) -> Response:
    raw: list[bytes] = []
    head: dict[str, object] = {"id": sent.id} if sent.id else {}
    head |= {"model_name": inferred.name, "model_version": inferred.version}
    outputs = inferred.arrays
    head["outputs"] = [_output(array, raw, binary=sent.outputs.get(array.name, sent.binary)) for array in outputs]
    members = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if not raw:
        return compressed(Response(members, content_type=JSON_TYPE))
    response = Response(b"".join([members, *raw]), content_type=BINARY_TYPE)
    response.headers[HEADER_LENGTH] = str(len(members))
    return compressed(response)


def _output(array: Array, raw: list[bytes], *, binary: bool) -> dict[str, object]:
    """One output as JSON; of a binary one the bytes are added to `raw`."""
    output: dict[str, object] = {"name": array.name, "datatype": array.datatype, "shape": array.shape}
    if binary:
        raw.append(pack(array))
        return output | {"parameters": {"binary_data_size": len(raw[-1])}}
    values = array.values
    return output | {"data": values if isinstance(values, list) else values.ravel()}


def _parameters(members: Mapping[str, object]) -> Mapping[str, Any]:
    sent = members.get("parameters")
    return {} if sent is None else _as_object(sent, "parameters")


def _as_object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CallerError(f"{name} is not an object.", "See the Open Inference Protocol.")
    return value


def _member(members: Mapping[str, object], name: str, kind: type[T]) -> T:
    value = members.get(name)
    if not isinstance(value, kind):
        word = "text" if kind is str else "list"
        raise CallerError(f"{name!r} is missing, or no {word}.", "See the Open Inference Protocol.")
    return value
