"""The threads in front of an engine: every item answered, each apart, in time."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from support import wait_until

from ocrsvc.errors import (
    BrokenImage,
    ClientGone,
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    OcrsvcError,
    QueueFull,
)
from ocrsvc.serving.executor import STUCK_S, Executor, QueuePlace
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Item, RequestContext

FAR_S = 30.0


class Upper:
    """A server that answers in capitals, fails on "bad" and "leave", and can be held."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.batches: list[list[str]] = []
        self.closed = False
        self.thread = ""

    def warm_up(self) -> None:
        self.thread = threading.current_thread().name

    def read(self, tasks: Sequence[str]) -> Sequence[str | OcrsvcError]:
        if self.gate is not None:
            assert self.gate.wait(FAR_S)
        self.batches.append(list(tasks))
        if "bad" in tasks:
            raise ValueError("cannot read this")
        if "leave" in tasks:
            raise SystemExit(1)
        return [BrokenImage("half of it is missing.") if task == "broken" else task.upper() for task in tasks]

    def close(self) -> None:
        self.closed = True


@contextmanager
def running(
    open_server: Callable[[], Upper],
    *,
    threads: int = 1,
    places: int = 8,
    batch: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Executor[str, str]]:
    executor: Executor[str, str] = Executor(open_server, threads=threads, places=places, batch=batch, clock=clock)
    executor.start()
    try:
        yield executor
    finally:
        assert executor.stop(FAR_S)


def submit(
    executor: Executor[str, str],
    work: str,
    deadline_s: float = FAR_S,
    context: RequestContext = DEFAULT_CONTEXT,
) -> tuple[QueuePlace[str, str], Item[str, str]]:
    with executor.admit(context) as place:
        return place, place.submit(work, time.monotonic() + deadline_s)


def ask(executor: Executor[str, str], work: str, deadline_s: float = FAR_S) -> str:
    place, item = submit(executor, work, deadline_s)
    return place.wait(item).answer


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        ("broken", BrokenImage, "half of it is missing"),
        ("bad", EngineFailed, "ValueError: cannot read this"),
        ("leave", EngineFailed, "SystemExit"),
    ],
)
def test_a_failure_reaches_the_one_who_asked_and_the_thread_lives_on(
    work: str, error: type[OcrsvcError], message: str
) -> None:
    with running(Upper) as executor:
        with pytest.raises(error, match=message):
            ask(executor, work)
        assert ask(executor, "a") == "A"


def test_one_bad_item_does_not_spoil_its_batch() -> None:
    gate = threading.Event()
    server = Upper(gate)
    with running(lambda: server, batch=4) as executor:
        items = []
        for work in ("first", "a", "bad", "b"):
            items.append(submit(executor, work))
            if work == "first":
                wait_until(lambda: executor.queue.waiting() == 0)
        gate.set()
        answers = [place.wait(item).answer for place, item in items if item.work != "bad"]
        assert answers == ["FIRST", "A", "B"]
        assert server.batches == [["first"], ["a", "bad", "b"], ["a"], ["bad"], ["b"]]


def test_a_full_queue_refuses_and_serves_again_when_a_place_is_free() -> None:
    gate = threading.Event()
    with running(lambda: Upper(gate), places=1) as executor:
        place, running_item = submit(executor, "a")
        wait_until(lambda: executor.queue.waiting() == 0)
        waiting_place, waiting_item = submit(executor, "b")
        with pytest.raises(QueueFull):
            ask(executor, "c")
        gate.set()
        assert (place.wait(running_item).answer, waiting_place.wait(waiting_item).answer) == ("A", "B")
        assert ask(executor, "c") == "C"


def test_the_deadline_is_answered_at_the_deadline_and_not_when_the_engine_is_done() -> None:
    gate = threading.Event()
    with running(lambda: Upper(gate)) as executor:
        with pytest.raises(DeadlineExceeded):
            ask(executor, "stuck", deadline_s=0.05)
        gate.set()
        assert ask(executor, "a") == "A"


def test_a_thread_counts_as_stuck_some_time_after_the_deadline_of_its_work_and_until_it_is_done() -> None:
    gate, now = threading.Event(), [100.0]
    with running(lambda: Upper(gate), clock=lambda: now[0]) as executor:
        with executor.admit() as place:
            item = place.submit("slow", 101.0)
        wait_until(item.future.running)
        now[0] = 101.0 + STUCK_S
        assert executor.stuck_threads() == 0
        now[0] += 0.1
        assert executor.stuck_threads() == 1
        gate.set()
        wait_until(lambda: executor.stuck_threads() == 0)


def test_a_place_is_given_back_when_the_work_cannot_be_made() -> None:
    with running(Upper, places=1) as executor:
        with pytest.raises(BrokenImage), executor.admit():
            raise BrokenImage("cannot be decoded.")
        assert executor.queue.waiting() == 0


def test_every_thread_opens_its_own_server_and_closes_it() -> None:
    servers: list[Upper] = []

    def open_server() -> Upper:
        servers.append(Upper())
        return servers[-1]

    with running(open_server, threads=3):
        assert len({server.thread for server in servers}) == 3
    assert [server.closed for server in servers] == [True, True, True]


def test_start_raises_what_a_thread_could_not_open() -> None:
    def refuse() -> Upper:
        raise EngineUnavailable("No such model.")

    executor: Executor[str, str] = Executor(refuse, threads=2, places=1)
    with pytest.raises(EngineUnavailable):
        executor.start()


