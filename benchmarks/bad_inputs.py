"""Sends every malformed input of the corpus to a running service, and checks each answer against the manifest.

    python benchmarks/bad_inputs.py --shared ../shared [--url http://127.0.0.1:8080 [--pid ARBITER]]

Posts every row of bad/manifest.jsonl to /v1/ocr, each followed by a good page. Violations are: a status that the row
does not allow, any 5xx, an answer later than five seconds (or than the row's own limit), more memory than the row's own
limit, a good page that is not answered with 200 afterwards, and a lost worker. Without --url the benchmark starts a
service with the settings of the environment. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from bench.machine import print_machine
from bench.processes import Processes
from bench.service import ROOT, Answer, Service, ask, form_with_file, started_or_at

GOOD = "ok_text.png"
ANSWER_LIMIT_S = 5.0


MAX_GROWTH_MB = 50.0
REST_S = 7.0


@dataclass(frozen=True, slots=True)
class Row:
    """One request for a line of the manifest."""

    name: str
    body: bytes
    content_type: str
    expect: tuple[int, ...]
    tokens: tuple[str, ...]
    limit_s: float
    limit_mb: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a row: the answer, the peak memory growth, and the violations."""

    row: Row
    answer: Answer
    growth_mb: float
    complaints: tuple[str, ...]

    @property
    def tokens_read(self) -> int:
        """Number of the page's tokens in the answer."""
        return sum(token in self.answer.text for token in self.row.tokens)


def bodies_of(line: dict[str, Any], data: bytes) -> Iterator[tuple[str, bytes, str]]:
    """Name, body and content type of each request for a manifest line."""
    if line["class"] == "base64":
        text = data.decode()
        yield "form", b"image=" + quote_plus(text).encode(), "application/x-www-form-urlencoded"
        yield "json", json.dumps({"image": text}).encode(), "application/json"
        return
    filename = line.get("send_filename", line["file"])
    yield (
        f"as {filename[:24]!r}" if "send_filename" in line else "",
        *form_with_file(data, filename, line["content_type"]),
    )


def read_manifest(folder: Path) -> Iterator[Row]:
    """All requests for all lines of the manifest."""
    for text in (folder / "manifest.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        limit = line.get("limit", "")
        seconds = re.search(r"within (\d+) s", limit)
        megabytes = re.search(r"less than (\d+) MB", limit)
        for way, body, content_type in bodies_of(line, (folder / line["file"]).read_bytes()):
            yield Row(
                name=f"{line['file']} {way}".strip(),
                body=body,
                content_type=content_type,
                expect=tuple(line["expect"]),
                tokens=tuple((line["text"] or "").split()),
                limit_s=min(ANSWER_LIMIT_S, float(seconds[1])) if seconds else ANSWER_LIMIT_S,
                limit_mb=float(megabytes[1]) if megabytes else float("inf"),
            )


def complain(row: Row, answer: Answer, after: Answer, growth_mb: float) -> Iterator[str]:
    """Violations by a row's answer and by the good page after it."""
    if answer.status not in row.expect:
        yield f"status {answer.status} is not in {list(row.expect)}: {answer.text[:120]}"
    if answer.status >= 500:
        yield "a 5xx"
    if answer.seconds > row.limit_s:
        yield f"{answer.seconds:.1f} s is later than {row.limit_s:.0f} s"
    if growth_mb > row.limit_mb:
        yield f"{growth_mb:.0f} MB is more than {row.limit_mb:.0f} MB"
    if after.status != 200:
        yield f"the good page after it got {after.status}"


def post_good(url: str, good: tuple[bytes, str]) -> Answer:
    """Post the good page, given as body and content type."""
    return ask(url, "POST", "/v1/ocr", *good)


def send(url: str, row: Row, good: tuple[bytes, str], processes: Processes) -> Outcome:
    """Post a row, then the good page."""
    processes.forget_peak()
    before_mb = processes.rss_mb()
    answer = ask(url, "POST", "/v1/ocr", row.body, row.content_type)
    growth_mb = max(0.0, processes.peak_mb() - before_mb)
    return Outcome(row, answer, growth_mb, tuple(complain(row, answer, post_good(url, good), growth_mb)))


def at_rest_mb(processes: Processes) -> float:
    """RSS a few seconds after the last request, when an idle service has released its free memory."""
    time.sleep(REST_S)
    return processes.rss_mb()


def print_report(outcomes: Sequence[Outcome]) -> None:
    """Print the figures of a run and its violations."""
    worst = max(outcomes, key=lambda outcome: outcome.answer.seconds)
    hungriest = max(outcomes, key=lambda outcome: outcome.growth_mb)
    legible = [outcome for outcome in outcomes if outcome.row.tokens and outcome.answer.status == 200]
    statuses = [outcome.answer.status for outcome in outcomes]
    print(f"rows: {len(outcomes)}; answers: { ({status: statuses.count(status) for status in sorted(set(statuses))}) }")
    print(f"slowest: {worst.answer.seconds:.2f} s, {worst.row.name}")
    print(f"largest memory growth: {hungriest.growth_mb:.0f} MB, {hungriest.row.name}")
    read, all_tokens = sum(o.tokens_read for o in legible), sum(len(o.row.tokens) for o in legible)
    print(f"text: {read} of {all_tokens} tokens read on {len(legible)} legible pages answered 200")
    for outcome in legible:
        if outcome.tokens_read < len(outcome.row.tokens):
            print(f"  {outcome.tokens_read} of {len(outcome.row.tokens)}: {outcome.row.name}")
    for outcome in outcomes:
        for complaint in outcome.complaints:
            print(f"VIOLATION {outcome.row.name}: {complaint}")


def check(service: Service, folder: Path) -> bool:
    """Send everything; returns True without violations."""
    url, processes = service.url, service.processes
    good = form_with_file((folder / GOOD).read_bytes(), GOOD, "image/png")
    for _ in range(3):
        if (warm := post_good(url, good)).status != 200:
            sys.exit(f"The good page got {warm.status}: {warm.text[:300]}")
    workers, before_mb = processes.workers(), at_rest_mb(processes)
    outcomes = [send(url, row, good, processes) for row in read_manifest(folder)]
    print_report(outcomes)
    kept = processes.workers() == workers
    peak_mb = max(outcome.growth_mb for outcome in outcomes)
    grown_mb = at_rest_mb(processes) - before_mb
    print(f"RSS of arbiter and workers, at rest: {before_mb:.0f} MB before, {grown_mb:+.0f} MB after")
    if grown_mb > MAX_GROWTH_MB:
        print(f"VIOLATION: memory at rest grew by {grown_mb:.0f} MB, more than {MAX_GROWTH_MB:.0f} MB")
    print(f"largest RSS peak: {peak_mb:.0f} MB above the level before its row")
    print(f"workers: {workers} before, {processes.workers()} after" if workers else "workers: not watched (no --pid)")
    return kept and grown_mb <= MAX_GROWTH_MB and not any(outcome.complaints for outcome in outcomes)


def main() -> int:
    """Run the benchmark; returns 0 without violations, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with bad/")
    parser.add_argument("--url", help="a running service; without it, one is started")
    parser.add_argument("--pid", type=int, help="the arbiter of that service, to watch its memory and workers")
    args = parser.parse_args()
    print_machine()
    print("load: one client, a new connection per request")
    with started_or_at(args.url, args.pid) as service:
        return 0 if check(service, args.shared / "bad") else 1


if __name__ == "__main__":
    sys.exit(main())
