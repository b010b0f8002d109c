"""`ocrsvc tune`: finds the settings that suit this machine and the user's own pages, by measuring them."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from itertools import cycle, product
from pathlib import Path
from typing import IO, Final, NamedTuple
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import click

from ocrsvc.cli.options import COUNT, FILE, command, option
from ocrsvc.cli.output import show_progress
from ocrsvc.cli.serve import command_line
from ocrsvc.errors import NothingSent, OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.load import CONFIG_VARIABLE, read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cgroup import read_cpus
from ocrsvc.system.memory import read_rss_bytes
from ocrsvc.system.thread_plan import device_for

_TRIED: Final = ("workers", "engine_threads", "batch_pixels", "batch_wait_s", "precision")
_BATCH_PIXELS: Final = (16 * 48 * 320, 32 * 48 * 320, 64 * 48 * 320)
_BATCH_WAIT_S: Final = (0.0, 0.002, 0.005)
_HEADER: Final = f"{'pages/s':>8} {'p50 s':>7} {'p95 s':>7} {'peak MB':>8} {'failed':>6}  settings"
_START_S: Final = 300.0
_STOP_S: Final = 90.0
_ANSWER_S: Final = 3700.0
_POLL_S: Final = 0.1
_LOG_TAIL: Final = 2000

SettingValues = Mapping[str, float | str]
"""Settings by name, as in the TOML file."""


class Load(NamedTuple):
    """The image files that are sent in turn, how many requests are under way at once, and for how long."""

    pages: Sequence[bytes]
    clients: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What some settings showed: `peak_bytes` of all processes together; answers other than 200 count as failed."""

    knobs: SettingValues
    pages_per_s: float
    p50_s: float
    p95_s: float
    peak_bytes: int
    failed: int = 0

    def __str__(self) -> str:
        figures = f"{self.pages_per_s:8.2f} {self.p50_s:7.2f} {self.p95_s:7.2f} {self.peak_bytes / 1e6:8.0f}"
        return f"{figures} {self.failed:6}  {_in_words(self.knobs)}"


@command("ocrsvc tune pages/*.png", "ocrsvc tune pages/*.png --p95 2 --clients 8 --out ocrsvc.toml")
@click.argument("pages", nargs=-1, required=True, type=FILE, metavar="FILE...", help="Images like those to be read.")
@option("--p95", type=float, metavar="SECONDS", help="Goal: what 95 % of the requests may take at most.")
@option("--clients", type=COUNT, default=20, metavar="N", help="Requests at once (20).")
@option("--seconds", type=float, default=15.0, metavar="SECONDS", help="Time for each choice (15).")
@option("--out", type=FILE, default=Path("ocrsvc.toml"), metavar="FILE", help="File to write (ocrsvc.toml).")
def tune(pages: Sequence[Path], p95: float | None, clients: int, seconds: float, out: Path) -> None:
    """Measure which settings suit this machine and your pages, and write them to a file.

    A service is started with each choice of workers, threads and so on, and loaded with the pages.
    """
    if out.exists():
        raise OperatorError(f"{out} is there already.", "Name another file with --out, or move it away.")
    settings = read_settings()
    if settings.keys is not None:
        raise OperatorError(
            "The services that are tried would want API keys (OCRSVC_KEYS).", "Leave it out while settings are tried."
        )
    try:
        load = Load([page.read_bytes() for page in pages], clients, seconds)
    except OSError as error:
        raise NothingSent(f"{error.filename} cannot be read: {error.strerror}.") from error
    measured = _try_all(settings, load, p95)
    best = choose(measured, p95)
    print("\n".join([_HEADER, *map(str, measured)]))
    if best is None:
        raise OperatorError(
            f"None of these keeps a p95 of {p95} s with {clients} clients." if p95 else "All failed.",
            "Allow more time, fewer --clients, or use a faster machine.",
        )
    goal = f"p95 at most {p95:g} s" if p95 else "highest throughput"
    how = f"engine {settings.engine}, {read_cpus():g} CPUs, {len(pages)} pages, {clients} clients, {seconds:g} s each"
    out.write_text(to_toml(best, measured, f"{how}, goal: {goal}."), encoding="utf-8")
    print(f"written to {out}; start with {CONFIG_VARIABLE}={out}")


def _try_all(settings: Settings, load: Load, p95_s: float | None) -> list[Measurement]:
    """Measure one kind of setting after the other, each with the best choice of those before."""
    device = device_for(settings)
    measured: list[Measurement] = []
    _try(workers_and_threads(read_cpus(), device), load, measured)
    # What a CPU computes in is proved at the first start.
    more = [batches, *([precisions] if settings.engine == "ppocr" else [])] if device == "cuda" else []
    for others in more:
        if (best := choose(measured, p95_s)) is not None:
            _try(others(best.knobs), load, measured)
    return measured


