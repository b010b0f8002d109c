"""Starts the real service for tests: gunicorn on a real socket, by default with the fake engine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import yaml
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from ocrsvc.engines.ppocr.engine import PageHandle

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
# The folder of the corpus and the recordings, by default beside the repository.
SHARED = Path(os.environ.get("OCRSVC_SHARED", ROOT.parent / "shared"))
SERVE = ("gunicorn", "-c", "gunicorn.conf.py", "wsgi:app")
_STOP_S = 60.0
_START_S = 60.0
_WAIT_S = 60.0
_ANSWER_S = 30.0


class Clock:
    """A clock that advances only when a test changes `now_s`."""

    def __init__(self, now_s: float = 10.0**7) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def data_of(name: str) -> Any:
    """Parse tests/data/NAME.yaml."""
    return yaml.safe_load((ROOT / "tests" / "data" / f"{name}.yaml").read_text("utf-8"))


def filled(value: Any, **texts: str) -> Any:
    """Replace each $NAME in the strings of a nested value by the text of that name."""
    if isinstance(value, dict):
        return {key: filled(each, **texts) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, **texts) for each in value]
    return Template(value).safe_substitute(texts) if isinstance(value, str) else value


def wait_until(condition: Callable[[], T], what: str = "the condition", within_s: float = _WAIT_S) -> T:
    """Poll a condition and return its first true value; fails after `within_s` seconds."""
    end_s = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"timed out waiting: {what}"
        threading.Event().wait(0.01)
    return found


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 without a listener that the kernel gives to no other process while the block runs.

    A server can bind it by number if it sets SO_REUSEADDR, as servers usually do.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield int(reserved.getsockname()[1])


@contextmanager
def repeating(call: Callable[[], object], threads: int = 1) -> Iterator[None]:
    """Run threads that each call `call` at most 50 times a second while the block runs; it must not raise."""
    done = threading.Event()

    def call_repeatedly() -> None:
        while not done.wait(0.02):
            call()

    started = [threading.Thread(target=call_repeatedly) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in started:
            thread.join()


def read_to_end(wire: socket.socket) -> bytes:
    """Read until the peer closes or resets the connection."""
    answer = bytearray()
    with suppress(ConnectionResetError):
        while piece := wire.recv(1 << 16):
            answer += piece
    return bytes(answer)


def read_data(name: str) -> Any:
    """Parse a JSON file of tests/data."""
    return json.loads((ROOT / "tests" / "data" / name).read_text("utf-8"))


def process_state(pid: int) -> str:
    """The process state in /proc, such as R, S or Z; empty if the process does not exist."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    return ""


def clean_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without OCRSVC_ variables, with the checkout on PYTHONPATH, updated by `env`.

    OCRSVC_HOSTS accepts any Host header, because many tests write requests by hand.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCRSVC_")}
    return inherited | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OCRSVC_HOSTS": "*"} | dict(env or {})


