"""Memory of the service by number of clients.

    python benchmarks/memory.py [--shared ../shared] [--pages 24] [--clients 32]

The same corpus pages, a mixed sample and the largest ones, are posted once each by one client and then by many, to a
new service each time. Memory is resident memory (VmRSS of proc(5)) of the arbiter and its workers; peaks (VmHWM) are
summed over the processes, so shared memory counts in each of them. "At rest" is after the load, when the idle engine
has released its free memory. Exit code 1 if the peak grows more than the goal allows, a page fails, or a page's text
changes under load.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.corpus import Corpus, CorpusPage
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, Service, ask, started

GOAL_RATIO = 1.1
PAGE_LIMIT_S = 600.0
RETRY_S = 0.2
REST_S = 8.0
ENVIRONMENT = {"OCRSVC_ENGINE": "ppocr", "OCRSVC_DEVICE": "cpu", "OCRSVC_DEADLINE_S": "600"}


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Resident memory in MB before, during (peak) and after a load, and the load's elapsed and processor time."""

    clients: int
    before_mb: float
    peak_mb: float
    rest_mb: float
    wall_s: float
    cpu_s: float


def choose(pages: Sequence[CorpusPage], count: int) -> list[CorpusPage]:
    """Two thirds spread evenly over the corpus, interleaved with the pages with the most pixels."""
    largest = sorted(pages, key=lambda page: -page.row["width"] * page.row["height"])[: max(1, count // 3)]
    others = [page for page in pages if page not in largest]
    wanted = max(1, count - len(largest))
    spread = others[:: max(1, len(others) // wanted)][:wanted]
    gap = max(1, len(spread) // len(largest))
    mixed = [
        page for number, large in enumerate(largest) for page in (large, *spread[number * gap : (number + 1) * gap])
    ]
    return mixed + spread[len(largest) * gap :]


def read(service: Service, data: bytes) -> str:
    """The text of a page; retries while the service is full, exits if it fails."""
    while (answer := ask(service.url, "POST", "/v1/ocr", data, "application/octet-stream", PAGE_LIMIT_S)).status == 503:
        time.sleep(RETRY_S)
    if answer.status != 200:
        sys.exit(f"FAILED {answer.status} {answer.text[:200]}")
    return "\f".join(page["text"] for page in json.loads(answer.text)["pages"])


def load(images: Sequence[bytes], clients: int) -> tuple[MemoryFigures, list[str]]:
    """Memory and texts of a new service while `clients` clients post every image once."""
    with started(ENVIRONMENT) as service:
        processes = service.processes
        processes.forget_peak()
        before_mb, cpu_s, began_s = processes.rss_mb(), processes.cpu_s(), time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            texts = list(pool.map(partial(read, service), images))
        wall_s, cpu_s, peak_mb = time.perf_counter() - began_s, processes.cpu_s() - cpu_s, processes.peak_mb()
        time.sleep(REST_S)
        figures = MemoryFigures(clients, before_mb, peak_mb, processes.rss_mb(), wall_s, cpu_s)
    print(
        f"{clients:3} clients: RSS {before_mb:.0f} MB before, peak {peak_mb:.0f} MB, {figures.rest_mb:.0f} MB at rest; "
        f"{wall_s:.1f} s, {cpu_s / len(images):.2f} CPU s per page"
    )
    return figures, texts


def main() -> int:
    """Run the benchmark; returns 0 if the goal is met and both loads give the same texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--pages", type=int, default=24)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/memory.json")
    args = parser.parse_args()
    print_machine()
    pages = choose(Corpus(args.shared).pages, args.pages)
    images = [page.file.read_bytes() for page in pages]
    megapixels = sorted(page.row["width"] * page.row["height"] / 1e6 for page in pages)
    print(f"load: {len(pages)} pages once each, {megapixels[0]:.2f} to {megapixels[-1]:.1f} megapixels")
    (one, alone), (many, together) = (load(images, clients) for clients in (1, args.clients))
    differing = [page.file.name for page, *texts in zip(pages, alone, together, strict=True) if len(set(texts)) > 1]
    ratio = many.peak_mb / one.peak_mb
    print(f"peak RSS, {args.clients} clients / one client: {ratio:.2f} (goal: at most {GOAL_RATIO})")
    print(f"read differently under load: {', '.join(differing) or 'no page'}")
    figures: dict[str, object] = {"loads": [asdict(one), asdict(many)], "ratio": ratio, "differing": differing}
    write_result("memory", figures | {"pages": [page.file.name for page in pages]}, args.out)
    return 0 if ratio <= GOAL_RATIO and not differing else 1


if __name__ == "__main__":
    sys.exit(main())
