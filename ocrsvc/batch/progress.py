"""Progress of a run: counters, shown by rich on a terminal, as lines of text, and as Prometheus metrics."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TextIO

from ocrsvc.batch.human_readable import bytes_of, count_of, duration_of, failures_of, rate_of, share_of
from ocrsvc.batch.objects import without_secrets
from ocrsvc.batch.pages import COPIED, PageGroup, PageResult
from ocrsvc.errors import BadOption

if TYPE_CHECKING:
    from rich.console import RenderableType

# Number of commits, about a second apart, over which rates and the remaining time are computed.
_WINDOW: Final = 60
_LINES_S: Final = 10.0
_ADDRESS: Final = re.compile(r"(?:\[?([0-9a-zA-Z.:-]+?)\]?:)?(\d{1,5})")
_METRICS: Final = (
    ("counter", "pages", "failed", "outcome", "Pages that are finished: done, or the failure's code."),
    ("counter", "lines", "lines", "", "Lines of text on the pages read."),
    ("counter", "source_bytes", "source_bytes", "", "Bytes of the pages' files."),
    ("counter", "result_bytes", "result_bytes", "", "Bytes of the results."),
    ("counter", "attempts", "attempts", "", "Tries of pages."),
    ("counter", "parts", "parts", "", "Parts that are in the output."),
    ("counter", "worker_pages", "worker_pages", "worker", "Pages, by worker."),
    ("counter", "worker_seconds", "worker_seconds", "worker", "Seconds that pages took, their waits included."),
    ("gauge", "planned_pages", "planned", "", "Pages of this process's shard."),
    ("gauge", "left_pages", "left", "", "Pages of the shard that are to be read."),
    ("gauge", "in_flight_pages", "in_flight", "", "Pages that are being read."),
    ("gauge", "last_commit_timestamp_seconds", "committed", "", "When results were made durable last."),
)
"""Type, name after the prefix `ocrsvc_batch_`, attribute of RunCounts, label or "", and help text."""


@dataclass(slots=True)
class RunCounts:
    """Counters of one command; the run's thread writes them, any thread may read them.

    `planned` is the shard's number of pages. In earlier commands `done_before` pages were read, and `failed_before`
    failed. `source_bytes` adds, for each page, the file's size divided by its page count. `committed` is Unix time;
    `worker_seconds` includes waits for engines.
    """

    clock: Callable[[], float] = time.monotonic
    planned: int = 0
    done_before: int = 0
    failed_before: int = 0
    done: int = 0
    copied: int = 0
    lines: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    retried: int = 0
    in_flight: int = 0
    source_bytes: float = 0.0
    result_bytes: int = 0
    parts: int = 0
    committed: float = 0.0
    is_complete: bool = False
    worker_pages: Counter[str] = field(default_factory=Counter)
    worker_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    began_s: float = 0.0
    # For each of the last commits: its time, and the numbers of pages and lines that were finished by then.
    _samples: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    @property
    def all_done(self) -> int:
        """Pages of the shard that were read, by this or earlier commands."""
        return self.done_before + self.done

    @property
    def all_failed(self) -> int:
        """Pages of the shard that failed, in this or earlier commands."""
        return self.failed_before + self.failed.total()

    @property
    def left(self) -> int:
        """Number of the shard's pages without a result."""
        return self.planned - self.all_done - self.all_failed

    def begin(self) -> None:
        """Start the clock; call it when reading begins, after `planned` and the counts of earlier commands are set."""
        self.began_s = self.clock()
        self._samples.append((self.began_s, 0, 0))

    def begun(self, group: PageGroup) -> None:
        """Count the pages of a group that is about to be read."""
        self.in_flight += len(group.pages)
        self.source_bytes += group.file.size * len(group.pages) / max(1, group.file.total)

    def page(self, result: PageResult, *, is_tried_again: bool = False) -> None:
        """Count a page that was read or has failed; if it failed and will be tried again, count only the attempt."""
        worker = without_secrets(result.worker)
        self.worker_seconds[worker] += result.seconds
        self.attempts += 1
        if is_tried_again:
            self.retried += 1
            return
        if result.error:
            self.failed[result.error] += 1
        else:
            self.done += 1
            self.copied += result.worker == COPIED
        self.worker_pages[worker] += 1
        self.lines += result.lines
        self.result_bytes += len(result.record)

    def commit(self, now: float) -> None:
        """Record that all results so far were committed at `now` (Unix time); called about once per second."""
        self.committed = now
        self._samples.append((self.clock(), self.done + self.failed.total(), self.lines))

    def rates(self) -> tuple[float, float]:
        """Pages and lines per second, over the last minute or since reading began."""
        now_s = self.clock()
        then_s, pages, lines = self._samples[0] if self._samples else (now_s, 0, 0)
        span_s = max(now_s - then_s, 1e-3)
        return (self.done + self.failed.total() - pages) / span_s, (self.lines - lines) / span_s


