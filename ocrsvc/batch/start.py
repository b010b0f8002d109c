"""Begins or continues a run: locks the shard, and opens the plan, work folder, reader and writers."""

import fcntl
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from ocrsvc.batch.destination import Destination, ObjectDestination
from ocrsvc.batch.outputs.output_formats import check_formats
from ocrsvc.batch.outputs.source_files import common_folder
from ocrsvc.batch.pages import Load, PageReader
from ocrsvc.batch.part_manifests import UNFINISHED, PartWriter, finished_parts, kept_parts, read_kept, read_manifests
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.request import RAY_ADDRESS, BatchRequest
from ocrsvc.batch.run import Run
from ocrsvc.batch.run_file import RunDescription, begin_run, continue_run
from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.batch.work_file import BegunPages, WorkFile, is_local_disk
from ocrsvc.errors import BadOption, OperatorError


def open_reader(request: BatchRequest, load: Load) -> PageReader:
    """Make the reader that --on names, without starting it; it loads files by `load`, from any thread or process."""
    if request.on == "local":
        from ocrsvc.batch.readers.local_reader import open_local

        return open_local(request, load)
    if request.on == "ray" or request.on.startswith(RAY_ADDRESS):
        from ocrsvc.batch.readers.ray_reader import open_ray

        return open_ray(request, load)
    if re.match(r"(dns\+)?https?://", request.on):
        try:
            from ocrsvc.batch.readers.service_reader import open_services
        except ModuleNotFoundError as error:
            what = f"--on needs the package {error.name}."
            raise OperatorError(what, "Install the extra: pip install '.[client]'.") from error
        return open_services(request, load)
    accepted = "local, ray, ray://HOST:PORT, and addresses of services such as http://host:8000"
    raise BadOption(f"--on is {request.on!r}: accepted are {accepted}.")


@contextmanager
def open_run(
    destination: Destination, request: BatchRequest, progress: RunCounts, counts: PlanningCounts | None = None
) -> Iterator[Run]:
    """Prepare one shard of the run, to be started with `Run.execute`. Raises OcrsvcError, OSError and sqlite3.Error."""
    check_formats(request.outputs, request.options)
    shard, counts = f"{request.shard}-of-{request.shards}", counts or PlanningCounts()
    with ExitStack() as stack:
        load = stack.enter_context(closing(SourceLoader(request.sources.max_file_bytes, keeps_all=request.dedupe)))
        reader = stack.enter_context(closing(open_reader(request, load)))
        described = RunDescription.read(destination)
        # Start the reader first, so that options that it refuses are not stored as those of a new run.
        identity = {} if described else dict(reader.start())
        folder = request.work or work_folder(destination)
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(shard_lock(destination, shard, take_over=request.take_over))
        if described is None:
            described = begin_run(destination, request, identity, folder, counts)
        else:
            described = continue_run(destination, described, request, folder, counts)
        described.check_reader(identity or reader.start())
        plan = stack.enter_context(closing(described.open_plan(destination, folder)))
        work = stack.enter_context(closing(WorkFile(folder / f"{shard}.sqlite", described.id)))
        begun = BegunPages(destination, shard, described.id)
        root = common_folder(request.sources.sources)
        writer = PartWriter(destination, plan, work, request.outputs, load, described.reader, root)
        settled = _settle(request, writer, begun, progress)
        try:
            yield Run(request, writer, begun, reader, progress, *settled)
        finally:
            with suppress(OSError):
                begun.end()
        if progress.is_complete:
            work.remove()


def _settle(
    request: BatchRequest, writer: PartWriter, begun: BegunPages, counts: RunCounts
) -> tuple[list[int], frozenset[int]]:
    """Reuse results of earlier commands; returns the parts to write, and which of them replace files in the output."""
    destination, plan, work = writer.destination, writer.plan, writer.work
    own = range(request.shard, plan.parts, request.shards)
    todo, reopened = set(own), set()
    for manifest in read_manifests(destination, todo & set(finished_parts(destination))):
        if manifest.failed and request.retry_failed:
            reopened.add(manifest.part)
            continue
        todo.remove(manifest.part)
        counts.done_before += manifest.done
        counts.failed_before += sum(manifest.failed.values())
        if not request.dedupe:
            work.forget(plan.pages_of(manifest.part))
    # Load the stored results of the parts to rewrite, also of one that an earlier command was rewriting when it died.
    for part in kept_parts(destination) & todo:
        known = work.errors(plan.pages_of(part))
        work.add_kept(row for row in read_kept(destination, part) if row[0] not in known)
    for part in todo:
        # Count the results of unfinished parts; with --retry-failed, forget failed pages, to read them again.
        errors = work.errors(plan.pages_of(part))
        failed = [page for page, error in errors.items() if error]
        counts.done_before += len(errors) - len(failed)
        if request.retry_failed:
            work.forget(failed)
            begun.forget(failed)
        else:
            counts.failed_before += len(failed)
    work.commit()
    counts.planned = sum(len(plan.pages_of(part)) for part in own)
    if request.shards == 1:
        destination.delete_folder(UNFINISHED)
    return sorted(todo), frozenset(reopened)


class ShardInUse(OperatorError):
    """Another process works on this shard, or one on another machine may still work on it."""

    code = "shard_in_use"
    title = "Another process works on this shard"
    exit_code = 75


def work_folder(destination: Destination) -> Path:
    """Create this machine's folder for unfinished results: in the destination if that is a local disk, else in /tmp."""
    folder, address = destination.folder / "_ocrsvc/work", destination.address
    is_folder = not isinstance(destination, ObjectDestination)
    if is_folder:
        destination.folder.mkdir(parents=True, exist_ok=True)
        address = os.path.realpath(address)
    if not (is_folder and is_local_disk(destination.folder)):
        name = f"ocrsvc-batch-{os.getuid()}/{sha256(address.encode()).hexdigest()[:16]}"
        folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def shard_lock(destination: Destination, shard: str, *, take_over: bool) -> Iterator[None]:
    """Lock a shard, such as "0-of-8", during the block. Raises ShardInUse."""
    name, host = f"_ocrsvc/owners/{shard}", socket.gethostname()
    # Ignore --work here: commands with different work folders must find the same lock.
    with (work_folder(destination) / f"{shard}.lock").open("w") as file:
        try:
            # The kernel releases the lock when this process ends; programs that it starts do not inherit it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(destination, "on this machine") from error
        if not destination.create(name, host.encode()):
            with suppress(FileNotFoundError):
                owner = destination.read(name).decode(errors="replace")
                # An owner on this machine has ended, because this process got its lock; one elsewhere may be running.
                if owner != host and not take_over:
                    raise _in_use(destination, f"on {owner}, or was killed there")
            with destination.writing(name) as output:
                output.write(host.encode())
        try:
            yield
        finally:
            with suppress(OSError):
                destination.delete(name)


def _in_use(destination: Destination, where: str) -> ShardInUse:
    return ShardInUse(
        f"Another process works on the run in {destination.address} {where}.",
        "Let it end, or give each machine a shard of its own from the beginning: --shard I/N. If it is certain that it "
        "has ended, add --take-over.",
    )
