"""Begins a run or continues it: plan, work folder, reader and writers, made ready to be executed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

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
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.readers.open_reader import ClusterRequest, ReaderRequest, ServiceAccess, open_reader
from ocrsvc.batch.run import Run, RunSettings
from ocrsvc.batch.run_file import RunDescription
from ocrsvc.batch.shard_lock import shard_lock, work_folder
from ocrsvc.batch.sources.load_files import FileCache, SourceLoader
from ocrsvc.batch.sources.plan_files import find_changes, find_new, find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts, SourceRequest
from ocrsvc.batch.work_file import BegunPages, WorkFile
from ocrsvc.client.request import Options
from ocrsvc.errors import RunChanged

_JOIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a command asks for.

    `options` say how pages are read, `on` who reads. With `as_planned` the run goes on whatever became of the sources,
    with `update` files that are new are planned, too, with `take_over` another machine's process may still work.
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

    def asked(self) -> dict[str, Any]:
        """What must stay the same in a run, with lists for tuples as in its file."""
        # A folder's name has not the slash that shells add; an address differs by it.
        sources = [name if "://" in name else name.rstrip("/") or name for name in self.sources.sources]
        own = {"sources": sources, "format": self.outputs, "part_pages": self.part_pages, "shards": self.run.shards}
        return dict(orjson.loads(orjson.dumps(own | self.sources.choice() | self.options)))


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
        # What the reader refuses is not written down as the options of a new run.
        identity = {} if described else dict(reader.start())
        folder = request.work or work_folder(destination)
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(shard_lock(destination, shard, take_over=request.take_over))
        if described is None:
            described = _begin(destination, RunDescription(request.asked(), identity), request, folder, counts)
        else:
            described = _continue(destination, described, request, folder, counts)
        described.check_reader(identity or reader.start())
        plan = stack.enter_context(closing(described.open_plan(destination, folder)))
        work = stack.enter_context(closing(WorkFile(folder / f"{shard}.sqlite", described.id)))
        begun = BegunPages(destination, shard, described.id)
        writer = PartWriter(destination, plan, work, request.outputs, cache.load, described.reader)
        settled = _settle(request, plan, work, begun, destination, progress)
        try:
            yield Run(request.run, plan, work, begun, reader, cache.load, writer, progress, threads, *settled)
        finally:
            with suppress(OSError):
                begun.end()
        if progress.is_complete:
            work.remove()


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(_JOIN_S)


def _begin(
    destination: Destination, new: RunDescription, request: BatchRequest, folder: Path, counts: PlanningCounts
) -> RunDescription:
    """Plan a run; where another process has begun it meanwhile, its plan stands."""
    described = new.planned(destination, find_sources(request.sources, counts), folder)
    described = described or RunDescription.read(destination)
    assert described is not None, "another process has written it"
    described.check_same(new.asked, destination.address)
    return described


def _continue(
    destination: Destination, described: RunDescription, request: BatchRequest, folder: Path, counts: PlanningCounts
) -> RunDescription:
    """The run, with new files if those are asked for. Raises RunChanged where sources are others."""
    described.check_same(request.asked(), destination.address)
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


def _settle(
    request: BatchRequest, plan: Plan, work: WorkFile, begun: BegunPages, destination: Destination, counts: RunCounts
) -> tuple[list[int], frozenset[int]]:
    """Compare what is known with the output, which counts.

    Gives the parts to be worked on, in order, and those of them that are in the output with failures to be tried again.
    """
    own = range(request.run.shard, plan.parts, request.run.shards)
    todo, reopened = set(own), set()
    for manifest in read_manifests(destination, todo & set(finished_parts(destination))):
        if manifest.failed and request.retry_failed:
            reopened.add(manifest.part)
            continue
        todo.remove(manifest.part)
        counts.done_before += manifest.done
        counts.failed_before += sum(manifest.failed.values())
        if not request.run.dedupe:
            work.forget(plan.pages_of(manifest.part))
    # Also those that were being written again.
    for part in kept_parts(destination) & todo:
        known = work.errors(plan.pages_of(part))
        work.add_kept(row for row in read_kept(destination, part) if row[0] not in known)
    for part in todo:
        _count_known(request, work.errors(plan.pages_of(part)), work, begun, counts)
    work.commit()
    counts.planned = sum(len(plan.pages_of(part)) for part in own)
    if request.run.shards == 1:
        destination.delete_folder(UNFINISHED)
    return sorted(todo), frozenset(reopened)


def _count_known(
    request: BatchRequest, errors: Mapping[int, str], work: WorkFile, begun: BegunPages, counts: RunCounts
) -> None:
    """Count the pages of a part in work that have a result, or forget those that are to be tried again."""
    failed = [page for page, error in errors.items() if error]
    counts.done_before += len(errors) - len(failed)
    if request.retry_failed:
        work.forget(failed)
        begun.forget(failed)
    else:
        counts.failed_before += len(failed)
