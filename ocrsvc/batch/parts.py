"""Parts of the output: a part exists when its manifest appears, which is written last."""

from __future__ import annotations

import gzip
import queue
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from ocrsvc.batch.destination import Destination, WrittenFile
from ocrsvc.batch.outputs.output_formats import FileResults, OutputWriter
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.work_file import PageFacts, ResultLost, WorkRecords
from ocrsvc.errors import DamagedLedger, RunChanged

PARTS: Final = "_ocrsvc/parts"
KEPT: Final = "_ocrsvc/kept"
"""Results of parts with failures, until those are tried again."""
_READERS: Final = 8

Load = Callable[[SourceFile], bytes]
"""Gives the bytes of a source's file; raises OcrsvcError."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A part of the output.

    Attributes:
        part: Its number.
        done: Pages that were read.
        failed: Pages that failed, by error code.
        files: Its files, with bytes and SHA-256.
        pages: Facts of each page in the plan's order, as `PageFacts`, confidence and seconds rounded.
        reader: Engine, model and version that read it.
    """

    part: int
    done: int
    failed: Mapping[str, int]
    files: Mapping[str, Sequence[Any]]
    pages: Sequence[PageFacts] = ()
    reader: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """As its file; facts are columns, workers and errors by number."""
        names = sorted({name for page in self.pages for name in (page.worker, page.error)})
        number_of = {name: number for number, name in enumerate(names)}
        columns = {
            "error": [number_of[page.error] for page in self.pages],
            "attempts": [page.attempts for page in self.pages],
            "at": [round(page.at, 2) for page in self.pages],
            "seconds": [round(page.seconds, 4) for page in self.pages],
            "confidence": [round(page.confidence, 4) for page in self.pages],
            "lines": [page.lines for page in self.pages],
            "worker": [number_of[page.worker] for page in self.pages],
        }
        own = {"part": self.part, "done": self.done, "failed": self.failed, "files": self.files, "reader": self.reader}
        return orjson.dumps(own | {"names": names, "pages": columns})

    @classmethod
    def of(cls, data: bytes) -> Manifest:
        """What `to_json` wrote. Raises ValueError, KeyError, TypeError and IndexError."""
        values = orjson.loads(data)
        names, columns = values["names"], values["pages"]
        pages = [
            PageFacts(names[error], attempts, at, seconds, confidence, lines, names[worker])
            for error, attempts, at, seconds, confidence, lines, worker in zip(*columns.values(), strict=True)
        ]
        return cls(values["part"], values["done"], values["failed"], values["files"], pages, values["reader"])


def finished_parts(destination: Destination) -> list[int]:
    """The parts that are in the output. Raises OSError."""
    names = (name.removesuffix(".json") for name in destination.names(PARTS))
    return [int(name) for name in names if name.isdecimal()]


def read_manifest(destination: Destination, part: int) -> Manifest:
    """The manifest of a part. Raises FileNotFoundError, OSError and DamagedLedger."""
    data = destination.read(_manifest_name(part))
    try:
        return Manifest.of(data)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedLedger(
            f"{_manifest_name(part)} in {destination.address} is damaged.", "Remove it: its part is read again."
        ) from error


