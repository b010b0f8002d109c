"""The three plots of a run: throughput over time, seconds of a page, confidence."""

from __future__ import annotations

from ocrsvc.batch.progress.formatting import duration_of, rate_of, share_of
from ocrsvc.batch.report.plots import Plot
from ocrsvc.batch.report.run_summary import Histogram, RunSummary


def plots_of(summary: RunSummary) -> list[Plot]:
    """Those of which there is something to show."""
    plots = []
    if summary.done or summary.failed:
        plots.append(_throughput(summary))
    if summary.done:
        plots.append(_latency(summary))
    if summary.done > summary.without_lines:
        plots.append(_confidence(summary))
    return plots


def _throughput(summary: RunSummary) -> Plot:
    edges = summary.throughput.edges
    width_s = edges[1] - edges[0]
    fullest = max(a + b for a, b in zip(summary.throughput.counts, summary.throughput.more, strict=True))
    mean = rate_of((summary.done + summary.failed) / max(summary.worked_s, 1e-3))
    return Plot(
        "Pages over time",
        f"{mean} pages/s in the mean of the time in which somebody read; each column is {duration_of(width_s)}.",
        summary.throughput,
        [duration_of(edge) for edge in edges],
        ["0 s", duration_of(edges[-1] / 2), duration_of(edges[-1])],
        f"{rate_of(fullest / width_s)} pages/s",
        ("read", "failed"),
        "since the beginning",
    )


def seconds_of(value: float) -> str:
    """Seconds of one page, in milliseconds where they are few."""
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 99.5 else duration_of(value)


def _latency(summary: RunSummary) -> Plot:
    median, most, nearly_all, slowest = map(seconds_of, summary.latency_s)
    edges = summary.latency.edges
    return Plot(
        "Seconds of a page",
        f"Half of the pages took up to {median}, nine of ten up to {most}, 99 % up to {nearly_all}; the slowest "
        f"{slowest}. Waits for an engine are part of it.",
        summary.latency,
        [seconds_of(edge) for edge in edges],
        [seconds_of(edges[at]) for at in (0, len(edges) // 2, -1)],
        f"{max(summary.latency.counts):,} pages",
        ("pages", ""),
        "a page took",
    )


def _confidence(summary: RunSummary) -> Plot:
    counts = summary.confidence.counts
    total = sum(counts)
    low = sum(count for count, edge in zip(counts, summary.confidence.edges, strict=False) if edge < 0.8 - 1e-9)
    without = f" {summary.without_lines:,} more have no lines." if summary.without_lines else ""
    return Plot(
        "Confidence of a page",
        f"The mean of its lines. {total - low:,} of {total:,} pages ({share_of(total - low, total)}) have 0.8 or "
        f"more.{without}",
        Histogram(summary.confidence.edges, counts),
        [f"{edge:.2f}" for edge in summary.confidence.edges],
        ["0", "0.5", "1"],
        f"{max(counts):,} pages",
        ("pages", ""),
        "confidence",
    )
