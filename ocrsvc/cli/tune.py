"""`ocrsvc tune`: measures which settings suit this machine and the user's pages best."""

import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import OK, HTTPException
from itertools import cycle, product
from pathlib import Path
from typing import IO, Final, NamedTuple

import click

from ocrsvc.cli.options import COUNT, FILE, command, option
from ocrsvc.cli.output import show_progress
from ocrsvc.cli.serve import command_line
from ocrsvc.cli.service import connect
from ocrsvc.errors import NothingSent, OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.load import CONFIG_VARIABLE, read_settings
from ocrsvc.system.cgroup import read_cpus
from ocrsvc.system.thread_plan import device_for

_HEADER: Final = f"{'pages/s':>8} {'p50 s':>7} {'p95 s':>7} {'failed':>6}  settings"
_START_S: Final = 300.0
_STOP_S: Final = 90.0
_ANSWER_S: Final = 3700.0
_POLL_S: Final = 0.1
_LOG_TAIL: Final = 2000

SettingValues = Mapping[str, int]
"""Numbers of workers and engine threads, by their names in the TOML file."""


class Load(NamedTuple):
    """The image files to send in turn, the number of concurrent clients, and the duration."""

    pages: Sequence[bytes]
    clients: int
    seconds: float


class Measurement(NamedTuple):
    """Results of measuring one candidate for the settings; responses other than 200 count as failed."""

    values: SettingValues
    pages_per_s: float
    p50_s: float
    p95_s: float
    failed: int = 0

    def __str__(self) -> str:
        figures = f"{self.pages_per_s:8.2f} {self.p50_s:7.2f} {self.p95_s:7.2f} {self.failed:6}"
        return f"{figures}  {_in_words(self.values)}"


@command("ocrsvc tune pages/*.png", "ocrsvc tune pages/*.png --p95 2 --clients 8 --out ocrsvc.toml")
@click.argument("pages", nargs=-1, required=True, type=FILE, metavar="FILE...", help="Images like those to be served.")
@option("--p95", type=float, metavar="SECONDS", help="Goal: maximum time of 95 % of the requests.")
@option("--clients", type=COUNT, default=20, metavar="N", help="Concurrent requests (20).")
@option("--seconds", type=float, default=15.0, metavar="SECONDS", help="Time per choice (15).")
@option("--out", type=FILE, default=Path("ocrsvc.toml"), metavar="FILE", help="File to write (ocrsvc.toml).")
def tune(pages: Sequence[Path], p95: float | None, clients: int, seconds: float, out: Path) -> None:
    """Measure which settings suit this machine and your pages, and write them to a file.

    A service is started and loaded with the pages for each choice of workers and engine threads.
    """
    if out.exists():
        raise OperatorError(f"{out} already exists.", "Name another file with --out, or move it away.")
    settings = read_settings()
    if settings.keys is not None:
        raise OperatorError("OCRSVC_KEYS is set, so the measured services would refuse requests.", "Unset it.")
    try:
        load = Load([page.read_bytes() for page in pages], clients, seconds)
    except OSError as error:
        raise NothingSent(f"{error.filename} cannot be read: {error.strerror}.") from error
    measured = _measure_all(workers_and_threads(read_cpus(), device_for(settings)), load)
    best = choose(measured, p95)
    print("\n".join([_HEADER, *map(str, measured)]))
    if best is None:
        what = f"No choice reaches a p95 of {p95} s with {clients} clients." if p95 else "All choices failed."
        raise OperatorError(what, "Allow more time, fewer --clients, or use a faster machine.")
    goal = f"p95 at most {p95:g} s" if p95 else "highest throughput"
    how = f"engine {settings.engine}, {read_cpus():g} CPUs, {len(pages)} pages, {clients} clients, {seconds:g} s each"
    out.write_text(to_toml(best, measured, f"{how}, goal: {goal}."), encoding="utf-8")
    print(f"written to {out}; start with {CONFIG_VARIABLE}={out}")


def _measure_all(candidates: Sequence[SettingValues], load: Load) -> list[Measurement]:
    """Measure the candidates that start. Raises OperatorError if the first does not."""
    measured: list[Measurement] = []
    for number, values in enumerate(candidates):
        show_progress(number, len(candidates), _in_words(values))
        try:
            measured.append(measure(values, load))
        except OperatorError as error:
            if not measured:
                raise
            print(f"ocrsvc: skipped {_in_words(values)}: {error}", file=sys.stderr)
    show_progress(len(candidates), len(candidates))
    return measured


