"""Well-formed gRPC messages for every method, and mutations that make them malformed."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ocrsvc.adapters.kserve import v2_grpc
from ocrsvc.adapters.paddle_serving import grpc as paddle_serving_grpc
from ocrsvc.adapters.tfserving import grpc as tfserving_grpc
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.grpc_services import HEALTH_CHECK, HEALTH_FILE

MAX_BYTES = 200_000
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_NUMBERS = (0, 1, 2, 7, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_TEXTS = (
    *(b"", b"ocr", b"image", b"image_base64", b"input", b"BYTES", b"FP32", b"\xff\xfe", b"\0", b"texts", b"x" * 5000),
    *(b"\x0a\x00" * 3000, b"\x0b" * 300, b"\x0a\x7f" * 60, b"\xff" * 12, struct.pack("<I", 2**32 - 1) + b"x"),
    *(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b'{"file": []}', b"9" * 400, b"serving_default", b"signature_def"),
)

Mutation = Callable[[bytes, Sequence[bytes], random.Random], bytes]


@dataclass(frozen=True, slots=True)
class GoodCall:
    """A well-formed call.

    Attributes:
        path: Path of its method.
        data: The request's bytes.
    """

    path: str
    data: bytes


def good_calls(methods: Methods, image: bytes) -> list[GoodCall]:
    """At least one call per method; calls that read an image occur more often."""
    plain = [GoodCall(path, method.request().SerializeToString()) for path, method in methods.items()]
    return plain + _kserve_calls(image) + _tensorflow_calls(image) + _paddle_calls(image)


def mutate_message(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Apply one to three random mutations to a message."""
    for _ in range(rng.randint(1, 3)):
        data = rng.choice(MUTATIONS)(data, others, rng)
    return data[:MAX_BYTES]


def change_bytes(data: bytes, _others: Sequence[bytes], rng: random.Random) -> bytes:
    """Change a few bytes."""
    changed = bytearray(data)
    for _ in range(min(len(changed), rng.randint(1, 8))):
        changed[rng.randrange(len(changed))] = rng.choice((rng.randrange(256), 0, 1, 0x7F, 0x80, 0xFF))
    return bytes(changed)


def cut(data: bytes, _others: Sequence[bytes], rng: random.Random) -> bytes:
    """Drop the end."""
    return data[: rng.randint(0, len(data))]


def double(data: bytes, _others: Sequence[bytes], rng: random.Random) -> bytes:
    """Repeat a piece."""
    start, end = sorted(rng.randint(0, len(data)) for _ in range(2))
    return data[:end] + data[start:end] * rng.randint(1, 3) + data[end:]


