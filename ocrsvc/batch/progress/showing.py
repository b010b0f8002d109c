"""Shows a run while it works: on a terminal, as lines elsewhere, and for Prometheus."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TextIO

from ocrsvc.batch.progress.line_display import LineDisplay
from ocrsvc.batch.progress.run_counts import RunCounts


class Display(Protocol):
    """Shows counts until it is closed."""

    def close(self) -> None:
        """Show no more."""


@contextmanager
def showing(*, quiet: bool = False, metrics: str | None = None, output: TextIO | None = None) -> Iterator[RunCounts]:
    """Counts to give to a run, shown while the block runs.

    Args:
        quiet: Show nothing.
        metrics: PORT or HOST:PORT at which Prometheus may ask.
        output: Where to; standard error.

    Raises:
        BadOption: The port cannot be opened.
    """
    counts, stream = RunCounts(time.monotonic), output or sys.stderr
    with ExitStack() as stack:
        if metrics is not None:
            # Asked for by few: prometheus_client's server is not loaded otherwise.
            from ocrsvc.batch.progress.run_metrics import address_of, serve_metrics

            host, asked = address_of(metrics)
            port, close = serve_metrics(counts, (host, asked))
            stack.callback(close)
            stream.write(f"ocrsvc: metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics\n")
        if not quiet:
            stack.callback(_open_display(counts, stream).close)
        yield counts


def _open_display(counts: RunCounts, stream: TextIO) -> Display:
    """The display that suits where it is shown; lines without rich (extra `progress`)."""
    if stream.isatty():
        try:
            from ocrsvc.batch.progress.terminal_display import TerminalDisplay
        except ImportError:
            return LineDisplay(counts, stream)
        return TerminalDisplay(counts, stream)
    return LineDisplay(counts, stream)
