"""Begins a run, or goes on with it: the plan, the ledger, the reader, and this process's work on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ocrsvc import __version__
from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.outputs.output_formats import BATCH_FORMATS
from ocrsvc.batch.plan import Plan, read_plan, write_plan
from ocrsvc.batch.readers.opening import ReaderRequest, open_reader
from ocrsvc.batch.readers.ray_cluster.cluster_request import ClusterRequest
from ocrsvc.batch.run import Progress, Run, RunContext, RunSettings
from ocrsvc.batch.run_description import RunDescription
from ocrsvc.batch.sources.opening import find_sources, load_file
from ocrsvc.batch.store.contract import Store
from ocrsvc.client.request import Options
from ocrsvc.errors import BadOption, RunChanged


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a command asks for.

    Attributes:
        sources: Files and folders.
        options: How pages are read.
        outputs: Names of output formats.
        on: Who reads.
        part_pages: Pages after which a part ends.
        retry_failed: Try pages that have failed again.
        run: How the run is worked on.
        environment: Of the settings OCRSVC_….
        cluster: What actors, where a Ray cluster reads.
    """

    sources: tuple[str, ...]
    options: Options
    outputs: tuple[str, ...]
    on: str
    part_pages: int
    retry_failed: bool = False
    run: RunSettings = field(default_factory=RunSettings)
    environment: dict[str, str] = field(default_factory=dict)
    cluster: ClusterRequest = field(default_factory=ClusterRequest)


def open_plan(store: Store, request: BatchRequest) -> Plan:
    """The plan of the run: the store's, or a new one. Raises RunChanged, SourceGone, DamagedLedger and OSError."""
    planning = {"part_pages": request.part_pages}
    asked = RunDescription(request.sources, request.options, request.outputs, planning)
    described = RunDescription.read(store)
    if described is None:
        plan = write_plan(store, find_sources(request.sources), request.part_pages)
        if replace(asked, plan=plan.totals.digest).write(store):
            return plan
        # Another process has begun the same run meanwhile: its plan stands.
        described = RunDescription.read(store) or asked
    described.check_same(asked, store.address)
    return read_plan(store)


@contextmanager
def open_run(store: Store, request: BatchRequest, progress: Progress) -> Iterator[Run]:
    """This process's work on the run, ready to be executed. Raises OcrsvcError and OSError."""
    for name in request.outputs:
        if name not in BATCH_FORMATS:
            raise BadOption(f"--format is {name!r}: accepted are {', '.join(BATCH_FORMATS)}, separated by commas.")
    plan = open_plan(store, request)
    ledger = Ledger(store, plan)
    ledger.refresh()
    if request.retry_failed:
        ledger.forget_failures()
    reader = open_reader(ReaderRequest(request.on, request.options, load_file, request.environment, request.cluster))
    try:
        identity = dict(reader.start())
        _check_reader(ledger, identity)
        owner = Owner.this_process()
        log = LedgerLog(store, owner, {"ocrsvc": __version__, "reader": identity})
        writers = [BATCH_FORMATS[name].open() for name in request.outputs]
        context = RunContext(store, plan, ledger, owner, log, reader, writers, load_file)
        yield Run(context, request.run, progress)
        log.end()
    finally:
        reader.close()


def _check_reader(ledger: Ledger, identity: dict[str, str]) -> None:
    """Raises RunChanged if another engine or model has read pages of this run."""
    for log in ledger.owners():
        had = log.facts.get("reader")
        if had is not None and had != identity:
            raise RunChanged(
                f"This run was begun with {_named(had)}, and now {_named(identity)} would read.",
                "Read on with the same engine and model, or take another destination.",
            )


def _named(identity: dict[str, str]) -> str:
    return " ".join(identity.values())
