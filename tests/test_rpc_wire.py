"""gRPC's own framing, time limits and texts, and the .proto files that are read at run time."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrsvc.errors import BrokenImage, ClientGone, DeadlineExceeded, EngineFailed, QueueFull, TooManyAtOnce
from ocrsvc.rpc.codes import CallFailed, Code, failure_of
from ocrsvc.rpc.connection import Connection, Stream
from ocrsvc.rpc.method import Method, Methods
from ocrsvc.rpc.protobuf import FOLDER, Messages
from ocrsvc.rpc.wire import MessageReader, escaped, frame, timeout_s
from ocrsvc.web.model.card import NotOffered, UnknownModel

ALL = [
    "inference.proto",
    "tensorflow.proto",
    "tensorflow_serving.proto",
    "pipeline_serving.proto",
    "health.proto",
]


def prefixed(message: bytes, packed: int = 0) -> bytes:
    return struct.pack(">BI", packed, len(message)) + message


def test_messages_are_cut_out_wherever_the_pieces_end() -> None:
    data = prefixed(b"first") + prefixed(b"") + prefixed(b"third" * 100)
    for size in (1, 2, 7, len(data)):
        reader = MessageReader("identity", 1000)
        found = [message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])]
        assert found == [b"first", b"", b"third" * 100]
        assert not reader.unfinished


def test_half_a_message_is_unfinished() -> None:
    reader = MessageReader("identity", 1000)
    assert list(reader.feed(prefixed(b"abc")[:-1])) == []
    assert reader.unfinished


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_messages_are_unpacked(encoding: str, pack: object) -> None:
    assert callable(pack)
    reader = MessageReader(encoding, 1000)
    assert list(reader.feed(prefixed(pack(b"x" * 1000), 1) + prefixed(b"plain"))) == [b"x" * 1000, b"plain"]


@pytest.mark.parametrize(
    ("encoding", "data", "code"),
    [
        ("identity", struct.pack(">BI", 0, 1001), Code.RESOURCE_EXHAUSTED),
        ("gzip", prefixed(gzip.compress(bytes(1001)), 1), Code.RESOURCE_EXHAUSTED),
        ("gzip", prefixed(gzip.compress(b"abc")[:-1], 1), Code.INTERNAL),
        ("gzip", prefixed(b"no gzip at all", 1), Code.INTERNAL),
        ("snappy", prefixed(b"abc", 1), Code.UNIMPLEMENTED),
        ("identity", prefixed(b"abc", 1), Code.UNIMPLEMENTED),
        ("gzip", prefixed(b"abc", 2), Code.UNIMPLEMENTED),
    ],
)
def test_a_wrong_message_fails_its_call(encoding: str, data: bytes, code: Code) -> None:
    with pytest.raises(CallFailed) as caught:
        list(MessageReader(encoding, 1000).feed(data))
    assert caught.value.code is code


def test_an_answer_has_its_length_in_front() -> None:
    assert frame(b"abc") == b"\0\0\0\0\3abc"


@pytest.mark.parametrize(
    ("text", "seconds"), [("1H", 3600), ("2M", 120), ("3S", 3), ("500m", 0.5), ("99999999u", 99.999999), ("7n", 7e-9)]
)
def test_time_limits_have_units(text: str, seconds: float) -> None:
    assert timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "S", "-1S", "1.5S", "123456789S", "1s", "1S "])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(CallFailed):
        timeout_s(text)


def test_a_status_text_is_percent_encoded() -> None:
    assert escaped("50 % of 图\n") == "50 %25 of %E5%9B%BE%0A"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownModel("-"), Code.NOT_FOUND),
        (NotOffered("-"), Code.UNIMPLEMENTED),
        (BrokenImage("-"), Code.INVALID_ARGUMENT),
        (QueueFull("-"), Code.UNAVAILABLE),
        (TooManyAtOnce("-"), Code.RESOURCE_EXHAUSTED),
        (DeadlineExceeded("-"), Code.DEADLINE_EXCEEDED),
        (ClientGone("-"), Code.CANCELLED),
        (EngineFailed("-"), Code.INTERNAL),
        (ZeroDivisionError("-"), Code.INTERNAL),
    ],
)
def test_each_failure_has_its_status(error: Exception, code: Code) -> None:
    assert failure_of(error).code is code


def test_what_went_wrong_inside_is_not_told_outside() -> None:
    assert "secret" not in failure_of(ZeroDivisionError("secret")).told


def test_every_proto_file_is_read() -> None:
    assert sorted(ALL) == sorted(path.name for path in FOLDER.glob("*.proto"))
    Messages(*ALL)


def test_messages_have_fields_of_every_kind() -> None:
    messages = Messages(*ALL)
    request = messages["inference.ModelInferRequest"](model_name="ocr")
    request.parameters["timeout"].int64_param = 5
    request.inputs.add(name="image", shape=[1, 1]).contents.bytes_contents.append(b"x")
    # By hand, from the encoding's own rules: field 1 "ocr", field 4 the map's entry, field 5 the tensor.
    expected = b"\n\x03ocr" + b"\x22\x0d\n\x07timeout\x12\x02\x10\x05" + b"*\x10\n\x05image\x1a\x02\x01\x01*\x03B\x01x"
    assert request.SerializeToString() == expected
    assert request.parameters["timeout"].WhichOneof("parameter_choice") == "int64_param"
    config = messages["inference.ModelConfig"]()
    config.input.add(data_type=13)
    assert "TYPE_STRING" in str(config)


def test_messages_do_not_clash_with_generated_code_of_the_same_names() -> None:
    first, second = Messages("health.proto"), Messages("health.proto")
    name = "grpc.health.v1.HealthCheckRequest"
    assert first[name] is not second[name]
    assert descriptor_pb2.DESCRIPTOR.pool is not first[name].DESCRIPTOR.file.pool


REQUEST = Messages("health.proto")["grpc.health.v1.HealthCheckRequest"]


class Lone:
    """What a connection needs of its server; answers nothing, and counts what is held."""

    most_bytes = 1000
    limit_s = 60.0

    def __init__(self) -> None:
        self.methods: Methods = {"/t/Echo": Method(REQUEST, lambda sent, _: sent)}
        self.held = 0

    def hold(self, size: int) -> bool:
        self.held += size
        return True

    def run(self, connection: Connection, stream: Stream, answer: Callable[[], Any]) -> None:
        connection.answered(stream, answer().SerializeToString())


def frame_of(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


FRAMES = st.builds(
    frame_of,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
    st.binary(max_size=20),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAMES, max_size=6), st.lists(st.binary(max_size=12), max_size=3), st.booleans())
def test_whatever_comes_a_connection_holds_nothing_afterwards(
    frames: list[bytes], bodies: list[bytes], parting: bool
) -> None:
    host = Lone()
    connection, client = Connection(host), H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/t/Echo")]
    for number, body in enumerate(bodies):
        client.send_headers(2 * number + 1, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
        client.send_data(2 * number + 1, body, end_stream=number != 1)
    connection.receive(client.data_to_send())
    if parting:
        connection.part()
    for sent in frames:
        if not connection.broken:
            connection.receive(sent)
    connection.look()
    connection.close()
    assert (connection.calls, host.held) == (0, 0)
