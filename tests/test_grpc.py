"""gRPC: answers to stock clients; calls, streams, limits and shutdown of the server."""

import ast
import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, cast

import grpc
import numpy as np
import pytest
from google.protobuf import any_pb2, json_format, text_format
from grpc_support import (
    ANSWER,
    MESSAGES,
    PATIENCE_S,
    UNLIMITED,
    V2,
    Gate,
    calling,
    gated,
    infer_request,
    known_model,
    model_over,
    raw_outputs,
    served,
    services_raising,
    serving,
    strings,
    unary,
)
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, ResponseReceived, StreamEnded, TrailersReceived
from image_support import png
from support import run_server, wait_until
from web_support import CONFIDENCE, TEXT, FailingReader, HeldEngine, as_base64, json_of, running_app, running_reader

from ocrsvc import errors
from ocrsvc.app import create_app
from ocrsvc.grpc_server.calls import Calls
from ocrsvc.grpc_services import make_services
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.memory_budget import Budget, Callers, SharedLimits
from ocrsvc.settings.settings import Settings

INFER = V2 + "ModelInfer"
SEEN = "64x32 auto True False None"
TFS = "tensorflow.serving."
PIPELINE = "baidu.paddle_serving.pipeline_serving."


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    number = listener.getsockname()[1]
    with known_model() as methods, serving(methods, listener, threads=1):
        # The first call starts the pool's thread; do it here, or the first test would seem to leave a thread behind.
        with calling(number) as channel:
            infer(channel, infer_request(png()))
        yield number


@pytest.fixture
def channel(port: int) -> Iterator[grpc.Channel]:
    with calling(port, UNLIMITED) as made:
        yield made


def v2(channel: grpc.Channel, name: str, fields: Mapping[str, object] = MappingProxyType({})) -> Any:
    call = unary(channel, V2 + name, f"inference.{name}Response")
    return call(MESSAGES[f"inference.{name}Request"](**fields), timeout=PATIENCE_S)


def infer(channel: grpc.Channel, request: Any, **options: Any) -> Any:
    return unary(channel, INFER, ANSWER)(request, **{"timeout": PATIENCE_S} | options)


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code: grpc.StatusCode = caught.value.code()
    return code


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_raw_tensors_get_raw_outputs(channel: grpc.Channel, compression: object) -> None:
    request = infer_request(png())
    request.id = "7"
    response = infer(channel, request, compression=compression)
    assert (response.id, response.model_name, response.model_version) == ("7", "ocr", "1")
    raw = raw_outputs(response)
    assert strings(raw["texts"]) == [TEXT, SEEN]
    assert np.frombuffer(raw["scores"], "<f4").tolist() == [np.float32(CONFIDENCE), 0.5]
    assert np.frombuffer(raw["boxes"], "<f4").reshape(2, 4, 2)[0].tolist() == [[16, 8], [48, 8], [48, 16], [16, 16]]


def test_typed_tensors_get_typed_outputs(channel: grpc.Channel) -> None:
    response = infer(channel, infer_request(png(), png(width=40), raw=False))
    assert not response.raw_output_contents
    contents = {output.name: output.contents for output in response.outputs}
    assert contents["text"].bytes_contents[1].decode().endswith("40x32 auto True False None")
    assert list(contents["counts"].int_contents) == [2, 2]
    assert len(contents["boxes"].fp32_contents) == 2 * 2 * 4 * 2


def docling_request() -> Any:
    """A request like that of docling's KserveV2GrpcClient, with 64 x 32 pixels."""
    request = MESSAGES["inference.ModelInferRequest"](model_name="ocr")
    request.inputs.add(name="lang_type", datatype="BYTES", shape=[1, 1])
    request.inputs.add(name="image", datatype="UINT8", shape=[1, 32, 64, 3])
    request.raw_input_contents.extend([b"\7\0\0\0english", bytes([200]) * (32 * 64 * 3)])
    for name in ("boxes", "txts", "scores"):
        request.outputs.add(name=name)
    for tensor in (*request.inputs, *request.outputs):
        tensor.parameters["binary_data"].bool_param = True
    return request


