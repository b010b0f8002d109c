"""Shows the progress of a run: rich on a terminal, lines elsewhere, and metrics for Prometheus."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from ocrsvc.batch.progress import (
    RunCounts,
    RunSnapshot,
    WorkerCounts,
    bytes_of,
    count_of,
    duration_of,
    failures_of,
    rate_of,
    share_of,
)
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


@contextmanager
def showing(*, quiet: bool = False, metrics: str | None = None, output: TextIO | None = None) -> Iterator[RunCounts]:
    """Counts for a run, shown on standard error or `output` while the block runs.

    `metrics` is PORT or HOST:PORT at which Prometheus may ask. Raises BadOption where that cannot be opened.
    """
    counts, stream = RunCounts(time.monotonic), output or sys.stderr
    with ExitStack() as stack:
        if metrics is not None:
            host, asked = address_of(metrics)
            port, close = serve_metrics(counts, (host, asked))
            stack.callback(close)
            stream.write(f"ocrsvc: metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics\n")
        if not quiet:
            stack.callback(_open_display(counts, stream))
        yield counts


def _open_display(counts: RunCounts, stream: TextIO) -> Callable[[], None]:
    """Show counts, as a drawing on a terminal if rich is installed (extra `progress`); gives what ends it."""
    if stream.isatty():
        try:
            return _draw_on_terminal(counts, stream)
        except ImportError:
            pass
    return LineDisplay(counts, stream).close


def line_of(now: RunSnapshot) -> str:
    """How a run stands, in one line."""
    finished = now.total - now.left
    left = "" if now.left_s is None or not now.left else f", {duration_of(now.left_s)} left"
    return (
        f"{finished:,} of {count_of(now.total, 'page')} ({share_of(finished, now.total)}), "
        f"{rate_of(now.pages_per_s)} pages/s, {rate_of(now.lines_per_s)} lines/s, {failures_of(now.failed)}{left}"
    )


class LineDisplay:
    """Writes a line every few seconds, in a thread of its own, until `close`; `wait` waits for the event or so long."""

    def __init__(
        self,
        counts: RunCounts,
        output: TextIO,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._counts, self._output, self._wait = counts, output, wait
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write no more lines."""
        self._closed.set()
        self._thread.join()

    def _show(self) -> None:
        while not self._wait(self._closed, INTERVAL_S):
            now = self._counts.snapshot()
            if now.total:
                self._output.write(f"ocrsvc: {line_of(now)}\n")
                self._output.flush()


def _draw_on_terminal(counts: RunCounts, output: TextIO) -> Callable[[], None]:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=output)
    live = Live(
        get_renderable=lambda: drawn(counts.snapshot()),
        console=console,
        refresh_per_second=_REFRESHES_PER_S,
        redirect_stdout=False,
    )
    live.start()
    # rich hides the cursor, and nothing would show it again when a second Ctrl-C ends the process.
    console.show_cursor()
    return live.stop


def drawn(now: RunSnapshot) -> RenderableType:
    """How a run stands, for rich."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if not now.total:
        return Text("planning")
    finished = now.total - now.left
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    head = f"{finished:,} of {count_of(now.total, 'page')}, {share_of(finished, now.total)}"
    bar.add_row(ProgressBar(total=now.total, completed=finished, complete_style="blue", finished_style="green"), head)
    left = "" if now.left_s is None or not now.left else f" · {duration_of(now.left_s)} left"
    pace = Text(f"{rate_of(now.pages_per_s)} pages/s · {rate_of(now.lines_per_s)} lines/s{left}")
    facts = Text(failures_of(now.failed), style="red" if now.failed else "dim")
    facts.append(f" · {now.retried:,} tried again · {now.in_flight:,} being read", style="dim")
    facts.append(f" · {count_of(now.parts, 'part')} written · {bytes_of(now.result_bytes)} of results", style="dim")
    return Group(bar, pace, facts, _workers(now.workers))


def _workers(workers: Mapping[str, WorkerCounts]) -> RenderableType:
    """The workers that have read most."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker", overflow="ellipsis", no_wrap=True)
    for name in ("pages", "failed", "lines", "s a page"):
        table.add_column(name, justify="right")
    first = sorted(workers.items(), key=lambda item: (-item[1].pages, item[0]))
    for name, counts in first[:_MOST_WORKERS]:
        seconds = f"{counts.seconds / counts.pages:.2f}" if counts.pages else ""
        table.add_row(Text(name or "none"), f"{counts.pages:,}", f"{counts.failed:,}", f"{counts.lines:,}", seconds)
    if len(first) > _MOST_WORKERS:
        table.add_row(f"and {len(first) - _MOST_WORKERS:,} more")
    return table


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `--metrics-port`: PORT, or HOST:PORT. Raises BadOption."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise BadOption(f"--metrics-port is {text!r}: accepted is PORT or HOST:PORT, such as 9100 or 0.0.0.0:9100.")
    return match[1] or "127.0.0.1", int(match[2])


def serve_metrics(counts: RunCounts, address: tuple[str, int]) -> tuple[int, Callable[[], None]]:
    """Answer at the address, in threads of its own; gives the port, and what ends it. Raises BadOption."""
    from prometheus_client import start_http_server
    from prometheus_client.registry import Collector, CollectorRegistry

    class RunMetrics(Collector):
        def collect(self) -> Iterator[Metric]:
            return _metrics(counts.snapshot())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics())
    try:
        server, thread = start_http_server(address[1], address[0], registry)
    except (OSError, socket.gaierror) as error:
        raise BadOption(
            f"--metrics-port {address[0]}:{address[1]} cannot be opened: {error.strerror or error}.",
            "Name another port, or end what has it.",
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join(_STOP_S)

    return server.server_port, close


def _metrics(now: RunSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    pages = CounterMetricFamily(
        "ocrsvc_batch_pages",
        "Pages that this process has finished, by outcome: done, or the failure's code.",
        labels=["outcome"],
    )
    for outcome, count in [("done", now.done), *sorted(now.failed.items())]:
        pages.add_metric([outcome], count)
    yield pages
    yield CounterMetricFamily("ocrsvc_batch_lines", "Lines of text on the pages read.", now.lines)
    yield CounterMetricFamily("ocrsvc_batch_source_bytes", "Bytes of the pages' files.", now.source_bytes)
    yield CounterMetricFamily("ocrsvc_batch_result_bytes", "Bytes of the results.", now.result_bytes)
    yield CounterMetricFamily("ocrsvc_batch_attempts", "Tries of pages.", now.attempts)
    yield CounterMetricFamily("ocrsvc_batch_parts", "Parts that are in the output.", now.parts)
    yield GaugeMetricFamily("ocrsvc_batch_planned_pages", "Pages of this process's shard.", now.total)
    yield GaugeMetricFamily("ocrsvc_batch_left_pages", "Pages of the shard that are to be read.", now.left)
    yield GaugeMetricFamily("ocrsvc_batch_in_flight_pages", "Pages that are being read.", now.in_flight)
    committed = "When results were made durable last."
    yield GaugeMetricFamily("ocrsvc_batch_last_commit_timestamp_seconds", committed, now.committed)
    worker_pages = CounterMetricFamily("ocrsvc_batch_worker_pages", "Pages, by worker.", labels=["worker"])
    said = "Seconds that pages took, their waits included, by worker."
    seconds = CounterMetricFamily("ocrsvc_batch_worker_seconds", said, labels=["worker"])
    for name, counts in sorted(now.workers.items()):
        worker_pages.add_metric([name], counts.pages)
        seconds.add_metric([name], counts.seconds)
    yield from (worker_pages, seconds)
