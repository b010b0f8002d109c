"""Cost of metrics, logs and traces: processor time per request with each, compared with a service without any.

    python benchmarks/telemetry.py [--rounds 12] [--seconds 3] [--clients 4]

All services run at the same time and are loaded one after the other in each round, so that other load on the machine
affects all of them. Prints medians over the rounds of the differences within a round, and the difference of the fastest
rounds, which must meet the goal, because disturbances only add time. The first service runs the same code with
counting, ledger and trace context removed. All traces are sampled and go to a collector in this process that discards
them. Exit code 1 on any wrong answer, or above the goal.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.client import text_of
from bench.load import Request, run_load
from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result
from bench.service import ROOT, Service, ask, started

GOAL_MS = 0.15
WITHOUT = "nothing"
ENGINE = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "1"}
LOGS = {"OCRSVC_ACCESS_LOG": "json", "OCRSVC_LOG_FORMAT": "json"}

# gunicorn.conf.py of the service without telemetry; it lies beside a link to the checkout's package.
_CONFIGURATION = """
from ocrsvc.http import request_metrics
from ocrsvc.telemetry import exemplars, ledger, metrics_store

metrics_store.WorkerMetrics.record = metrics_store.WorkerMetrics.count = lambda *_, **__: None
for name in ("enter", "note_page"):
    setattr(ledger.Ledger, name, vars(ledger.NoLedger)[name])
request_metrics.read_trace_context = lambda *_: None
request_metrics.set_ids = request_metrics.clear_ids = lambda *_: None

from ocrsvc.worker.hooks import configuration_or_exit

globals().update(configuration_or_exit())
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A service: its name in the results, its settings, and the checkout that it runs."""

    name: str
    env: Mapping[str, str]
    root: Path = ROOT


class Collector(BaseHTTPRequestHandler):
    """Accepts traces and discards them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Accept one export."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
        """Log nothing."""


@contextlib.contextmanager
def collecting() -> Iterator[str]:
    """Run a collector in this process; yields its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def checkout_without_telemetry() -> Iterator[Path]:
    """A checkout whose service has no metrics, ledger or trace context."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "ocrsvc").symlink_to(ROOT / "ocrsvc")
        (root / "wsgi.py").symlink_to(ROOT / "wsgi.py")
        (root / "gunicorn.conf.py").write_text(_CONFIGURATION, "utf-8")
        yield root


def variants(without: Path, collector: str) -> list[Variant]:
    """The services to compare, from no telemetry to all of it."""
    traces = {"OCRSVC_TRACES": "otlp", "OCRSVC_TRACE_SAMPLE": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    return [
        Variant(WITHOUT, ENGINE, without),
        Variant("metrics", ENGINE),
        Variant("metrics and logs", ENGINE | LOGS),
        Variant("metrics, logs and sampled traces", ENGINE | LOGS | traces),
    ]


def measure(services: Mapping[str, Service], rounds: int, seconds: float, clients: int) -> dict[str, list[float]]:
    """CPU milliseconds per request of each service in each round. Exits on a wrong answer."""
    request = Request("tiny PNG, raw", "/v1/ocr", "image/png", tiny_png())
    answer = ask(next(iter(services.values())).url, "POST", request.path, request.body, request.content_type)
    expected = text_of(answer.text.encode(), "application/json")
    found: dict[str, list[float]] = {name: [] for name in services}
    names = list(services)
    for number in range(rounds + 1):
        # Each service is first in turn; the first round is warm-up.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            result = run_load(services[name], [request], clients, seconds, keep_alive=True)
            if wrong := result.wrong({request.name: expected}):
                sys.exit(f"WRONG {name}: {wrong[:3]}")
            if number:
                found[name].append(result.cpu_ms)
    return found


def added_ms(found: Mapping[str, Sequence[float]], name: str) -> tuple[float, float, float]:
    """Additional cost compared with the service without telemetry: median and quartiles over the rounds."""
    differences = [own - bare for own, bare in zip(found[name], found[WITHOUT], strict=True)]
    low, median, high = statistics.quantiles(differences, n=4)
    return median, low, high


def least_added_ms(found: Mapping[str, Sequence[float]], name: str) -> float:
    """Additional cost in the fastest rounds, which were disturbed least."""
    return min(found[name]) - min(found[WITHOUT])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if every answer was right and the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0, help="per service and round")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/telemetry.json")
    args = parser.parse_args(arguments)
    print_machine()
    with contextlib.ExitStack() as running:
        collector = running.enter_context(collecting())
        without = running.enter_context(checkout_without_telemetry())
        services = {
            variant.name: running.enter_context(started(variant.env, variant.root))
            for variant in variants(without, collector)
        }
        found = measure(services, args.rounds, args.seconds, args.clients)
    rows = []
    for name, values in found.items():
        bare_ms = statistics.median(found[WITHOUT])
        median, low, high = added_ms(found, name)
        least = least_added_ms(found, name)
        figures = {"cpu_ms": statistics.median(values), "added_ms": median, "least_added_ms": least}
        rows.append({"service": name} | {key: round(value, 4) for key, value in figures.items()})
        print(
            f"{name:34} {statistics.median(values):.3f} ms per request, {median:+.3f} ms ({low:+.3f} to {high:+.3f}), "
            f"{1 + median / bare_ms:.3f} times; fastest rounds {least:+.3f} ms"
        )
    print(f"goal: all together at most {GOAL_MS} ms")
    write_result("telemetry", {"clients": args.clients, "rounds": args.rounds, "rows": rows}, args.out)
    return 0 if least_added_ms(found, list(found)[-1]) <= GOAL_MS else 1


if __name__ == "__main__":
    sys.exit(main())
