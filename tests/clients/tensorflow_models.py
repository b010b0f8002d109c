"""Lists, labels, loads and unloads models with min-tfs-client and the TensorFlow Serving stubs in it.

python tensorflow_models.py HOST:PORT IMAGE

Runs in a separate virtual environment. The service has versions 1 and 2, among others, of the model `fake`; each
version reads NAME/VERSION on every page.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from min_tfs_client.requests import TensorServingClient
from min_tfs_client.tensors import ndarray_to_tensor_proto, tensor_proto_to_ndarray
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest, ModelVersionStatus
from tensorflow_serving.apis.model_management_pb2 import ReloadConfigRequest
from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

MODEL = "fake"
_LIMIT_S = 30


def states(models: Any) -> dict[int, str]:
    request = GetModelStatusRequest()
    request.model_spec.name = MODEL
    answer = models.GetModelStatus(request, _LIMIT_S)
    return {one.version: ModelVersionStatus.State.Name(one.state) for one in answer.model_version_status}


def reload(models: Any, numbers: list[int], labels: dict[str, int]) -> None:
    request = ReloadConfigRequest()
    config = request.config.model_config_list.config.add(name=MODEL, base_path=MODEL, model_platform="ocrsvc")
    config.model_version_policy.specific.versions.extend(numbers)
    for label, number in labels.items():
        config.version_labels[label] = number
    assert models.HandleReloadConfigRequest(request, _LIMIT_S).status.error_code == 0


def check_answer(answer: Any) -> int:
    """Check that the version named in the answer is the one that read the page; returns it."""
    text = tensor_proto_to_ndarray(answer.outputs["texts"])[0][-1]
    assert text == f"{MODEL}/{answer.model_spec.version.value}", text
    return int(answer.model_spec.version.value)


address, file = sys.argv[1:]
host, port = address.split(":")
client, channel = TensorServingClient(host, int(port)), grpc.insecure_channel(address)
models, predictions = ModelServiceStub(channel), PredictionServiceStub(channel)
image = {"image": np.array([base64.b64encode(Path(file).read_bytes()).decode()])}


def labelled(label: str) -> int:
    request = PredictRequest()
    request.model_spec.name, request.model_spec.version_label = MODEL, label
    request.inputs["image"].CopyFrom(ndarray_to_tensor_proto(image["image"]))
    return check_answer(predictions.Predict(request, _LIMIT_S))


def refused(call: Any) -> bool:
    try:
        call()
    except grpc.RpcError as error:
        return bool(error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT))
    return False


reload(models, [1, 2], {"stable": 1, "canary": 2})
assert [states(models)[number] for number in (1, 2)] == ["AVAILABLE", "AVAILABLE"]
assert [labelled("stable"), labelled("canary")] == [1, 2]
assert check_answer(client.predict_request(MODEL, image)) == 1
assert check_answer(client.predict_request(MODEL, image, model_version=2)) == 2
assert refused(lambda: reload(models, [1], {"canary": 9}))
reload(models, [2], {})
assert states(models)[1] in ("UNLOADING", "END")
assert refused(lambda: client.predict_request(MODEL, image, model_version=1))
assert refused(lambda: labelled("stable"))
assert check_answer(client.predict_request(MODEL, image)) == 2
print("all good")  # noqa: T201  the test reads it
