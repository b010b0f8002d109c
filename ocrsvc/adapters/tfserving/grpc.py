"""TensorFlow Serving's PredictionService and ModelService over gRPC."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf import json_format

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.model_protocols import tensors
from ocrsvc.adapters.model_protocols.ocr_model import Inference, OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import caller_of_call
from ocrsvc.adapters.model_protocols.tensors import IMAGE, Array, BadTensor
from ocrsvc.adapters.tfserving import http
from ocrsvc.adapters.tfserving.http import find_servable
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.results import Page, ReadOptions

FILES: Final = ("tensorflow.proto", "tensorflow_serving.proto")
PREDICTION: Final = "/tensorflow.serving.PredictionService/"
MODEL: Final = "/tensorflow.serving.ModelService/"

DT_STRING: Final = 7
_VALUES: Final = {"FP32": "float_val", "INT32": "int_val"}
_FAILED_PRECONDITION: Final = 9
_NO_PAGE: Final = Page(0, 0, 0, ())


def make_tfserving(messages: Messages, model: OcrModel) -> Methods:
    """Make the methods of PredictionService and ModelService."""
    service = _Service(messages, model)

    def method(name: str, answer: Any, **more: Any) -> Method:
        return Method(messages[f"tensorflow.serving.{name}Request"], answer, **more)

    methods = {
        PREDICTION + "Predict": method("Predict", service.predict),
        PREDICTION + "GetModelMetadata": method("GetModelMetadata", service.metadata, quick=True),
        # Quick methods run in the event loop; with a repository, the status scans folders.
        MODEL + "GetModelStatus": method("GetModelStatus", service.status, quick=not model.has_repository),
    }
    if model.operations is not None:
        methods[MODEL + "HandleReloadConfigRequest"] = method("ReloadConfig", service.reload, scope="operate")
    return methods


class _Service:
    """The methods of PredictionService and ModelService."""

    def __init__(self, messages: Messages, model: OcrModel) -> None:
        self._messages, self._model = messages, model

    def _response(self, name: str, **fields: Any) -> Any:
        return self._messages[f"tensorflow.serving.{name}"](**fields)

    def predict(self, request: Any, call: Call) -> Any:
        spec = request.model_spec
        served = find_servable(self._model, *_model_key(spec))
        http.check_signature(spec.signature_name)
        names = tensors.requested_outputs(list(request.output_filter))
        elements, batch = _elements(request)
        read = self._read(served, elements, call)
        response = self._response("PredictResponse")
        name = read.name if self._model.has_repository else spec.name
        _set_model_spec(response.model_spec, name, read.version, spec.signature_name or http.SIGNATURE)
        for array in tensors.arrays_of(read.pages, names, batch):
            _fill(response.outputs[array.name], array)
        return response

    def _read(self, served: ServedModel, elements: Sequence[bytes], call: Call) -> Inference:
        """Read the input's images; an empty element, which perf_analyzer sends, becomes an empty page."""
        images = [tensors.image_of(element, call.share) for element in elements if element]
        inference = Inference([], served.name, str(served.number))
        if images:
            options = ReadOptions(model=served.option)
            inference = self._model.infer(images, options, call.left_s, call.context, served)
        pages = iter(inference.pages)
        return replace(inference, pages=[next(pages) if element else _NO_PAGE for element in elements])

    def metadata(self, request: Any, _call: Call) -> Any:
        served = find_servable(self._model, *_model_key(request.model_spec))
        if set(request.metadata_field) != {"signature_def"}:
            raise BadTensor("metadata_field must be ['signature_def'].", "Send metadata_field 'signature_def'.")
        response = self._response("GetModelMetadataResponse")
        _set_model_spec(response.model_spec, served.name, str(served.number), "")
        signatures = {"signature_def": {http.SIGNATURE: http.signature_of()}}
        response.metadata["signature_def"].Pack(json_format.ParseDict(signatures, self._response("SignatureDefMap")))
        return response

    def status(self, request: Any, _call: Call) -> Any:
        response = self._response("GetModelStatusResponse")
        for one in http.find_versions(self._model, *_model_key(request.model_spec)):
            failure = http.failure_of_version(one)
            status = {"error_code": _FAILED_PRECONDITION if failure else 0, "error_message": failure}
            response.model_version_status.add(version=one.number, state=one.state, status=status)
        return response

    def reload(self, request: Any, call: Call) -> Any:
        """Replace the version policies and labels of all models by those in the request (HandleReloadConfigRequest)."""
        assert self._model.operations is not None
        self._model.operations.configure(caller_of_call(call), request.config)
        return self._response("ReloadConfigResponse", status={"error_code": 0})


def _model_key(spec: Any) -> tuple[str, str | None, str | None]:
    """Name, version and label of a ModelSpec; the version or label is None if it is not set."""
    version = str(spec.version.value) if spec.HasField("version") else None
    return spec.name, version, spec.version_label or None


def _set_model_spec(spec: Any, name: str, version: str, signature: str) -> None:
    spec.name, spec.signature_name = name, signature
    spec.version.value = int(version)


def _elements(request: Any) -> tuple[Sequence[bytes], tuple[int, ...]]:
    """The input's elements and shape. Raises BadTensor."""
    if set(request.inputs) != {IMAGE.name}:
        names = ", ".join(repr(name[:40]) for name in list(request.inputs)[:5])
        raise BadTensor(f"The inputs are {names or 'missing'}; expected is {IMAGE.name!r} alone.")
    tensor = request.inputs[IMAGE.name]
    datatype = IMAGE.datatype if tensor.dtype == DT_STRING else f"DataType {tensor.dtype}"
    shape = tensors.check_input(IMAGE.name, datatype, [dim.size for dim in tensor.tensor_shape.dim])
    count, values = math.prod(shape), len(tensor.string_val)
    if values not in (0, count):
        raise BadTensor(f"The shape has {count} elements, but string_val has {values}.", f"Send {count} elements.")
    # A TensorProto may omit its elements if all are empty.
    return tensor.string_val or [b""] * count, shape


def _fill(tensor: Any, array: Array) -> None:
    tensor.dtype = http.DTYPES[array.datatype]
    for length in array.shape:
        tensor.tensor_shape.dim.add(size=length)
    if isinstance(array.values, list):
        tensor.string_val.extend(text.encode() for text in array.values)
    else:
        # Use typed fields, as TensorFlow Serving does by default: simple clients do not read tensor_content.
        getattr(tensor, _VALUES[array.datatype]).extend(array.values.ravel().tolist())


GRPC_SERVICE: Final = GrpcService(FILES, make_tfserving)
