"""The gRPC service inference.GRPCInferenceService of KServe v2 and Triton."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf import json_format

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.kserve import v2_models
from ocrsvc.adapters.kserve.v2_models import find_model
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import caller_of_call
from ocrsvc.adapters.model_protocols.tensors import (
    PIXELS,
    Array,
    BadTensor,
    Shape,
    check_input,
    pack,
    pixels_to_file,
    unpack_elements,
)
from ocrsvc.errors import OcrsvcError
from ocrsvc.grpc_server.method import Call, CallFailed, Method, Methods, failure_of
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.http.field_values import as_text
from ocrsvc.serving.memory_budget import Share

SERVICE: Final = "/inference.GRPCInferenceService/"
FILE: Final = "inference.proto"

# Field of InferTensorContents per datatype, for clients that do not use raw tensor contents.
_CONTENTS: Final = {"BYTES": "bytes_contents", "FP32": "fp32_contents", "INT32": "int_contents"}


def make_kserve_v2(messages: Messages, model: OcrModel) -> Methods:
    """Make the methods of KServe's gRPC service."""
    return _describe_methods(messages, model) | _repository_methods(messages, model) | _infer_methods(messages, model)


def _describe_methods(messages: Messages, model: OcrModel) -> dict[str, Method]:
    """The methods that describe models; their responses have the same members as over HTTP."""

    def for_model(members: Callable[[ServedModel], Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any]]:
        return lambda request: members(find_model(model, request.name, request.version))

    described: dict[str, Callable[[Any], Mapping[str, Any]]] = {
        "ServerLive": lambda _: {"live": True},
        "ServerReady": lambda _: {"ready": model.ready},
        "ServerMetadata": lambda _: v2_models.server_metadata(has_repository=model.has_repository),
        "RepositoryIndex": lambda request: {"models": v2_models.repository_index(model, only_ready=request.ready)},
        "ModelReady": for_model(lambda _: {"ready": model.ready}),
        "ModelMetadata": for_model(v2_models.model_metadata),
        "ModelConfig": for_model(lambda served: {"config": v2_models.model_config(served)}),
        "ModelStatistics": lambda request: v2_models.statistics_of(model, request.name, request.version),
    }

    def method(name: str, members: Callable[[Any], Mapping[str, Any]]) -> Method:
        response = messages[f"inference.{name}Response"]
        # Quick methods run in the event loop; the index does not, because it scans the repository's folders.
        quick = name != "RepositoryIndex" or not model.has_repository
        request_class = messages[f"inference.{name}Request"]
        return Method(request_class, lambda asked, _: json_format.ParseDict(members(asked), response()), quick=quick)

    return {SERVICE + name: method(name, members) for name, members in described.items()}


def _repository_methods(messages: Messages, model: OcrModel) -> dict[str, Method]:
    """The methods that load models, and, if there is a repository, unload them."""

    def load(request: Any, call: Call) -> Any:
        v2_models.load_model(model, request.model_name, request.parameters, lambda: caller_of_call(call))
        return messages["inference.RepositoryModelLoadResponse"]()

    def unload(request: Any, call: Call) -> Any:
        v2_models.unload_model(model, request.model_name, lambda: caller_of_call(call))
        return messages["inference.RepositoryModelUnloadResponse"]()

    load_class, unload_class = (messages[f"inference.RepositoryModel{name}Request"] for name in ("Load", "Unload"))
    if not model.has_repository:
        return {f"{SERVICE}RepositoryModelLoad": Method(load_class, load, quick=True)}
    return {
        f"{SERVICE}RepositoryModelLoad": Method(load_class, load, scope="operate"),
        f"{SERVICE}RepositoryModelUnload": Method(unload_class, unload, scope="operate"),
    }


def _infer_methods(messages: Messages, model: OcrModel) -> dict[str, Method]:
    request_class = messages["inference.ModelInferRequest"]
    stream_class = messages["inference.ModelStreamInferResponse"]
    infer = partial(_infer, model, messages["inference.ModelInferResponse"])

    def infer_in_stream(request: Any, call: Call) -> Any:
        """Answer one request of a stream; an error becomes a message, so that the stream continues."""
        try:
            return stream_class(infer_response=infer(request, call))
        except (OcrsvcError, CallFailed) as error:
            response = stream_class(error_message=failure_of(error).message)
            response.infer_response.id = request.id
            return response

    return {
        SERVICE + "ModelInfer": Method(request_class, infer),
        SERVICE + "ModelStreamInfer": Method(request_class, infer_in_stream, streaming=True),
    }


def _infer(model: OcrModel, response_class: Any, request: Any, call: Call) -> Any:
    served = find_model(model, request.model_name, request.model_version)
    tensor, language = v2_models.split_inputs(request.inputs)
    raw = _raw_contents(request)
    elements, batch = _elements(tensor, raw, call.share)
    lang = "" if language is None else as_text(_elements(language, raw, call.share)[0][0])
    for output in request.outputs:
        v2_models.check_output_parameters(_parameters(output.parameters))
    outputs, parameters = [output.name for output in request.outputs], _parameters(request.parameters)
    infer_request = v2_models.InferRequest(tensor.name, elements, batch, outputs, parameters, tensor.datatype, lang)
    arrays, inference = v2_models.infer_arrays(model, served, infer_request, call.left_s, call.context)
    response = response_class(model_name=inference.name, model_version=inference.version, id=request.id)
    for array in arrays:
        _add(response, array, raw=bool(request.raw_input_contents))
    return response


def _raw_contents(request: Any) -> dict[str, bytes]:
    """The inputs' bytes in raw_input_contents by name; empty if the request has none. Raises BadTensor."""
    raw, inputs = request.raw_input_contents, request.inputs
    if raw and (len(raw) != len(inputs) or any(tensor.contents.bytes_contents for tensor in inputs)):
        raise BadTensor("The input must be in raw_input_contents or in contents, not in both.", "Send it once.")
    return dict(zip((tensor.name for tensor in inputs), raw, strict=False))


def _elements(tensor: Any, raw: dict[str, bytes], share: Share) -> tuple[list[bytes], Shape]:
    """The input's elements, from raw_input_contents or typed contents, and its shape. Raises BadTensor, QueueFull."""
    shape = check_input(tensor.name, tensor.datatype, list(tensor.shape))
    if tensor.datatype == PIXELS:
        share.take(len(raw.get(tensor.name, b"")))
        return [pixels_to_file(raw.get(tensor.name), shape)], shape
    count, typed = math.prod(shape), tensor.contents.bytes_contents
    if tensor.name in raw:
        return unpack_elements(raw[tensor.name], count), shape
    if len(typed) != count:
        text = f"The shape has {count} elements, but bytes_contents has {len(typed)}."
        raise BadTensor(text, f"Send {count} elements.")
    return list(typed), shape


def _parameters(messages: Mapping[str, Any]) -> dict[str, object]:
    kinds = {name: value.WhichOneof("parameter_choice") or "string_param" for name, value in messages.items()}
    return {name: getattr(messages[name], kind) for name, kind in kinds.items()}


def _add(response: Any, array: Array, *, raw: bool) -> None:
    output = response.outputs.add(name=array.name, datatype=array.datatype, shape=array.shape)
    if raw:
        response.raw_output_contents.append(pack(array))
    elif isinstance(array.values, list):
        output.contents.bytes_contents.extend(text.encode() for text in array.values)
    else:
        getattr(output.contents, _CONTENTS[array.datatype]).extend(array.values.ravel().tolist())


GRPC_SERVICE: Final = GrpcService((FILE,), make_kserve_v2)
