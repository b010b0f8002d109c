"""Shows a run's progress on a terminal: a bar, rates, failures, and what each worker does. Needs rich."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ocrsvc.batch.progress.formatting import bytes_of, count_of, duration_of, failures_of, rate_of, share_of
from ocrsvc.batch.progress.run_counts import RunCounts, RunSnapshot, WorkerCounts

_REFRESHES_PER_S: Final = 4
_MOST_WORKERS: Final = 12


class TerminalDisplay:
    """Draws the progress anew a few times a second, in a thread of rich's, until `close`."""

    def __init__(self, counts: RunCounts, output: TextIO) -> None:
        self._counts = counts
        console = Console(file=output)
        self._live = Live(
            get_renderable=self._draw, console=console, refresh_per_second=_REFRESHES_PER_S, redirect_stdout=False
        )
        self._live.start()
        # rich hides it, and nobody would show it again when a second Ctrl-C ends the process.
        console.show_cursor()

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        return drawn(self._counts.snapshot())


def drawn(now: RunSnapshot) -> RenderableType:
    """How a run stands, for rich."""
    if not now.total:
        return Text("planning")
    finished = now.total - now.left
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    head = f"{finished:,} of {count_of(now.total, 'page')}, {share_of(finished, now.total)}"
    bar.add_row(ProgressBar(total=now.total, completed=finished, complete_style="blue", finished_style="green"), head)
    return Group(bar, *_facts(now), _workers(now.workers))


def _facts(now: RunSnapshot) -> tuple[Text, Text]:
    left = "" if now.left_s is None or not now.left else f" · {duration_of(now.left_s)} left"
    pace = f"{rate_of(now.pages_per_s)} pages/s · {rate_of(now.lines_per_s)} lines/s{left}"
    failed = Text(failures_of(now.failed), style="red" if now.failed else "dim")
    more = f" · {now.retried:,} tried again · {now.in_flight:,} being read · {count_of(now.parts, 'part')} written"
    return Text(pace), failed.append(f"{more} · {bytes_of(now.result_bytes)} of results", style="dim")


def _workers(workers: Mapping[str, WorkerCounts]) -> Table:
    """The workers that have read most."""
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