def read_manifests(destination: Destination, parts: Iterable[int]) -> Iterator[Manifest]:
    """The manifests of these parts, a few read at once. Raises as `read_manifest`."""
    rest = iter(parts)
    with ThreadPoolExecutor(_READERS) as pool:
        while some := list(islice(rest, 4 * _READERS)):
            yield from pool.map(partial(read_manifest, destination), some)


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes parts; for one thread."""

    destination: Destination
    plan: Plan
    writers: Sequence[OutputWriter]
    load: Load
    reader: Mapping[str, str]

    def write(self, part: int, records: WorkRecords, *, is_reopened: bool) -> Manifest:
        """Write a part, all of whose pages have a result, and its manifest last.

        If another process has written the part meanwhile, its manifest is given and stands.

        Raises:
            ResultLost: A page has to be read again.
            OSError, OcrsvcError: The part cannot be written.
        """
        if is_reopened:
            # Between here and the new manifest the part does not exist; its kept results do.
            self.destination.delete(_manifest_name(part))
        try:
            files = self._write_files(part, records, replace=is_reopened)
        except FileExistsError:
            # Of an object store: of this part's other writer, or of one that died before its manifest.
            if part in finished_parts(self.destination):
                return read_manifest(self.destination, part)
            files = self._write_files(part, records, replace=True)
        manifest = self._manifest(part, records, files)
        if any(manifest.failed.values()):
            self._keep(part, records)
        if not self.destination.create(_manifest_name(part), manifest.to_json()):
            return self._other(part, manifest)
        if not manifest.failed:
            self.destination.delete(_kept_name(part))
        return manifest

    def write_some(self, part: int, records: WorkRecords) -> None:
        """Write what is known of a part that is not whole. Raises as `write`."""
        self._write_files(part, records, replace=True)

    def _write_files(self, part: int, records: WorkRecords, *, replace: bool) -> list[WrittenFile]:
        return [
            file
            for writer in self.writers
            for file in writer.write(self.destination, part, self._results(part, records), replace=replace)
        ]

    def _results(self, part: int, records: WorkRecords) -> Iterator[FileResults]:
        known = {n for n, _ in records.facts()}
        for first, file in self.plan.files_of(part):
            index_of = {number: first + at for at, number in enumerate(file.pages)}
            numbers = [number for number, at in index_of.items() if at in known]

            def record(number: int, index_of: Mapping[int, int] = index_of) -> bytes:
                return records.record(index_of[number])

            yield FileResults(file, numbers, record, partial(self.load, file))

    def _manifest(self, part: int, records: WorkRecords, files: Iterable[WrittenFile]) -> Manifest:
        pages = [facts for _, facts in records.facts()]
        if len(pages) != len(self.plan.pages_of(part)):
            raise ResultLost
        failed = Counter(facts.error for facts in pages if facts.error)
        named = {file.name: (file.size, file.sha256) for file in files}
        return Manifest(part, len(pages) - failed.total(), dict(failed), named, pages, self.reader)

    def _keep(self, part: int, records: WorkRecords) -> None:
        with self.destination.writing(_kept_name(part)) as output, gzip.GzipFile("", "wb", 6, output, 0) as lines:
            for n, facts in records.facts():
                lines.write(orjson.dumps([n, *facts]) + b"\n" + records.record(n) + b"\n")

    def _other(self, part: int, own: Manifest) -> Manifest:
        """The manifest that another process wrote first. Raises RunChanged where it wrote something else."""
        theirs = read_manifest(self.destination, part)
        if {name: tuple(facts) for name, facts in theirs.files.items()} != own.files:
            raise RunChanged(
                f"Another process has written part {part} of the run in {self.destination.address} with other results.",
                "Let one process work on each shard, and check the output with --verify.",
            )
        return theirs


class PartThread(threading.Thread):
    """Writes parts one after the other; for one thread.

    `take` is called in it with the manifest of each, None where it has to be read again or was given up, and what ended
    the thread. `waiting` counts parts that were given and not taken back.
    """

    def __init__(
        self,
        writer: PartWriter,
        work: Path,
        reopened: Container[int],
        take: Callable[[int, Manifest | BaseException | None], None],
    ) -> None:
        super().__init__(name="batch-output", daemon=True)
        self._writer, self._work, self._reopened, self._take = writer, work, reopened, take
        self._parts: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.is_given_up = False
        self.waiting = 0

    def write(self, part: int) -> None:
        """Have a part written; its results are committed."""
        self.waiting += 1
        self._parts.put(part)

    def end(self) -> None:
        """Write what is being written, and nothing that waits."""
        self.is_given_up = True
        self._parts.put(None)

    def run(self) -> None:
        """The thread."""
        while (part := self._parts.get()) is not None:
            try:
                manifest = None if self.is_given_up else self._write(part)
            except BaseException as failure:  # noqa: BLE001  raised by the thread that runs
                self._take(part, failure)
                return
            self._take(part, manifest)

    def _write(self, part: int) -> Manifest | None:
        with closing(WorkRecords(self._work, self._writer.plan.pages_of(part))) as records:
            try:
                return self._writer.write(part, records, is_reopened=part in self._reopened)
            except ResultLost:
                return None


def read_kept(destination: Destination, part: int) -> Iterator[tuple[int, bytes, PageFacts]]:
    """The results of a part with failures: numbers, records, facts. Raises OSError and DamagedLedger."""
    try:
        with closing(destination.open(_kept_name(part))) as file, gzip.GzipFile(fileobj=file) as lines:
            while head := lines.readline():
                n, *facts = orjson.loads(head)
                yield n, lines.readline().removesuffix(b"\n"), PageFacts(*facts)
    except FileNotFoundError:
        return
    except (ValueError, EOFError, gzip.BadGzipFile, TypeError) as error:
        raise DamagedLedger(
            f"{_kept_name(part)} in {destination.address} is damaged.",
            f"Remove it and {_manifest_name(part)}: the part is read again.",
        ) from error


def kept_parts(destination: Destination) -> set[int]:
    """The parts whose results are kept. Raises OSError."""
    return {int(name.partition(".")[0]) for name in destination.names(KEPT) if name[:1].isdecimal()}


def _manifest_name(part: int) -> str:
    return f"{PARTS}/{part:07d}.json"


def _kept_name(part: int) -> str:
    return f"{KEPT}/{part:07d}.jsonl.gz"
