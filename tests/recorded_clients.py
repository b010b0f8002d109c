"""Records the requests of real clients, and replays recordings to a server.

A recording holds every byte that one client sent over all its connections; the tests draw the images in it. It replaces
a client that is not installed. A .http file holds consecutive HTTP/1.1 requests; a .h2 file holds the connections of a
gRPC client (HTTP/2), each starting with its preface. `python benchmarks/clients.py --record` makes them.
"""

import base64
import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import contains
from pathlib import Path
from typing import Final

from hpack import Decoder
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame
from support import ROOT

FOLDER: Final = ROOT / "tests" / "clients" / "recorded"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LIMIT_S: Final = 30.0
# perf_analyzer repeats its request thousands of times; a recording keeps the first ones.
_MAX_CALLS: Final = 16
_MAX_FRAMES: Final = 100
_HEAD: Final = 9


@dataclass(frozen=True, slots=True)
class Answer:
    """A response without framing; `fine` is False for an HTTP status from 400 on and for a gRPC status other than 0."""

    fine: bool
    body: bytes


def replay(recording: Path, http_address: str, grpc_address: str) -> list[Answer]:
    """Send the recorded requests in order, each after the previous one was answered."""
    data = recording.read_bytes()
    if recording.suffix == ".h2":
        return [answer for connection in _connections(data) for answer in _call(connection, grpc_address)]
    return [_ask(request, http_address) for request in _requests(data)]


def _ask(request: bytes, address: str) -> Answer:
    with _connect(address) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection, method=request.partition(b" ")[0].decode())
        response.begin()
        return Answer(response.status < 400, response.read())


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _LIMIT_S)


def _requests(data: bytes) -> Iterator[bytes]:
    """Split consecutive HTTP/1.1 requests; drops an unfinished one at the end."""
    while (at := data.find(b"\r\n\r\n") + 4) > 3:
        head = data[:at].lower()
        length = re.search(rb"\r\ncontent-length: *(\d+)", head)
        end = at + int(length[1]) if length else at
        if b"\r\ntransfer-encoding: chunked" in head:
            end = _end_of_chunks(data, at)
        if end > len(data):
            return
        yield data[:end]
        data = data[end:]


def _end_of_chunks(data: bytes, at: int) -> int:
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line], 16)
        at = line + 2 + size + 2
        if size == 0:
            return at
    return len(data) + 1


def _connections(data: bytes) -> list[bytes]:
    return [PREFACE + part for part in data.split(PREFACE)[1:]]


def _call(connection: bytes, address: str) -> list[Answer]:
    """Send a connection's bytes call by call; each call is answered before the next one is sent.

    If the recording lacks a stream's end, the first message of its answer is enough.
    """
    frames, sent = list(_frames(connection, len(PREFACE))), 0
    ends = [(end, frame.stream_id) for frame, end in frames if "END_STREAM" in frame.flags]
    with _connect(address) as server:
        reading = _Reading(server)
        for end, stream in ends:
            server.sendall(connection[sent:end])
            sent = end
            reading.wait_for(partial(contains, reading.answers, stream))
        server.sendall(connection[sent:])
        opened = {frame.stream_id for frame, _ in frames if isinstance(frame, DataFrame)}
        for stream in opened - reading.answers.keys():
            reading.wait_for(partial(contains, reading.bodies, stream))
        return list(reading.answers.values()) + [Answer(fine=True, body=body) for body in reading.bodies.values()]


def _frames(data: bytes, at: int) -> Iterator[tuple[Frame, int]]:
    """Parse the complete HTTP/2 frames from offset `at`; yields each with its end offset."""
    while at + _HEAD <= len(data):
        frame, length = Frame.parse_frame_header(memoryview(data[at : at + _HEAD]))
        at += _HEAD + length
        if at > len(data):
            return
        frame.parse_body(memoryview(data[at - length : at]))
        yield frame, at


