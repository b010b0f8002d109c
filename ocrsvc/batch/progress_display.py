"""Shows the progress of a run: rich on a terminal, lines elsewhere, and metrics for Prometheus."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TextIO

from ocrsvc.batch.progress import RunCounts, bytes_of, count_of, duration_of, failures_of, rate_of, share_of
from ocrsvc.errors import BadOption

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from rich.console import RenderableType

INTERVAL_S: Final = 10.0
"""Between two lines."""
_REFRESHES_PER_S: Final = 4
_MOST_WORKERS: Final = 12
_ADDRESS: Final = re.compile(r"(?:\[?([0-9a-zA-Z.:-]+?)\]?:)?(\d{1,5})")
_STOP_S: Final = 5.0
_COUNTS: Final = {
    "lines": "Lines of text on the pages read.",
    "source_bytes": "Bytes of the pages' files.",
    "result_bytes": "Bytes of the results.",
    "attempts": "Tries of pages.",
    "parts": "Parts that are in the output.",
}
_STATES: Final = {
    "planned": ("planned_pages", "Pages of this process's shard."),
    "left": ("left_pages", "Pages of the shard that are to be read."),
    "in_flight": ("in_flight_pages", "Pages that are being read."),
    "committed": ("last_commit_timestamp_seconds", "When results were made durable last."),
}


@contextmanager
def showing(*, quiet: bool = False, metrics: str | None = None, output: TextIO | None = None) -> Iterator[RunCounts]:
    """Counts for a run, shown on standard error or `output` while the block runs.

    `metrics` is PORT or HOST:PORT at which Prometheus may ask. Raises BadOption where that cannot be opened.
    """
    counts, stream = RunCounts(), output or sys.stderr
    with ExitStack() as stack:
        if metrics is not None:
            host, asked = address_of(metrics)
            port = stack.enter_context(serving_metrics(counts, (host, asked)))
            stream.write(f"ocrsvc: metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics\n")
        if not quiet:
            # rich is of the extra `progress`.
            is_drawn = stream.isatty() and find_spec("rich") is not None
            stack.enter_context(drawing(counts, stream) if is_drawn else writing_lines(counts, stream))
        yield counts


def line_of(now: RunCounts) -> str:
    """How a run stands, in one line."""
    finished, left_s, (pages_per_s, lines_per_s) = now.planned - now.left, now.left_s, now.rates()
    left = "" if left_s is None or not now.left else f", {duration_of(left_s)} left"
    return (
        f"{finished:,} of {count_of(now.planned, 'page')} ({share_of(finished, now.planned)}), "
        f"{rate_of(pages_per_s)} pages/s, {rate_of(lines_per_s)} lines/s, {failures_of(dict(now.failed))}{left}"
    )


@contextmanager
def writing_lines(
    counts: RunCounts, output: TextIO, wait: Callable[[threading.Event, float], bool] = threading.Event.wait
) -> Iterator[None]:
    """A thread writes a line every few seconds; `wait` waits for the event or so long."""
    closed = threading.Event()

    def write() -> None:
        while not wait(closed, INTERVAL_S):
            if counts.planned:
                output.write(f"ocrsvc: {line_of(counts)}\n")
                output.flush()

    thread = threading.Thread(target=write, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


@contextmanager
def drawing(counts: RunCounts, output: TextIO) -> Iterator[None]:
    """How it stands is drawn by rich."""
    from rich.console import Console
    from rich.live import Live

    console, draw = Console(file=output), partial(drawn, counts)
    with Live(get_renderable=draw, console=console, refresh_per_second=_REFRESHES_PER_S, redirect_stdout=False):
        # rich hides the cursor, and nothing would show it again when a second Ctrl-C ends the process.
        console.show_cursor()
        yield


def drawn(now: RunCounts) -> RenderableType:
    """How a run stands, for rich."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if not now.planned:
        return Text("planning")
    more = f"{now.retried:,} tried again, {now.in_flight:,} being read, {count_of(now.parts, 'part')} written"
    workers = Table("worker", "pages", "s a page", box=None, pad_edge=False, header_style="dim")
    for name, pages in Counter(now.worker_pages).most_common(_MOST_WORKERS):
        workers.add_row(Text(name or "none"), f"{pages:,}", f"{now.worker_seconds[name] / pages:.2f}")
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=now.planned, completed=now.planned - now.left))
    return Group(bar, Text(line_of(now)), Text(f"{more}, {bytes_of(now.result_bytes)} of results", "dim"), workers)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `--metrics-port`: PORT, or HOST:PORT. Raises BadOption."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise BadOption(f"--metrics-port is {text!r}: accepted is PORT or HOST:PORT, such as 9100 or 0.0.0.0:9100.")
    return match[1] or "127.0.0.1", int(match[2])


@contextmanager
def serving_metrics(counts: RunCounts, address: tuple[str, int]) -> Iterator[int]:
    """Prometheus is answered at the address, in threads of its own; gives the port. Raises BadOption."""
    from prometheus_client import start_http_server
    from prometheus_client.registry import Collector, CollectorRegistry

    class RunMetrics(Collector):
        def collect(self) -> Iterator[Metric]:
            return _metrics(counts)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics())
    try:
        server, thread = start_http_server(address[1], address[0], registry)
    except OSError as error:
        raise BadOption(
            f"--metrics-port {address[0]}:{address[1]} cannot be opened: {error.strerror or error}.",
            "Name another port, or end what has it.",
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_STOP_S)


def _metrics(now: RunCounts) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily as Counters
    from prometheus_client.core import GaugeMetricFamily as Gauges

    labelled = (
        ("pages", "outcome", "Pages that are finished: done, or the failure's code.", {"done": now.done, **now.failed}),
        ("worker_pages", "worker", "Pages, by worker.", dict(now.worker_pages)),
        ("worker_seconds", "worker", "Seconds that pages took, their waits included.", dict(now.worker_seconds)),
    )
    for name, label, about, counts in labelled:
        family = Counters(f"ocrsvc_batch_{name}", about, labels=[label])
        for value, count in counts.items():
            family.add_metric([value], count)
        yield family
    for attribute, about in _COUNTS.items():
        yield Counters(f"ocrsvc_batch_{attribute}", about, getattr(now, attribute))
    for attribute, (name, about) in _STATES.items():
        yield Gauges(f"ocrsvc_batch_{name}", about, getattr(now, attribute))