def _try(candidates: Sequence[SettingValues], load: Load, measured: list[Measurement]) -> None:
    """Measure all candidates that start. Raises OperatorError where the first of all does not: none would."""
    gone = {variable_of(name) for name in _TRIED}
    environ = {name: value for name, value in os.environ.items() if name not in gone}
    for number, knobs in enumerate(candidates):
        show_progress(number, len(candidates), _in_words(knobs))
        try:
            measured.append(measure(knobs, load, environ))
        except OperatorError as error:
            if not measured:
                raise
            print(f"ocrsvc: {_in_words(knobs)} is left out: {error}", file=sys.stderr)
    show_progress(len(candidates), len(candidates))


def workers_and_threads(cpus: float, device: str) -> list[SettingValues]:
    """How these cores may be shared out: few workers with many engine threads, or the other way round."""
    if device == "cuda":
        # Threads mostly wait for the GPU.
        return [{"workers": w, "engine_threads": t} for w, t in product((1, 2, 3), (2, 4, 8))]
    cores = max(1, round(cpus))
    workers = {count for count in (1, 2, 4, cores // 2, cores) if 1 <= count <= cores}
    # Whole shares of the cores, and one thread more than those.
    shares = {(w, cores // w + more) for w in workers for more in (0, 1)}
    return [{"workers": w, "engine_threads": t} for w, t in sorted(shares)]


def batches(base: SettingValues) -> list[SettingValues]:
    """How a GPU may put lines together, once workers and threads are chosen."""
    return [{**base, "batch_pixels": pixels, "batch_wait_s": s} for pixels, s in product(_BATCH_PIXELS, _BATCH_WAIT_S)]


def precisions(base: SettingValues) -> list[SettingValues]:
    """What a GPU may compute the models in, once the rest is chosen."""
    return [{**base, "precision": name} for name in ("fp32", "fp16")]


def choose(measured: Sequence[Measurement], p95_s: float | None) -> Measurement | None:
    """The one with the highest throughput whose p95 keeps the goal; None when none does, or all failed requests."""
    kept = (one for one in measured if not one.failed and (p95_s is None or one.p95_s <= p95_s))
    return max(kept, key=lambda one: (one.pages_per_s, -one.p95_s, -one.peak_bytes), default=None)


def to_toml(chosen: Measurement, measured: Sequence[Measurement], how: str) -> str:
    """A settings file with the chosen values, and as a comment everything that was measured."""
    lines = [f"# Made by `ocrsvc tune`: {how}", "#", f"# {_HEADER}"]
    lines += [f"# {one}{'  <- chosen' if one is chosen else ''}" for one in measured]
    values = {name: f'"{value}"' if isinstance(value, str) else _show(value) for name, value in chosen.knobs.items()}
    return "\n".join([*lines, "", *(f"{name} = {value}" for name, value in values.items()), ""])


def _in_words(knobs: SettingValues) -> str:
    return " ".join(f"{name}={_show(value)}" for name, value in knobs.items())


def _show(value: float | str) -> str:
    """A setting as a variable holds it: whole numbers without a point or an exponent."""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def measure(knobs: SettingValues, load: Load, environ: Mapping[str, str]) -> Measurement:
    """Start the service with these settings, warm it with a page from each client, load it, and end it.

    Raises OperatorError where it does not start.
    """
    own = {variable_of(name): _show(value) for name, value in knobs.items()}
    # Its readiness is logged at this level, and the clients here have no certificate.
    own |= {variable_of("log_level"): "info", variable_of("tls_clients"): "optional"}
    with _running({**environ, **own}, int(knobs["workers"])) as (url, pid):
        send(url, load, until_s=0.0)
        began_s = time.monotonic()
        taken_s, peak_bytes = send(url, load, began_s + load.seconds, pid)
        wall_s = time.monotonic() - began_s
    answered_s = sorted(seconds for seconds in taken_s if seconds is not None)
    p50_s, p95_s = (answered_s[int(part * len(answered_s))] if answered_s else wall_s for part in (0.5, 0.95))
    failed = len(taken_s) - len(answered_s)
    return Measurement(knobs, len(answered_s) / wall_s, p50_s, p95_s, peak_bytes, failed)


@contextmanager
def _running(environ: Mapping[str, str], workers: int) -> Iterator[tuple[str, int]]:
    """A service on a free port: its address and process id, once all its workers are ready."""
    served = command_line(["-b", "127.0.0.1:0"])
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(served, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603  our own command
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
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    headers = {"Content-Type": "application/octet-stream"}
    taken_s: list[float | None] = []
    while not taken_s or time.monotonic() < until_s:
        request, began_s = Request(f"{url}/v1/ocr", next(pages), headers), time.monotonic()  # noqa: S310  our own service
        try:
            with opener.open(request, timeout=_ANSWER_S) as response:
                response.read()
            taken_s.append(time.monotonic() - began_s)
        except (OSError, HTTPException):
            taken_s.append(None)
    return taken_s


def _family_bytes(pid: int) -> int:
    with suppress(OSError):
        own = read_rss_bytes(Path(f"/proc/{pid}/statm"))
        lists = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
        return own + sum(_family_bytes(int(child)) for children in lists for child in children)
    return 0
