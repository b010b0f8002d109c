"""What is planned of all sources that a command names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from ocrsvc.batch.sources.count_ahead import count_ahead
from ocrsvc.batch.sources.file_planner import FilePlanner
from ocrsvc.batch.sources.file_records import from_record, to_record
from ocrsvc.batch.sources.found_files import find_all
from ocrsvc.batch.sources.page_sample import Sample, sampled
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.record_sort import sort_records
from ocrsvc.batch.sources.source_request import SourceRequest
from ocrsvc.batch.tasks import SourceFile


def find_sources(request: SourceRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    """The files of all sources in the order of the output, with the pages that are to be read; in bounded memory.

    Args:
        request: Which.
        counts: What is found and not planned, counted meanwhile.

    Raises:
        SourceGone: A source is not there.
        BadOption: An option, a pattern or a list is none.
        OSError: A temporary file cannot be written.
    """
    files = _planned(request, counts)
    if request.sample is not None:
        files = sampled(files, Sample.of(request.sample), request.seed, counts)
    if request.is_sorted:
        files = in_order_of_names(files)
    yield from files


def in_order_of_names(files: Iterable[SourceFile]) -> Iterator[SourceFile]:
    """The files sorted by their names; what memory does not hold waits in temporary files. Raises OSError."""
    return map(from_record, sort_records(map(to_record, files)))


def _planned(request: SourceRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    with (
        closing(FilePlanner(request, counts)) as planner,
        closing(count_ahead(find_all(request.sources, counts), planner.count_pages)) as files,
    ):
        for found, ranges, total in files:
            yield from planner.plan(found, ranges, total)
