"""The report of a batch run: at its end, and `ocrsvc batch --report --out DEST` at any time."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from ocrsvc.batch.visible_text import visible
from ocrsvc.errors import OcrsvcError

if TYPE_CHECKING:
    from ocrsvc.batch.store.contract import Store


def make_report(store: Store) -> int:
    """Write it, and say where; always 0. Raises OcrsvcError and OSError."""
    from ocrsvc.batch.report.write_report import write_report
    from ocrsvc.batch.sources.loading import SourceLoader

    with closing(SourceLoader()) as load:
        name = write_report(store, load)
    print(f"ocrsvc: report in {store.address.rstrip('/')}/{name}", file=sys.stderr)
    return 0


def make_report_at_end(store: Store) -> None:
    """The same after a run, which does not fail for want of a report."""
    try:
        make_report(store)
    except (OcrsvcError, OSError) as error:
        print(visible(f"ocrsvc: the report could not be written: {error}"), file=sys.stderr)
