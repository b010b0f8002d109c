"""Several owners of one run: they share its parts, and one that was stopped for a while does no harm."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from batch_support import (
    DoubleReader,
    MemoryStore,
    begin,
    execute,
    files_of,
    is_each_page_once,
    opened,
    output,
)
from hypothesis import given
from hypothesis import strategies as st
from support import wait_until

from ocrsvc.batch.lease_clock import LEASE_S
from ocrsvc.batch.ledger.entries import PageState
from ocrsvc.batch.ledger.lease_table import LeaseTable
from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import FinishedPart, LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.outputs.contract import FileResults, OutputWriter, WrittenFile
from ocrsvc.batch.run_context import RunOutcome, RunSettings
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import PageGroup, SourceFile
from ocrsvc.batch.verification import verify
from ocrsvc.errors import EngineUnavailable

FILES = files_of(20)
SOON_S = 20.0


class Clock:
    """Unix time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class StoppedClock:
    """The clock of an owner that is stopped: whoever asks it waits until the owner goes on."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.goes_on = clock, threading.Event()
        self.goes_on.set()

    def __call__(self) -> float:
        assert self.goes_on.wait(SOON_S)
        return self._clock()


class PausedWriter:
    """A writer that stops after it was given all pages, before they are in the store."""

    def __init__(self, writer: OutputWriter) -> None:
        self._writer = writer
        self.is_paused, self.goes_on = threading.Event(), threading.Event()

    def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[WrittenFile]:
        """As OutputWriter.write."""
        known = [(results, {page: results.record(page) for page in results.pages}) for results in files]
        self.is_paused.set()
        assert self.goes_on.wait(SOON_S)
        copies = (FileResults(one.file, one.pages, records.__getitem__, one.load) for one, records in known)
        return self._writer.write(store, part, copies)


def test_two_owners_at_once_put_each_page_into_the_output_once() -> None:
    store, readers = MemoryStore(), [DoubleReader("one"), DoubleReader("two")]
    files = files_of(200)
    plan = begin(store, files, 5)
    outcomes: list[RunOutcome] = []

    def work(reader: DoubleReader) -> None:
        with opened(store, plan, reader, is_seen_alive=True) as run:
            outcomes.append(run.execute())

    threads = [threading.Thread(target=work, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert [outcome.is_complete for outcome in outcomes] == [True, True]
    assert is_each_page_once(store, files)
    assert not verify(store).problems
    # Leases keep them apart, but for a part that both took in the same instant.
    assert sum(reader.reads.total() for reader in readers) < 1.2 * len(files)


def test_shards_are_worked_on_apart() -> None:
    store = MemoryStore()
    first = execute(store, FILES, DoubleReader(), RunSettings(shard=0, shards=2))
    assert first.is_complete
    assert [int(str(line["source"])) // 5 for line in output(store)] == [0] * 5 + [2] * 5
    assert execute(store, FILES, DoubleReader(), RunSettings(shard=1, shards=2)).done == 10
    assert is_each_page_once(store, FILES)


def test_an_owner_that_was_stopped_beyond_its_lease_leaves_the_part_to_whoever_took_it() -> None:
    store, clock = MemoryStore(), Clock()
    plan = begin(store, FILES, 5)
    is_stopped, own_clock = threading.Event(), StoppedClock(clock)

    def stop(name: str) -> None:
        if name == "0002":
            own_clock.goes_on.clear()
            is_stopped.set()
            assert own_clock.goes_on.wait(SOON_S)

    stopped = DoubleReader("stopped", before=stop)
    outcomes: list[RunOutcome] = []

    def work() -> None:
        with opened(store, plan, stopped, clock=own_clock, is_seen_alive=True) as run:
            outcomes.append(run.execute())

    thread = threading.Thread(target=work)
    thread.start()
    assert is_stopped.wait(SOON_S)
    clock.now += LEASE_S + 1
    with opened(store, plan, DoubleReader("other"), clock=clock, is_seen_alive=True) as run:
        assert run.execute().is_complete
    own_clock.goes_on.set()
    thread.join(SOON_S)
    assert outcomes[0].is_complete
    assert is_each_page_once(store, FILES)
    assert not verify(store).problems


def test_a_part_that_was_written_too_late_is_written_again_with_what_is_known_since() -> None:
    store, clock, files = MemoryStore(), Clock(), files_of(5)
    plan = begin(store, files, 5)
    paused: list[PausedWriter] = []
    refused = {"0001"}

    def wrap(writer: OutputWriter) -> OutputWriter:
        paused.append(PausedWriter(writer))
        return paused[0]

    def work() -> None:
        reader = DoubleReader("paused", refused=refused)
        with opened(store, plan, reader, clock=clock, is_seen_alive=True, wrap=wrap) as run:
            run.execute()

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: paused and paused[0].is_paused.is_set(), "the writer")
    clock.now += LEASE_S + 1
    refused.clear()
    with opened(store, plan, DoubleReader("other"), clock=clock, retry_failed=True) as run:
        assert run.execute().is_complete
    paused[0].goes_on.set()
    thread.join(SOON_S)
    assert [line["error"] for line in output(store)] == [None] * 5
    assert is_each_page_once(store, files)
    assert not verify(store).problems


def test_an_owner_that_cannot_go_on_has_written_its_part_before_others_may_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, files = MemoryStore(), files_of(10)
    plan = begin(store, files, 5)
    is_writing, has_ended, seen = threading.Event(), threading.Event(), list[bool]()
    end = LedgerLog.end

    def note_end(log: LedgerLog) -> None:
        has_ended.set()
        end(log)

    monkeypatch.setattr(LedgerLog, "end", note_end)

    class WaitingWriter:
        def __init__(self, writer: OutputWriter) -> None:
            self._writer = writer

        def write(self, store: Store, part: int, files: Iterator[FileResults]) -> list[WrittenFile]:
            is_writing.set()
            seen.append(has_ended.wait(0.3))
            return self._writer.write(store, part, files)

    def fail(name: str) -> None:
        if name == "0005":
            assert is_writing.wait(SOON_S)
            raise EngineUnavailable("No engine.")

    with (
        pytest.raises(EngineUnavailable),
        opened(store, plan, DoubleReader(before=fail), wrap=WaitingWriter) as run,
    ):
        run.execute()
    assert has_ended.is_set()
    assert seen == [False]


OWNERS = [Owner(f"owner-{number}", "host", "", "", number, "", 0.0) for number in range(3)]


@given(
    notes=st.lists(
        st.tuples(st.sampled_from(OWNERS), st.floats(0, 50), st.floats(1, 60)),
        min_size=1,
        max_size=3,
        unique_by=lambda note: note[0].name,
    ),
    now=st.floats(0, 100),
)
def test_whoever_reads_the_logs_in_whatever_order_sees_one_holder(
    notes: list[tuple[Owner, float, float]], now: float
) -> None:
    holders = set()
    for order in itertools.permutations(notes):
        table = LeaseTable()
        for owner, since, length in order:
            table.note(0, owner, since, since + length, met=50.0)
        holders.add(table.holder(0, now, OWNERS[0]))
    assert len(holders) == 1


def test_an_owner_whose_clock_is_a_day_ahead_keeps_a_part_for_one_lease() -> None:
    table = LeaseTable()
    table.note(0, OWNERS[1], 1000.0 + 86400, 1000.0 + 86400 + LEASE_S, met=1000.0)
    assert table.holder(0, 1000.0 + LEASE_S - 1, OWNERS[0]) == OWNERS[1]
    assert table.holder(0, 1000.0 + LEASE_S, OWNERS[0]) is None


def test_what_logs_say_counts_whatever_the_order_in_which_they_are_read() -> None:
    store, files = MemoryStore(), files_of(5)
    plan, here = begin(store, files, 5), Owner.this_process()
    old, new = (LedgerLog(store, replace(here, name=name), {}) for name in ("1", "2"))
    note_all(new, files, "0001")
    new.note_finished(FinishedPart(0, 4, 1, {}))
    new.commit()
    # Who began first has read the page that the other failed on, twice at once, and has written the part last.
    for reader in (DoubleReader(), DoubleReader(refused={"0001"})):
        [result] = reader.read(PageGroup(files[1], (1,), (1,)))
        old.note_page(result, 1, 0.0)
    old.note_finished(FinishedPart(0, 5, 0, {}))
    old.commit()
    ledger = Ledger(store, plan)
    ledger.refresh()
    assert (ledger.states == PageState.DONE).all()
    assert ledger.is_finished(0)


def note_all(log: LedgerLog, files: Sequence[SourceFile], refused: str) -> None:
    """Note a result of the only page of each file, a failure of the one that is refused."""
    reader = DoubleReader(refused={refused})
    for index, file in enumerate(files):
        [result] = reader.read(PageGroup(file, (1,), (index,)))
        log.note_page(result, 1, 0.0)
    log.commit()
