"""The gRPC service inference.GRPCInferenceService of KServe v2 and Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import json_format

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.kserve import v2_metadata
from ocrsvc.adapters.kserve.infer import InferRequest, infer_arrays
from ocrsvc.adapters.kserve.v2_models import find_model, load_model, repository_index, statistics_of, unload_model
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import caller_of_call
from ocrsvc.adapters.model_protocols.tensors import (
    IMAGE,
    NAME,
    Array,
    BadTensor,
    NotOffered,
    Shape,
    check_input,
    pack,
    unpack_elements,
)
from ocrsvc.errors import OcrsvcError
from ocrsvc.grpc_server.method import Call, CallFailed, Method, Methods, failure_of
from ocrsvc.grpc_server.protobuf import Messages

SERVICE: Final = "/inference.GRPCInferenceService/"
FILE: Final = "inference.proto"

# Where each datatype that is answered goes, for clients that do not send raw tensors.
_CONTENTS: Final = {"BYTES": "bytes_contents", "FP32": "fp32_contents", "INT32": "int_contents"}


def make_kserve_v2(messages: Messages, model: OcrModel) -> Methods:
    """The service's methods, over a model.

    Args:
        messages: With those of FILE.
        model: Reads the images.
    """
    return _describing(messages, model) | _administering(messages, model) | _inferring(messages, model)


def _describing(messages: Messages, model: OcrModel) -> dict[str, Method]:
    """The methods that need no engine."""
    models = model.models

    def method(name: str, members: Callable[[Any], Mapping[str, Any]], *, quick: bool = True) -> tuple[str, Method]:
        """One whose answer has the members that `members` makes of the request."""
        response = messages[f"inference.{name}Response"]

        def answer(request: Any, _call: Call) -> Any:
            return json_format.ParseDict(members(request), response())

        return SERVICE + name, Method(messages[f"inference.{name}Request"], answer, quick=quick)

    def of_the_model(name: str, members: Callable[[ServedModel], Mapping[str, Any]]) -> tuple[str, Method]:
        """One that names the model."""

        def found(request: Any) -> Mapping[str, Any]:
            return members(find_model(models, request.name, request.version))

        return method(name, found)

    def list_models(request: Any) -> Mapping[str, Any]:
        return {"models": repository_index(models, only_ready=request.ready)}

    def statistics(request: Any) -> Mapping[str, Any]:
        return statistics_of(model, request.name, request.version)

    return dict(
        (
            method("ServerLive", lambda _: {"live": True}),
            method("ServerReady", lambda _: {"ready": model.ready}),
            method("ServerMetadata", lambda _: v2_metadata.server_metadata(has_repository=models.has_repository)),
            # It looks at the repository's folders, if there is one.
            method("RepositoryIndex", list_models, quick=not models.has_repository),
            of_the_model("ModelReady", lambda _: {"ready": model.ready}),
            of_the_model("ModelMetadata", v2_metadata.model_metadata),
            of_the_model("ModelConfig", lambda served: {"config": v2_metadata.model_config(served)}),
            method("ModelStatistics", statistics),
        )
    )


def _administering(messages: Messages, model: OcrModel) -> dict[str, Method]:
    """Loading and unloading. Where there is no repository there is nothing to load, and no unloading."""
    load_response, unload_response = (
        messages[f"inference.RepositoryModel{name}Response"] for name in ("Load", "Unload")
    )

    def load(request: Any, call: Call) -> Any:
        load_model(model, request.model_name, request.parameters, lambda: caller_of_call(call))
        return load_response()

    def unload(request: Any, call: Call) -> Any:
        unload_model(model, request.model_name, lambda: caller_of_call(call))
        return unload_response()

    load_request, unload_request = (messages[f"inference.RepositoryModel{name}Request"] for name in ("Load", "Unload"))
    if not model.models.has_repository:
        return {SERVICE + "RepositoryModelLoad": Method(load_request, load, quick=True)}
    return {
        SERVICE + "RepositoryModelLoad": Method(load_request, load, scope="operate"),
        SERVICE + "RepositoryModelUnload": Method(unload_request, unload, scope="operate"),
    }


def _inferring(messages: Messages, model: OcrModel) -> dict[str, Method]:
    request_class = messages["inference.ModelInferRequest"]
    response_class = messages["inference.ModelInferResponse"]
    stream_class = messages["inference.ModelStreamInferResponse"]

    def infer(request: Any, call: Call) -> Any:
        return _infer(model, request, call, response_class)

    def infer_in_stream(request: Any, call: Call) -> Any:
        """Of a stream, a request that fails does not end the others."""
        try:
            return stream_class(infer_response=_infer(model, request, call, response_class))
        except (OcrsvcError, CallFailed) as error:
            response = stream_class(error_message=failure_of(error).message)
            response.infer_response.id = request.id
            return response

    return {
        SERVICE + "ModelInfer": Method(request_class, infer),
        SERVICE + "ModelStreamInfer": Method(request_class, infer_in_stream, streaming=True),
    }


def _infer(model: OcrModel, request: Any, call: Call, response_class: Any) -> Any:
    served = find_model(model.models, request.model_name, request.model_version)
    tensor, batch = _input(request)
    elements = _elements(request, tensor, math.prod(batch))
    asked = InferRequest(tensor.name, elements, batch, _wanted(request), _parameters(request.parameters))
    inferred = infer_arrays(model, served, asked, call.left_s, call.context)
    response = response_class(model_name=inferred.name, model_version=inferred.version, id=request.id)
    for array in inferred.arrays:
        _add(response, array, raw=bool(request.raw_input_contents))
    return response


def _input(request: Any) -> tuple[Any, Shape]:
    """The one input, and its shape. Raises BadTensor."""
    if len(request.inputs) != 1:
        raise BadTensor(
            f"expected 1 inputs but got {len(request.inputs)} inputs for model '{NAME}'.", f"Send {IMAGE.name!r}."
        )
    tensor = request.inputs[0]
    return tensor, check_input(tensor.name, tensor.datatype, list(tensor.shape))


def _elements(request: Any, tensor: Any, count: int) -> list[bytes]:
    """The input's elements, from wherever they are. Raises BadTensor."""
    typed = tensor.contents.bytes_contents
    if request.raw_input_contents:
        if typed or len(request.raw_input_contents) != 1:
            raise BadTensor("The one input is in raw_input_contents or in contents.", "Send it once.")
        return unpack_elements(request.raw_input_contents[0], count)
    if len(typed) != count:
        raise BadTensor(f"The shape stands for {count} elements, and bytes_contents has {len(typed)}.", "Send as many.")
    return list(typed)


def _wanted(request: Any) -> list[str]:
    for output in request.outputs:
        if _parameters(output.parameters).get("classification"):
            raise NotOffered("The classification extension is not supported.", "Ask for the output as it is.")
    return [output.name for output in request.outputs]


def _parameters(sent: Mapping[str, Any]) -> dict[str, object]:
    """The parameters with their plain values."""
    kinds = {name: value.WhichOneof("parameter_choice") or "string_param" for name, value in sent.items()}
    return {name: getattr(sent[name], kind) for name, kind in kinds.items()}


def _add(response: Any, array: Array, *, raw: bool) -> None:
    output = response.outputs.add(name=array.name, datatype=array.datatype, shape=array.shape)
    if raw:
        response.raw_output_contents.append(pack(array))
    elif isinstance(array.values, list):
        output.contents.bytes_contents.extend(text.encode() for text in array.values)
    else:
        getattr(output.contents, _CONTENTS[array.datatype]).extend(array.values.ravel().tolist())


GRPC_SERVICE: Final = GrpcService((FILE,), make_kserve_v2)
