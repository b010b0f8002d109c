"""Measures some settings on this machine: starts a service on a free port and loads it with the user's pages."""

from __future__ import annotations

import http.client
import os
import re
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import IO, Final

from ocrsvc.cli.service import connect
from ocrsvc.errors import OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.system.memory import read_rss_bytes

_START_S: Final = 300.0
_STOP_S: Final = 90.0
_ANSWER_S: Final = 3700.0
_POLL_S: Final = 0.1
_LOG_TAIL: Final = 2000


SettingValues = Mapping[str, float | str]
"""Settings by name, as in the TOML file."""


@dataclass(frozen=True, slots=True)
class Load:
    """The image files that are sent in turn, how many requests are under way at once, and for how long."""

    pages: Sequence[bytes]
    clients: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What some settings showed: `peak_bytes` is of all processes together, `failed` counts answers other than 200."""

    knobs: SettingValues
    pages_per_s: float
    p50_s: float
    p95_s: float
    peak_bytes: int
    failed: int = 0


def measure(command: Sequence[str], knobs: SettingValues, load: Load, environ: Mapping[str, str]) -> Measurement:
    """Start the service with these settings, the workers among them, warm it with a page a client, load it, and end it.

    Raises OperatorError where it does not start.
    """
    own = {variable_of(name): show(value) for name, value in knobs.items()}
    # Its readiness is logged at this level, and the clients here have no certificate.
    own |= {variable_of("log_level"): "info", variable_of("tls_clients"): "optional"}
    with _running([*command, "-b", "127.0.0.1:0"], {**environ, **own}, int(knobs["workers"])) as (url, pid):
        send(url, load, until_s=0.0)
        began_s = time.monotonic()
        taken_s, peak_bytes = send(url, load, began_s + load.seconds, pid)
        wall_s = time.monotonic() - began_s
    answered_s = sorted(seconds for seconds in taken_s if seconds is not None)
    p50_s, p95_s = (answered_s[int(part * len(answered_s))] if answered_s else wall_s for part in (0.5, 0.95))
    failed = len(taken_s) - len(answered_s)
    return Measurement(knobs, len(answered_s) / wall_s, p50_s, p95_s, peak_bytes, failed)


@contextmanager
def _running(command: Sequence[str], environ: Mapping[str, str], workers: int) -> Iterator[tuple[str, int]]:
    """The service's address and process id, once all its workers are ready."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603  our own command
        try:
            yield _wait_until_ready(process, log, workers), process.pid
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


def send(url: str, load: Load, until_s: float, pid: int | None = None) -> tuple[list[float | None], int]:
    """How long each answer took, None for one that failed, and the most memory of this process and all below it.

    Each client sends at least one page, and goes on until this time.
    """
    pages, peak_bytes = cycle(load.pages), 0
    with ThreadPoolExecutor(load.clients) as pool:
        clients = [pool.submit(_client, url, pages, until_s) for _ in range(load.clients)]
        while wait(clients, _POLL_S).not_done:
            peak_bytes = max(peak_bytes, 0 if pid is None else _family_bytes(pid))
    return [seconds for client in clients for seconds in client.result()], peak_bytes


def _client(url: str, pages: Iterator[bytes], until_s: float) -> list[float | None]:
    # This process has started the service, so its certificate need not be verified.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = connect(url, _ANSWER_S, context)
    taken_s: list[float | None] = []
    while not taken_s or time.monotonic() < until_s:
        began_s = time.monotonic()
        is_read = _post(connection, next(pages))
        taken_s.append(time.monotonic() - began_s if is_read else None)
    connection.close()
    return taken_s


def _post(connection: http.client.HTTPConnection, page: bytes) -> bool:
    try:
        connection.request("POST", "/v1/ocr", page, {"Content-Type": "application/octet-stream"})
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return False
    return response.status == http.client.OK


def _family_bytes(pid: int) -> int:
    """Resident memory of a process and all below it."""
    with suppress(OSError):
        own = read_rss_bytes(Path(f"/proc/{pid}/statm"))
        lists = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
        return own + sum(_family_bytes(int(child)) for children in lists for child in children)
    return 0


def show_all(knobs: SettingValues) -> str:
    """Settings in one line."""
    return " ".join(f"{name}={show(value)}" for name, value in knobs.items())


def show(value: float | str) -> str:
    """A setting as a variable holds it: whole numbers without a point or an exponent."""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
