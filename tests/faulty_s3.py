"""A real S3 server in a process of its own (moto's), and a proxy before it that injects faults and counts requests."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedIOBase

from support import reserved_port

FAULTS = ("busy", "torn", "lost", "silent", "slow")
"""busy: 503 SlowDown, nothing done. torn: cut off in the middle of the request. lost: done, and the connection is cut
before the answer. silent: done, and no answer until the client gives up. slow: done, and answered later."""

BUCKET = "pages"
START_S = 60.0
_BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
    b"</Message></Error>"
)


@dataclass
class Plan:
    """Which requests meet which fault: a share `rate` of those whose first line has `match`, drawn from `kinds`.

    `next_faults` are met by the next requests first; `silent_s` and `slow_s` are how long no answer comes.
    """

    rate: float = 0.0
    kinds: tuple[str, ...] = FAULTS
    silent_s: float = 2.0
    slow_s: float = 0.2
    match: str = ""
    next_faults: list[str] = field(default_factory=list)


class FaultyS3:
    """The proxy before the server at the port `upstream`; its plan may be changed at any time."""

    def __init__(self, upstream: int, plan: Plan | None = None, seed: int = 1) -> None:
        self.plan = plan or Plan()
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._connections: set[socket.socket] = set()
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                proxy._connections.add(self.connection)
                with suppress(OSError):
                    while proxy.pass_on(self.rfile, self.connection, upstream):
                        pass

        class Proxy(socketserver.ThreadingTCPServer):
            # Closing waits for the threads.
            daemon_threads, block_on_close, allow_reuse_address, request_queue_size = False, True, True, 128

        self._server = Proxy(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        """For clients."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        for connection in list(self._connections):
            _cut(connection)
        self._server.server_close()
        self._thread.join()

    def pass_on(self, client: BufferedIOBase, connection: socket.socket, upstream: int) -> bool:
        """One request and its answer; whether another may follow on the connection."""
        head = _read_head(client)
        if not head:
            return False
        fault = self._fault_of(head)
        size = _length_of(head)
        if b"100-continue" in head.lower():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault == "torn":
            client.read(size // 2)
            return _cut(connection)
        body = client.read(size)
        if fault == "busy":
            kind = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: "
            connection.sendall(kind + str(len(_BUSY)).encode() + b"\r\n\r\n" + (b"" if _is_head(head) else _BUSY))
            return True
        answer = _ask(upstream, head, body)
        if fault in ("lost", "silent"):
            if fault == "silent":
                time.sleep(self.plan.silent_s)
            return _cut(connection)
        if fault == "slow":
            time.sleep(self.plan.slow_s)
        connection.sendall(answer)
        return True

    def _fault_of(self, head: bytes) -> str:
        line = head.partition(b"\r\n")[0].decode("latin-1")
        with self._lock:
            self.requests[_kind_of(line)] += 1
            plan, fault = self.plan, ""
            if plan.match in line:
                if plan.next_faults:
                    fault = plan.next_faults.pop(0)
                elif self._random.random() < plan.rate:
                    fault = self._random.choice(plan.kinds)
            self.faults[fault] += bool(fault)
            return fault


@contextmanager
def s3_server() -> Iterator[int]:
    """The port of a server that holds one empty bucket, `BUCKET`."""
    import boto3

    program = [sys.executable, "-W", "ignore", "-c", "from moto.server import main; main()", "-H", "127.0.0.1"]
    with reserved_port() as port:
        server = subprocess.Popen([*program, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, server)
            client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **KEYS)
            client.create_bucket(Bucket=BUCKET)
            client.close()
            yield port
        finally:
            server.kill()
            server.wait()


@contextmanager
def fsspec_threads() -> Iterator[None]:
    """fsspec's event loop, which lives as long as a process, with its threads; ended at the end."""
    from fsspec import asyn

    loop = asyn.get_loop()
    names = ThreadPoolExecutor(1, "fsspec names")
    names.submit(int).result()
    loop.call_soon_threadsafe(loop.set_default_executor, names)
    try:
        yield
    finally:
        # File systems close their connections when they are collected, in the loop.
        gc.collect()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        asyn.iothread[0].join(5)
        loop.close()
        asyn.reset_lock()


KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "notsecret"}


def environment(url: str) -> Mapping[str, str]:
    """What a client needs to talk to the server at this URL."""
    return {
        "AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("The S3 server does not start")


def _read_head(client: BufferedIOBase) -> bytes:
    lines = []
    while line := client.readline(65536):
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _length_of(head: bytes) -> int:
    match = re.search(rb"(?im)^content-length: *(\d+)", head)
    return int(match[1]) if match else 0


def _is_head(head: bytes) -> bool:
    return head.startswith(b"HEAD ")


def _kind_of(line: str) -> str:
    method = line.partition(" ")[0]
    if method == "GET" and ("list-type=" in line or "uploads" in line):
        return "LIST"
    return "DELETE" if method == "POST" and "delete" in line else method


def _ask(port: int, head: bytes, body: bytes) -> bytes:
    """The whole answer of the real server."""
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"expect:"))]
    with socket.create_connection(("127.0.0.1", port), 30) as server:
        server.sendall(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]) + body)
        answer = b"".join(iter(lambda: server.recv(1 << 20), b""))
    return re.sub(rb"(?im)^connection: close\r\n", b"", answer, count=1)


def _cut(connection: socket.socket) -> bool:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    return False