@contextmanager
def showing(*, quiet: bool = False, metrics: str | None = None, output: TextIO | None = None) -> Iterator[RunCounts]:
    """Counters of a run, shown on `output` (default: stderr) and served to Prometheus at `metrics`, [HOST:]PORT."""
    counts, stream = RunCounts(), output or sys.stderr
    with ExitStack() as stack:
        if metrics is not None:
            stack.enter_context(_serving_metrics(counts, *address_of(metrics), stream))
        if not quiet:
            # The package rich draws the progress; it is optional, and the extra `progress` installs it.
            is_drawn = stream.isatty() and find_spec("rich") is not None
            stack.enter_context(_drawing(counts, stream) if is_drawn else writing_lines(counts, stream))
        yield counts


def line_of(now: RunCounts) -> str:
    """The progress of a run in one line of text."""
    finished, (pages_per_s, lines_per_s) = now.planned - now.left, now.rates()
    left = f", {duration_of(now.left / pages_per_s)} left" if now.left and pages_per_s else ""
    return (
        f"{finished:,} of {count_of(now.planned, 'page')} ({share_of(finished, now.planned)}), "
        f"{rate_of(pages_per_s)} pages/s, {rate_of(lines_per_s)} lines/s, {failures_of(dict(now.failed))}{left}"
    )


@contextmanager
def writing_lines(
    counts: RunCounts, output: TextIO, wait: Callable[[threading.Event, float], bool] = threading.Event.wait
) -> Iterator[None]:
    """Write a line of progress every ten seconds, in a thread, during the block."""
    closed = threading.Event()

    def write() -> None:
        while not wait(closed, _LINES_S):
            if counts.planned:
                print(f"ocrsvc: {line_of(counts)}", file=output, flush=True)

    thread = threading.Thread(target=write, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


@contextmanager
def _drawing(counts: RunCounts, output: TextIO) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=output)
    with Live(get_renderable=partial(drawn, counts), console=console, redirect_stdout=False):
        # rich hides the cursor, which would stay hidden if a second Ctrl-C kills the process.
        console.show_cursor()
        yield


def drawn(now: RunCounts) -> RenderableType:
    """The progress of a run as a display for rich."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if not now.planned:
        return Text("planning")
    more = f"{now.retried:,} tried again, {now.in_flight:,} being read, {count_of(now.parts, 'part')} written"
    workers = Table("worker", "pages", "s a page", box=None, pad_edge=False, header_style="dim")
    for name, pages in Counter(now.worker_pages).most_common(12):
        workers.add_row(Text(name or "none"), f"{pages:,}", f"{now.worker_seconds[name] / pages:.2f}")
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=now.planned, completed=now.planned - now.left))
    return Group(bar, Text(line_of(now)), Text(f"{more}, {bytes_of(now.result_bytes)} of results", "dim"), workers)


def address_of(text: str) -> tuple[str, int]:
    """Parse the host and port of `--metrics-port`: PORT, or HOST:PORT. Raises BadOption."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise BadOption(f"--metrics-port is {text!r}: accepted is PORT or HOST:PORT, such as 9100 or 0.0.0.0:9100.")
    return match[1] or "127.0.0.1", int(match[2])


@contextmanager
def _serving_metrics(counts: RunCounts, host: str, port: int, output: TextIO) -> Iterator[None]:
    """Serve Prometheus metrics at the address during the block, in separate threads. Raises BadOption."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    class RunMetrics(Collector):
        def collect(self) -> Iterator[Metric]:
            for kind, name, attribute, label, about in _METRICS:
                metric, value = Metric(f"ocrsvc_batch_{name}", about, kind), getattr(counts, attribute)
                known = {"done": counts.done} if label == "outcome" else {}
                for key, number in (known | value).items() if label else [("", value)]:
                    suffix = "_total" if kind == "counter" else ""
                    metric.add_sample(metric.name + suffix, {label: key} if label else {}, number)
                yield metric

    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics())
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        what = f"--metrics-port {host}:{port} cannot be opened: {error.strerror or error}."
        raise BadOption(what, "Name another port, or end what has it.") from error
    output.write(f"ocrsvc: metrics at http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics\n")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
