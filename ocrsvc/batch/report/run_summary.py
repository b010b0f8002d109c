"""What a report says of a run's pages, worked out of the table: totals, distributions, failures, workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ocrsvc.batch.ledger.entries import CONFIDENCE_SCALE, PageState
from ocrsvc.batch.report.page_table import OwnerFacts, PageTable

MOST_BINS: Final = 80
MOST_REASONS: Final = 30
MOST_FILES: Final = 20
"""Of one reason."""
MOST_WORKERS: Final = 40
MOST_PAGES: Final = 12
"""Slowest, and least confident."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges: one more edge than counts; `more` are counts of another kind between the same edges."""

    edges: Sequence[float]
    counts: Sequence[int]
    more: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for which pages have failed: its error code, how many, and the first of them by number."""

    code: str
    pages: int
    first: Sequence[int]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What one worker has read; `seconds` with the waits for an engine."""

    name: str
    pages: int
    failed: int
    lines: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunSummary:
    """All of it.

    Attributes:
        pages, done, failed, left: Pages of the plan.
        lines: On the pages read.
        tried_again: Pages that took more than one try.
        without_lines: Pages that were read and have none.
        began: Unix time.
        elapsed_s: From the beginning to the last page.
        worked_s: Seconds of these in which somebody worked on it.
        throughput: Pages read and failed, by seconds since the beginning.
        latency: Pages read, by the seconds that they took, in bins of growing width.
        latency_s: At the median, 0.9, 0.99 and at most.
        confidence: Pages with lines, by their lines' mean.
        reasons, more_reasons: Of failures, the most frequent first; and how many are left out.
        workers, more_workers: Those with most pages; and how many are left out.
        slowest, least_confident: Pages by number, the worst first.
    """

    pages: int
    done: int
    failed: int
    left: int
    lines: int
    tried_again: int
    without_lines: int
    began: float
    elapsed_s: float
    worked_s: float
    throughput: Histogram
    latency: Histogram
    latency_s: tuple[float, float, float, float]
    confidence: Histogram
    reasons: Sequence[Reason]
    more_reasons: int
    workers: Sequence[WorkerRow]
    more_workers: int
    slowest: Sequence[int]
    least_confident: Sequence[int]


def summarize(table: PageTable) -> RunSummary:
    """The summary of a run's pages."""
    rows = table.rows
    done, failed = rows["state"] == PageState.DONE, rows["state"] == PageState.FAILED
    known = done | failed
    with_lines = done & (rows["lines"] > 0)
    elapsed_s = float(rows["at"][known].max(initial=0.0))
    reasons = _reasons(table, failed)
    workers = _workers(table, done, failed)
    seconds = rows["seconds"][done]
    return RunSummary(
        pages=len(rows),
        done=int(done.sum()),
        failed=int(failed.sum()),
        left=int(len(rows) - known.sum()),
        lines=int(rows["lines"][done].sum()),
        tried_again=int((rows["attempts"][known] > 1).sum()),
        without_lines=int(done.sum() - with_lines.sum()),
        began=table.began,
        elapsed_s=elapsed_s,
        worked_s=_worked_s(table.owners),
        throughput=_throughput(rows["at"], done, failed, elapsed_s),
        latency=_latency(seconds),
        latency_s=_quantiles(seconds),
        confidence=_confidence(rows["confidence"][with_lines]),
        reasons=reasons[:MOST_REASONS],
        more_reasons=max(0, len(reasons) - MOST_REASONS),
        workers=workers[:MOST_WORKERS],
        more_workers=max(0, len(workers) - MOST_WORKERS),
        slowest=_first(-rows["seconds"], done),
        least_confident=_first(rows["confidence"], with_lines),
    )


def _worked_s(owners: Sequence[OwnerFacts]) -> float:
    """Seconds in which one of them worked at least: from its beginning to its last page."""
    total_s = end = 0.0
    for began, last in sorted((one.owner.began, one.last) for one in owners):
        total_s += max(0.0, last - max(began, end))
        end = max(end, last)
    return total_s


def _throughput(at: np.ndarray, done: np.ndarray, failed: np.ndarray, elapsed_s: float) -> Histogram:
    bins = max(1, min(MOST_BINS, int(elapsed_s)))
    edges = np.linspace(0.0, max(elapsed_s, 1e-3), bins + 1)
    counts, more = (np.histogram(at[which], edges)[0].tolist() for which in (done, failed))
    return Histogram(edges.tolist(), counts, more)


def _latency(seconds: np.ndarray) -> Histogram:
    """Six bins for each factor of ten, an even number of them, so that one edge is in the middle."""
    if not len(seconds):
        return Histogram([0.0, 1.0], [0])
    low = np.floor(6 * np.log10(max(float(seconds.min()), 1e-3)))
    high = max(low + 1, np.ceil(6 * np.log10(max(float(seconds.max()), 1e-3)) + 1e-6))
    high += (high - low) % 2
    edges = 10 ** (np.arange(low, high + 1) / 6)
    return Histogram(edges.tolist(), np.histogram(np.clip(seconds, edges[0], edges[-1]), edges)[0].tolist())


def _quantiles(seconds: np.ndarray) -> tuple[float, float, float, float]:
    if not len(seconds):
        return (0.0, 0.0, 0.0, 0.0)
    median, most, nearly_all = np.quantile(seconds, (0.5, 0.9, 0.99)).tolist()
    return (median, most, nearly_all, float(seconds.max()))


def _confidence(values: np.ndarray) -> Histogram:
    edges = np.linspace(0.0, 1.0, 21)
    return Histogram(edges.tolist(), np.histogram(values / np.float32(CONFIDENCE_SCALE), edges)[0].tolist())


def _reasons(table: PageTable, failed: np.ndarray) -> list[Reason]:
    pages = np.flatnonzero(failed)
    codes = table.rows["reason"][pages]
    found = []
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        found.append(Reason(table.names[code], int(count), pages[codes == code][:MOST_FILES].tolist()))
    return sorted(found, key=lambda reason: (-reason.pages, reason.code))


def _workers(table: PageTable, done: np.ndarray, failed: np.ndarray) -> list[WorkerRow]:
    rows, most = table.rows, len(table.names)
    known = done | failed
    workers = rows["worker"][known]
    pages = np.bincount(workers, minlength=most)
    failures = np.bincount(rows["worker"][failed], minlength=most)
    lines = np.bincount(workers, rows["lines"][known], most)
    seconds = np.bincount(workers, rows["seconds"][known], most)
    found = [
        WorkerRow(table.names[at], int(pages[at]), int(failures[at]), int(lines[at]), float(seconds[at]))
        for at in np.flatnonzero(pages)
    ]
    return sorted(found, key=lambda row: (-row.pages, row.name))


def _first(keys: np.ndarray, which: np.ndarray) -> list[int]:
    """The pages with the smallest keys, among these; equal ones in the order of the plan."""
    pages = np.flatnonzero(which)
    values = keys[pages]
    if len(pages) > MOST_PAGES:
        limit = np.partition(values, MOST_PAGES - 1)[MOST_PAGES - 1]
        pages, values = pages[values <= limit], values[values <= limit]
    return [int(page) for page in pages[np.argsort(values, kind="stable")][:MOST_PAGES]]
