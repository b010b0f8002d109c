"""Compares other ways to serve OCR with this one: the same pages, the same machine, the same run.

    python benchmarks/peers.py [--pages 24] [--clients 20] [--rounds 1] [--only NAME,NAME] [--best NAME=VALUE]

The others are TurboOCR 4 with the same models; rapidocr_api; RapidOCR behind LitServe, behind BentoML, and behind
Python's own HTTP server; and Debian's Tesseract 5, one process per page. Each runs with its defaults and with the
fastest settings found (NAME_best, turboocr_openvino), in its own environment under .bench/peers (made once). This
service runs with its defaults, in single precision under ONNX Runtime, and with the settings of --best. One system runs
at a time, after a warm-up with other pages. The systems take turns, and each round starts with another one. Every page
is read once per round. The first run needs network access; --prepare makes the environments and measures nothing.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench.corpus import Corpus
from bench.machine import print_machine
from bench.peer_load import Load, run
from bench.peer_systems import NAMES, Peer, missing, prepare, serving
from bench.results import write_result
from bench.service import ROOT

START_LIMIT_S: Final = 180.0
WARM_UP_PAGES: Final = 4
COLUMNS: Final = {
    "requests": "requests",
    "pages_per_s": "pages/s",
    "mean_s": "mean, s",
    "p50_s": "p50, s",
    "p95_s": "p95, s",
    "p99_s": "p99, s",
    "max_s": "max, s",
    "cpu_s_per_page": "CPU s/page",
    "peak_rss_mb": "peak MB",
    "f1": "F1",
    "cer": "CER",
    "failed": "failed",
}

Loads = Mapping[tuple[str, int], Load]
Figures = Mapping[str, Mapping[str, Mapping[str, float | None]]]


def warm_up(peer: Peer, pages: Sequence[bytes]) -> None:
    """Wait until the peer answers, then have it read a few pages at once."""
    until_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            peer.read(pages[0])
            break
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            if time.monotonic() > until_s:
                sys.exit(f"{peer.name} did not become ready: {error!r}")
            time.sleep(0.5)
    with ThreadPoolExecutor(len(pages)) as pool:
        list(pool.map(peer.read, pages))


def choose(corpus: Corpus, count: int) -> list[bytes]:
    """Reduce the corpus to `count` evenly spread pages; returns a few of the others for warm-up."""
    every = corpus.pages
    corpus.pages = every[:: max(1, len(every) // count)][:count]
    others = [page for page in every if page not in corpus.pages] or every
    return [page.file.read_bytes() for page in others[:: max(1, len(others) // WARM_UP_PAGES)][:WARM_UP_PAGES]]


def measure(names: Sequence[str], corpus: Corpus, args: argparse.Namespace) -> Loads:
    """Run all loads on all systems, in turn."""
    clients = [int(count) for count in args.clients.split(",")]
    best = dict(setting.split("=", 1) for setting in args.best)
    others, pages = choose(corpus, args.pages), [page.file.read_bytes() for page in corpus.pages]
    loads = {(name, count): Load() for name in names for count in clients}
    for turn in range(args.rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            with serving(name, best) as peer:
                warm_up(peer, others)
                for count in clients:
                    run(peer, pages, count, loads[name, count])
                    done = loads[name, count]
                    pace = len(done.latencies_s) / done.wall_s
                    print(f"{count:3} clients, round {turn + 1}: {name:17} {pace:.2f} pages/s", flush=True)
    return loads


def print_table(figures: Figures) -> None:
    """Print a row per system and load; a quantile of too few requests is left empty."""
    print(f"{'system':18}{'clients':>8}" + "".join(f"{head:>12}" for head in COLUMNS.values()))
    for name, by_clients in figures.items():
        for count, row in by_clients.items():
            cells = ("" if row[column] is None else str(row[column]) for column in COLUMNS)
            print(f"{name:18}{count:>8}" + "".join(f"{cell:>12}" for cell in cells))


def can_run(name: str, best: Sequence[str]) -> bool:
    """Whether a system can run here; prints the reason if not."""
    reason = missing(name, dict(setting.split("=", 1) for setting in best))
    if reason:
        print(f"skipped: {name}, because {reason}")
    return not reason


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--pages", type=int, default=24, help="number of pages, spread evenly over the corpus")
    parser.add_argument("--clients", default="20", help="loads to try, such as 1,4,20")
    parser.add_argument("--rounds", type=int, default=1, help="how often each page is read under each load")
    parser.add_argument("--only", default=",".join(NAMES), help="systems to compare")
    parser.add_argument("--best", action="append", default=[], help="a setting of ocrsvc_best; may be repeated")
    parser.add_argument("--prepare", action="store_true", help="make the environments and measure nothing")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/peers.json")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if can_run(name, args.best)]
    for name in names:
        prepare(name)
    if args.prepare:
        return 0
    corpus = Corpus(args.shared)
    print_machine()
    print(f"load: {args.pages} pages, {args.rounds} rounds, {args.clients} clients; systems: {', '.join(names)}")
    loads = measure(names, corpus, args)
    figures: dict[str, dict[str, dict[str, float | None]]] = {name: {} for name in names}
    for (name, count), load in loads.items():
        figures[name][str(count)] = load.figures(corpus)
    print_table(figures)
    shown: dict[str, object] = {"pages": len(corpus.pages), "rounds": args.rounds, "best": args.best}
    write_result("peers", shown | {"systems": figures}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
