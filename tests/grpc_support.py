"""For gRPC tests: a server with `KnownEngine`, and clients that use grpcio's channels."""

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import grpc
from web_support import FailingReader, running_reader

from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.grpc_server.access import CallAccess
from ocrsvc.grpc_server.call_metrics import CallMetrics
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import FOLDER, Messages
from ocrsvc.grpc_server.server import RpcServer
from ocrsvc.grpc_server.server_state import ServerState
from ocrsvc.grpc_services import make_services
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.memory_budget import Budget, Callers, SharedLimits
from ocrsvc.telemetry.metrics_store import MetricsStore

ORDER = (
    *("inference.proto", "tensorflow.proto", "tensorflow_serving.proto", "pipeline_serving.proto", "turboocr.proto"),
    "health.proto",
)
MESSAGES = Messages(*ORDER)
V2 = "/inference.GRPCInferenceService/"
ANSWER = "inference.ModelInferResponse"
PATIENCE_S = 60.0
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

assert {path.name for path in FOLDER.iterdir() if path.suffix == ".proto"} == set(ORDER)


@contextmanager
def serving(
    methods: Methods, listener: socket.socket | None = None, access: CallAccess | None = None, **options: Any
) -> Iterator[RpcServer]:
    """Run a server of these methods; stops it after the block."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    max_bytes = options.get("max_bytes", 1 << 26)
    shared = SharedLimits(Budget(16 * max_bytes), Callers(0))
    metrics = CallMetrics(MetricsStore().common)
    defaults: dict[str, Any] = {"threads": 8, "limit_s": 30.0, "shared": shared, "call_metrics": metrics}
    state = ServerState(methods, access=access, **defaults | {"max_bytes": max_bytes} | options)
    server = RpcServer([listener], state)
    server.start()
    try:
        yield server
    finally:
        server.stop(10.0)


@contextmanager
def calling(port: int, options: Any = None) -> Iterator[grpc.Channel]:
    """A client's channel; without `options` it has grpcio's defaults."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        yield channel


@contextmanager
def served(methods: Methods, options: Any = UNLIMITED, **how: Any) -> Iterator[grpc.Channel]:
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(methods, listener, **how), calling(listener.getsockname()[1], options) as channel:
        yield channel


@contextmanager
def known_model() -> Iterator[Methods]:
    with running_reader() as reader:
        yield make_services(model_over(reader))


def model_over(reader: Reader) -> OcrModel:
    store = MetricsStore()
    return OcrModel(reader, store, store.common)


def services_raising(error: Exception) -> tuple[FailingReader, Methods]:
    reader = FailingReader(error)
    return reader, make_services(model_over(cast(Reader, reader)))


def unary(channel: grpc.Channel, path: str, response: str) -> Any:
    """A unary method as a function of a message; its `future` calls without waiting."""
    return channel.unary_unary(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=MESSAGES[response].FromString,
    )


class Gate:
    """A method that waits for `open` before it answers, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.began = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, request: Any, call: Call) -> Any:
        self.calls.append(call)
        self.began.release()
        assert self.open.wait(PATIENCE_S)
        return request

    def method(self, *, streaming: bool = False) -> dict[str, Method]:
        """The methods of a server: this one, and a health check, which needs no thread."""
        health = MESSAGES["grpc.health.v1.HealthCheckResponse"]
        return {
            "/t/Echo": Method(MESSAGES[ANSWER], self, streaming=streaming),
            "/t/Live": Method(MESSAGES[ANSWER], lambda _request, _call: health(status=1), quick=True),
        }


@contextmanager
def gated(*, streaming: bool = False, **how: Any) -> Iterator[tuple[Gate, grpc.Channel]]:
    """A server with a `Gate` as its method, and a channel to it."""
    gate = Gate()
    with served(gate.method(streaming=streaming), **how) as channel:
        yield gate, channel


def infer_request(*images: bytes, raw: bool = True, model: str = "ocr", **parameters: object) -> Any:
    request = MESSAGES["inference.ModelInferRequest"](model_name=model)
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[len(images)])
    if raw:
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(image)) + image for image in images))
    else:
        tensor.contents.bytes_contents.extend(images)
    for name, value in parameters.items():
        kind = "int64_param" if isinstance(value, int) else "string_param"
        setattr(request.parameters[name], kind, value)
    return request


def strings(raw: bytes) -> list[str]:
    found, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return found


def raw_outputs(response: Any) -> Mapping[str, bytes]:
    names = [output.name for output in response.outputs]
    return dict(zip(names, response.raw_output_contents, strict=True))