def workers_and_threads(cpus: float, device: str) -> list[SettingValues]:
    """The settings to measure: from few workers with many engine threads each to many workers with few."""
    if device == "cuda":
        # Engine threads mostly wait for the GPU, so their number does not depend on the cores.
        return [{"workers": w, "engine_threads": t} for w, t in product((1, 2, 3), (2, 4, 8))]
    cores = max(1, round(cpus))
    workers = {count for count in (1, 2, 4, cores // 2, cores) if 1 <= count <= cores}
    # Engine threads per worker: the cores divided by the workers, or one more.
    shares = {(w, cores // w + more) for w in workers for more in (0, 1)}
    return [{"workers": w, "engine_threads": t} for w, t in sorted(shares)]


def choose(measured: Sequence[Measurement], p95_s: float | None) -> Measurement | None:
    """The measurement of highest throughput among those without failures and within the p95 goal; None without any."""
    kept = (one for one in measured if not one.failed and (p95_s is None or one.p95_s <= p95_s))
    return max(kept, key=lambda one: (one.pages_per_s, -one.p95_s), default=None)


def to_toml(chosen: Measurement, measured: Sequence[Measurement], how: str) -> str:
    """A settings file with the chosen values; comments list all measurements, and say how they were made (`how`)."""
    lines = [f"# Made by `ocrsvc tune`: {how}", "#", f"# {_HEADER}"]
    lines += [f"# {one}{'  <- chosen' if one is chosen else ''}" for one in measured]
    return "\n".join([*lines, "", *(f"{name} = {value}" for name, value in chosen.values.items()), ""])


def _in_words(values: SettingValues) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def measure(values: SettingValues, load: Load) -> Measurement:
    """Start a service, warm it up with a page per client, put it under load, stop it. Raises OperatorError."""
    # Level info, because `_running` waits for the log lines of ready workers; the clients have no certificate.
    overrides = {**values, "log_level": "info", "tls_clients": "optional"}
    environ = os.environ | {variable_of(name): str(value) for name, value in overrides.items()}
    with _running(environ, values["workers"]) as url:
        send(url, load, until_s=0.0)
        began_s = time.monotonic()
        taken_s = send(url, load, began_s + load.seconds)
        wall_s = time.monotonic() - began_s
    answered_s = sorted(seconds for seconds in taken_s if seconds is not None)
    p50_s, p95_s = (answered_s[int(part * len(answered_s))] if answered_s else wall_s for part in (0.5, 0.95))
    return Measurement(values, len(answered_s) / wall_s, p50_s, p95_s, len(taken_s) - len(answered_s))


@contextmanager
def _running(environ: Mapping[str, str], workers: int) -> Iterator[str]:
    """Start a service on a free port; yield its URL when all workers are ready."""
    served = command_line(["-b", "127.0.0.1:0"])
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(served, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603  our own command
        try:
            yield _wait_until_ready(process, log, workers)
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
        match = re.search(r"Listening at: (https?://127\.0\.0\.1:\d+)", text)
        if match and text.count("READY in") >= workers:
            return match[1]
        if process.poll() is not None or time.monotonic() > end_s:
            raise OperatorError(f"The service does not start. Its log:\n{text[-_LOG_TAIL:]}", "Run `ocrsvc check`.")
        time.sleep(_POLL_S)


def send(url: str, load: Load, until_s: float) -> list[float | None]:
    """Send pages until `until_s`, at least one per client; each request's time in seconds (None: failed)."""
    pages = cycle(load.pages)
    with ThreadPoolExecutor(load.clients) as pool:
        clients = [pool.submit(_client, url, pages, until_s) for _ in range(load.clients)]
    return [seconds for client in clients for seconds in client.result()]


def _client(url: str, pages: Iterator[bytes], until_s: float) -> list[float | None]:
    # The certificate of a service started here needs no verification.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    taken_s: list[float | None] = []
    while not taken_s or time.monotonic() < until_s:
        connection, began_s, is_read = connect(url, _ANSWER_S, context), time.monotonic(), False
        with closing(connection), suppress(OSError, HTTPException):
            connection.request("POST", "/v1/ocr", next(pages), {"Content-Type": "application/octet-stream"})
            response = connection.getresponse()
            response.read()
            is_read = response.status == OK
        taken_s.append(time.monotonic() - began_s if is_read else None)
    return taken_s
