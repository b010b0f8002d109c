"""Requests for hosts behind a proxy: one for each protocol, over HTTP and gRPC."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.exchanges import exchanges

GROUPS = ("form", "json", "adapters", "grpc", "all")
_FILES = ("inference.proto", "tensorflow.proto", "tensorflow_serving.proto", "pipeline_serving.proto")
_DT_STRING = 7


@dataclass(frozen=True, slots=True)
class Protocol:
    """A request of one protocol.

    Attributes:
        name: Name in tables.
        kind: Transport.
        path: Path with its query, or the gRPC method.
        content_type: Empty for gRPC.
        body: Body, or the gRPC message.
    """

    name: str
    kind: Literal["http", "grpc"]
    path: str
    content_type: str
    body: bytes


def protocols(image: bytes) -> list[Protocol]:
    """A request of each protocol, all with the same image; the answers contain the text of its lines."""
    over_http = (Protocol(one.name, "http", one.path, one.content_type, one.body) for one in exchanges(image))
    return [*over_http, *_over_grpc(image)]


def chosen(names: Sequence[str], image: bytes) -> list[Protocol]:
    """The protocols of these names and groups. Raises KeyError."""
    known = {protocol.name: protocol for protocol in protocols(image)}
    native = {"form": "native file", "json": "native json"}
    groups = {
        **{group: [name] for group, name in native.items()},
        "adapters": [name for name, one in known.items() if one.kind == "http" and name not in native.values()],
        "grpc": [name for name, one in known.items() if one.kind == "grpc"],
        "all": list(known),
    }
    wanted = [one for name in names for one in groups.get(name, [name])]
    return [known[name] for name in dict.fromkeys(wanted)]


def _over_grpc(image: bytes) -> list[Protocol]:
    from ocrsvc.grpc_server.protobuf import Messages

    messages = Messages(*_FILES)
    infer = messages["inference.ModelInferRequest"](model_name="ocr")
    infer.inputs.add(name="image", datatype="BYTES", shape=[1])
    infer.raw_input_contents.append(struct.pack("<I", len(image)) + image)
    predict = messages["tensorflow.serving.PredictRequest"]()
    predict.model_spec.name = "ocr"
    tensor = predict.inputs["image"]
    tensor.dtype = _DT_STRING
    tensor.tensor_shape.dim.add(size=1)
    tensor.string_val.append(image)
    text = base64.b64encode(image).decode()
    paddle = messages["baidu.paddle_serving.pipeline_serving.Request"](key=["image"], value=[text], name="ocr")
    methods = {
        "grpc kserve_v2": ("/inference.GRPCInferenceService/ModelInfer", infer),
        "grpc tfserving": ("/tensorflow.serving.PredictionService/Predict", predict),
        "grpc paddle_serving": ("/baidu.paddle_serving.pipeline_serving.PipelineService/inference", paddle),
    }
    return [Protocol(name, "grpc", path, "", sent.SerializeToString()) for name, (path, sent) in methods.items()]
