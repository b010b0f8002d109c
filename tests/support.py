"""Starts the real service for tests: a real gunicorn on a real socket, with the fake engine unless asked otherwise."""

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
# The corpus and the recordings, which lie beside the repository.
SHARED = Path(os.environ.get("OCRSVC_SHARED", ROOT.parent / "shared"))
SERVE = ("gunicorn", "-c", "gunicorn.conf.py", "wsgi:app")
_STOP_S = 60.0
_START_S = 60.0
_SOON_S = 60.0
_ANSWER_S = 30.0


class Clock:
    """Seconds that stand still until a test moves them."""

    def __init__(self, now_s: float = 10.0**7) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def data_of(name: str) -> Any:
    """What a YAML file of tests/data holds."""
    return yaml.safe_load((ROOT / "tests" / "data" / f"{name}.yaml").read_text("utf-8"))


def filled(value: Any, **texts: str) -> Any:
    """A value of such a file with these texts in place of their names, which stand behind a dollar sign."""
    if isinstance(value, dict):
        return {key: filled(each, **texts) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, **texts) for each in value]
    return Template(value).safe_substitute(texts) if isinstance(value, str) else value


def wait_until(is_so: Callable[[], T], what: str = "what is waited for", within_s: float = _SOON_S) -> T:
    """What the condition gives as soon as it is true; fails when it is not in time."""
    end_s = time.monotonic() + within_s
    while not (found := is_so()):
        assert time.monotonic() < end_s, f"never: {what}"
        threading.Event().wait(0.01)
    return found


@contextmanager
def reserved_port() -> Iterator[int]:
    """A TCP port of 127.0.0.1 that nobody listens on, and that nobody else is given while the block runs.

    Who binds it by its number gets it, if it sets SO_REUSEADDR as servers do.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])


@contextmanager
def repeating(call: Callable[[], object], threads: int = 1) -> Iterator[None]:
    """Threads that call at most 50 times a second while the block runs; `call` raises nothing."""
    done = threading.Event()

    def call_on() -> None:
        while not done.wait(0.02):
            call()

    started = [threading.Thread(target=call_on) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in started:
            thread.join()


def read_to_end(wire: socket.socket) -> bytes:
    """All bytes until the other side closes or resets the connection."""
    answer = bytearray()
    with suppress(ConnectionResetError):
        while piece := wire.recv(1 << 16):
            answer += piece
    return bytes(answer)


def read_data(name: str) -> Any:
    """The JSON of a file in tests/data."""
    return json.loads((ROOT / "tests" / "data" / name).read_text("utf-8"))


def process_state(pid: int) -> str:
    """The state that /proc gives for a process, such as R, S and Z; empty when there is none."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    return ""


def clean_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without its OCRSVC_ variables, with the checkout importable, and with `env` on top.

    Requests may be for any host, because many here are written by hand.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCRSVC_")}
    return inherited | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OCRSVC_HOSTS": "*"} | dict(env or {})


def run_program(
    *args: object, env: Mapping[str, str] | None = None, python: str = sys.executable, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with the fake engine unless `env` names another; what it has printed."""
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
    """The command line in a process of its own, with the fake engine."""
    return run_program("-m", "ocrsvc", *args, env=env, python=python)


class Server:
    """A started service: its arbiter, and the `lines` of stdout and stderr so far; `prefix` goes before the command."""

    def __init__(
        self,
        module_and_args: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        python: str = sys.executable,
        prefix: Sequence[str] = (),
    ) -> None:
        # A session of its own, so that nothing can be left behind when a test has to end it by force.
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
        self._news = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._follow, name="server-log")
        self._thread.start()

    @property
    def pid(self) -> int:
        """The arbiter's process id."""
        return self.process.pid

    @property
    def log(self) -> str:
        """What was written so far."""
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT, or https://, as gunicorn says it."""
        found = self.wait_for(r"Listening at: (https?://[^\s,]+)")
        return found[1]

    @property
    def address(self) -> tuple[str, int]:
        """Of `url`."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def connect(self) -> socket.socket:
        """A plain connection."""
        return socket.create_connection(self.address, timeout=_ANSWER_S)

    def wait_for(self, pattern: str, *, count: int = 1, timeout_s: float = _START_S) -> re.Match[str]:
        """The `count`th match of a pattern in the log; fails when the process ends or the time passes before."""
        with self._news:
            self._news.wait_for(lambda: self._ended or len(self._matches(pattern)) >= count, timeout_s)
        matches = self._matches(pattern)
        assert len(matches) >= count, f"no {pattern!r} in:\n{self.log}"
        return matches[count - 1]

    def workers(self) -> list[int]:
        """Process ids of the workers that live now."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def metric(self, name: str) -> float:
        """The sum of a metric's series, or of the one that is named with its labels, by /metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=_START_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def wait_for_exit(self, timeout_s: float = _STOP_S) -> int:
        """The exit code; fails when the arbiter does not end in time."""
        code = self.process.wait(timeout_s)
        self._thread.join(timeout_s)
        return code

    def stop(self) -> int:
        """Ask the arbiter to end gracefully; its exit code. Kills the session if it does not."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.wait_for_exit()
        finally:
            self.kill()

    def kill(self) -> None:
        """End whatever is left of the session at once, and close what the test holds of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(_STOP_S)
        self._thread.join(_STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _matches(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in list(self.lines) if (match := re.search(pattern, line))]

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


@contextmanager
def start_server(
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    *,
    command: Sequence[str] = SERVE,
    cwd: Path = ROOT,
    python: str = sys.executable,
) -> Iterator[Server]:
    """A service that was started, on a free port, and need not be ready; what is left of it ends with the block."""
    flags = ("-b", "127.0.0.1:0", *args)
    server = Server([*command, *flags], {"OCRSVC_ENGINE": "fake", **(env or {})}, cwd, python)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def run_server(env: Mapping[str, str] | None = None, args: Sequence[str] = ()) -> Iterator[Server]:
    """A service whose first worker is ready; stops gracefully when the block ends, and must then end with code 0."""
    with start_server(env, args) as server:
        server.wait_for("READY in")
        yield server
        assert server.stop() == 0, server.log


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing, and says how long its answers are."""

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
    """The URL of a server that answers by a handler, each request in a thread, while the block runs."""
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
    """The address of a server that answers these headers and this body so; None breaks the connection."""
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
    """The URL of a server of an application, each request in a thread, while the block runs."""
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
    """The malformed inputs of the classes that are wanted, each with the statuses that it may end in."""
    manifest = SHARED / "bad" / "manifest.jsonl"
    rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()] if manifest.exists() else []
    return [(SHARED / "bad" / row["file"], row["expect"]) for row in rows if is_wanted(row["class"])]


@contextmanager
def page_handle(threads: int = 1) -> Iterator[PageHandle]:
    """The default engine's handle in this process, in single precision, whatever the processor has."""
    from ocrsvc.engines.ppocr.engine import PpocrEngine
    from ocrsvc.engines.ppocr.runtime.session import SessionConfig

    engine = PpocrEngine(SessionConfig("cpu"), engine_threads=threads)
    handle = engine.open_handle()
    yield handle
    handle.close()
    engine.close()


def build_wheel(folder: Path) -> Path:
    """The wheel of the sources in a folder, built there."""
    code = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [found] = (folder / "dist").glob("*.whl")
    return found
