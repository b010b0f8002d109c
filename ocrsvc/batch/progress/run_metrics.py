"""A run's counts as Prometheus' text, on a port of its own."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from ocrsvc.batch.progress.run_counts import RunCounts
from ocrsvc.errors import BadOption

LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(r"(?:\[?([0-9a-zA-Z.:-]+?)\]?:)?(\d{1,5})")
_STOP_S: Final = 5.0


class RunMetrics(Collector):
    """What Prometheus asks for."""

    def __init__(self, counts: RunCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Every metric of the run."""
        now = self._counts.snapshot()
        pages = CounterMetricFamily(
            "ocrsvc_batch_pages",
            "Pages that this process has finished, by outcome: done, or the failure's code.",
            labels=["outcome"],
        )
        pages.add_metric(["done"], now.done)
        for reason, count in sorted(now.failed.items()):
            pages.add_metric([reason], count)
        yield pages
        yield CounterMetricFamily("ocrsvc_batch_lines", "Lines of text on the pages read.", now.lines)
        yield CounterMetricFamily("ocrsvc_batch_source_bytes", "Bytes of the pages' files.", now.source_bytes)
        yield CounterMetricFamily("ocrsvc_batch_result_bytes", "Bytes of the results.", now.result_bytes)
        yield CounterMetricFamily("ocrsvc_batch_attempts", "Tries of pages.", now.attempts)
        yield CounterMetricFamily("ocrsvc_batch_parts", "Parts that are in the output.", now.parts)
        yield GaugeMetricFamily("ocrsvc_batch_planned_pages", "Pages of this process's shard.", now.total)
        yield GaugeMetricFamily("ocrsvc_batch_left_pages", "Pages of the shard that are to be read.", now.left)
        yield GaugeMetricFamily("ocrsvc_batch_in_flight_pages", "Pages that are being read.", now.in_flight)
        yield GaugeMetricFamily(
            "ocrsvc_batch_last_commit_timestamp_seconds", "When results were made durable last.", now.committed
        )
        worker_pages = CounterMetricFamily("ocrsvc_batch_worker_pages", "Pages, by worker.", labels=["worker"])
        seconds = CounterMetricFamily(
            "ocrsvc_batch_worker_seconds",
            "Seconds that pages took, their waits included, by worker.",
            labels=["worker"],
        )
        for name, counts in sorted(now.workers.items()):
            worker_pages.add_metric([name], counts.pages)
            seconds.add_metric([name], counts.seconds)
        yield from (worker_pages, seconds)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `--metrics-port`: PORT, or HOST:PORT. Raises BadOption."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise BadOption(f"--metrics-port is {text!r}: accepted is PORT or HOST:PORT, such as 9100 or 0.0.0.0:9100.")
    return match[1] or LOOPBACK, int(match[2])


def serve_metrics(counts: RunCounts, address: tuple[str, int]) -> tuple[int, Callable[[], None]]:
    """Answer at the address, in threads of its own; gives the port, and what ends it. Raises BadOption."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics(counts))
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