def test_docling_pixels_get_outputs_without_a_batch_dimension(channel: grpc.Channel) -> None:
    response = infer(channel, docling_request())
    shapes = {output.name: list(output.shape) for output in response.outputs}
    assert shapes == {"boxes": [2, 4, 2], "txts": [2], "scores": [2]}
    assert strings(raw_outputs(response)["txts"]) == [TEXT, SEEN]


def test_requested_outputs_and_parameters_are_applied(channel: grpc.Channel) -> None:
    request = infer_request(png(), rotate="90", priority=1)
    request.parameters["detect"].bool_param = False
    request.parameters["min_confidence"].double_param = 0.25
    request.outputs.add(name="text")
    response = infer(channel, request)
    assert strings(raw_outputs(response)["text"]) == [f"{TEXT}\n32x64 0 False False 0.25"]
    assert len(response.outputs) == 1


def test_metadata_equals_http_metadata(channel: grpc.Channel) -> None:
    assert v2(channel, "ServerLive").live
    assert v2(channel, "ServerReady").ready
    assert v2(channel, "ModelReady", {"name": "ocr", "version": "1"}).ready

    with running_app() as app:
        client = app.test_client()
        service = json_format.MessageToDict(v2(channel, "ServerMetadata"), preserving_proto_field_name=True)
        assert service == json_of(client.get("/v2"))
        named = [output.name for output in v2(channel, "ModelMetadata", {"name": "ocr"}).outputs]
        assert named == [output["name"] for output in json_of(client.get("/v2/models/ocr"))["outputs"]]
        config = json_of(client.get("/v2/models/ocr/config"))
        expected = json_format.ParseDict(config, MESSAGES["inference.ModelConfig"]())
        assert v2(channel, "ModelConfig", {"name": "ocr"}).config == expected
    assert v2(channel, "RepositoryIndex", {"ready": True}).models[0].state == "READY"
    unary(channel, V2 + "RepositoryModelLoad", "inference.RepositoryModelLoadResponse")(
        MESSAGES["inference.RepositoryModelLoadRequest"](model_name="ocr"), timeout=PATIENCE_S
    )


def test_the_standard_grpc_health_check_is_answered(channel: grpc.Channel) -> None:
    check = unary(channel, "/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckResponse")
    request = MESSAGES["grpc.health.v1.HealthCheckRequest"]
    assert check(request(), timeout=PATIENCE_S).status == 1
    assert check(request(service="inference.GRPCInferenceService"), timeout=PATIENCE_S).status == 1
    assert code_of(lambda: check(request(service="no.Such"), timeout=PATIENCE_S)) is grpc.StatusCode.NOT_FOUND


def merged(text: str) -> Any:
    return text_format.Merge(text, infer_request(png()))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (infer_request(png(), model="nope"), grpc.StatusCode.NOT_FOUND),
        (merged("model_version: '2'"), grpc.StatusCode.NOT_FOUND),
        (merged("model_version: 'x'"), grpc.StatusCode.INVALID_ARGUMENT),
        (merged("inputs {name: 'image' datatype: 'UINT8'}"), grpc.StatusCode.INVALID_ARGUMENT),
        (
            merged("outputs {name: 'text' parameters {key: 'classification' value {int64_param: 3}}}"),
            grpc.StatusCode.UNIMPLEMENTED,
        ),
        (infer_request(b"no image"), grpc.StatusCode.INVALID_ARGUMENT),
        (infer_request(png(), timeout="soon"), grpc.StatusCode.INVALID_ARGUMENT),
        (infer_request(), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_client_errors_have_their_grpc_status(channel: grpc.Channel, request_: Any, code: grpc.StatusCode) -> None:
    assert code_of(lambda: infer(channel, request_)) is code


def test_an_unknown_method_is_reported(channel: grpc.Channel) -> None:
    unknown = unary(channel, V2 + "TraceSetting", ANSWER)
    assert code_of(lambda: unknown(infer_request(), timeout=PATIENCE_S)) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\xff" * 20, b"\x2a\x02\x2a\x7f", b"\x0e"])
def test_a_truncated_or_garbled_message_is_refused(channel: grpc.Channel, data: bytes) -> None:
    call = channel.unary_unary(INFER)
    assert code_of(lambda: call(data, timeout=PATIENCE_S)) is grpc.StatusCode.INVALID_ARGUMENT


def test_too_large_message_fails_only_its_call() -> None:
    with known_model() as methods, served(methods, max_bytes=1 << 20) as channel:
        request = infer_request(bytes(3 << 20))
        assert code_of(lambda: infer(channel, request)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert infer(channel, infer_request(png())).model_name == "ocr"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.QueueFull("-", "", 3), grpc.StatusCode.UNAVAILABLE),
        (errors.TooManyAtOnce("-"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.ClientGone("-"), grpc.StatusCode.CANCELLED),
        (errors.EngineFailed("-"), grpc.StatusCode.INTERNAL),
        (ZeroDivisionError("-"), grpc.StatusCode.INTERNAL),
    ],
)
def test_failures_have_their_grpc_status(error: Exception, code: grpc.StatusCode) -> None:
    with served(services_raising(error)[1]) as channel, pytest.raises(grpc.RpcError) as caught:
        infer(channel, infer_request(png()))
    assert caught.value.code() is code
    pushback = dict(caught.value.trailing_metadata()).get("grpc-retry-pushback-ms")
    waits = {grpc.StatusCode.UNAVAILABLE: "3000", grpc.StatusCode.RESOURCE_EXHAUSTED: "1000"}
    assert pushback == waits.get(code)


