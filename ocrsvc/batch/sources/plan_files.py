"""Plans the files of sources: themselves, the images in archives and tables, or one page that fails.

Also what has changed since: `find_changes` and `find_new`.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.plan import write_plan
from ocrsvc.batch.sources.find_files import Found, find_all, is_local, look_at, open_file, pattern_expression
from ocrsvc.batch.sources.load_files import FAILURE, LINKED, SourceLoader, count_pages
from ocrsvc.batch.sources.source_files import (
    DOCUMENTS,
    HEAD_BYTES,
    FoundFile,
    Locator,
    Member,
    PlanningCounts,
    SourceRequest,
    archive_kind,
    extension_of,
    is_image_head,
    is_image_name,
    kind_of,
)
from ocrsvc.batch.sources.tables import linked_address, problem_of_linked
from ocrsvc.errors import BadOption, BrokenArchive, CallerError, RunChanged, SourceGone
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, Ranges, choose, parse_ranges

_FIRST: Final = range(1, 2)
# Archives may say any size.
_MOST_SIZE_BYTES: Final = 1 << 40
_MOST_THREADS: Final = 8
_AHEAD: Final = 4
# Of documents that are counted at once; the child has each a second time.
_MOST_COUNTED_BYTES: Final = 64 * 1024 * 1024
_WHOLE: Final = 1 << 64
_SAMPLE: Final = re.compile(r"(?P<share>\d{1,3}(\.\d{1,9})?)%|(?P<count>\d{1,12})")
_MOST_EXAMPLES: Final = 3


def find_sources(request: SourceRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    """The files of all sources in the order of the output, with the pages to read.

    Raises:
        SourceGone: A source is not there.
        BadOption: An option, a pattern or a list is wrong.
    """
    files = _planned(request, counts)
    if request.sample is not None:
        files = _sampled(files, request.sample, request.seed, counts)
    yield from _in_order_of_names(files) if request.is_sorted else files


def _planned(request: SourceRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    with closing(_Planner(request, counts)) as planner:
        for found, ranges, total in planner.count_ahead(find_all(request.sources, counts)):
            yield from planner.plan(found, ranges, total)


class _Planner:
    """Plans files, in one thread; `close` it. Raises BadOption."""

    def __init__(self, request: SourceRequest, counts: PlanningCounts) -> None:
        self._counts, self._column, self._most_bytes = counts, request.column, request.most_file_bytes
        self._loader = SourceLoader(request.most_file_bytes)
        try:
            self._ranges = ALL if request.pages is None else parse_ranges(request.pages)
        except ValueError as error:
            raise BadOption(f"--pages is {request.pages!r}: accepted are {ACCEPTED}.") from error
        self._include = [_name_expression(pattern) for pattern in request.include]
        self._exclude = [_name_expression(pattern) for pattern in request.exclude]

    def close(self) -> None:
        """Close what is open."""
        self._loader.close()

    def count_ahead(self, files: Iterable[Found]) -> Iterator[tuple[FoundFile, Ranges | None, int | None]]:
        """The files in their order, with the pages of those that are documents by their names."""
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        waiting: deque[tuple[FoundFile, Ranges | None, Future[int] | None]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="batch-plan") as pool:
            try:
                for found, ranges in files:
                    counted = None
                    if not found.problem and extension_of(found.name) in DOCUMENTS:
                        under_way = sum(other.size for other, _, pages in waiting if pages is not None)
                        if under_way + found.size <= _MOST_COUNTED_BYTES:
                            counted = pool.submit(self._count, Locator(found.address), found, found.name, found.size)
                    waiting.append((found, ranges, counted))
                    if len(waiting) > _AHEAD * threads:
                        yield _counted(*waiting.popleft())
                while waiting:
                    yield _counted(*waiting.popleft())
            finally:
                pool.shutdown(cancel_futures=True)

    def plan(self, found: FoundFile, ranges: Ranges | None, total: int | None = None) -> Iterator[SourceFile]:
        """What is planned of a file: of its documents these pages, or those that the command asks for."""
        ranges = self._ranges if ranges is None else ranges
        kind = archive_kind(found.name)
        if found.problem:
            yield self._failure(found.name, found.address, found.problem, "")
        elif kind:
            yield from self._plan_archive(found, kind, ranges)
        elif self._is_wanted(found.name):
            yield from self._plan_file(found, Locator(found.address), ranges, total)

    def _plan_file(
        self, found: FoundFile, locator: Locator, ranges: Ranges, total: int | None = None
    ) -> Iterator[SourceFile]:
        head = _read_head(found)
        if head is None:
            # What cannot be read is not skipped: it may be an image. Its version is not known, nor compared.
            self._counts.unreadable += 1
            yield SourceFile(found.name, locator.to_text(), "", 0, 0, _FIRST)
        elif found.is_named or is_image_name(found.name) or is_image_head(head):
            pages = self._count(locator, found, found.address, found.size, head) if total is None else total
            yield from self._chosen(found.name, locator, found.version, found.size, pages, ranges)
        else:
            self._counts.skip(kind_of(found.name))

    def _plan_archive(self, found: FoundFile, kind: str, ranges: Ranges) -> Iterator[SourceFile]:
        try:
            with closing(self._loader.open(kind, found.address, self._column)) as archive:
                for member in archive.members():
                    yield from self._plan_member(found, kind, member, ranges)
        except OSError as error:
            yield self._broken(found, f"{found.name} cannot be read: {error.strerror or error}.")
        except BrokenArchive as error:
            yield self._broken(found, f"{found.name}: {error.detail}")

    def _plan_member(self, found: FoundFile, kind: str, member: Member, ranges: Ranges) -> Iterator[SourceFile]:
        if member.path:
            yield from self._plan_linked(found, member, ranges)
            return
        name, head = found.name + member.name, member.head or b""
        if not self._is_wanted(name):
            return
        if not (member.is_image or is_image_name(name) or is_image_head(head)):
            self._counts.skip(kind_of(member.name))
        elif member.problem:
            yield self._failure(name, found.address, f"{name}: {member.problem}", found.version)
        else:
            place = f"{member.place} {self._column or ''}" if kind in ("parquet", "arrow") else member.place
            locator = Locator(found.address, kind, place)
            total = self._count(locator, found, name, member.size, head)
            yield from self._chosen(name, locator, found.version, member.size, total, ranges)

    def _plan_linked(self, table: FoundFile, member: Member, ranges: Ranges) -> Iterator[SourceFile]:
        """What is planned of a file that a table names: it is called by its row, so that rows may name one file."""
        name, address = table.name + member.name, linked_address(table.address, member.path)
        if not self._is_wanted(address):
            return
        # A table that others made must not choose what else of this machine and its network is read.
        if problem := problem_of_linked(table.address, address, may_lead_away=self._column is not None):
            yield self._failure(name, table.address, f"{name}: {problem}", table.version)
            return
        if self._column is None and is_local(address):
            # A link that is changed later leads nowhere else.
            address = str(Path(address).resolve())
        locator = Locator(address, LINKED, table.address)
        try:
            now = look_at(address)
        except OSError:
            self._counts.unreadable += 1
            yield SourceFile(name, locator.to_text(), "", 0, 0, _FIRST)
            return
        except BadOption as error:
            yield self._failure(name, table.address, f"{name}: {error.detail}", table.version)
            return
        yield from self._plan_file(FoundFile(address, name, now.size, now.version, is_named=True), locator, ranges)

    def _count(self, locator: Locator, found: FoundFile, name: str, size: int, head: bytes = b"") -> int:
        """The pages of a file; 0 of a document that is too large or cannot be opened, which reading it will say."""
        may_have = may_have_pages(head) if head else extension_of(name) in DOCUMENTS
        if not may_have:
            return 1
        try:
            return count_pages(self._loader.load(locator, name, found.version)) if size <= self._most_bytes else 0
        except (SourceGone, CallerError):
            return 0

    def _chosen(
        self, name: str, locator: Locator, version: str, size: int, total: int, ranges: Ranges
    ) -> Iterator[SourceFile]:
        is_first = not total or (total == 1 and ranges == ALL)
        pages = _FIRST if is_first else choose(ranges, total)
        if pages:
            numbers = pages if isinstance(pages, range) else tuple(pages)
            yield SourceFile(name, locator.to_text(), version, min(size, _MOST_SIZE_BYTES), total, numbers)
        else:
            self._counts.without_pages += 1

    def _broken(self, found: FoundFile, detail: str) -> SourceFile:
        self._counts.first_unreadable = self._counts.first_unreadable or detail.rstrip(".")
        return self._failure(found.name, found.address, detail, found.version)

    def _failure(self, name: str, address: str, problem: str, version: str) -> SourceFile:
        self._counts.unreadable += 1
        return SourceFile(name, Locator(address, FAILURE, problem).to_text(), version, 0, 0, _FIRST)

    def _is_wanted(self, name: str) -> bool:
        if any(expression.fullmatch(name) for expression in self._exclude) or (
            self._include and not any(expression.fullmatch(name) for expression in self._include)
        ):
            self._counts.left_out += 1
            return False
        return True


def _counted(
    found: FoundFile, ranges: Ranges | None, pages: Future[int] | None
) -> tuple[FoundFile, Ranges | None, int | None]:
    return found, ranges, None if pages is None else pages.result()


def _name_expression(pattern: str) -> re.Pattern[str]:
    """A pattern without a slash is one of the name alone, wherever the file is."""
    return pattern_expression(pattern if "/" in pattern else f"**/{pattern}")


def _read_head(found: FoundFile) -> bytes | None:
    """The first bytes of a file; none where they cost a request and its name says enough, None where unreadable."""
    if not is_local(found.address) and is_image_name(found.address):
        return b""
    try:
        with open_file(found.address) as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return None


def _sampled(files: Iterable[SourceFile], text: str, seed: int, counts: PlanningCounts) -> Iterator[SourceFile]:
    """The files with those pages that --sample takes, in the same order. Raises BadOption."""
    match = _SAMPLE.fullmatch(text)
    share = float(match["share"]) / 100 if match and match["share"] else None
    if match is None or (share or 0) > 1 or not (share or int(match["count"] or 0)):
        raise BadOption(f"--sample is {text!r}: accepted are a number of pages from 1, or a share such as 2.5%.")
    if share is not None:
        yield from _below(files, round(share * _WHOLE), seed, counts)
        return
    # Which pages have the smallest hashes is known when all files were seen; these wait in a plan of their own.
    with TemporaryDirectory() as folder:
        smallest: list[int] = []

        def noted() -> Iterator[SourceFile]:
            for file in files:
                for number in file.pages:
                    value = -_hash(file.name, number, seed)
                    if len(smallest) <= int(match["count"]):
                        heapq.heappush(smallest, value)
                    else:
                        heapq.heappushpop(smallest, value)
                yield file

        with closing(write_plan(Path(folder, "all"), noted(), 500)) as plan:
            limit = -smallest[0] if len(smallest) > int(match["count"]) else _WHOLE
            yield from _below(plan.all_files(), limit, seed, counts)


def _below(files: Iterable[SourceFile], limit: int, seed: int, counts: PlanningCounts) -> Iterator[SourceFile]:
    for file in files:
        numbers = tuple(number for number in file.pages if _hash(file.name, number, seed) < limit)
        counts.not_sampled += len(file.pages) - len(numbers)
        if numbers:
            yield file if len(numbers) == len(file.pages) else replace(file, pages=numbers)


def _hash(name: str, number: int, seed: int) -> int:
    return int.from_bytes(blake2b(f"{seed} {number} {name}".encode(), digest_size=8).digest(), "big")


def _in_order_of_names(files: Iterable[SourceFile]) -> Iterator[SourceFile]:
    """The files sorted by their names, by SQLite."""
    with TemporaryDirectory() as folder, closing(write_plan(Path(folder, "all"), files, 500)) as plan:
        yield from plan.files_by_name()


@dataclass(slots=True)
class SourceChanges:
    """How sources differ from a plan: counts of files, of which an archive is one, and a few names."""

    new: int = 0
    missing: int = 0
    changed: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, file: FoundFile, *, is_new: bool) -> None:
        """Count a file that was not planned, or is another than was planned."""
        self.new += is_new
        self.changed += not is_new
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(file.name)

    def check_none(self, address: str) -> None:
        """Raises RunChanged, with the numbers, if there are any."""
        if not (self.new or self.missing or self.changed):
            return
        names = f", such as {', '.join(self.examples)}" if self.examples else ""
        counts = (self.new, "new"), (self.changed, "changed"), (self.missing, "missing")
        shown = ", ".join(f"{count} {what}" for count, what in counts if count)
        update = "Add new files with --update, c" if self.new else "C"
        raise RunChanged(
            f"Files have changed since the run in {address} was planned: {shown}{names}.",
            f"{update}ontinue whatever has changed with --as-planned, or choose another destination.",
        )


def find_changes(planned: Iterable[SourceFile], request: SourceRequest) -> SourceChanges:
    """What has changed since files were planned. Raises SourceGone.

    Object stores, whose listing takes minutes, and standard input are left out: what is missing or has changed there
    fails when it is read. A sample is not asked for new files.
    """
    known = _versions(planned, only_local=True)
    changes, counts = SourceChanges(), PlanningCounts()
    with closing(_Planner(request, counts)) as planner:
        for found, ranges in find_all(request.sources, counts, only_local=True):
            key = hash(found.address)
            if key in known:
                if known.pop(key) not in (0, _version_key(found.version)):
                    changes.note(found, is_new=False)
            elif request.sample is None and next(planner.plan(found, ranges), None) is not None:
                changes.note(found, is_new=True)
    changes.missing = len(known)
    return changes


def find_new(planned: Iterable[SourceFile], request: SourceRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    """What is planned of files that were not there before, wherever they are. Raises SourceGone and BadOption."""
    if request.sample is not None:
        raise BadOption("A sample cannot be updated.", "Leave --update out, or choose another destination.")

    def new() -> Iterator[SourceFile]:
        known = _versions(planned, only_local=False)
        with closing(_Planner(request, counts)) as planner:
            for found, ranges in find_all(request.sources, PlanningCounts()):
                if hash(found.address) not in known:
                    yield from planner.plan(found, ranges)

    yield from _in_order_of_names(new()) if request.is_sorted else new()


def _versions(planned: Iterable[SourceFile], *, only_local: bool) -> dict[int, int]:
    """Hashes of the addresses of a plan, and of the versions at them; 0 where that is unknown."""
    known: dict[int, int] = {}
    last = ""
    for file in planned:
        locator = Locator.of(file.locator)
        is_linked = locator.kind == LINKED
        address = locator.place if is_linked else locator.address
        if address != last and (not only_local or is_local(address)):
            known[hash(address)] = 0 if is_linked else _version_key(file.version)
        last = address
    return known


def _version_key(version: str) -> int:
    return hash(version) or 1 if version else 0