def _swap(_data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    return rng.choice(others)


def _mutate_fields(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Remove, repeat, add or replace fields at any depth, with correct lengths around them."""
    try:
        fields = _fields_of(data)
    except (IndexError, ValueError):
        return data
    if not fields:
        return _odd_field(rng)
    at = rng.randrange(len(fields))
    tag, value = fields[at]
    match rng.randrange(5):
        case 0:
            del fields[at]
        case 1:
            fields.insert(at, fields[at])
        case 2:
            return data + _odd_field(rng) * rng.choice((1, 1, 1, 40))
        case 3 if tag & 7 == _BYTES:
            fields[at] = (tag, rng.choice((*_TEXTS, *others)))
        case 3 if tag & 7 == _VARINT:
            fields[at] = (tag, varint(rng.choice(_NUMBERS)))
        case _ if tag & 7 == _BYTES:
            fields[at] = (tag, _mutate_fields(value, others, rng))
    return b"".join(_written(*field) for field in fields)


MUTATIONS: tuple[Mutation, ...] = (change_bytes, cut, double, _swap, *(_mutate_fields,) * 6)


def varint(value: int) -> bytes:
    """Encode an integer as a protobuf varint."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _odd_field(rng: random.Random) -> bytes:
    number, kind = rng.choice((*range(16), 2**29 - 1, 2**29)), rng.randrange(8)
    if kind == _VARINT:
        return varint(number << 3) + varint(rng.choice(_NUMBERS))
    return _written(number << 3 | kind, rng.choice(_TEXTS) if kind == _BYTES else bytes(_FIXED.get(kind, 0)))


def _written(tag: int, value: bytes) -> bytes:
    return varint(tag) + (varint(len(value)) if tag & 7 == _BYTES else b"") + value


def _fields_of(data: bytes) -> list[tuple[int, bytes]]:
    """Tags and values of a message's fields. Raises IndexError or ValueError for anything else."""
    fields, at = [], 0
    while at < len(data):
        tag, at = _number(data, at)
        start = at
        if tag & 7 == _VARINT:
            at = _number(data, at)[1]
        elif tag & 7 == _BYTES:
            length, start = _number(data, at)
            at = start + length
        elif tag & 7 in _FIXED:
            at += _FIXED[tag & 7]
        if at > len(data):
            raise ValueError(tag)
        fields.append((tag, data[start:at]))
    return fields


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def _kserve_calls(image: bytes) -> list[GoodCall]:
    kind = Messages(v2_grpc.FILE)["inference.ModelInferRequest"]
    raw, typed, paddlex = kind(model_name="ocr", id="1"), kind(model_name="ocr"), kind(model_name="ocr")
    raw.inputs.add(name="image", datatype="BYTES", shape=[2])
    raw.raw_input_contents.append((struct.pack("<I", len(image)) + image) * 2)
    raw.outputs.add(name="texts")
    raw.parameters["timeout"].int64_param = 5_000_000
    raw.parameters["max_side"].int64_param = 640
    typed.inputs.add(name="image", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(image)
    typed.parameters["detect"].bool_param = True
    body = b'{"file": "' + base64.b64encode(image) + b'", "fileType": 1, "visualize": false}'
    paddlex.inputs.add(name="input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(body)
    sent = [request.SerializeToString() for request in (raw, typed, paddlex)]
    paths = [v2_grpc.SERVICE + name for name in ("ModelInfer", "ModelStreamInfer")]
    named = Messages(v2_grpc.FILE)["inference.ModelReadyRequest"](name="ocr", version="1").SerializeToString()
    asking = [v2_grpc.SERVICE + f"Model{name}" for name in ("Ready", "Metadata", "Config", "Statistics")]
    return [GoodCall(path, data) for path in paths for data in sent] + [GoodCall(path, named) for path in asking]


def _tensorflow_calls(image: bytes) -> list[GoodCall]:
    messages = Messages(*tfserving_grpc.FILES)
    predict = messages["tensorflow.serving.PredictRequest"]()
    metadata = messages["tensorflow.serving.GetModelMetadataRequest"](metadata_field=["signature_def"])
    status = messages["tensorflow.serving.GetModelStatusRequest"]()
    for request in (predict, metadata, status):
        request.model_spec.name = "ocr"
    status.model_spec.version.value = 1
    tensor = predict.inputs["image"]
    tensor.dtype = tfserving_grpc.DT_STRING
    tensor.tensor_shape.dim.add(size=2)
    tensor.string_val.extend([image, image])
    predict.output_filter.append("texts")
    return [
        *(GoodCall(tfserving_grpc.PREDICTION + "Predict", predict.SerializeToString()),) * 3,
        GoodCall(tfserving_grpc.PREDICTION + "GetModelMetadata", metadata.SerializeToString()),
        GoodCall(tfserving_grpc.MODEL + "GetModelStatus", status.SerializeToString()),
    ]


def _paddle_calls(image: bytes) -> list[GoodCall]:
    request = Messages(paddle_serving_grpc.FILE)["baidu.paddle_serving.pipeline_serving.Request"](
        key=["image"], value=[base64.b64encode(image).decode()], name="ocr"
    )
    check = Messages(HEALTH_FILE)["grpc.health.v1.HealthCheckRequest"](service=v2_grpc.SERVICE.strip("/"))
    return [
        *(GoodCall(paddle_serving_grpc.INFERENCE, request.SerializeToString()),) * 3,
        GoodCall(HEALTH_CHECK, check.SerializeToString()),
    ]
