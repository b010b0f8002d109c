"""Begins a run or continues it: plan, work folder, reader and writers, made ready to be executed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.outputs.output_formats import check_formats
from ocrsvc.batch.pages import PageReader
from ocrsvc.batch.parts import (
    UNFINISHED,
    Load,
    PartWriter,
    finished_parts,
    kept_parts,
    read_kept,
    read_manifests,
)
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.readers.open_reader import ClusterRequest, ReaderRequest, ServiceAccess, open_reader
from ocrsvc.batch.run import Run, RunContext, RunSettings
from ocrsvc.batch.run_file import RunDescription
from ocrsvc.batch.shard_lock import shard_lock, work_folder
from ocrsvc.batch.sources.load_files import FileCache, SourceLoader
from ocrsvc.batch.sources.plan_files import find_changes, find_new, find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts, SourceRequest
from ocrsvc.batch.work_file import BegunPages, WorkFile
from ocrsvc.client.request import Options
from ocrsvc.errors import DamagedLedger, RunChanged

_JOIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a command asks for.

    Attributes:
        options: How pages are read.
        outputs: Names of output formats.
        on: Who reads.
        part_pages: Pages after which a part ends.
        environment: Of the settings OCRSVC_….
        as_planned: Continue with the plan, whatever became of the sources since.
        update: Plan the files that are new since, too.
        work: Folder for what is not in the output yet; None chooses one.
        take_over: Continue where another machine's process may still work.
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
    work: Path | None = None
    take_over: bool = False

    def reader(self, load: Load) -> PageReader:
        """What reads, not started. Raises OcrsvcError."""
        return open_reader(ReaderRequest(self.on, self.options, load, self.environment, self.cluster, self.services))

    def described(self) -> RunDescription:
        """As a run that is not planned."""
        planning = {"part_pages": self.part_pages, "shards": self.run.shards} | self.sources.choice()
        return RunDescription(self.sources.sources, self.options, self.outputs, planning)


@contextmanager
def opened_reader(request: BatchRequest) -> Iterator[PageReader]:
    """The reader of a run, started. Raises OcrsvcError."""
    with closing(SourceLoader(request.sources.most_file_bytes)) as load, closing(request.reader(load)) as reader:
        reader.start()
        yield reader


@contextmanager
def open_run(
    destination: Destination, request: BatchRequest, progress: RunCounts, counts: PlanningCounts | None = None
) -> Iterator[Run]:
    """This process's work on the run, ready to be executed; `counts` counts what planning leaves out.

    Raises:
        OcrsvcError, OSError, sqlite3.Error: It cannot begin.
    """
    check_formats(request.outputs, request.options)
    shard = f"{request.run.shard}-of-{request.run.shards}"
    counts = PlanningCounts() if counts is None else counts
    with ExitStack() as stack:
        load = stack.enter_context(closing(SourceLoader(request.sources.most_file_bytes)))
        cache = FileCache(load, keeps_all=request.run.dedupe)
        reader = request.reader(cache.load)
        threads: list[threading.Thread] = []
        # They end once the reader is closed.
        stack.callback(_join, threads)
        stack.callback(reader.close)
        described = RunDescription.read(destination)
        if described is None:
            # What the reader refuses is not written down as the options of a new run.
            identity = dict(reader.start())
        folder = request.work or work_folder(destination)
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(shard_lock(destination, shard, take_over=request.take_over))
        if described is None:
            described = _begin(destination, request, identity, folder, counts)
        else:
            described = _continue(destination, request, described, folder, counts)
            described.check_reader(reader.start())
        plan = stack.enter_context(closing(described.open_plan(destination, folder)))
        work = stack.enter_context(closing(WorkFile(folder / f"{shard}.sqlite", described.id)))
        begun = BegunPages(destination, shard, described.id)
        writer = PartWriter(destination, plan, work, request.outputs, cache.load, described.reader)
        context = RunContext(plan, work, begun, reader, cache.load, writer, threads, progress)
        parts, reopened = _settle(context, request)
        try:
            yield Run(context, request.run, parts, reopened)
        finally:
            with suppress(OSError):
                begun.end()
        if progress.is_complete:
            work.remove()


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(_JOIN_S)


def _begin(
    destination: Destination, request: BatchRequest, identity: dict[str, str], folder: Path, counts: PlanningCounts
) -> RunDescription:
    """Plan a run; where another process has begun it meanwhile, its plan stands."""
    asked = replace(request.described(), reader=identity)
    described = asked.planned(destination, find_sources(request.sources, counts), folder)
    if described is not None:
        return described
    found = RunDescription.read(destination)
    if found is None:
        raise DamagedLedger(f"The run in {destination.address} has vanished.", "Repeat the command.")
    found.check_same(asked, destination.address)
    found.check_reader(identity)
    return found


def _continue(
    destination: Destination, request: BatchRequest, described: RunDescription, folder: Path, counts: PlanningCounts
) -> RunDescription:
    """The run, with new files if those are asked for. Raises RunChanged where sources are others."""
    described.check_same(request.described(), destination.address)
    with closing(described.open_plan(destination, folder)) as plan:
        if not request.as_planned:
            changes = find_changes(plan.all_files(), request.sources)
            changes.new = 0 if request.update else changes.new
            changes.check_none(destination.address)
        if not request.update:
            return described
        new = find_new(plan.all_files(), request.sources, counts)
        longer = described.planned(destination, new, folder, after=plan)
    if longer is None:
        raise RunChanged(
            f"Another process has planned the new files of the run in {destination.address} meanwhile.",
            "Repeat the command without --update.",
        )
    return longer


def _settle(context: RunContext, request: BatchRequest) -> tuple[list[int], frozenset[int]]:
    """Compare what is known with the output, which counts.

    Gives the parts to be worked on, in order, and those of them that are in the output with failures to be tried again.
    """
    plan, work, counts, destination = context.plan, context.work, context.counts, context.writer.destination
    own = range(request.run.shard, plan.parts, request.run.shards)
    finished = sorted(set(finished_parts(destination)) & set(own))
    reopened = set()
    for manifest in read_manifests(destination, finished):
        if manifest.failed and request.retry_failed:
            reopened.add(manifest.part)
            continue
        counts.done_before += manifest.done
        counts.failed_before += sum(manifest.failed.values())
        if not request.run.dedupe:
            work.forget(plan.pages_of(manifest.part))
    parts = sorted(reopened | (set(own) - set(finished)))
    # Also those that were being written again.
    for part in kept_parts(destination) & set(parts):
        _take_kept(destination, part, plan.pages_of(part), work)
    for part in parts:
        errors = work.errors(plan.pages_of(part))
        if request.retry_failed:
            again = [page for page, error in errors.items() if error]
            work.forget(again)
            context.begun.forget(again)
            errors = {page: "" for page, error in errors.items() if not error}
        counts.failed_before += sum(map(bool, errors.values()))
        counts.done_before += sum(not error for error in errors.values())
    work.commit()
    counts.planned = sum(len(plan.pages_of(part)) for part in own)
    if request.run.shards == 1:
        destination.delete_folder(UNFINISHED)
    return parts, frozenset(reopened)


def _take_kept(destination: Destination, part: int, pages: range, work: WorkFile) -> None:
    """Have the kept results of a part, where the work file has none. Raises DamagedLedger."""
    known = work.errors(pages)
    work.add_kept(row for row in read_kept(destination, part) if row[0] in pages and row[0] not in known)