def run_program(
    *args: object, env: Mapping[str, str] | None = None, python: str = sys.executable, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python in a subprocess, by default with the fake engine, and capture its output."""
    return subprocess.run(
        [python, *map(str, args)],
        env=clean_environment({"OCRSVC_ENGINE": "fake", **(env or {})}),
        cwd=ROOT,
        text=True,
        timeout=120,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how,
    )


def ocrsvc(*args: object, python: str = sys.executable, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the ocrsvc command in a subprocess with the fake engine."""
    return run_program("-m", "ocrsvc", *args, env=env, python=python)


class Server:
    """A running service: its arbiter process and the `lines` of its output so far; `prefix` precedes the command."""

    def __init__(
        self,
        module_and_args: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        python: str = sys.executable,
        prefix: Sequence[str] = (),
    ) -> None:
        # A new session, so that kill() ends every process of the service.
        self.process = subprocess.Popen(
            [*prefix, python, "-m", *module_and_args],
            env=clean_environment(env),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read_output, name="server-log")
        self._thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """The output so far, stdout and stderr."""
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        """The service's URL from gunicorn's log."""
        found = self.wait_for(r"Listening at: (https?://[^\s,]+)")
        return found[1]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `url`."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def connect(self) -> socket.socket:
        """Open a TCP connection without TLS."""
        return socket.create_connection(self.address, timeout=_ANSWER_S)

    def wait_for(self, pattern: str, *, count: int = 1, timeout_s: float = _START_S) -> re.Match[str]:
        """Wait for the `count`th line that matches; fails if the process ends or the time runs out first."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._matches(pattern)) >= count, timeout_s)
        matches = self._matches(pattern)
        assert len(matches) >= count, f"no {pattern!r} in:\n{self.log}"
        return matches[count - 1]

    def workers(self) -> list[int]:
        """Process ids of the current workers."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def metric(self, name: str) -> float:
        """Sum of a metric's series in /metrics, or the value of one series NAME{LABELS}."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=_START_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def wait_for_exit(self, timeout_s: float = _STOP_S) -> int:
        """Wait for the arbiter to exit and return its exit code."""
        code = self.process.wait(timeout_s)
        self._thread.join(timeout_s)
        return code

    def stop(self) -> int:
        """Send SIGTERM and return the exit code; kills the session if the arbiter does not exit in time."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.wait_for_exit()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill all processes of the session and close its output."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(_STOP_S)
        self._thread.join(_STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _matches(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in list(self.lines) if (match := re.search(pattern, line))]

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


@contextmanager
def start_server(
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    *,
    command: Sequence[str] = SERVE,
    cwd: Path = ROOT,
    python: str = sys.executable,
) -> Iterator[Server]:
    """Start a service on a free port without waiting until it is ready; kill it when the block ends."""
    flags = ("-b", "127.0.0.1:0", *args)
    server = Server([*command, *flags], {"OCRSVC_ENGINE": "fake", **(env or {})}, cwd, python)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def run_server(env: Mapping[str, str] | None = None, args: Sequence[str] = ()) -> Iterator[Server]:
    """A service with a ready worker; when the block ends, it must stop gracefully with exit code 0."""
    with start_server(env, args) as server:
        server.wait_for("READY in")
        yield server
        assert server.stop() == 0, server.log


class QuietHandler(BaseHTTPRequestHandler):
    """Sends Content-Length and logs nothing."""

    def answer(self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def http_server(
    handler: Callable[..., BaseHTTPRequestHandler], host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Run an HTTP server with this handler, one thread per request, and yield its URL."""
    with ThreadingHTTPServer((host, port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


Reply = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@contextmanager
def replying(reply: Callable[[Message, bytes], Reply | None]) -> Iterator[str]:
    """Run a server that answers with `reply(headers, body)` and yield its URL; None closes the connection."""
    lock = threading.Lock()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                answer = reply(self.headers, body)
            if answer is None:
                self.close_connection = True
                return
            self.answer(answer[0], answer[2], answer[1])

        do_GET = do_POST  # noqa: N815  the contract's

    with http_server(Handler) as url:
        yield url


@contextmanager
def wsgi_server(app: WSGIApplication) -> Iterator[str]:
    """Serve a WSGI application, one thread per request, and yield its URL."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def malformed_files(is_wanted: Callable[[str], bool]) -> list[tuple[Path, list[int]]]:
    """The malformed files of the wanted classes, each with the HTTP statuses that may answer it."""
    manifest = SHARED / "bad" / "manifest.jsonl"
    rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()] if manifest.exists() else []
    return [(SHARED / "bad" / row["file"], row["expect"]) for row in rows if is_wanted(row["class"])]


@contextmanager
def page_handle(threads: int = 1) -> Iterator[PageHandle]:
    """A handle of the default engine in this process, always in single precision."""
    from ocrsvc.engines.ppocr.engine import PpocrEngine
    from ocrsvc.engines.ppocr.runtime.session import SessionConfig

    engine = PpocrEngine(SessionConfig("cpu"), engine_threads=threads)
    handle = engine.open_handle()
    yield handle
    handle.close()
    engine.close()


def build_wheel(folder: Path) -> Path:
    """Build a wheel of the sources in `folder`; returns its path."""
    code = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [found] = (folder / "dist").glob("*.whl")
    return found
