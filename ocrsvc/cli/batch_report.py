"""The report of a batch run: at its end, and `ocrsvc batch --report --out DEST` at any time."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from ocrsvc.batch.visible_text import visible
from ocrsvc.errors import OcrsvcError

if TYPE_CHECKING:
    from ocrsvc.batch.destination import Destination


def make_report(destination: Destination) -> int:
    """Write it, and say where; always 0. Raises OcrsvcError and OSError."""
    from ocrsvc.batch.report import write_report
    from ocrsvc.batch.sources.load_files import SourceLoader

    with closing(SourceLoader()) as load:
        name = write_report(destination, load)
    print(f"ocrsvc: report in {destination.address.rstrip('/')}/{name}", file=sys.stderr)
    return 0


def make_report_at_end(destination: Destination) -> None:
    """The same after a run, which does not fail for want of a report."""
    try:
        make_report(destination)
    except (OcrsvcError, OSError) as error:
        print(visible(f"ocrsvc: the report could not be written: {error}"), file=sys.stderr)
