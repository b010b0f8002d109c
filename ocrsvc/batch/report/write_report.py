"""Writes the report of a run into its destination, from what lies there: plan, ledger and results."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ocrsvc import __version__
from ocrsvc.batch.plan import Plan, read_plan
from ocrsvc.batch.report.page_html import ReportContent, to_html
from ocrsvc.batch.report.page_table import PageTable, read_page_table
from ocrsvc.batch.report.pictures import PictureMaker
from ocrsvc.batch.report.run_summary import RunSummary, summarize
from ocrsvc.batch.report.shown_pages import PageFinder, ShownPage
from ocrsvc.batch.run_description import RunDescription
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import BadOption

REPORT: Final = "report.html"


def write_report(store: Store, load: Callable[[SourceFile], bytes]) -> str:
    """Write it, over the one before; gives its name in the store.

    Args:
        store: The destination.
        load: Gives the bytes of a source's file, for pictures.

    Raises:
        BadOption: There is none.
        DamagedLedger, OSError: What lies there cannot be read, or the report not be written.
    """
    run = RunDescription.read(store)
    if run is None:
        raise BadOption(f"There is no run in {store.address}.", "Name the destination of a run with --out.")
    plan = read_plan(store)
    table = read_page_table(store, plan.totals.pages)
    summary = summarize(table)
    content = ReportContent(
        store.address,
        run,
        plan.totals,
        summary,
        table.owners,
        _shown(store, plan, table, summary, load),
        __version__,
        time.time(),
    )
    with store.writing(REPORT) as output:
        for piece in to_html(content):
            output.write(piece.encode("utf-8", "replace"))
    return REPORT


def _shown(
    store: Store, plan: Plan, table: PageTable, summary: RunSummary, load: Callable[[SourceFile], bytes]
) -> dict[int, ShownPage]:
    """The pages that are named or shown; pictures of the worst."""
    finder = PageFinder(store, plan, table, PictureMaker(load))
    failed = (page for reason in summary.reasons for page in reason.first)
    worst = (*summary.least_confident, *summary.slowest)
    return {**finder.shown(failed), **finder.shown(worst, with_pictures=True)}
