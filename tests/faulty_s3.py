"""A real S3 server (moto) in another process, behind a proxy that injects faults and counts requests."""

import asyncio
import gc
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support import reserved_port, wait_until

FAULTS = ("busy", "torn", "lost", "silent", "slow")
"""busy: answer 503 SlowDown without executing the request. torn: cut the connection in the middle of the request.
lost: execute the request, then cut the connection. silent: the same after `silent_s`. slow: answer after `slow_s`."""

BUCKET = "pages"
_BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
    b"</Message></Error>"
)


@dataclass
class Plan:
    """Which requests fail, and how: the share `rate` of those whose first line contains `match`, with one of `kinds`.

    The next requests get `next_faults` first. `silent_s` and `slow_s` are the delays of the faults of that name.
    """

    rate: float = 0.0
    kinds: tuple[str, ...] = FAULTS
    silent_s: float = 2.0
    slow_s: float = 0.2
    match: str = ""
    next_faults: list[str] = field(default_factory=list)


class FaultyS3:
    """The proxy before the server on port `upstream`; `plan` may be replaced at any time."""

    def __init__(self, upstream: int, plan: Plan | None = None, seed: int = 1) -> None:
        self.plan = plan or Plan()
        self.requests: Counter[str] = Counter()
        self.conditions: list[str] = []
        self.faults: Counter[str] = Counter()
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._connections: set[socket.socket] = set()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                proxy._connections.add(self.connection)
                with suppress(OSError):
                    super().handle()

            def pass_on(self) -> None:
                proxy._pass_on(self, upstream)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815  names of the base class

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # server_close() joins the threads of the requests.
        self._server.daemon_threads, self._server.block_on_close = False, True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        for connection in list(self._connections):
            _cut(connection)
        self._server.server_close()
        self._thread.join()

    def _pass_on(self, client: BaseHTTPRequestHandler, upstream: int) -> None:
        """Forward one request and its answer, or inject a fault."""
        fault = self._fault_of(client.command, client.requestline)
        size = int(client.headers.get("Content-Length", 0))
        body = client.rfile.read(size // 2 if fault == "torn" else size)
        self.conditions += client.headers.get_all("If-None-Match", [])
        if fault == "busy":
            return _answer(client, 503, {"Content-Type": "application/xml", "Content-Length": str(len(_BUSY))}, _BUSY)
        if fault != "torn":
            server = HTTPConnection("127.0.0.1", upstream, timeout=30)
            with closing(server):
                server.request(client.command, client.path, body, dict(client.headers))
                response = server.getresponse()
                data = response.read()
            if fault in ("silent", "slow"):
                time.sleep(self.plan.silent_s if fault == "silent" else self.plan.slow_s)
            if fault not in ("lost", "silent"):
                return _answer(client, response.status, dict(response.getheaders()), data)
        client.close_connection = True
        return _cut(client.connection)

    def _fault_of(self, method: str, line: str) -> str:
        with self._lock:
            is_listing = method == "GET" and ("list-type=" in line or "uploads" in line)
            is_delete = method == "POST" and "delete" in line
            self.requests["LIST" if is_listing else "DELETE" if is_delete else method] += 1
            plan, fault = self.plan, ""
            if plan.match in line:
                if plan.next_faults:
                    fault = plan.next_faults.pop(0)
                elif self._random.random() < plan.rate:
                    fault = self._random.choice(plan.kinds)
            self.faults[fault] += bool(fault)
            return fault


def _answer(client: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], body: bytes) -> None:
    client.send_response(status)
    for name, value in headers.items():
        if name.lower() not in ("connection", "transfer-encoding", "content-length"):
            client.send_header(name, value)
    length = next((value for name, value in headers.items() if name.lower() == "content-length"), str(len(body)))
    client.send_header("Content-Length", length)
    client.end_headers()
    if client.command != "HEAD":
        client.wfile.write(body)


@contextmanager
def s3_server() -> Iterator[int]:
    """Run a server with one empty bucket, `BUCKET`; yields its port."""
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
    """Start fsspec's event loop and threads, and end them after the block; fsspec itself never does."""
    from fsspec import asyn

    loop = asyn.get_loop()
    names = ThreadPoolExecutor(1, "fsspec names")
    names.submit(int).result()
    loop.call_soon_threadsafe(loop.set_default_executor, names)
    try:
        yield
    finally:
        # Collected file systems close their connections in the event loop.
        gc.collect()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        asyn.iothread[0].join(5)
        loop.close()
        asyn.reset_lock()


KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "notsecret"}


def environment(url: str) -> Mapping[str, str]:
    """The environment variables with which an S3 client uses the server at this URL."""
    keys = {name.upper(): value for name, value in KEYS.items()}
    return {**keys, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert server.poll() is None, "the S3 server has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_until(listens, "the S3 server listens")


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
