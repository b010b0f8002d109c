"""Load on one of the compared systems: a number of clients read every page once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.corpus import ALL, Corpus
from bench.load import is_meaningful
from bench.peer_systems import Peer
from bench.processes import Processes

WATCH_S: Final = 0.2
QUANTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


@dataclass
class Load:
    """Figures of one system under one load, over all rounds; the texts are those of the last round."""

    latencies_s: list[float] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    def figures(self, corpus: Corpus) -> dict[str, float | None]:
        """The figures as a JSON-ready dict."""
        ordered = sorted(self.latencies_s)
        tally = corpus.tally(self.texts)[ALL]
        return {
            "requests": len(ordered),
            "pages_per_s": round(len(ordered) / self.wall_s, 3),
            "mean_s": round(sum(ordered) / len(ordered), 3),
            **{name: quantile(ordered, share) for name, share in QUANTILES.items()},
            "max_s": round(ordered[-1], 3),
            "cpu_s_per_page": round(self.cpu_s / len(ordered), 3),
            "peak_rss_mb": round(self.peak_mb),
            "f1": round(tally.f1, 4),
            "cer": round(tally.cer, 4),
            "failed": tally.failed,
        }


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value that this share does not exceed; None with too few values."""
    if not is_meaningful(len(ordered), share):
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def run(peer: Peer, pages: Sequence[bytes], clients: int, load: Load) -> None:
    """Read every page once with `clients` threads, and add the figures to `load`."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(pages)):
        todo.put(number)
    texts: list[str | None] = [None] * len(pages)
    latencies_s: list[float] = []

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = todo.get_nowait()
                began_s = time.perf_counter()
                try:
                    texts[number] = peer.read(pages[number])
                except Exception as error:  # noqa: BLE001  count a page that fails, and read the others
                    print(f"FAILED {peer.name}: {error!r}"[:200], flush=True)
                latencies_s.append(time.perf_counter() - began_s)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    with watched_peak(peer.processes) as peak:
        cpu_before_s, began_s = peer.processes.cpu_s(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        load.wall_s += time.perf_counter() - began_s
        load.cpu_s += peer.processes.cpu_s() - cpu_before_s
    load.peak_mb = max(load.peak_mb, *peak)
    load.latencies_s += latencies_s
    load.texts = texts


@contextlib.contextmanager
def watched_peak(processes: Processes) -> Iterator[list[float]]:
    """Yields samples of the summed resident memory in MB, taken while the block runs, ended processes included."""
    seen = [processes.rss_mb()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            seen.append(processes.rss_mb())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
