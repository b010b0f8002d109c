"""TensorFlow Serving's PredictionService and ModelService over gRPC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf import json_format

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import Inference, OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import caller_of_call
from ocrsvc.adapters.model_protocols.tensors import (
    IMAGE,
    Array,
    BadTensor,
    arrays_of,
    check_input,
    image_of,
    wanted_outputs,
)
from ocrsvc.adapters.tfserving import http
from ocrsvc.adapters.tfserving.http import find_servable
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.results import Page, ReadOptions

FILES: Final = ("tensorflow.proto", "tensorflow_serving.proto")
PREDICTION: Final = "/tensorflow.serving.PredictionService/"
MODEL: Final = "/tensorflow.serving.ModelService/"
TYPE_URL: Final = "type.googleapis.com/tensorflow.serving.SignatureDefMap"

DT_STRING: Final = 7
_VALUES: Final = {"FP32": "float_val", "INT32": "int_val"}
_FAILED_PRECONDITION: Final = 9
_NO_PAGE: Final = Page(0, 0, 0, ())


def make_tfserving(messages: Messages, model: OcrModel) -> Methods:
    """The methods of both services, over a model."""
    service = _Service(messages, model)

    def method(name: str, answer: Any, **more: Any) -> Method:
        return Method(messages[f"tensorflow.serving.{name}Request"], answer, **more)

    described: Methods = {
        PREDICTION + "Predict": method("Predict", service.predict),
        PREDICTION + "GetModelMetadata": method("GetModelMetadata", service.metadata, quick=True),
        # It looks at the repository's folders, if there is one.
        MODEL + "GetModelStatus": method("GetModelStatus", service.status, quick=not model.models.has_repository),
    }
    if model.operations is None:
        return described
    return {
        **described,
        MODEL + "HandleReloadConfigRequest": method("ReloadConfig", service.reload, scope="operate"),
    }


class _Service:
    """The methods, each called with a request and its call."""

    def __init__(self, messages: Messages, model: OcrModel) -> None:
        self._messages, self._model, self._models = messages, model, model.models

    def _response(self, name: str) -> Any:
        return self._messages[f"tensorflow.serving.{name}"]()

    def predict(self, request: Any, call: Call) -> Any:
        spec = request.model_spec
        served = find_servable(self._models, *_place(spec))
        http.check_signature(spec.signature_name)
        names = wanted_outputs(list(request.output_filter))
        elements, batch = _elements(request)
        read = self._read(served, elements, call)
        response = self._response("PredictResponse")
        name = read.name if self._models.has_repository else spec.name
        _sign(response.model_spec, name, read.version, spec.signature_name or http.SIGNATURE)
        for array in arrays_of(read.pages, names, batch):
            _fill(response.outputs[array.name], array)
        return response

    def _read(self, served: ServedModel, elements: Sequence[bytes], call: Call) -> Inference:
        """A page for each element; of an empty one an empty page, because perf_analyzer has nothing else to send."""
        images = [image_of(element, call.share) for element in elements if element]
        read = Inference([], served.name, str(served.number))
        if images:
            read = self._model.infer(images, ReadOptions(model=served.option), call.left_s, call.context, served)
        pages = iter(read.pages)
        return replace(read, pages=[next(pages) if element else _NO_PAGE for element in elements])

    def metadata(self, request: Any, _call: Call) -> Any:
        served = find_servable(self._models, *_place(request.model_spec))
        if set(request.metadata_field) != {"signature_def"}:
            raise BadTensor("The one metadata_field that there is is 'signature_def'.", "Ask for it.")
        response = self._response("GetModelMetadataResponse")
        _sign(response.model_spec, served.name, str(served.number), "")
        described = {"signature_def": {http.SIGNATURE: http.signature_of()}}
        signed = response.metadata["signature_def"]
        signed.type_url = TYPE_URL
        signed.value = json_format.ParseDict(described, self._response("SignatureDefMap")).SerializeToString()
        return response

    def status(self, request: Any, _call: Call) -> Any:
        response = self._response("GetModelStatusResponse")
        for one in http.find_versions(self._models, *_place(request.model_spec)):
            failure = http.failure_of_version(one)
            status = {"error_code": _FAILED_PRECONDITION if failure else 0, "error_message": failure}
            response.model_version_status.add(version=one.number, state=one.state, status=status)
        return response

    def reload(self, request: Any, call: Call) -> Any:
        """An operator says anew which versions are wanted, and their labels."""
        assert self._model.operations is not None
        self._model.operations.configure(caller_of_call(call), request.config)
        answer = self._response("ReloadConfigResponse")
        answer.status.error_code = 0
        return answer


def _place(spec: Any) -> tuple[str, str | None, str | None]:
    """The model's name, its version, and the version's label; None where it is not named."""
    version = str(spec.version.value) if spec.HasField("version") else None
    return spec.name, version, spec.version_label or None


def _sign(spec: Any, name: str, version: str, signature: str) -> None:
    spec.name, spec.signature_name = name, signature
    spec.version.value = int(version)


def _elements(request: Any) -> tuple[Sequence[bytes], tuple[int, ...]]:
    """The elements of the one input, and its shape. Raises BadTensor."""
    if set(request.inputs) != {IMAGE.name}:
        names = ", ".join(repr(name[:40]) for name in list(request.inputs)[:5])
        raise BadTensor(f"The inputs are named {names or 'nothing'}; the one input is {IMAGE.name!r}.")
    tensor = request.inputs[IMAGE.name]
    datatype = IMAGE.datatype if tensor.dtype == DT_STRING else f"DataType {tensor.dtype}"
    shape = check_input(IMAGE.name, datatype, [dim.size for dim in tensor.tensor_shape.dim])
    count, sent = math.prod(shape), len(tensor.string_val)
    if sent not in (0, count):
        raise BadTensor(f"The shape stands for {count} elements, and string_val has {sent}.", "Send as many.")
    # Elements that a TensorProto leaves out are empty.
    return tensor.string_val or [b""] * count, shape


def _fill(tensor: Any, array: Array) -> None:
    tensor.dtype = http.DTYPES[array.datatype]
    for length in array.shape:
        tensor.tensor_shape.dim.add(size=length)
    if isinstance(array.values, list):
        tensor.string_val.extend(text.encode() for text in array.values)
    else:
        # As TensorFlow Serving does by default: small clients do not read tensor_content.
        getattr(tensor, _VALUES[array.datatype]).extend(array.values.ravel().tolist())


GRPC_SERVICE: Final = GrpcService(FILES, make_tfserving)