def test_the_clients_deadline_reaches_the_reader() -> None:
    reader, methods = services_raising(errors.DeadlineExceeded("Late."))
    with served(methods) as channel:
        for request, timeout_s in (
            (infer_request(png()), 5),
            (infer_request(png()), 3600),
            (infer_request(png(), timeout=2_000_000), 5),
        ):
            code = code_of(lambda request=request, timeout_s=timeout_s: infer(channel, request, timeout=timeout_s))  # type: ignore[misc]
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [round(left_s) for left_s in reader.deadlines] == [5, 30, 2]


def test_stream_answers_in_order_and_survives_a_failed_request(channel: grpc.Channel) -> None:
    stream = channel.stream_stream(
        V2 + "ModelStreamInfer",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=MESSAGES["inference.ModelStreamInferResponse"].FromString,
    )
    requests = [infer_request(b"no image" if number == 5 else png()) for number in range(20)]
    for number, request in enumerate(requests):
        request.id = str(number)
    responses = list(stream(iter(requests), timeout=PATIENCE_S))
    assert [response.infer_response.id for response in responses] == [str(number) for number in range(20)]
    assert [number for number, response in enumerate(responses) if response.error_message] == [5]


def paddlex(body: bytes) -> Any:
    request = infer_request(body)
    request.inputs[0].name = "input"
    request.inputs[0].shape[:] = [1, 1]
    return request


def test_paddlex_clients_of_triton_are_served(channel: grpc.Channel) -> None:
    body = b'{"file": "%s", "fileType": 1, "visualize": false, "logId": "me"}' % as_base64(png()).encode()
    response = infer(channel, paddlex(body))
    assert list(response.outputs[0].shape) == [1, 1]
    answer = json.loads(strings(raw_outputs(response)["output"])[0])
    assert (answer["errorCode"], answer["logId"]) == (0, "me")
    assert answer["result"]["ocrResults"][0]["prunedResult"]["rec_texts"][0] == TEXT
    wrong = infer(channel, paddlex(b"{}"))
    assert '"errorCode":422' in strings(raw_outputs(wrong)["output"])[0]


def predict_request(
    *images: bytes, name: str = "ocr", dtype: int = 7, size: int | None = None, inputs: Sequence[str] = ("image",)
) -> Any:
    request = MESSAGES[TFS + "PredictRequest"]()
    request.model_spec.name = name
    request.model_spec.signature_name = "serving_default"
    for each in inputs:
        tensor = request.inputs[each]
        tensor.dtype = dtype
        tensor.tensor_shape.dim.add(size=len(images) if size is None else size)
        tensor.string_val.extend(images)
    return request


def tfs(channel: grpc.Channel, method: str, request: Any) -> Any:
    call = unary(channel, f"/{TFS}PredictionService/{method}", f"{TFS}{method}Response")
    return call(request, timeout=PATIENCE_S)


