"""Processor time of two checkouts, or of two settings, on the same pages in turn.

    python benchmarks/paired_cpu.py ecd9bb0 [--after .] [--pages 24] [--clients 4] [--rounds 2] [--most 0.5]
    python benchmarks/paired_cpu.py . --before-env OCRSVC_PRECISION=fp32 --after-env OCRSVC_PRECISION=int8

Each side is a service with its own model cache, started twice so that the second start finds a full cache. --clients
pages at once are sent to one side and then to the other; the order alternates from pair to pair. A side's processor
time in a pair is all time its processes used since its previous pair ended, so work after an answer is included. A
commit is unpacked under .bench/checkouts. Exit code 1 if a page fails or, with --most, the ratio is above it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.corpus import ALL, HALVES, Corpus, CorpusPage
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, Service, ask, started
from bench.texts import differences

FOLDER = ROOT / ".bench"
PAGE_LIMIT_S = 600.0
ENVIRONMENT = {"OCRSVC_DEADLINE_S": "600"}
RESAMPLINGS = 2000
REST_S = 1.0


@dataclass
class Side:
    """One of the two services, and its figures so far.

    Attributes:
        cpu_s: Processor seconds in each pair.
        texts: Texts of the last round, by page.
    """

    name: str
    service: Service
    cpu_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    texts: dict[str, str | None] = field(default_factory=dict)
    _used_s: float = 0.0

    def begin(self) -> None:
        """Start counting processor time."""
        self.service.processes.forget_peak()
        self._used_s = self.service.processes.cpu_s()

    def read(self, pages: Sequence[CorpusPage], pool: ThreadPoolExecutor) -> None:
        """Read this side's half of a pair: all pages at once."""
        began_s = time.perf_counter()
        for page, text in zip(pages, pool.map(self._text, pages), strict=True):
            self.texts[page.file.name] = text
        self.wall_s += time.perf_counter() - began_s
        used_s = self.service.processes.cpu_s()
        self.cpu_s.append(used_s - self._used_s)
        self._used_s = used_s

    def figures(self, corpus: Corpus, rounds: int) -> dict[str, object]:
        """The figures as a JSON-ready dict."""
        count = len(corpus.pages) * rounds
        return {
            "side": self.name,
            "cpu_s_per_page": round(sum(self.cpu_s) / count, 4),
            "pages_per_s": round(count / self.wall_s, 3),
            "peak_rss_mb": round(self.service.processes.peak_mb()),
            **corpus.tally(self.in_order(corpus))[ALL].as_dict(),
        }

    def in_order(self, corpus: Corpus) -> list[str | None]:
        """The texts in the order of the corpus's pages."""
        return [self.texts[page.file.name] for page in corpus.pages]

    def _text(self, page: CorpusPage) -> str | None:
        answer = ask(
            self.service.url, "POST", "/v1/ocr", page.file.read_bytes(), "application/octet-stream", PAGE_LIMIT_S
        )
        if answer.status != 200:
            print(f"FAILED {self.name} {page.file.name}: {answer.status} {answer.text[:200]}")
            return None
        return "\n".join(line["text"] for part in json.loads(answer.text)["pages"] for line in part["lines"])


def checkout(name: str) -> Path:
    """The folder with the code: `name` itself, or an unpacked commit."""
    if Path(name).is_dir():
        return Path(name).resolve()
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", f"{name}^{{commit}}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    folder = FOLDER / "checkouts" / commit
    if not folder.exists():
        folder.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


@contextlib.contextmanager
def running_side(role: str, name: str, settings: Sequence[str], warm_up: Sequence[CorpusPage]) -> Iterator[Side]:
    """A side that is warm, started for the second time with its model cache."""
    root = checkout(name)
    chosen = dict(setting.split("=", 1) for setting in settings)
    models = FOLDER / "paired" / role
    models.mkdir(parents=True, exist_ok=True)
    env = ENVIRONMENT | {"OCRSVC_MODEL_CACHE": str(models)} | chosen
    with started(env, root) as service, ThreadPoolExecutor(1) as pool:
        Side(role, service).read(warm_up[:1], pool)
    with started(env, root) as service, ThreadPoolExecutor(len(warm_up)) as pool:
        Side(role, service).read(warm_up, pool)
        time.sleep(REST_S)
        yield Side(f"{role}: {name} {' '.join(settings)}".strip(), service)