def test_serial_opens_never_overlap() -> None:
    inside, most = 0, 0

    def open_server() -> Upper:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.005)
        inside -= 1
        return Upper()

    executor: Executor[str, str] = Executor(open_server, threads=4, places=1, serial_open=True)
    executor.start()
    assert executor.stop(FAR_S)
    assert most == 1


def test_stop_finishes_what_is_queued() -> None:
    gate = threading.Event()
    executor: Executor[str, str] = Executor(lambda: Upper(gate), threads=1, places=8)
    executor.start()
    held = [submit(executor, work) for work in "abc"]
    gate.set()
    assert executor.stop(FAR_S)
    assert [place.wait(item).answer for place, item in held] == ["A", "B", "C"]


def test_a_waiter_that_gives_up_frees_its_place_at_once() -> None:
    gate = threading.Event()
    with running(lambda: Upper(gate), places=1) as executor:
        place, first = submit(executor, "a")
        wait_until(lambda: executor.queue.waiting() == 0)
        with pytest.raises(DeadlineExceeded):
            ask(executor, "b", deadline_s=0.01)
        assert executor.queue.waiting() == 0
        gate.set()
        assert place.wait(first).answer == "A"


def test_a_server_that_does_not_warm_up_is_closed() -> None:
    class Cold(Upper):
        def warm_up(self) -> None:
            raise EngineUnavailable("The model does not fit.")

    server = Cold()
    executor: Executor[str, str] = Executor(lambda: server, threads=1, places=1)
    with pytest.raises(EngineUnavailable):
        executor.start()
    assert server.closed


def test_a_thread_with_nothing_to_do_says_so_once_and_works_on() -> None:
    idle = threading.Semaphore(0)
    executor: Executor[str, str] = Executor(Upper, threads=1, places=1, on_idle=idle.release)
    executor.start()
    assert idle.acquire(timeout=FAR_S)
    assert ask(executor, "a") == "A"
    assert idle.acquire(timeout=FAR_S)
    assert executor.stop(FAR_S)
    assert not idle.acquire(blocking=False)


def test_a_client_that_goes_while_its_work_waits_ends_the_wait_and_the_work() -> None:
    gate, gone, server = threading.Event(), threading.Event(), Upper()
    server.gate = gate
    with running(lambda: server) as executor:
        place, held = submit(executor, "held")
        wait_until(held.future.running)
        waiting_place, item = submit(executor, "gone", context=RequestContext(is_gone=gone.is_set))
        gone.set()
        with pytest.raises(ClientGone):
            waiting_place.wait(item)
        assert executor.queue.waiting() == 0
        gate.set()
        assert place.wait(held).answer == "HELD"
    assert server.batches == [["held"]]


def test_a_question_for_the_client_that_fails_ends_its_work_and_no_thread() -> None:
    def is_gone() -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with running(Upper) as executor:
        _, item = submit(executor, "a", context=RequestContext(is_gone=is_gone))
        with pytest.raises(ClientGone) as raised:
            item.future.result(FAR_S)
        assert isinstance(raised.value.__cause__, OSError)
        assert ask(executor, "b") == "B"


def test_a_client_that_goes_while_the_engine_works_changes_nothing() -> None:
    """Where it does not look: its thread's time is spent either way."""
    gate, gone = threading.Event(), threading.Event()
    with running(lambda: Upper(gate)) as executor:
        place, item = submit(executor, "a", context=RequestContext(is_gone=gone.is_set))
        wait_until(item.future.running)
        gone.set()
        opener = threading.Timer(0.5, gate.set)
        opener.start()
        assert place.wait(item).answer == "A"
        opener.join()


def test_a_call_runs_in_each_thread_also_in_those_that_are_idle() -> None:
    found: list[int] = []
    with running(Upper, threads=3) as executor:
        for _ in range(2):
            for future in executor.run_in_each(lambda: found.append(threading.get_ident())):
                future.result(FAR_S)
        assert sorted(found) == sorted(executor.idents() * 2)
        assert ask(executor, "a") == "A"


def test_a_call_runs_before_work_that_waits_already() -> None:
    gate, order = threading.Event(), list[str]()
    with running(lambda: Upper(gate)) as executor, executor.admit() as first, executor.admit() as second:
        items = [place.submit("a", time.monotonic() + FAR_S) for place in (first, second)]
        wait_until(items[0].future.running)
        [future] = executor.run_in_each(lambda: order.append("queued" if not items[1].future.running() else "running"))
        gate.set()
        future.result(FAR_S)
        assert second.wait(items[1]).answer == "A"
    assert order == ["queued"]


def test_a_failing_call_fails_alone() -> None:
    with running(Upper) as executor:
        [future] = executor.run_in_each(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            future.result(FAR_S)
        assert ask(executor, "a") == "A"


def test_a_batch_holds_only_what_may_go_together() -> None:
    gate, server = threading.Event(), Upper()
    server.gate = gate
    executor: Executor[str, str] = Executor(
        lambda: server,
        threads=1,
        places=8,
        batch=8,
        may_join=lambda first, taken, other: first[0] == other[0] and taken < 2,
    )
    executor.start()
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(executor.admit()) for _ in range(6)]
        works = ["x", "a1", "a2", "a3", "b1", "a4"]
        items = []
        for number, (place, work) in enumerate(zip(places, works, strict=True)):
            items.append(place.submit(work, time.monotonic() + FAR_S + number))
            wait_until(items[0].future.running)
        gate.set()
        assert [place.wait(item).answer for place, item in zip(places, items, strict=True)] == [
            *("X", "A1", "A2", "A3", "B1", "A4")
        ]
    assert server.batches == [["x"], ["a1", "a2"], ["a3"], ["b1"], ["a4"]]
    assert executor.stop(FAR_S)
