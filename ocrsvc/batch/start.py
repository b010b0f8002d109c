"""Begins a run or continues it: plan, work folder, reader and writers, made ready to be executed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ocrsvc.batch.begun_pages import BegunPages
from ocrsvc.batch.destination import Destination
from ocrsvc.batch.outputs.output_formats import check_formats, open_writers
from ocrsvc.batch.pages import PageReader
from ocrsvc.batch.parts import Load, PartWriter, finished_parts, kept_parts, read_kept, read_manifests
from ocrsvc.batch.plan import Plan, digest_of, write_plan
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.readers.open_reader import ClusterRequest, ReaderRequest, ServiceAccess, open_reader
from ocrsvc.batch.run import Run
from ocrsvc.batch.run_context import RunContext, RunSettings
from ocrsvc.batch.run_file import RunDescription
from ocrsvc.batch.shard_lock import shard_lock, work_folder
from ocrsvc.batch.sources.load_files import FileCache, SourceLoader
from ocrsvc.batch.sources.plan_files import find_changes, find_new, find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts, SourceRequest
from ocrsvc.batch.work_file import WorkFile
from ocrsvc.client.request import Options
from ocrsvc.errors import DamagedLedger, RunChanged

UNFINISHED: Final = "unfinished/"
"""Where parts are of which --limit has left some pages unread."""
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

    def reader(self, load: Load) -> ReaderRequest:
        """What is asked of a reader."""
        return ReaderRequest(self.on, self.options, load, self.environment, self.cluster, self.services)


@contextmanager
def opened_reader(request: BatchRequest) -> Iterator[PageReader]:
    """The reader of a run, started. Raises OcrsvcError."""
    with (
        closing(SourceLoader(request.sources.most_file_bytes)) as load,
        closing(open_reader(request.reader(load))) as reader,
    ):
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
    with ExitStack() as stack:
        load = stack.enter_context(closing(SourceLoader(request.sources.most_file_bytes)))
        cache = FileCache(load, keeps_all=request.run.dedupe)
        reader = open_reader(request.reader(cache.load))
        runs: list[Run] = []
        stack.callback(_join, runs)
        stack.callback(reader.close)
        described = RunDescription.read(destination)
        if described is None:
            # What the reader refuses is not written down as the options of a new run.
            identity = dict(reader.start())
        folder = work_folder(destination, request.work)
        stack.enter_context(shard_lock(destination, folder, shard, take_over=request.take_over))
        counts = PlanningCounts() if counts is None else counts
        if described is None:
            described = _begin(destination, request, identity, folder, counts)
            plan = _open_plan(destination, described, folder)
        else:
            described, plan = _continue(destination, request, described, folder, counts)
            described.check_reader(identity := dict(reader.start()))
        stack.callback(plan.close)
        work = stack.enter_context(closing(WorkFile(folder / f"{shard}.sqlite", described.id)))
        begun = BegunPages(destination, shard, described.id)
        context = _settle(destination, request, plan, work, begun, reader, cache.load, described)
        run = Run(context, request.run, progress)
        runs.append(run)
        try:
            yield run
        finally:
            with suppress(OSError):
                begun.end()
        if run.outcome.is_complete:
            work.remove()


def _join(runs: list[Run]) -> None:
    for run in runs:
        run.join(_JOIN_S)


def _begin(
    destination: Destination, request: BatchRequest, identity: dict[str, str], folder: Path, counts: PlanningCounts
) -> RunDescription:
    """Plan a run; where another process has begun it meanwhile, its plan stands."""
    asked = replace(_asked(request), reader=identity)
    files = find_sources(request.sources, counts)
    if _put_plan(destination, asked, write_plan(_draft(folder), files, request.part_pages)):
        found = RunDescription.read(destination)
        assert found is not None, "it was written"
        return found
    found = RunDescription.read(destination)
    if found is None:
        raise DamagedLedger(f"The run in {destination.address} has vanished.", "Repeat the command.")
    found.check_same(asked, destination.address)
    found.check_reader(identity)
    return found


def _continue(
    destination: Destination, request: BatchRequest, described: RunDescription, folder: Path, counts: PlanningCounts
) -> tuple[RunDescription, Plan]:
    """The run with its plan, and with new files if those are asked for. Raises RunChanged where sources are others."""
    described.check_same(_asked(request), destination.address)
    plan = _open_plan(destination, described, folder)
    if not request.as_planned:
        changes = find_changes(plan.all_files(), request.sources)
        if request.update:
            changes.new = 0
        changes.check_none(destination.address)
    if not request.update:
        return described, plan
    new = find_new(plan.all_files(), request.sources, counts)
    longer = write_plan(_draft(folder), new, request.part_pages, after=plan)
    if longer.pages == plan.pages:
        longer.path.unlink()
        return described, plan
    plan.close()
    if not _put_plan(destination, replace(described, revision=described.revision + 1), longer, keep=described.plan):
        raise RunChanged(
            f"Another process has planned the new files of the run in {destination.address} meanwhile.",
            "Repeat the command without --update.",
        )
    found = RunDescription.read(destination)
    assert found is not None, "it was written"
    return found, _open_plan(destination, found, folder)


def _put_plan(destination: Destination, described: RunDescription, plan: Plan, keep: str = "") -> bool:
    """Have a run go by a plan, unless another process was first; returns whether it does. Removes plans without use."""
    plan.close()
    digest = digest_of(plan.path)
    name = f"_ocrsvc/plan-{digest[:16]}.sqlite"
    with destination.writing(name) as output, plan.path.open("rb") as file:
        while piece := file.read(1 << 20):
            output.write(piece)
    plan.path.unlink()
    is_first = replace(described, plan=name, plan_digest=digest).write(destination)
    if is_first:
        for other in destination.names("_ocrsvc"):
            if other.startswith("plan-") and f"_ocrsvc/{other}" not in (name, keep):
                destination.delete(f"_ocrsvc/{other}")
    return is_first


def _draft(folder: Path) -> Path:
    return folder / f"plan-{os.getpid()}.draft"


def _open_plan(destination: Destination, described: RunDescription, folder: Path) -> Plan:
    try:
        path = destination.local_copy(described.plan, folder)
        if digest_of(path) == described.plan_digest:
            return Plan(path)
    except (FileNotFoundError, sqlite3.DatabaseError):
        pass
    raise DamagedLedger(f"The plan in {destination.address} is damaged.", "Choose another destination.")


def _asked(request: BatchRequest) -> RunDescription:
    planning = {"part_pages": request.part_pages, "shards": request.run.shards} | request.sources.choice()
    return RunDescription(request.sources.sources, request.options, request.outputs, planning)


def _settle(
    destination: Destination,
    request: BatchRequest,
    plan: Plan,
    work: WorkFile,
    begun: BegunPages,
    reader: PageReader,
    load: Load,
    described: RunDescription,
) -> RunContext:
    """Compare what is known with the output, which counts; open parts with failures again if that is asked for."""
    own = range(request.run.shard, plan.parts, request.run.shards)
    finished = sorted(set(finished_parts(destination)) & set(own))
    done = failed = 0
    reopened = set()
    for manifest in read_manifests(destination, finished):
        pages = plan.pages_of(manifest.part)
        if manifest.failed and request.retry_failed:
            reopened.add(manifest.part)
            _take_kept(destination, manifest.part, pages, work)
        else:
            done += manifest.done
            failed += sum(manifest.failed.values())
            if not request.run.dedupe:
                work.drop(pages)
    parts = sorted(reopened | (set(own) - set(finished)))
    for part in sorted((kept_parts(destination) & set(own)) - set(finished)):
        # It was being written again.
        _take_kept(destination, part, plan.pages_of(part), work)
    for part in parts:
        errors = work.errors(plan.pages_of(part))
        if request.retry_failed:
            again = [page for page, error in errors.items() if error]
            work.forget(again)
            begun.forget(again)
            errors = {page: "" for page, error in errors.items() if not error}
        bad = sum(map(bool, errors.values()))
        failed += bad
        done += len(errors) - bad
    work.commit()
    if request.run.shards == 1:
        destination.delete_folder(UNFINISHED.rstrip("/"))
    writers, unfinished = (
        PartWriter(destination, plan, open_writers(request.outputs, described.reader, where), load, described.reader)
        for where in ("", UNFINISHED)
    )
    counted = (_pages_in(plan, own), done, failed)
    return RunContext(plan, work, begun, reader, load, writers, unfinished, parts, frozenset(reopened), counted)


def _take_kept(destination: Destination, part: int, pages: range, work: WorkFile) -> None:
    """Have the kept results of a part, where the work file has none. Raises DamagedLedger."""
    known = work.errors(pages)
    work.add_kept(row for row in read_kept(destination, part) if row[0] in pages and row[0] not in known)


def _pages_in(plan: Plan, parts: Iterable[int]) -> int:
    return sum(len(plan.pages_of(part)) for part in parts)
