"""Batch runs in one process: a store in memory that dies or fills at a chosen moment, a reader without an engine."""

from __future__ import annotations

import contextlib
import errno
import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Literal

import orjson

from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import FinishedPart, LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.outputs.contract import OutputWriter
from ocrsvc.batch.outputs.output_formats import open_writers
from ocrsvc.batch.page_record import failure_of, result_of
from ocrsvc.batch.plan import Plan, read_plan, write_plan
from ocrsvc.batch.run import Run
from ocrsvc.batch.run_context import RunContext, RunOutcome, RunSettings
from ocrsvc.batch.run_description import FORMAT, RunDescription
from ocrsvc.batch.start import UNFINISHED
from ocrsvc.batch.store.contract import StoredFile
from ocrsvc.batch.tasks import PageGroup, PageResult, SourceFile
from ocrsvc.errors import EngineFailed, OcrsvcError, UnsupportedImage

JOIN_S = 60.0
AS_USUAL = RunSettings()
READER = {"engine": "double", "model": "none", "version": "1"}


class Died(BaseException):
    """The process is dead: nothing that it does afterwards reaches the store."""


@dataclass
class MemoryLog:
    """What was appended to a log, and how much of it outlives the process, and the host."""

    data: bytearray = field(default_factory=bytearray)
    flushed: int = 0
    committed: int = 0


class MemoryStore:
    """See store.contract.Store; for any thread.

    Args:
        fault_at: The change of the store at which it fails, counted from 0; None never.
        fault: It dies, and so does all that follows, or its disk is full until `after`.
    """

    commit_s = 0.0

    def __init__(self, fault_at: int | None = None, fault: Literal["die", "full"] = "die") -> None:
        self.address = "memory"
        self.contents: dict[str, bytes] = {}
        self.logs: dict[str, MemoryLog] = {}
        self.changes = 0
        self._fault_at, self._fault = fault_at, fault
        self._lock = threading.RLock()

    def after(self, share: float = 0.0, *, of_host: bool = False) -> MemoryStore:
        """What a later process finds; of what was not safe in a log, this share of its bytes."""
        store = MemoryStore()
        store.contents = dict(self.contents)
        for name, log in self.logs.items():
            safe = log.committed if of_host else log.flushed
            end = safe + int(share * (len(log.data) - safe))
            store.logs[name] = MemoryLog(bytearray(log.data[:end]), end, end)
        return store

    def change(self) -> None:
        """Note one change; raises Died or OSError at the chosen one and all after it."""
        with self._lock:
            self.changes += 1
            if self._fault_at is not None and self.changes > self._fault_at:
                raise Died if self._fault == "die" else OSError(errno.ENOSPC, "No space left on device")

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """As Store.read."""
        if name not in self.contents:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return self.contents[name][offset : None if size is None else offset + size]

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """As Store.writing."""
        self.change()
        file = io.BytesIO()
        yield file
        self.change()
        self.contents[name] = file.getvalue()

    def create(self, name: str, data: bytes) -> bool:
        """As Store.create."""
        self.change()
        with self._lock:
            return self.contents.setdefault(name, data) is data

    def files(self, prefix: str) -> Iterator[StoredFile]:
        """As Store.files."""
        names = sorted(name for name in list(self.contents) if name.startswith(prefix))
        yield from (StoredFile(name, len(self.contents[name])) for name in names)

    def delete(self, name: str) -> None:
        """As Store.delete."""
        self.change()
        self.contents.pop(name, None)

    def open_log(self, name: str) -> _Appending:
        """As Store.open_log."""
        self.change()
        if name in self.logs:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        self.logs[name] = MemoryLog()
        return _Appending(self, self.logs[name])

    def log_names(self, prefix: str) -> list[str]:
        """As Store.log_names."""
        return sorted(name for name in list(self.logs) if name.startswith(prefix))

    def log_size(self, name: str) -> int:
        """As Store.log_size."""
        return self.logs[name].committed if name in self.logs else 0

    def read_log(self, name: str, offset: int, size: int) -> bytes:
        """As Store.read_log."""
        if name not in self.logs:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        log = self.logs[name]
        return bytes(log.data[offset : min(log.flushed, offset + size)])

    def delete_log(self, name: str) -> None:
        """As Store.delete_log."""
        self.change()
        self.logs.pop(name, None)


