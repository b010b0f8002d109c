"""Measures some settings on this machine: starts a service on a free port and loads it with the user's pages."""

from __future__ import annotations

import http.client
import os
import re
import signal
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from ocrsvc.errors import OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.system.memory import read_rss_bytes
from ocrsvc.tuning.choice import Measurement, format_value
from ocrsvc.tuning.settings_to_try import SettingValues

_START_S: Final = 300.0
_STOP_S: Final = 90.0
_ANSWER_S: Final = 3700.0
_POLL_S: Final = 0.1
_LOG_TAIL: Final = 2000


@dataclass(frozen=True, slots=True)
class Load:
    """The image files that are sent in turn, how many requests are under way at once, and for how long."""

    pages: Sequence[bytes]
    clients: int
    seconds: float


def measure(command: Sequence[str], knobs: SettingValues, load: Load, environ: Mapping[str, str]) -> Measurement:
    """Start the service with these settings, which name the workers, warm it with a page a client, load it, and end it.

    The command gets `-b 127.0.0.1:0` besides, and the environment the settings. Raises OperatorError: it does not start.
    """
    own = {variable_of(name): format_value(value) for name, value in knobs.items()}
    # Its readiness is logged at this level.
    environ = {**environ, **own, variable_of("log_level"): "info"}
    # The clients here have no certificate.
    environ[variable_of("tls_clients")] = "optional"
    with _running([*command, "-b", "127.0.0.1:0"], environ, int(knobs["workers"])) as (url, process):
        _send(url, load, until_s=0.0)
        with _memory_watched(process.pid) as peak:
            began_s = time.monotonic()
            taken_s = _send(url, load, until_s=began_s + load.seconds)
            wall_s = time.monotonic() - began_s
    answered_s = sorted(seconds for seconds in taken_s if seconds is not None)
    p50_s, p95_s = (answered_s[int(part * len(answered_s))] if answered_s else wall_s for part in (0.5, 0.95))
    failed = len(taken_s) - len(answered_s)
    return Measurement(knobs, len(answered_s) / wall_s, p50_s, p95_s, max(peak), failed)


@contextmanager
def _running(
    command: Sequence[str], environ: Mapping[str, str], workers: int
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The service's address and process, once all its workers are ready."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603  our own command
        try:
            yield _wait_until_ready(process, log, workers), process
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: IO[bytes], workers: int) -> str:
    end_s = time.monotonic() + _START_S
    while True:
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
        found = re.search(r"Listening at: (https?://127\.0\.0\.1:\d+)", text)
        if found and text.count("READY in") >= workers:
            return found[1]
        if process.poll() is not None or time.monotonic() > end_s:
            raise OperatorError(
                f"The service does not start with these settings. The end of its log:\n{text[-_LOG_TAIL:]}",
                "Try `ocrsvc check`.",
            )
        time.sleep(_POLL_S)


def _send(url: str, load: Load, until_s: float) -> list[float | None]:
    """How long each answer took, None for one that failed; each client sends a page at least, and until this time."""
    pages = cycle(load.pages)
    with ThreadPoolExecutor(load.clients) as pool:
        clients = [pool.submit(_client, url, pages, until_s) for _ in range(load.clients)]
    return [seconds for client in clients for seconds in client.result()]


def _client(url: str, pages: Iterator[bytes], until_s: float) -> list[float | None]:
    connection = _connection(url)
    taken_s: list[float | None] = []
    while not taken_s or time.monotonic() < until_s:
        began_s = time.monotonic()
        is_read = _post(connection, next(pages))
        taken_s.append(time.monotonic() - began_s if is_read else None)
    connection.close()
    return taken_s


def _connection(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    if address.scheme == "http":
        return http.client.HTTPConnection(address.netloc, timeout=_ANSWER_S)
    # This process has started the service: there is nobody else to be taken for it.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(address.netloc, timeout=_ANSWER_S, context=context)


def _post(connection: http.client.HTTPConnection, page: bytes) -> bool:
    try:
        connection.request("POST", "/v1/ocr", page, {"Content-Type": "application/octet-stream"})
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return False
    return response.status == http.client.OK


@contextmanager
def _memory_watched(pid: int) -> Iterator[list[int]]:
    """The sums of resident memory of a process and all below it, looked at ten times a second."""
    sums, done = [_family_bytes(pid)], threading.Event()

    def sample() -> None:
        while not done.wait(_POLL_S):
            sums.append(_family_bytes(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield sums
    finally:
        done.set()
        thread.join()


def _family_bytes(pid: int) -> int:
    with suppress(OSError):
        own = read_rss_bytes(Path(f"/proc/{pid}/statm"))
        children = [
            int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
        ]
        return own + sum(map(_family_bytes, children))
    return 0


def without_settings(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """An environment without the variables of some settings, which are to be tried."""
    gone = {variable_of(name) for name in names}
    return {name: value for name, value in environ.items() if name not in gone}