def read_in_turn(sides: tuple[Side, Side], pages: Sequence[CorpusPage], clients: int, rounds: int) -> None:
    """Send `clients` pages at once to one side and then to the other; print each pair."""
    groups = [pages[start : start + clients] for _ in range(rounds) for start in range(0, len(pages), clients)]
    before, after = sides
    for side in sides:
        side.begin()
    with ThreadPoolExecutor(clients) as pool:
        for number, group in enumerate(groups):
            for side in sides if number % 2 == 0 else sides[::-1]:
                side.read(group, pool)
            spent = before.cpu_s[-1], after.cpu_s[-1]
            print(f"{group[0].file.name:40.40} {spent[0]:8.2f} {spent[1]:8.2f} CPU s {spent[1] / spent[0]:6.3f}")


def ratio_of(before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """The ratio of the sums, its 95 % interval by resampling the pairs, and the median ratio of a pair."""
    draw = random.Random(len(before))
    pairs = list(zip(before, after, strict=True))
    drawn = sorted(
        sum(pair[1] for pair in sample) / sum(pair[0] for pair in sample)
        for sample in (draw.choices(pairs, k=len(pairs)) for _ in range(RESAMPLINGS))
    )
    return {
        "ratio": round(sum(after) / sum(before), 4),
        "low": round(drawn[RESAMPLINGS * 25 // 1000], 4),
        "high": round(drawn[RESAMPLINGS * 975 // 1000 - 1], 4),
        "median_pair": round(statistics.median(new / old for old, new in pairs), 4),
    }


def print_side(figures: Mapping[str, object]) -> None:
    """Print a line of figures."""
    print(
        f"{figures['side']}: {figures['cpu_s_per_page']} CPU s per page, {figures['pages_per_s']} pages/s, "
        f"peak RSS {figures['peak_rss_mb']} MB, F1 {figures['f1']}, CER {figures['cer']}"
    )


def sample(args: argparse.Namespace) -> tuple[Corpus, list[CorpusPage]]:
    """The corpus reduced to evenly spread pages, and a few other pages for warm-up."""
    corpus = Corpus(args.shared, args.kind, half=None if args.half == "all" else args.half)
    step = max(1, len(corpus.pages) // args.pages)
    every = corpus.pages
    corpus.pages = every[::step][: args.pages]
    others = [page for page in every if page not in corpus.pages] or every
    return corpus, others[:: max(1, len(others) // 4)][:4]


def main() -> int:
    """Run the benchmark; returns 0 if every page was read and the ratio is at most --most."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", help="a checkout or a commit")
    parser.add_argument("--after", default=str(ROOT), help="a checkout or a commit; default: this checkout")
    parser.add_argument("--before-env", action="append", default=[], help="NAME=VALUE for that side's service")
    parser.add_argument("--after-env", action="append", default=[], help="NAME=VALUE for that side's service")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all", help="pages of one half only")
    parser.add_argument("--kind", help="only pages of this kind")
    parser.add_argument("--pages", type=int, default=24, help="number of pages, spread evenly over the corpus")
    parser.add_argument("--clients", type=int, default=1, help="pages sent at once")
    parser.add_argument("--rounds", type=int, default=1, help="how often each page is read")
    parser.add_argument("--most", type=float, help="highest ratio without exit code 1")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/paired_cpu.json")
    args = parser.parse_args()
    print_machine()
    corpus, warm_up = sample(args)
    with (
        running_side("before", args.before, args.before_env, warm_up) as before,
        running_side("after", args.after, args.after_env, warm_up) as after,
    ):
        read_in_turn((before, after), corpus.pages, args.clients, args.rounds)
        time.sleep(REST_S)
        sides = [side.figures(corpus, args.rounds) for side in (before, after)]
    ratio = ratio_of(before.cpu_s, after.cpu_s)
    for figures in sides:
        print_side(figures)
    print("\n".join(differences(corpus, before.in_order(corpus), after.in_order(corpus))))
    print(
        f"CPU s, after / before: {ratio['ratio']} ({ratio['low']} to {ratio['high']}), median pair "
        f"{ratio['median_pair']}, {len(before.cpu_s)} pairs of {args.clients} pages"
    )
    write_result(
        "paired_cpu",
        {"sides": sides, **ratio, "pairs": len(before.cpu_s), "clients": args.clients, "rounds": args.rounds},
        args.out,
    )
    failed = None in before.texts.values() or None in after.texts.values()
    return 1 if failed or (args.most is not None and ratio["ratio"] > args.most) else 0


if __name__ == "__main__":
    sys.exit(main())