@dataclass
class _Appending:
    store: MemoryStore
    log: MemoryLog

    def append(self, data: bytes) -> int:
        """As AppendLog.append; what does not fit is torn in its middle."""
        offset = len(self.log.data)
        try:
            self.store.change()
        except OSError:
            self.log.data += data[: len(data) // 2]
            self.log.flushed = len(self.log.data)
            raise
        self.log.data += data
        return offset

    def flush(self) -> None:
        """As AppendLog.flush."""
        self.log.flushed = len(self.log.data)

    def commit(self) -> None:
        """As AppendLog.commit."""
        self.store.change()
        self.log.flushed = self.log.committed = len(self.log.data)

    def close(self) -> None:
        """Nothing is held."""


class DoubleReader:
    """Reads pages without an engine; their text names them and the reader.

    Args:
        name: Of the reader: what it reads is told from what others read.
        failing: Names of files that the engine fails on, as long as they are in it.
        refused: Names of files that are no images.
        before: Called before each page, with the file's name.
    """

    def __init__(
        self,
        name: str = "one",
        failing: Collection[str] = (),
        refused: Collection[str] = (),
        before: Callable[[str], object] = lambda _name: None,
    ) -> None:
        self.name, self.failing, self.refused, self.before = name, failing, refused, before
        self.reads: Counter[tuple[str, int]] = Counter()

    at_once = 2
    is_elsewhere = False

    def start(self) -> Mapping[str, str]:
        """As PageReader.start."""
        return READER

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """As PageReader.read."""
        for number in group.pages:
            self.before(group.file.name)
            self.reads[group.file.name, number] += 1
            if group.file.name in self.failing:
                yield failure_of(group, number, EngineFailed("The engine failed."))
            elif group.file.name in self.refused:
                yield failure_of(group, number, UnsupportedImage("No image."))
            else:
                lines = [{"text": f"{self.name} {group.file.version}", "confidence": 0.5}]
                yield result_of(group, number, {"text": lines[0]["text"], "lines": lines}, 0.001, "double")

    def close(self) -> None:
        """Nothing is held."""


class Quiet:
    """Progress that is not shown."""

    def planned(self, total: int, left: int) -> None:
        """As Progress.planned."""

    def begun(self, group: PageGroup) -> None:
        """As Progress.begun."""

    def ended(self, group: PageGroup) -> None:
        """As Progress.ended."""

    def page(self, result: PageResult, attempts: int) -> None:
        """As Progress.page."""

    def retried(self, result: PageResult) -> None:
        """As Progress.retried."""

    def part(self, part: FinishedPart) -> None:
        """As Progress.part."""

    def committed(self, when: float, left: int) -> None:
        """As Progress.committed."""


def files_of(count: int, pages: int = 1, contents: int | None = None) -> list[SourceFile]:
    """So many files with so many pages each; their version is the number of their content, of which there are some."""
    return [
        SourceFile(f"{number:04d}", f"{number:04d}", str(number % (contents or count)), 9, pages, range(1, pages + 1))
        for number in range(count)
    ]


def load(file: SourceFile) -> bytes:
    """The content of such a file."""
    return b"content " + file.version.encode()


def begin(store: MemoryStore, files: Sequence[SourceFile], part_pages: int) -> Plan:
    """The plan of a run, which begins if it has not."""
    if RunDescription.read(store) is None:
        plan = write_plan(store, files, part_pages)
        RunDescription((), {}, ("jsonl",), {}, plan.totals.digest, plan.name).write(store)
    return read_plan(store)


@contextlib.contextmanager
def opened(
    store: MemoryStore,
    plan: Plan,
    reader: DoubleReader,
    settings: RunSettings = AS_USUAL,
    clock: Callable[[], float] = time.time,
    *,
    retry_failed: bool = False,
    is_seen_alive: bool = False,
    wrap: Callable[[OutputWriter], OutputWriter] = lambda writer: writer,
) -> Iterator[Run]:
    """One owner's run, as `start.open_run` makes it."""
    ledger = Ledger(store, plan, clock)
    ledger.refresh()
    if retry_failed:
        ledger.forget_failures()
    owner = Owner.this_process()
    if not is_seen_alive:
        # As others see it, the process is gone as soon as they look.
        owner = replace(owner, born="0")
    ledger.note_ended(owner)
    log = LedgerLog(store, owner, {"reader": READER}, roll_bytes=2000)
    writers = [wrap(writer) for writer in open_writers(["jsonl"], READER, FORMAT)]
    unfinished = open_writers(["jsonl"], READER, FORMAT, UNFINISHED)
    context = RunContext(store, plan, ledger, owner, log, reader, writers, load, unfinished)
    run = Run(context, settings, Quiet(), clock)
    try:
        yield run
        log.end()
        run.remove_results()
    except (OSError, OcrsvcError):
        with contextlib.suppress(OSError):
            log.end()
        raise
    finally:
        reader.close()
        run.join(JOIN_S)


def execute(
    store: MemoryStore,
    files: Sequence[SourceFile],
    reader: DoubleReader,
    settings: RunSettings = AS_USUAL,
    *,
    part_pages: int = 5,
    retry_failed: bool = False,
) -> RunOutcome:
    """Begin a run or go on with it, as one process does."""
    plan = begin(store, files, part_pages)
    with opened(store, plan, reader, settings, retry_failed=retry_failed) as run:
        return run.execute()


def output(store: MemoryStore, folder: str = "pages-") -> list[dict[str, object]]:
    """The lines of the output, in the order of its files."""
    names = [file.name for file in store.files(folder)]
    return [orjson.loads(line) for name in names for line in store.read(name).splitlines()]


def is_each_page_once(store: MemoryStore, files: Sequence[SourceFile]) -> bool:
    """Whether the output is the pages of these files, in their order."""
    wanted = [(file.name, number) for file in files for number in file.pages]
    return [(line["source"], line["page"]) for line in output(store)] == wanted
