"""Slow and silent clients on real sockets do not delay other clients, as they do with gunicorn's gthread."""

import re
import resource
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import requests
from image_support import png
from support import Server, read_to_end, run_server, start_server

from ocrsvc.worker.event_loop import HEAD_S

_ANSWER_S = 30.0
# gunicorn's gthread blocks its loop for 2 s per slowly closing client, and one of its four threads for 5 s per silent
# client: 50 s for the 25 or 40 of them here.
_PROMPT_S = 8.0


def ask(wire: socket.socket, connection: str = "keep-alive") -> bytes:
    wire.sendall(f"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n\r\n".encode())
    return wire.recv(65536)


def seconds_of_a_request(server: Server) -> float:
    began_s = time.monotonic()
    assert requests.get(f"{server.url}/healthz", timeout=_ANSWER_S).status_code == 200
    return time.monotonic() - began_s


def test_silent_connections_use_no_thread(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(server.connect())
        assert seconds_of_a_request(server) < _PROMPT_S


def test_silent_connection_is_closed_at_the_limit(server: Server) -> None:
    began_s = time.monotonic()
    with server.connect() as silent:
        assert silent.recv(1) == b""
    assert HEAD_S - 0.5 < time.monotonic() - began_s < HEAD_S + 20


def test_late_request_on_a_silent_connection_is_answered(server: Server) -> None:
    with server.connect() as late:
        seconds_of_a_request(server)
        assert ask(late).startswith(b"HTTP/1.1 200 ")


def test_lingering_closes_do_not_block_the_loop(server: Server) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(server.connect()) for _ in range(25)]
        for wire in wires:
            assert ask(wire, "close").startswith(b"HTTP/1.1 200 ")
        assert seconds_of_a_request(server) < _PROMPT_S


def test_lingering_close_is_ended_at_its_limit(server: Server) -> None:
    with server.connect() as wire:
        assert ask(wire, "close").startswith(b"HTTP/1.1 200 ")
        while wire.recv(65536):
            pass
        end_s = time.monotonic() + _ANSWER_S
        with suppress(ConnectionError):
            while time.monotonic() < end_s:
                wire.sendall(b"x")
                threading.Event().wait(0.1)
        assert time.monotonic() < end_s - _ANSWER_S + 20


def test_input_after_the_last_response_does_not_reset_the_connection(server: Server) -> None:
    with server.connect() as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + bytes(200_000))
        assert read_to_end(wire).startswith(b"HTTP/1.1 200 ")


def keep_asking(server: Server, page: bytes, times: int) -> None:
    with requests.Session() as session:
        for _ in range(times):
            answer = session.post(f"{server.url}/v1/ocr", data=page, timeout=_ANSWER_S)
            assert answer.status_code == 200


def test_two_workers_share_keep_alive_clients() -> None:
    env = {"OCRSVC_WORKERS": "2", "OCRSVC_ENGINE_THREADS": "2", "OCRSVC_FAKE_LATENCY_S": "0.02"}
    with run_server({**env, "OCRSVC_LOG_LEVEL": "debug"}) as server:
        server.wait_for("READY in", count=2)
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda page: keep_asking(server, page, 60), [png()] * 20))
        # The last answers may arrive before their log lines.
        server.wait_for("POST /v1/ocr", count=20 * 60)
        served = Counter(re.findall(r"\[(\d+)\] \[DEBUG\] POST /v1/ocr", server.log))
    assert (sum(served.values()), len(served)) == (20 * 60, 2)
    assert min(served.values()) >= 0.45 * 20 * 60, served


def test_idle_connections_are_closed_when_the_worker_is_full() -> None:
    args = ("--worker-connections", "12", "--threads", "4")
    with run_server({"OCRSVC_WORKERS": "1"}, args) as server, ExitStack() as stack:
        for _ in range(12):
            assert ask(stack.enter_context(server.connect())).startswith(b"HTTP/1.1 200 ")
        assert seconds_of_a_request(server) < 5


def test_worker_without_free_descriptors_keeps_serving_and_logs_it() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with start_server({"OCRSVC_WORKERS": "1"}) as server:
        server.wait_for("READY in")
        [worker] = server.workers()
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (90, hard))
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(server.connect())
            server.wait_for("No connection can be accepted.*ulimit -n")
        assert seconds_of_a_request(server) < 15
        assert server.workers() == [worker]
        assert server.stop() == 0
