"""Hostile gRPC clients: memory and time are bounded, and their connections are closed."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_support import MESSAGES, V2, calling, unary
from hostile_frames import FLOODS, FRAMES, GOAWAY, HELD
from hostile_wire import MakePieces
from support import Server, run_server, wait_until

CONNECTIONS = 20
# A few connections suffice for clients that cost only time; the benchmark runs 20 of each.
FEW_CONNECTIONS = 4
MEMORY = {"continuations", "large_continuations", "large_metadata", "large_messages", "beginnings"}
FLOODING_FRAMES = (
    *("continuations", "empty_continuations", "empty_data", "settings", "pings", "priorities", "windows"),
    *("unknown_frames", "resets", "header_bomb"),
)
ENDED = {name: FRAMES[name].pieces for name in FLOODING_FRAMES} | dict(FLOODS)
SIZE_BYTES = 8 << 20
MAX_GROWTH_BYTES = 200 << 20
MAX_RETAINED_BYTES = 64 << 20
ENHANCE_YOUR_CALM, FRAME_SIZE_ERROR = 11, 6
# On an idle machine a health check takes far less than 1 s.
MAX_HEALTH_CHECK_S = 10.0
PATIENCE_S = 60.0


class Service:
    """A running service with one worker, and the worker's memory."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.port = int(server.wait_for(r"Listening for gRPC at: 127.0.0.1:(\d+)")[1])
        self.worker = server.workers()[0]
        self.idle_bytes = self.rss_bytes()

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.worker}/statm").read_text().split()[1]) * 4096


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with run_server({"OCRSVC_GRPC_BIND": "127.0.0.1:0", "OCRSVC_WORKERS": "1"}) as server:
        server.wait_for("READY")
        yield Service(server)


class Client:
    """A hostile client that sends as fast as flow control permits and reads every answer."""

    def __init__(self, port: int, pieces: Iterator[bytes]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.sock.setblocking(False)
        self.pieces = pieces
        self.unsent = b""
        self.received = bytearray()
        self.ended = False

    def step(self) -> bool:
        """Send and read once; returns whether bytes remain to be sent."""
        try:
            while not self.ended and (data := self.sock.recv(1 << 16)):
                self.received += data
            self.ended = True
        except BlockingIOError:
            pass
        except ConnectionError:
            self.ended = True
        self.unsent = self.unsent or next(self.pieces, b"")
        if self.ended or not self.unsent:
            return False
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        return True

    def goaway_codes(self) -> set[int]:
        at, found = 0, set()
        while at + 17 <= len(self.received):
            if self.received[at + 3] == GOAWAY:
                found.add(int.from_bytes(self.received[at + 13 : at + 17]))
            at += 9 + int.from_bytes(self.received[at : at + 3])
        return found


def run_clients(service: Service, name: str, make: MakePieces, *, ended: bool) -> tuple[list[Client], int, float]:
    """Run several clients at once; returns them, the peak memory in bytes, and the slowest health check in s."""
    count = CONNECTIONS if name in MEMORY else FEW_CONNECTIONS
    clients = [Client(service.port, iter(make(SIZE_BYTES))) for _ in range(count)]
    peak_bytes, longest_s, checked_s, end_s = 0, 0.0, 0.0, time.monotonic() + PATIENCE_S
    with calling(service.port, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        live = unary(channel, V2 + "ServerLive", "inference.ServerLiveResponse")
        under_way = list(clients)
        while under_way and time.monotonic() < end_s:
            under_way = [client for client in under_way if client.step() or (ended and not client.ended)]
            sockets = [client.sock for client in under_way]
            select.select(sockets, [client.sock for client in under_way if client.unsent], [], 0.01)
            if time.monotonic() - checked_s > 0.1:
                checked_s = time.monotonic()
                assert live(MESSAGES["inference.ServerLiveRequest"](), timeout=PATIENCE_S).live
                longest_s = max(longest_s, time.monotonic() - checked_s)
            peak_bytes = max(peak_bytes, service.rss_bytes())
    return clients, peak_bytes, longest_s


def check(service: Service, name: str, make: MakePieces, *, ended: bool) -> list[Client]:
    clients, peak_bytes, longest_s = run_clients(service, name, make, ended=ended)
    try:
        assert peak_bytes - service.idle_bytes <= MAX_GROWTH_BYTES
        assert longest_s <= MAX_HEALTH_CHECK_S
        if ended:
            assert all(client.ended for client in clients)
    finally:
        for client in clients:
            client.sock.close()
    wait_until(lambda: service.rss_bytes() - service.idle_bytes <= MAX_RETAINED_BYTES, "the memory is released")
    return clients


@pytest.mark.parametrize("name", ENDED)
def test_floods_and_endless_requests_are_cut_off(service: Service, name: str) -> None:
    clients = check(service, name, ENDED[name], ended=True)
    # A client that is still sending may lose its GOAWAY frame, but not all clients do.
    assert set().union(*(client.goaway_codes() for client in clients)) & {ENHANCE_YOUR_CALM, FRAME_SIZE_ERROR}


@pytest.mark.parametrize("name", HELD)
def test_held_memory_is_bounded_and_released(service: Service, name: str) -> None:
    check(service, name, HELD[name], ended=False)
