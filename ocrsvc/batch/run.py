"""The run: one thread hands pages to reading threads, stores their results, and has another write complete parts."""

import contextlib
import hashlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

import orjson

from ocrsvc.batch.page_queue import GroupAdmission, PageQueue
from ocrsvc.batch.pages import PageGroup, PageReader, PageResult, copied_result
from ocrsvc.batch.part_manifests import UNFINISHED, Manifest, PartWriter
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.request import BatchRequest
from ocrsvc.batch.work_file import BegunPages
from ocrsvc.errors import EngineUnavailable, OcrsvcError

MAX_FAILURES: Final = 100
"""The run stops after this many consecutive failed tries that are not the pages' fault: the reader must be broken."""
COMMIT_S: Final = 1.0
_MAX_UNWRITTEN: Final = 4
"""Pages of the next output file are queued only while fewer output files than this wait to be written."""


class Run:
    """Reads and writes output `parts`, until the page limit or a `drain`; overwrites the files of `reopened` parts."""

    def __init__(
        self,
        request: BatchRequest,
        writer: PartWriter,
        begun: BegunPages,
        reader: PageReader,
        counts: RunCounts,
        parts: Sequence[int],
        reopened: frozenset[int],
    ) -> None:
        self._request, self._writer, self._begun, self._reader = request, writer, begun, reader
        self._counts, self._reopened = counts, reopened
        self._plan, self._work = writer.plan, writer.work
        self._pages = PageQueue(self._plan, begun.deaths, request.attempts, request.limit)
        self._todo, self._unwritten = iter(parts), len(parts)
        self._events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # `_admission` lets only `reader.at_once` of these threads read at a time; the others wait for it.
        self._reading = ThreadPoolExecutor(10_000, "batch-reading")
        self._admission = GroupAdmission(sys.maxsize, lambda: reader.at_once)
        self._writing = ThreadPoolExecutor(1, "batch-output")
        self._in_writing = 0
        # For each output part whose pages are queued: how many of its pages still have no result.
        self._left: dict[int, int] = {}
        self._in_flight: dict[PageGroup, None] = {}
        self._attempts: dict[int, int] = {}
        self._failures = 0
        self._is_apart = False
        self._drain = threading.Event()
        self._committed = time.time()
        # For --dedupe: by content hash, the first file's first page. Later files of equal content wait for its result.
        self._contents = self._work.contents() if request.dedupe else None
        self._contents_lock = threading.Lock()
        self._copies: list[tuple[PageGroup, int]] = []

    def drain(self) -> None:
        """Begin no more pages, and write no more output parts. Any thread or signal handler may call this."""
        self._drain.set()
        self._events.put(lambda: self._writing.shutdown(wait=False, cancel_futures=True))

    def execute(self) -> RunCounts:
        """Run to completion; committed results survive any error. Raises OcrsvcError, OSError and sqlite3.Error."""
        self._counts.begin()
        try:
            self._loop()
            self._commit()
            if self._pages.is_at_limit and self._request.shards == 1:
                # Results of incomplete parts are written to the folder `unfinished`.
                for part in self._left:
                    if self._work.errors(self._plan.pages_of(part)):
                        self._writer.write_files(part, replace=True, folder=UNFINISHED)
        finally:
            self._reading.shutdown(wait=False, cancel_futures=True)
            self._writing.shutdown(cancel_futures=True)
        self._counts.is_complete = not self._unwritten
        return self._counts

    def _loop(self) -> None:
        while True:
            self._begin_groups()
            if self._in_flight or self._in_writing:
                # Handle all events that have arrived, and wait up to COMMIT_S for the first.
                with contextlib.suppress(queue.Empty):
                    self._events.get(timeout=COMMIT_S)()
                    while True:
                        self._events.get_nowait()()
                # The difference is negative if the clock was set back: then commit, too.
                if not 0 <= time.time() - self._committed < COMMIT_S:
                    self._commit()
                continue
            self._copy()
            if not (self._in_flight or self._in_writing):
                return

    def _begin_groups(self) -> None:
        """Begin page groups in advance, so that readers never wait for commits; read suspected crashers one by one."""
        if self._drain.is_set() or self._is_apart:
            return
        groups: list[PageGroup] = []
        room = 2 * self._reader.at_once - len(self._in_flight)
        while len(groups) < room and not self._pages.has_suspects:
            group = self._pages.take()
            if group is not None:
                groups.append(group)
            elif self._pages.is_at_limit or not self._begin_part():
                break
        if not groups and self._pages.has_suspects and room > 0 and not self._in_flight:
            self._commit()
            groups = self._pages.take_suspects()
            self._is_apart = bool(groups)
        self._begin(groups)

    def _begin(self, groups: Sequence[PageGroup], *, is_to_be_read: bool = False) -> None:
        self._in_flight |= dict.fromkeys(groups)
        if groups and not self._reader.is_elsewhere:
            pages = [index for group in self._in_flight for index in group.indexes]
            self._begun.note(pages, is_apart=self._is_apart)
        for group in groups:
            self._counts.begun(group)
            reading = self._reading.submit(self._read, group, is_to_be_read=is_to_be_read)
            reading.add_done_callback(partial(self._put, self._take_end, group))

    def _begin_part(self) -> bool:
        """Queue the pages of the next output part; False after the last, or while too many parts wait to be written."""
        if self._in_writing >= _MAX_UNWRITTEN or (part := next(self._todo, None)) is None:
            return False
        known = self._work.errors(self._plan.pages_of(part))
        self._left[part], failed = self._pages.add(part, known)
        if not self._left[part]:
            self._write(part)
        for result in failed:
            self._note(result, self._request.attempts)
        return True

    def _put(self, take: Callable[..., None], *values: object) -> None:
        self._events.put(partial(take, *values))

    def _take_end(self, group: PageGroup, reading: Future[tuple[bytes, int] | None]) -> None:
        if content := reading.result():
            self._work.add_content(*content)
            if content[1] != first_page_of(group):
                self._copies.append((group, content[1]))
        self._counts.in_flight -= len(group.pages)
        self._in_flight.pop(group, None)
        self._is_apart = self._is_apart and bool(self._in_flight)

    def _take_page(self, group: PageGroup, result: PageResult) -> None:
        attempts = self._attempts.pop(result.index, 0) + 1
        if not (result.error and result.is_retryable):
            self._failures = 0
            self._note(result, attempts)
            return
        self._failures += 1
        if self._failures >= MAX_FAILURES and not self._request.keeps_going:
            error = orjson.loads(result.record)["error"]
            raise EngineUnavailable(
                f"{self._failures} tries in a row to read pages have failed, the last with {result.error}: "
                f"{error['detail']}",
                "Fix that, and repeat the command: what was read is kept. With --keep-going such pages fail instead.",
            )
        if attempts >= self._request.attempts:
            self._note(result, attempts)
        else:
            self._attempts[result.index] = attempts
            self._pages.add_again(group, result.index)
            self._counts.page(result, is_tried_again=True)

    def _note(self, result: PageResult, attempts: int) -> None:
        self._work.add(result, attempts, time.time())
        self._begun.forget([result.index])
        self._counts.page(result)
        part = self._plan.part_of(result.index)
        self._left[part] -= 1
        if not self._left[part]:
            self._write(part)

    def _commit(self) -> None:
        self._work.commit()
        self._committed = time.time()
        self._counts.commit(self._committed)
        if not self._is_apart:
            self._copy()

    def _write(self, part: int) -> None:
        self._work.commit()
        del self._left[part]
        if not self._drain.is_set():
            self._in_writing += 1
            written = self._writing.submit(self._writer.write, part, is_reopened=part in self._reopened)
            written.add_done_callback(partial(self._put, self._take_part, part))

    def _take_part(self, part: int, written: Future[Manifest]) -> None:
        self._in_writing -= 1
        if written.cancelled():
            return
        written.result()
        self._unwritten -= 1
        self._counts.parts += 1
        if not self._request.dedupe:
            self._work.forget(self._plan.pages_of(part))

    def _read(self, group: PageGroup, *, is_to_be_read: bool) -> tuple[bytes, int] | None:
        """Reading thread: read a group, unless its file equals an earlier one; returns the result of `_content_of`."""
        with self._admission.entered(0):
            content = None if self._contents is None or is_to_be_read else self._content_of(group, self._contents)
            if content is None or content[1] == first_page_of(group):
                for result in self._reader.read(group):
                    self._put(self._take_page, group, result)
            return content

    def _content_of(self, group: PageGroup, contents: dict[bytes, int]) -> tuple[bytes, int] | None:
        """A file's hash, and the first page of the first file with that hash; None if it cannot be loaded."""
        try:
            digest = hashlib.blake2b(self._writer.load(group.file), digest_size=16).digest()
        except OcrsvcError:
            return None
        with self._contents_lock:
            return digest, contents.setdefault(digest, first_page_of(group))

    def _copy(self) -> None:
        """Copy results to the pages of duplicate files, and read pages for which there is no result to copy."""
        copies, self._copies = self._copies, []
        for group, first in copies:
            later, unread = self._copy_group(group, first)
            if later:
                self._copies.append((group.only(later), first))
            if unread and not self._drain.is_set():
                self._begin([group.only(unread)], is_to_be_read=True)

    def _copy_group(self, group: PageGroup, first: int) -> tuple[list[int], list[int]]:
        """Copy the results of an equal file, if they exist; returns the pages to copy later, and the pages to read."""
        source, _ = self._plan.page(first)
        later, unread = [], []
        for number, index in zip(group.pages, group.indexes, strict=True):
            original = first + source.pages.index(number) if number in source.pages else index
            error = self._work.errors(range(original, original + 1)).get(original)
            record = self._work.record(original) if error == "" else None
            if record is not None:
                self._note(copied_result(record, source.name, group, number), 1)
            elif original != index and error is None and self._plan.part_of(original) in self._left:
                later.append(number)
            else:
                unread.append(number)
        return later, unread


def first_page_of(group: PageGroup) -> int:
    """The number, in the plan, of the first page of the group's file."""
    return group.indexes[0] - group.file.pages.index(group.pages[0])
