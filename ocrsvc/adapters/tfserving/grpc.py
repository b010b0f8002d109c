"""TensorFlow Serving's PredictionService and ModelService over gRPC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import Inference, OcrModel, ServedModel
from ocrsvc.adapters.model_protocols.operators import caller_of_call
from ocrsvc.adapters.model_protocols.tensors import (
    IMAGE,
    OUTPUTS,
    Array,
    BadTensor,
    Tensor,
    arrays_of,
    check_input,
    image_of,
    wanted_outputs,
)
from ocrsvc.adapters.tfserving.http import SIGNATURE, check_signature
from ocrsvc.adapters.tfserving.servables import failure_of_version, find_servable, find_versions
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.records import Page, ReadOptions

if TYPE_CHECKING:
    from ocrsvc.adapters.model_protocols.operators import ModelOperations

FILES: Final = ("tensorflow.proto", "tensorflow_serving.proto")
PREDICTION: Final = "/tensorflow.serving.PredictionService/"
MODEL: Final = "/tensorflow.serving.ModelService/"
METHOD: Final = "tensorflow/serving/predict"
TYPE_URL: Final = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
DTYPES: Final = {"BYTES": 7, "FP32": 1, "INT32": 3}

_VALUES: Final = {"FP32": "float_val", "INT32": "int_val"}
_STATES: Final = {"START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}
_FAILED_PRECONDITION: Final = 9
_NO_PAGE: Final = Page(0, 0, 0, ())


def make_tfserving(messages: Messages, model: OcrModel) -> Methods:
    """The methods of both services, over a model.

    Args:
        messages: With those of FILES.
        model: Reads the images.
    """
    models = model.models
    predict_response, metadata_response, status_response, signatures = (
        messages[f"tensorflow.serving.{name}"]
        for name in ("PredictResponse", "GetModelMetadataResponse", "GetModelStatusResponse", "SignatureDefMap")
    )

    def predict(request: Any, call: Call) -> Any:
        served = find_servable(models, *_place(request.model_spec))
        check_signature(request.model_spec.signature_name)
        names = wanted_outputs(list(request.output_filter))
        elements, batch = _elements(request)
        read = _read(model, served, elements, call)
        response = predict_response()
        name = read.name if models.has_repository else request.model_spec.name
        _sign(response.model_spec, name, read.version, request.model_spec.signature_name or SIGNATURE)
        for array in arrays_of(read.pages, names, batch):
            _fill(response.outputs[array.name], array)
        return response

    def metadata(request: Any, _call: Call) -> Any:
        served = find_servable(models, *_place(request.model_spec))
        if set(request.metadata_field) != {"signature_def"}:
            raise BadTensor("The one metadata_field that there is is 'signature_def'.", "Ask for it.")
        response = metadata_response()
        _sign(response.model_spec, served.name, str(served.number), "")
        signed = response.metadata["signature_def"]
        signed.type_url, signed.value = TYPE_URL, _describe(signatures()).SerializeToString()
        return response

    def status(request: Any, _call: Call) -> Any:
        response = status_response()
        for one in find_versions(models, *_place(request.model_spec)):
            found = response.model_version_status.add(version=one.number, state=_STATES[one.state])
            failure = failure_of_version(one)
            found.status.error_code = _FAILED_PRECONDITION if failure else 0
            found.status.error_message = failure
        return response

    described: Methods = {
        PREDICTION + "Predict": Method(messages["tensorflow.serving.PredictRequest"], predict),
        PREDICTION + "GetModelMetadata": Method(
            messages["tensorflow.serving.GetModelMetadataRequest"], metadata, quick=True
        ),
        # It looks at the repository's folders, if there is one.
        MODEL + "GetModelStatus": Method(
            messages["tensorflow.serving.GetModelStatusRequest"], status, quick=not models.has_repository
        ),
    }
    if model.operations is None:
        return described
    return {**described, MODEL + "HandleReloadConfigRequest": _reloading(messages, model.operations)}


def _reloading(messages: Messages, operations: ModelOperations) -> Method:
    """The method by which an operator says anew which versions are wanted, and their labels."""
    response = messages["tensorflow.serving.ReloadConfigResponse"]

    def reload(request: Any, call: Call) -> Any:
        operations.configure(caller_of_call(call), request.config)
        answer = response()
        answer.status.error_code = 0
        return answer

    return Method(messages["tensorflow.serving.ReloadConfigRequest"], reload, scope="operate")


def _read(model: OcrModel, served: ServedModel, elements: Sequence[bytes], call: Call) -> Inference:
    """A page for each element; of an empty one an empty page, because perf_analyzer has nothing else to send."""
    images = [image_of(element, call.share) for element in elements if element]
    read = Inference([], served.name, str(served.number))
    if images:
        read = model.infer(images, ReadOptions(model=served.option), call.left_s, call.context, served)
    pages = iter(read.pages)
    return replace(read, pages=[next(pages) if element else _NO_PAGE for element in elements])


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
    datatype = IMAGE.datatype if tensor.dtype == DTYPES[IMAGE.datatype] else f"DataType {tensor.dtype}"
    lengths = [dim.size for dim in tensor.tensor_shape.dim]
    shape = check_input(IMAGE.name, datatype, lengths)
    if not tensor.string_val:
        # What is left out of a TensorProto is empty.
        return [b""] * math.prod(shape), shape
    count = len(tensor.string_val)
    if count != math.prod(shape):
        raise BadTensor(
            f"The shape stands for {math.prod(shape)} elements, and string_val has {count}.", "Send as many."
        )
    return tensor.string_val, shape


def _fill(tensor: Any, array: Array) -> None:
    tensor.dtype = DTYPES[array.datatype]
    for length in array.shape:
        tensor.tensor_shape.dim.add(size=length)
    if isinstance(array.values, list):
        tensor.string_val.extend(text.encode() for text in array.values)
    else:
        # As TensorFlow Serving does by default: small clients do not read tensor_content.
        getattr(tensor, _VALUES[array.datatype]).extend(array.values.ravel().tolist())


def _describe(signatures: Any) -> Any:
    """The one signature: what the model takes and gives."""
    signature = signatures.signature_def[SIGNATURE]
    signature.method_name = METHOD
    _describe_tensor(signature.inputs[IMAGE.name], IMAGE)
    for output in OUTPUTS:
        _describe_tensor(signature.outputs[output.name], output)
    return signatures


def _describe_tensor(info: Any, tensor: Tensor) -> None:
    info.name, info.dtype = f"{tensor.name}:0", DTYPES[tensor.datatype]
    for length in tensor.shape[:1] if tensor.dims == (1,) else tensor.shape:
        info.tensor_shape.dim.add(size=length)


GRPC_SERVICE: Final = GrpcService(FILES, make_tfserving)
