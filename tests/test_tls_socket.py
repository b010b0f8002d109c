"""The non-blocking TLS socket: handshakes, records, close_notify, and misbehaving clients."""

import logging
import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tls_support import Authority

from ocrsvc.connections.certificates import HTTP, TlsFiles, make_context
from ocrsvc.connections.tls_socket import HANDSHAKE_BYTES, MAX_UNSENT_BYTES, Handshakes, NotTls, TlsSocket
from ocrsvc.telemetry.metrics_store import MetricsStore

Wires = tuple[socket.socket, socket.socket]


class Client:
    """The client end, also non-blocking: the test moves its bytes between TLS and the socket."""

    def __init__(self, wire: socket.socket, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self.wire = wire
        self.is_closed = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost", session=session)
        wire.setblocking(False)

    def receive(self) -> None:
        with suppress(BlockingIOError):
            while got := self.wire.recv(1 << 20):
                self._incoming.write(got)

    def step(self) -> None:
        self.receive()
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.wire.send(self._outgoing.read())

    def write(self, data: bytes) -> None:
        """Send data together with unsent handshake bytes."""
        self.tls.write(data)
        self.wire.send(self._outgoing.read())

    def read(self) -> bytes:
        """Read everything received; sets `is_closed` after close_notify."""
        self.receive()
        found = b""
        with suppress(ssl.SSLWantReadError):
            while got := self.tls.read(1 << 14):
                found += got
            self.is_closed = True
        return found


Pair = tuple[TlsSocket, Client]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def wires() -> Iterator[Wires]:
    with closing_pair() as pair:
        yield pair


@pytest.fixture
def unconnected(authority: Authority, wires: Wires) -> Pair:
    return TlsSocket(wires[0], make_context(authority.issue(), HTTP)), Client(wires[1], authority.client())


@pytest.fixture
def connected(unconnected: Pair) -> Pair:
    server, client = unconnected
    client.step()
    assert not server.handshake()
    client.step()
    assert server.handshake()
    return server, client


def test_a_request_sent_with_the_end_of_the_handshake_is_received(unconnected: Pair) -> None:
    server, client = unconnected
    client.step()
    assert not server.handshake()
    client.receive()
    client.tls.do_handshake()
    client.write(b"GET /healthz")
    assert server.handshake()
    assert server.recv(8192) == b"GET /healthz"


def test_recv_returns_all_decrypted_bytes(connected: Pair) -> None:
    server, client = connected
    for _ in range(50):
        client.write(b"x")
    # recv returns more than asked for: the poller would not report bytes that stay in the TLS buffer.
    assert server.recv(10) == 50 * b"x"


def test_unsent_bytes_are_bounded_and_sent_later(connected: Pair) -> None:
    server, client = connected
    sent, data = 0, bytes(range(256)) * 40_000
    while sent < len(data):
        try:
            taken = server.send(data[sent:])
        except BlockingIOError:
            break
        sent += taken
        if server.unsent_bytes:
            break
    assert 0 < sent < len(data)
    assert 0 < server.unsent_bytes <= MAX_UNSENT_BYTES + (1 << 15)
    found = client.read()
    while server.unsent_bytes:
        with suppress(BlockingIOError):
            server.flush()
        found += client.read()
    assert found == data[:sent]


def test_a_forged_record_breaks_the_connection(connected: Pair) -> None:
    server, client = connected
    client.wire.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(ssl.SSLError):
        server.recv(8192)


def hello(length: int, *, record_bytes: int = 512) -> bytes:
    return b"\x16\x03\x01" + record_bytes.to_bytes(2) + b"\x01" + length.to_bytes(3)


def handshake_to_the_end(server: TlsSocket) -> None:
    while not server.handshake():
        pass


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"GET / HTTP/1.1\r\n", NotTls),
        (b"PRI * HTTP/2.0\r\n", NotTls),
        (b"\x80\x2e\x01\x00\x02", NotTls),
        (hello(100_000), ssl.SSLError),
        (hello(512, record_bytes=1), ssl.SSLError),
        (hello(512) + bytes(600), ssl.SSLError),
        (b"", ConnectionResetError),
    ],
)
def test_other_protocols_end_immediately(unconnected: Pair, wires: Wires, sent: bytes, error: type[OSError]) -> None:
    server, _ = unconnected
    wires[1].send(sent)
    wires[1].shutdown(socket.SHUT_WR)
    with pytest.raises(error):
        handshake_to_the_end(server)


def test_a_handshake_that_never_ends_is_cut_off(unconnected: Pair, wires: Wires) -> None:
    server, _ = unconnected
    # A ClientHello split into records of one byte.
    wires[1].send(hello(1 << 14, record_bytes=4))
    assert not server.handshake()
    with pytest.raises(ssl.SSLError):
        send_repeatedly(server, wires[1], b"\x16\x03\x01\x00\x01\x00" * 1000)


def send_repeatedly(server: TlsSocket, wire: socket.socket, records: bytes) -> None:
    for _ in range(HANDSHAKE_BYTES):
        wire.send(records)
        server.handshake()


def test_malformed_client_hellos_are_refused_or_incomplete(authority: Authority) -> None:
    context, draw = make_context(authority.issue(), HTTP), random.Random(1)
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        authority.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    whole = outgoing.read()
    for number in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        here, there = socket.socketpair()
        with here, there:
            there.send(damaged[: draw.randrange(1, len(damaged))] if number % 5 == 0 else damaged)
            # Only OSError (including ssl.SSLError) is allowed.
            with suppress(OSError):
                assert not TlsSocket(here, context).handshake()


def shake_hands(handshakes: Handshakes, wires: Wires, client: Client) -> TlsSocket:
    server = handshakes.begin(wires[0])
    for _ in range(3):
        client.step()
        handshakes.begin_turn()
        if handshakes.advance(server, "127.0.0.1"):
            break
    return server


def test_a_resumed_session_does_not_outlive_the_clients_certificate(authority: Authority) -> None:
    own, theirs = authority.issue(), authority.issue("theirs", "loader.example", valid_days=(-1, 10))
    now_s = time.time()
    context, log = make_context(TlsFiles(own.certificate, own.key, authority.file), HTTP), logging.getLogger("test-tls")
    handshakes = Handshakes(lambda: context, (), MetricsStore().common, log, wall_clock=lambda: now_s)
    asking, session = authority.client(theirs), None
    asking.maximum_version = ssl.TLSVersion.TLSv1_2
    for is_resumed in (False, True):
        with closing_pair() as wires:
            client = Client(wires[1], asking, session)
            found = shake_hands(handshakes, wires, client)
            assert found.established
            assert client.tls.session_reused == is_resumed
            client.step()
            session = client.tls.session
            found.close()
    now_s += 11 * 86400
    with closing_pair() as wires, pytest.raises(ssl.SSLError, match="has expired"):
        shake_hands(handshakes, wires, Client(wires[1], asking, session))


@contextmanager
def closing_pair() -> Iterator[Wires]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other