@dataclass
class _Reading:
    """Reads the server's side of a connection; keeps, by stream, finished answers and the bodies of unfinished ones."""

    server: socket.socket
    answers: dict[int, Answer] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)
    _unread: bytes = b""
    _decoder: Decoder = field(default_factory=Decoder)
    _heads: dict[int, dict[str, str]] = field(default_factory=dict)

    def wait_for(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            data = self.server.recv(1 << 16)
            assert data, "the connection ended before every call was answered"
            self._unread += data
            whole = list(_frames(self._unread, 0))
            for frame, _ in whole:
                self._take(frame)
            self._unread = self._unread[whole[-1][1] if whole else 0 :]

    def _take(self, frame: Frame) -> None:
        number = frame.stream_id
        if isinstance(frame, HeadersFrame | ContinuationFrame):
            headers = self._decoder.decode(bytes(frame.data))
            self._heads.setdefault(number, {}).update((str(name), str(value)) for name, value in headers)
        elif isinstance(frame, DataFrame):
            self.bodies[number] = self.bodies.get(number, b"") + bytes(frame.data)
        if "END_STREAM" in frame.flags:
            head = self._heads[number]
            fine = head[":status"] == "200" and head.get("grpc-status") == "0"
            self.answers[number] = Answer(fine, self.bodies.pop(number, b""))


class Recorder:
    """Forwards connections of clients to servers, and keeps what the clients send."""

    def __init__(self) -> None:
        self._connections: list[bytearray] = []

    @contextmanager
    def listening(self, listener: socket.socket, server: str) -> Iterator[None]:
        """Within the block, forward connections from `listener` to `server`; closes the listener afterwards."""
        with ExitStack() as stack:
            accepting = threading.Thread(target=self._accept, args=(listener, server, stack), name="recorder")
            accepting.start()
            try:
                yield
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                accepting.join(_LIMIT_S)
                listener.close()

    def begin(self) -> None:
        self._connections = []

    def save(self, key: str, picture: bytes) -> None:
        """Write the recording since `begin`, without repeated requests; `picture` replaces any other image."""
        sent = [bytes(data) for data in self._connections if data]
        is_grpc = any(data.startswith(PREFACE) for data in sent)
        requests = (_replace_image(picture, request) for data in sent for request in _requests(data))
        kept = (_shortened(data) for data in sent) if is_grpc else dict.fromkeys(requests)
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{key}{'.h2' if is_grpc else '.http'}").write_bytes(b"".join(kept))

    def _accept(self, listener: socket.socket, server: str, stack: ExitStack) -> None:
        with suppress(OSError):
            while True:
                client = stack.enter_context(listener.accept()[0])
                onward = stack.enter_context(_connect(server))
                onward.settimeout(None)
                self._connections.append(sent := bytearray())
                for source, target, kept in ((client, onward, sent), (onward, client, bytearray())):
                    thread = threading.Thread(target=_pump, args=(source, target, kept), name="recorder-pump")
                    thread.start()
                    stack.callback(thread.join, _LIMIT_S)
                    stack.callback(_shut, source)


def _replace_image(picture: bytes, request: bytes) -> bytes:
    """Replace the base64 image that a manual's example contains, and correct Content-Length."""
    head, _, body = request.partition(b"\r\n\r\n")
    body = re.sub(rb'(?<="base64": ")[^"]+', base64.b64encode(picture), body)
    head = re.sub(rb"(?<=\r\nContent-Length: )\d+", str(len(body)).encode(), head)
    return head + b"\r\n\r\n" + body


def _pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            target.sendall(data)
    _shut(target)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _shortened(connection: bytes) -> bytes:
    """Truncate a connection after _MAX_CALLS calls or _MAX_FRAMES frames."""
    at = calls = 0
    for number, (frame, end) in enumerate(_frames(connection, len(PREFACE))):
        if calls == _MAX_CALLS or number == _MAX_FRAMES:
            break
        at, calls = end, calls + ("END_STREAM" in frame.flags)
    return connection[:at] if calls else b""