def test_tensorflow_servings_clients_are_answered(channel: grpc.Channel) -> None:
    response = tfs(channel, "Predict", predict_request(png(), png()))
    assert response.model_spec.version.value == 1
    assert [text.decode() for text in response.outputs["texts"].string_val] == [TEXT, SEEN] * 2
    assert [dim.size for dim in response.outputs["boxes"].tensor_shape.dim] == [2, 2, 4, 2]
    assert list(response.outputs["counts"].int_val) == [2, 2]
    assert len(response.outputs["scores"].float_val) == 4
    request = predict_request(b"", png())
    request.output_filter.extend(["text", "counts"])
    # An empty element is answered with no lines: perf_analyzer can send nothing else.
    outputs = tfs(channel, "Predict", request).outputs
    assert (set(outputs), list(outputs["counts"].int_val)) == ({"text", "counts"}, [0, 2])
    assert [text.decode() for text in outputs["text"].string_val] == ["", f"{TEXT}\n{SEEN}"]


def test_duplicate_outputs_are_returned_once(channel: grpc.Channel) -> None:
    request = infer_request(png())
    for _ in range(2000):
        request.outputs.add(name="text")
    assert [output.name for output in infer(channel, request).outputs] == ["text"]


def test_tensorflow_serving_metadata_has_the_signature(channel: grpc.Channel) -> None:
    request = MESSAGES[TFS + "GetModelMetadataRequest"](metadata_field=["signature_def"])
    request.model_spec.name = "ocr"
    packed: any_pb2.Any = tfs(channel, "GetModelMetadata", request).metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    signature = MESSAGES[TFS + "SignatureDefMap"].FromString(packed.value).signature_def["serving_default"]
    assert signature.inputs["image"].dtype == 7
    assert set(signature.outputs) == {"text", "texts", "scores", "boxes", "counts"}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (predict_request(png(), name="no"), grpc.StatusCode.NOT_FOUND),
        (predict_request(png(), inputs=("image", "images")), grpc.StatusCode.INVALID_ARGUMENT),
        (predict_request(png(), size=2), grpc.StatusCode.INVALID_ARGUMENT),
        (predict_request(png(), dtype=1), grpc.StatusCode.INVALID_ARGUMENT),
        (predict_request(b"no image"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_an_invalid_predict_request_is_reported(channel: grpc.Channel, request_: Any, code: grpc.StatusCode) -> None:
    assert code_of(lambda: tfs(channel, "Predict", request_)) is code


def pipeline(channel: grpc.Channel, **fields: Any) -> Any:
    call = unary(channel, f"/{PIPELINE}PipelineService/inference", PIPELINE + "Response")
    return call(MESSAGES[PIPELINE + "Request"](**fields), timeout=PATIENCE_S)


def test_paddle_servings_clients_are_answered(channel: grpc.Channel) -> None:
    response = pipeline(channel, key=["image"], value=[as_base64(png())], name="ocr", method="prediction")
    assert (response.err_no, list(response.key)) == (0, ["result"])
    lines = ast.literal_eval(response.value[0])
    assert [line[0][0] for line in lines] == [TEXT, SEEN]


@pytest.mark.parametrize(
    ("fields", "err_no"),
    [
        ({"name": "nope", "key": ["image"], "value": ["aGk="]}, 3002),
        ({"name": "ocr"}, 5000),
        ({"name": "ocr", "key": ["image"], "value": ["!"]}, 5000),
        ({"name": "ocr", "key": ["image"], "value": ["aGk="]}, 5000),
    ],
)
def test_paddle_serving_errors_are_in_the_response(channel: grpc.Channel, fields: dict[str, Any], err_no: int) -> None:
    response = pipeline(channel, **fields)
    assert response.err_no == err_no
    assert response.err_msg
    assert not response.value


def echo(channel: grpc.Channel) -> Any:
    return unary(channel, "/t/Echo", ANSWER)


def test_an_image_whose_call_is_cancelled_never_reaches_the_engine() -> None:
    engine = HeldEngine()
    with (
        running_reader(opener=lambda: engine, threads=1) as reader,
        served(make_services(model_over(reader))) as channel,
    ):
        call = unary(channel, INFER, ANSWER)
        first = call.future(infer_request(png()), timeout=PATIENCE_S)
        assert engine.shown.acquire(timeout=PATIENCE_S)
        second = call.future(infer_request(png()), timeout=PATIENCE_S)
        wait_until(lambda: reader.waiting() == 1)
        second.cancel()
        # The cancelled call leaves the queue while the engine is still busy.
        wait_until(lambda: reader.waiting() == 0)
        engine.go.set()
        assert first.result().model_name == "ocr"
    assert engine.count == 1


def test_a_client_disconnect_is_detected() -> None:
    with gated() as (gate, channel):
        call = echo(channel).future(MESSAGES[ANSWER]())
        assert gate.began.acquire(timeout=PATIENCE_S)
        channel.close()
        assert gate.calls[0].gone.wait(PATIENCE_S)
        assert call.code() is grpc.StatusCode.CANCELLED
        gate.open.set()


UNSHARED = [("grpc.use_local_subchannel_pool", 1)]


@pytest.mark.parametrize("turn", ["answered", "check_time_limits"])
def test_an_error_closes_only_its_connection(
    turn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, faults = getattr(Calls, turn), list[Exception]()

    def fail_once(calls: Calls, *given: Any) -> None:
        if faults:
            raise faults.pop()
        real(calls, *given)

    monkeypatch.setattr(Calls, turn, fail_once)
    gate, listener = Gate(), socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with serving(gate.method(), listener), calling(port) as one, calling(port, UNSHARED) as other:
        first = echo(one).future(MESSAGES[ANSWER](), timeout=PATIENCE_S)
        assert gate.began.acquire(timeout=PATIENCE_S)
        faults.append(RuntimeError("can't start new thread"))
        if turn == "answered":
            gate.open.set()
        # The status code depends on when the client notices the closed connection.
        assert isinstance(first.exception(PATIENCE_S), grpc.RpcError)
        gate.open.set()
        assert echo(other)(MESSAGES[ANSWER](id="2"), timeout=PATIENCE_S).id == "2"
    assert "A connection failed" in caplog.text


class FullListener(socket.socket):
    """A listener whose accept() fails with EMFILE while `out_of_files` is set."""

    tries = 0
    out_of_files = True

    def accept(self) -> tuple[socket.socket, Any]:
        type(self).tries += 1
        if self.out_of_files:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_exhausted_file_descriptors_neither_spin_nor_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    listener = FullListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    gate = Gate()
    gate.open.set()
    with serving(gate.method(), listener), calling(listener.getsockname()[1]) as channel:
        began_s = time.monotonic()
        call = echo(channel).future(MESSAGES[ANSWER](id="1"), timeout=PATIENCE_S)
        wait_until(lambda: FullListener.tries >= 3)
        assert FullListener.tries <= 3 + (time.monotonic() - began_s) / 0.25
        FullListener.out_of_files = False
        assert call.result().id == "1"
    assert [record.name for record in caplog.records] == ["ocrsvc.rpc"]


def test_disabled_adapters_have_no_grpc_service() -> None:
    with running_reader() as reader:
        found = {path.split("/")[1] for path in make_services(model_over(reader), ("tfserving", "umi_ocr"))}
    assert found == {"grpc.health.v1.Health", "tensorflow.serving.ModelService", "tensorflow.serving.PredictionService"}


def test_large_answers_wait_for_flow_control() -> None:
    with gated() as (gate, channel):
        gate.open.set()
        large = MESSAGES[ANSWER](id="x" * (6 << 20))
        answers = [echo(channel).future(large, timeout=PATIENCE_S) for _ in range(3)]
        assert all(answer.result() == large for answer in answers)


def test_draining_server_answers_open_calls_and_sends_clients_to_another_worker() -> None:
    gate, listener = Gate(), socket.create_server(("127.0.0.1", 0))
    with serving(gate.method(), listener.dup()) as first, calling(listener.getsockname()[1]) as channel:
        call = echo(channel).future(MESSAGES[ANSWER](id="1"))
        assert gate.began.acquire(timeout=PATIENCE_S)
        first.drain()
        with serving(gate.method(), listener):
            second = echo(channel).future(MESSAGES[ANSWER](id="2"), timeout=PATIENCE_S)
            assert gate.began.acquire(timeout=PATIENCE_S)
            assert not first.wait(0)
            gate.open.set()
            assert (call.result(PATIENCE_S).id, second.result(PATIENCE_S).id) == ("1", "2")
            assert first.wait(PATIENCE_S)


def test_idle_stream_does_not_delay_draining() -> None:
    gate, listener = Gate(), socket.create_server(("127.0.0.1", 0))
    gate.open.set()
    asked = threading.Event()

    def requests() -> Iterator[Any]:
        yield MESSAGES[ANSWER](id="1")
        asked.wait(PATIENCE_S)

    with serving(gate.method(streaming=True), listener) as server, calling(listener.getsockname()[1]) as channel:
        call = channel.stream_stream("/t/Echo", lambda sent: sent.SerializeToString(), MESSAGES[ANSWER].FromString)
        stream = call(requests(), timeout=PATIENCE_S)
        assert next(stream).id == "1"
        server.drain()
        assert code_of(lambda: next(stream)) is grpc.StatusCode.UNAVAILABLE
        asked.set()
        assert server.wait(PATIENCE_S)


class Http2Client:
    """A client that sends HTTP/2 frames directly."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.sock.sendall(self.h2.data_to_send())

    def call(self, number: int, data: bytes = b"", *, end: bool = True, **more: Any) -> None:
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":authority": "x",
            ":path": "/t/Echo",
            "content-type": "application/grpc",
            "te": "trailers",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        self.h2.send_headers(number, list(headers.items()))
        self.h2.send_data(number, data, end_stream=end)
        self.flush()

    def until(self, kind: type[Event]) -> Any:
        while True:
            data = self.sock.recv(65536)
            assert data, f"closed before {kind.__name__}"
            events = self.h2.receive_data(data)
            self.flush()
            for event in events:
                if isinstance(event, kind):
                    return event

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def wire(gate: Gate) -> Iterator[Http2Client]:
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(gate.method(), listener):
        made = Http2Client(listener.getsockname()[1])
        yield made
        gate.open.set()
        made.close()


def status(event: Any) -> str:
    headers = dict(event.headers)
    return f"{headers.get(':status', '')} {headers.get('grpc-status', '')}".strip()


@pytest.mark.parametrize(
    ("data", "more", "expected"),
    [
        (b"", {}, "200 12"),
        (b"\0\0\0", {}, "200 13"),
        (b"\0\0\0\0\0", {"grpc_timeout": "soon"}, "200 3"),
        (b"\0\0\0\0\5ab", {"grpc_timeout": "100m", "end": False}, "200 4"),
        (b"\1\0\0\0\0", {"grpc_encoding": "snappy"}, "200 12"),
        (b"\0\0\0\0\0", {":path": "/t/Nothing"}, "200 12"),
        (b"{}", {"content_type": "application/json"}, "415"),
    ],
)
def test_malformed_calls_have_their_status(wire: Http2Client, data: bytes, more: dict[str, Any], expected: str) -> None:
    wire.call(1, data, **more)
    assert status(wire.until(ResponseReceived)) == expected


def test_a_client_that_sends_goaway_still_gets_its_answer(wire: Http2Client, gate: Gate) -> None:
    wire.call(1, b"\0\0\0\0\0")
    assert gate.began.acquire(timeout=PATIENCE_S)
    goodbye = H2Connection(H2Configuration(client_side=True))
    goodbye.initiate_connection()
    goodbye.clear_outbound_data_buffer()
    goodbye.close_connection()
    wire.sock.sendall(goodbye.data_to_send())
    gate.open.set()
    assert status(wire.until(TrailersReceived)) == "0"


def test_immediate_reset_affects_no_other_stream(wire: Http2Client, gate: Gate) -> None:
    gate.open.set()
    wire.h2.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/t/No")])
    wire.h2.reset_stream(1, ErrorCodes.CANCEL)
    for number in range(3, 203, 2):
        wire.call(number, b"\0\0\0\0\0")
        wire.h2.reset_stream(number, ErrorCodes.CANCEL)
    wire.call(203, b"\0\0\0\0\0")
    assert wire.until(StreamEnded).stream_id == 203


def test_non_http2_connection_is_closed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while sock.recv(65536):
            pass


def test_a_broken_frame_ends_the_connection_with_a_reason(wire: Http2Client) -> None:
    wire.sock.sendall(b"\0\0\4\0\0\0\0\0\0oops")
    assert wire.until(ConnectionTerminated).error_code == ErrorCodes.PROTOCOL_ERROR


def call_repeatedly(port: int, options: Any, stop: threading.Event, failures: list[str]) -> None:
    """Call in a loop on one channel, whose connection stays with one worker until that worker drains."""
    with calling(port, options) as channel:
        call = unary(channel, INFER, ANSWER)
        while not stop.is_set():
            try:
                response = call(infer_request(png()), timeout=PATIENCE_S)
                assert strings(raw_outputs(response)["texts"])[0] == "64x32"
            except (grpc.RpcError, AssertionError) as error:
                failures.append(repr(error))
            stop.wait(0.005)


def test_no_call_fails_while_workers_are_replaced() -> None:
    stop, failures = threading.Event(), list[str]()
    env = {"OCRSVC_GRPC_BIND": "127.0.0.1:0", "OCRSVC_WORKERS": "1", "OCRSVC_MAX_REQUESTS": "100"}
    with run_server(env) as server:
        port = int(server.wait_for(r"Listening for gRPC at: 127.0.0.1:(\d+)")[1])
        # Default settings, and a separate connection: channels of one process otherwise share one.
        settings = (None, [("grpc.use_local_subchannel_pool", 1)])
        with ThreadPoolExecutor(2) as pool:
            for own in settings:
                pool.submit(call_repeatedly, port, own, stop, failures)
            try:
                server.wait_for("RECYCLED")
            finally:
                stop.set()
        assert failures == []


def test_open_call_is_counted_and_answered_on_shutdown() -> None:
    env = {"OCRSVC_GRPC_BIND": "127.0.0.1:0", "OCRSVC_WORKERS": "1", "OCRSVC_FAKE_LATENCY_S": "1"}
    with run_server(env | {"OCRSVC_ACCESS_LOG": "json"}) as server:
        port = int(server.wait_for(r"Listening for gRPC at: 127.0.0.1:(\d+)")[1])
        with calling(port) as channel:
            v2(channel, "ServerReady")
            call = unary(channel, INFER, ANSWER).future(infer_request(png()), timeout=PATIENCE_S)
            # This call is answered after the one before on the same connection, so that one is in flight.
            v2(channel, "ServerReady")
            assert server.metric("ocrsvc_in_flight_requests") == 2
            # The previous /metrics request may still be counted.
            wait_until(lambda: server.metric('ocrsvc_worker_in_flight_requests{slot="0"}') == 2)
            assert server.metric('ocrsvc_requests_total{adapter="grpc_kserve_v2",code="ok",status="OK"}') == 2
            server.process.terminate()
            assert strings(raw_outputs(call.result())["texts"])[0] == "64x32"
        entry = json.loads(server.wait_for(r'(\{.*"path":"/inference.GRPCInferenceService/ModelInfer".*\})')[1])
        known = (entry["adapter"], entry["status"], entry["code"], entry["client"])
        assert known == ("grpc_kserve_v2", 0, "ok", "127.0.0.1")
        assert min(entry["bytes_in"], entry["bytes_out"]) > 100
        assert entry["seconds"] >= 1


def test_caller_limit_covers_grpc_and_http_together() -> None:
    limits = SharedLimits(Budget(1 << 20), Callers(1))
    reader = cast(Reader, FailingReader(errors.QueueFull("Busy.")))
    client = create_app(Settings(caller_requests=1), reader, limits=limits).test_client()
    with gated(shared=limits) as (gate, channel):
        call = echo(channel).future(MESSAGES[ANSWER](id="1"))
        assert gate.began.acquire(timeout=PATIENCE_S)
        code = code_of(lambda: echo(channel)(MESSAGES[ANSWER](), timeout=PATIENCE_S))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.post("/v1/ocr", data=png()).status_code == 429
        assert limits.memory.held_bytes > 0
        gate.open.set()
        assert call.result().id == "1"
        wait_until(lambda: len(limits.callers) == 0)
        assert client.post("/v1/ocr", data=png()).status_code == 503
        assert echo(channel)(MESSAGES[ANSWER](id="2"), timeout=PATIENCE_S).id == "2"
