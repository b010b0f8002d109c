"""Starts a service for a benchmark, and sends single requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.processes import Processes

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 120.0
_STOP_LIMIT_S = 30.0
_LOG_TAIL_CHARACTERS = 3000


@dataclass(frozen=True, slots=True)
class Service:
    """A ready service: its URL and, if this benchmark started it, its arbiter's process id."""

    url: str
    pid: int | None

    @property
    def host(self) -> str:
        """The service's host name or address."""
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        """TCP port of the service."""
        return urlsplit(self.url).port or 80

    @property
    def processes(self) -> Processes:
        """The service's processes, for memory and processor time."""
        return Processes(self.pid)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; status 0 means that the connection broke."""

    status: int
    seconds: float
    text: str


def ask(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    content_type: str = "",
    limit_s: float = 60.0,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request on a new connection."""
    began_s = time.perf_counter()
    connection = connect(url, limit_s)
    try:
        kind = {"Content-Type": content_type} if content_type else {}
        connection.request(method, path, body, {**kind, **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        return Answer(response.status, time.perf_counter() - began_s, text)
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, time.perf_counter() - began_s, repr(error))
    finally:
        connection.close()


def connect(url: str, limit_s: float) -> http.client.HTTPConnection:
    """A connection to the service; https URLs use TLS without verification."""
    address = urlsplit(url)
    if address.scheme == "http":
        return http.client.HTTPConnection(address.netloc, timeout=limit_s)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(address.netloc, timeout=limit_s, context=context)


def form_with_file(data: bytes, filename: str, content_type: str) -> tuple[bytes, str]:
    """A multipart form with the field `file` and the given file name, unescaped; returns body and content type."""
    boundary = b"ocrsvc-benchmark"
    head = b'Content-Disposition: form-data; name="file"; filename="' + filename.encode() + b'"\r\n'
    head += b"Content-Type: " + content_type.encode() + b"\r\n\r\n"
    body = b"--" + boundary + b"\r\n" + head + data + b"\r\n--" + boundary + b"--\r\n"
    return body, f"multipart/form-data; boundary={boundary.decode()}"


def engine_of(url: str) -> dict[str, Any]:
    """The engine as /version describes it."""
    engine: dict[str, Any] = json.loads(ask(url, "GET", "/version").text)["engine"]
    return engine


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_until_ready(url: str, server: subprocess.Popen[bytes] | None, limit_s: float = START_LIMIT_S) -> None:
    """Return once /readyz answers 200; exit if the process ends or the time limit passes."""
    until_s = time.monotonic() + limit_s
    while ask(url, "GET", "/readyz", limit_s=5).status != 200:
        if time.monotonic() > until_s or (server is not None and server.poll() is not None):
            sys.exit(f"The service at {url} did not become ready.")
        time.sleep(0.1)


def end(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end gracefully; kill it if it does not."""
    server.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_STOP_LIMIT_S)
    server.kill()
    server.wait()


def settings_of(env: Mapping[str, str]) -> dict[str, str]:
    """The service's settings in the environment."""
    return {name: value for name, value in sorted(env.items()) if name.startswith("OCRSVC_")}


@contextlib.contextmanager
def started(env: Mapping[str, str] | None = None, root: Path = ROOT) -> Iterator[Service]:
    """Start the service on a free loopback port; `env` is added to this process's environment.

    `root` is the checkout to run. If the service does not start, the end of its log is printed.
    """
    chosen = os.environ | dict(env or {})
    url = f"{'https' if chosen.get('OCRSVC_TLS_CERTIFICATE') else 'http'}://127.0.0.1:{free_port()}"
    print(f"settings: {settings_of(chosen) or 'the defaults'}")
    chosen |= {"OCRSVC_BIND": urlsplit(url).netloc, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "wsgi:app"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, cwd=root, env=chosen, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_ready(url, server)
            yield Service(url, server.pid)
        except SystemExit:
            log.seek(0)
            print(log.read().decode("utf-8", "replace")[-_LOG_TAIL_CHARACTERS:])
            raise
        finally:
            end(server)


@contextlib.contextmanager
def started_or_at(url: str | None, pid: int | None = None, env: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Use the running service at `url` (arbiter `pid`, if known); without a URL, start one."""
    if url is None:
        with started(env) as service:
            yield service
        return
    wait_until_ready(url, None)
    print("settings: those of the running service")
    yield Service(url, pid)
