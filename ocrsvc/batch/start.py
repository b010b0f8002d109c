"""Begins a run, or goes on with it: the plan, the ledger, the reader, and this process's work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from ocrsvc import __version__
from ocrsvc.batch.file_cache import FileCache
from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.outputs.output_formats import check_formats, open_writers
from ocrsvc.batch.page_reader import PageReader
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.planning import open_plan
from ocrsvc.batch.progress.contract import Progress
from ocrsvc.batch.readers.opening import ReaderRequest, ServiceAccess, open_reader
from ocrsvc.batch.readers.ray_cluster.cluster_request import ClusterRequest
from ocrsvc.batch.run import Run
from ocrsvc.batch.run_context import RunContext, RunSettings
from ocrsvc.batch.run_description import FORMAT, RunDescription
from ocrsvc.batch.sources.loading import SourceLoader
from ocrsvc.batch.sources.opening import find_sources
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.source_request import SourceRequest
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.client.request import Options
from ocrsvc.errors import RunChanged

UNFINISHED: Final = "unfinished/"
"""Where the output of parts is of which --limit has some pages read."""
_JOIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a command asks for.

    Attributes:
        sources: Which files and pages.
        options: How pages are read.
        outputs: Names of output formats.
        on: Who reads.
        part_pages: Pages after which a part ends.
        retry_failed: Try pages that have failed again.
        run: How the run is worked on.
        environment: Of the settings OCRSVC_….
        as_planned: Go on with the plan, whatever became of the sources since.
        cluster: What actors, where a Ray cluster reads.
        services: How services are asked, where they read.
        update: Plan the files that are new since, too.
    """

    sources: SourceRequest
    options: Options
    outputs: tuple[str, ...]
    on: str
    part_pages: int
    retry_failed: bool = False
    run: RunSettings = field(default_factory=RunSettings)
    environment: dict[str, str] = field(default_factory=dict)
    as_planned: bool = False
    cluster: ClusterRequest = field(default_factory=ClusterRequest)
    services: ServiceAccess = field(default_factory=ServiceAccess)
    update: bool = False


def planned_files(request: BatchRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    """The files that a run would read, in the order of the output, and counts what is left out. Raises SourceGone."""
    return find_sources(request.sources, counts)


@contextmanager
def opened_reader(request: BatchRequest) -> Iterator[PageReader]:
    """The reader of a run, started. Raises OcrsvcError."""
    load = SourceLoader(request.sources.most_file_bytes)
    try:
        reader = open_reader(_reader_request(request, load))
        try:
            reader.start()
            yield reader
        finally:
            reader.close()
    finally:
        load.close()


def _reader_request(request: BatchRequest, load: Callable[[SourceFile], bytes]) -> ReaderRequest:
    return ReaderRequest(request.on, request.options, load, request.environment, request.cluster, request.services)


@contextmanager
def open_run(
    store: Store, request: BatchRequest, progress: Progress, counts: PlanningCounts | None = None
) -> Iterator[Run]:
    """This process's work on the run, ready to be executed.

    Args:
        store: The destination.
        request: What is asked for.
        progress: Told what happens.
        counts: What planning leaves out, counted meanwhile.

    Raises:
        OcrsvcError, OSError: It cannot begin.
    """
    check_formats(request.outputs, request.options)
    load = SourceLoader(request.sources.most_file_bytes)
    cache = FileCache(load, keeps_all=request.run.dedupe)
    reader = open_reader(_reader_request(request, cache.load))
    work: Run | None = None
    try:
        plan, identity = _plan_and_start(store, request, reader, PlanningCounts() if counts is None else counts)
        ledger = Ledger(store, plan)
        ledger.refresh()
        if request.retry_failed:
            ledger.forget_failures()
        for file in list(store.files(UNFINISHED)):
            store.delete(file.name)
        _check_reader(ledger, identity)
        owner = Owner.this_process()
        ledger.note_ended(owner)
        with _own_log(store, owner, identity) as log:
            # Of two that begin at the same time, at least one sees the other's log.
            ledger.refresh()
            _check_reader(ledger, identity)
            run_format = _format_of(store)
            writers, unfinished = (
                open_writers(request.outputs, identity, run_format, folder) for folder in ("", UNFINISHED)
            )
            context = RunContext(store, plan, ledger, owner, log, reader, writers, cache.load, unfinished)
            work = Run(context, request.run, progress)
            yield work
        work.remove_results()
    finally:
        reader.close()
        if work is not None:
            work.join(_JOIN_S)
        load.close()


def _plan_and_start(
    store: Store, request: BatchRequest, reader: PageReader, counts: PlanningCounts
) -> tuple[Plan, dict[str, str]]:
    """The plan, and who reads; what the reader refuses is not written down as the options of a new run."""
    if RunDescription.read(store) is None:
        identity = dict(reader.start())
        return open_plan(store, request, counts), identity
    plan = open_plan(store, request, counts)
    return plan, dict(reader.start())


def _format_of(store: Store) -> int:
    """Of the files of the run that the store holds: one that began with an earlier version goes on as it began."""
    described = RunDescription.read(store)
    return FORMAT if described is None else described.format


@contextmanager
def _own_log(store: Store, owner: Owner, identity: Mapping[str, str]) -> Iterator[LedgerLog]:
    """The log of an owner, with its last word at the end, also where the run could not go on."""
    log = LedgerLog(store, owner, {"ocrsvc": __version__, "reader": dict(identity)})
    try:
        yield log
    except BaseException:
        with suppress(OSError):
            log.end()
        raise
    else:
        log.end()
    finally:
        log.close()


def _check_reader(ledger: Ledger, identity: Mapping[str, str]) -> None:
    """Raises RunChanged if another engine or model, or one with other settings, reads or has read pages of this run."""
    for log in ledger.owners():
        had = log.facts.get("reader", {})
        has_read = log.results > 0 or not log.is_over
        if has_read and any(had[key] != identity[key] for key in had.keys() & identity.keys()):
            raise RunChanged(
                f"This run was begun with {_named(had)}, and now {_named(identity)} would read.",
                "Read on with the same engine, model and settings, or take another destination.",
            )


def _named(identity: Mapping[str, str]) -> str:
    return " ".join(value for value in identity.values() if value)
