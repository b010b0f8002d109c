"""Which service a request goes to, when to another, and when a service is left alone: decided without sockets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc import errors
from ocrsvc.client.balancing.address import Address, is_one, services_of
from ocrsvc.client.balancing.attempts import Attempts, Pause
from ocrsvc.client.balancing.balancer import Balancer, Place
from ocrsvc.client.balancing.discovery import Discovery
from ocrsvc.client.balancing.health import Outcome
from ocrsvc.client.balancing.hedging import LEAST_ANSWERS, Hedging
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.client.retry_policy import BROKEN_TRIES

A, B, C = (Address("http", name, name, 8000) for name in "abc")
RULES = Rules(first_ejection_s=1, longest_ejection_s=8, patience_s=10)


@dataclass
class Clock:
    """Seconds that pass when the test says so."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Bench:
    """A balancer over A, B and C with a clock of its own; chance is always 0, and so the first of equals is chosen."""

    addresses: Sequence[Address] = (A, B, C)
    rules: Rules = RULES
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.balancer = Balancer(self.addresses, self.rules, self.clock, lambda: 0.0)

    def attempts(self, timeout_s: float = 60.0) -> Attempts:
        return Attempts(self.balancer, timeout_s, self.rules, self.clock, lambda: 0.0)

    def take(self, *avoid: Address) -> Place:
        place = self.balancer.take(avoid)
        assert place is not None
        return place

    def fail(self, address: Address, outcome: Outcome, times: int = 1) -> None:
        """So many requests to this service end so."""
        others = [each for each in self.addresses if each != address]
        for _ in range(times):
            self.balancer.end(self.take(*others), outcome)

    def states(self) -> list[str]:
        return [each.state for each in self.balancer.states()]


def full_bench(at_once: int, addresses: Sequence[Address] = (A,)) -> tuple[Bench, list[Place]]:
    """A takes so many requests at once, as a refusal has said, and has them; with them."""
    bench, others = Bench(addresses, Rules(at_once=8, first_ejection_s=1)), [each for each in addresses if each != A]
    under_way = [bench.take(*others) for _ in range(at_once + 1)]
    bench.balancer.refuse(under_way.pop(), errors.QueueFull("full"), 0.0)
    return bench, under_way


def paused(attempts: Attempts) -> Pause:
    """That there is no place now."""
    step = attempts.next()
    assert isinstance(step, Pause)
    return step


@contextmanager
def woken(pause: Pause) -> Iterator[list[bool]]:
    """Wait for a change, for the block; has an element once it has come."""
    wakes: list[bool] = []
    assert pause.change is not None
    with pause.change.waking(lambda: wakes.append(True)):
        yield wakes


def next_place(attempts: Attempts) -> Place:
    """Where the request goes now; it is then under way."""
    place = attempts.next()
    assert isinstance(place, Place)
    attempts.begun(place)
    return place


# Addresses


def test_addresses_are_parsed_each_once_and_names_apart() -> None:
    found = services_of(
        ["http://a:8000/", "https://b/ocr/", "http://[::1]:9", "http://a:8000", "dns+http://all:8000/x"]
    )
    assert [each.url for each in found.fixed] == ["http://a:8000", "https://b:443/ocr", "http://[::1]:9"]
    assert [each.authority for each in found.fixed] == ["a:8000", "b", "[::1]:9"]
    (name,) = found.names
    assert (name.at("fd00::1").url, name.at("fd00::1").authority) == ("http://[fd00::1]:8000/x", "all:8000")


@pytest.mark.parametrize(
    "urls",
    [[], [""], ["a:8000"], ["http://a:8000", "ftp://b"], ["http://a:port"], ["http://a/?x=1"], ["http://me:secret@a"]],
)
def test_what_is_no_address_of_a_service_is_refused(urls: list[str]) -> None:
    with pytest.raises(errors.BadOption):
        services_of(urls)


def test_one_plain_address_is_not_balanced() -> None:
    assert [is_one(url) for url in ("http://a", "dns+http://a", ["http://a"])] == [True, False, False]


# Choosing


def test_the_one_with_the_least_in_flight_is_chosen() -> None:
    bench = Bench()
    places = [bench.take() for _ in range(6)]
    assert Counter(place.address for place in places) == {A: 2, B: 2, C: 2}
    bench.balancer.end(places[4], Outcome.ANSWERED)
    assert bench.take().address == places[4].address


def test_among_equals_chance_chooses() -> None:
    balancer = Balancer([A, B, C], RULES, Clock(), random.Random(1).random)
    chosen: Counter[Address] = Counter()
    for _ in range(300):
        place = balancer.take()
        assert place is not None
        chosen[place.address] += 1
        balancer.end(place, Outcome.ANSWERED)
    assert min(chosen.values()) > 60


def test_a_slow_service_gets_less() -> None:
    bench, begun = Bench(), Counter[Address]()
    under_way: list[Place] = [bench.take() for _ in range(9)]
    for moment in range(300):
        ended = [place for place in under_way if place.address != A or moment % 10 == 0]
        for place in ended[:3]:
            under_way.remove(place)
            bench.balancer.end(place, Outcome.ANSWERED)
            begun[place.address] += 1
            under_way.append(bench.take())
    assert begun[A] * 3 < begun[B]


def test_a_service_that_refuses_gets_no_more_at_once_than_it_took_and_then_slowly_more_again() -> None:
    bench = Bench([A], Rules(at_once=8))
    under_way = [bench.take() for _ in range(6)]
    bench.balancer.refuse(under_way.pop(), errors.QueueFull("full"), 1.0)
    assert bench.balancer.capacity() == 5
    for now_s, capacity in ((20.0, 5), (40.0, 6), (60.0, 8), (80.0, 8)):
        bench.clock.now_s = now_s
        for _ in range(20):
            under_way += [bench.take() for _ in range(bench.balancer.capacity() - len(under_way))]
            bench.balancer.end(under_way.pop(0), Outcome.ANSWERED)
        assert bench.balancer.capacity() >= capacity
    assert bench.balancer.capacity() == 8


def test_what_is_too_much_for_those_that_do_not_refuse_waits_for_room() -> None:
    bench = Bench([A, B], Rules(at_once=8))
    under_way = [bench.take(B) for _ in range(3)] + [bench.take(A) for _ in range(3)]
    bench.balancer.refuse(under_way.pop(), errors.QueueFull("full"), 1.0)
    bench.clock.now_s = 1.0
    bench.balancer.refuse(under_way.pop(0), errors.QueueFull("full"), 60.0)
    attempts = bench.attempts()
    step = attempts.next()
    assert isinstance(step, Pause)
    assert step.seconds == 5.0
    with woken(step) as wakes:
        assert not wakes
        bench.balancer.end(under_way.pop(), Outcome.ANSWERED)
        assert len(wakes) == 1
    assert next_place(attempts).address == B


def test_room_that_comes_between_looking_and_waiting_is_not_missed() -> None:
    bench, under_way = full_bench(1)
    step = paused(bench.attempts())
    bench.balancer.end(under_way.pop(), Outcome.ANSWERED)
    with woken(step) as wakes:
        assert len(wakes) == 1


def test_as_many_are_woken_as_there_are_places_and_those_that_waited_longest() -> None:
    bench, under_way = full_bench(2)
    with ExitStack() as stack:
        waiting = [stack.enter_context(woken(paused(bench.attempts()))) for _ in range(5)]
        bench.balancer.end(under_way.pop(), Outcome.ANSWERED)
        assert list(map(len, waiting)) == [1, 0, 0, 0, 0]
        # The first does not take it: it is the next one's.
        bench.balancer.tell_room()
        assert list(map(len, waiting)) == [1, 1, 0, 0, 0]


def test_a_service_that_is_new_or_brought_back_by_an_answer_ends_pauses() -> None:
    bench, _ = full_bench(1)
    with woken(paused(bench.attempts())) as wakes:
        bench.balancer.replace([A, B])
        assert len(wakes) == 1
    bench, _ = full_bench(1, [A, B])
    late = bench.take()
    assert late.address == B
    bench.fail(B, Outcome.NOT_CONNECTED)
    with woken(paused(bench.attempts())) as wakes:
        bench.balancer.end(late, Outcome.ANSWERED)
        assert len(wakes) == 1


def test_a_pause_ends_when_the_time_of_a_service_to_come_back_has_come() -> None:
    bench, _ = full_bench(1, [A, B])
    bench.fail(B, Outcome.NOT_CONNECTED)
    bench.clock.now_s += 0.25
    assert paused(bench.attempts()).seconds == 0.75
    bench.clock.now_s += 0.75
    assert next_place(bench.attempts()).address == B


def test_while_all_refuse_one_that_was_ejected_is_still_tried_in_time() -> None:
    bench = Bench([A, B])
    attempts = bench.attempts(timeout_s=100)
    bench.fail(B, Outcome.NOT_CONNECTED)
    attempts.failed(next_place(attempts), errors.QueueFull("full", retry_after_s=60))
    assert paused(attempts).seconds == 1.0
    bench.clock.now_s = 1.0
    assert next_place(attempts).address == B


def test_a_service_that_fails_wakes_nobody() -> None:
    bench = Bench([A])
    probe = bench.take()
    bench.fail(A, Outcome.NOT_CONNECTED)
    with bench.balancer.room.seen().waking(pytest.fail):
        bench.balancer.end(probe, Outcome.BROKEN)


@given(st.lists(st.tuples(st.sampled_from([*Outcome]), st.floats(0, 3), st.booleans()), max_size=60))
def test_whoever_waits_is_woken_or_waits_for_a_time_before_a_place_is_there(
    events: list[tuple[Outcome, float, bool]],
) -> None:
    bench, under_way = Bench([A, B], Rules(at_once=2)), list[Place]()
    for outcome, seconds, refuses in events:
        change, room_s = bench.balancer.room.seen(), bench.clock.now_s + bench.balancer.opens_s()
        place = bench.balancer.take()
        bench.clock.now_s += seconds
        wakes: list[bool] = []
        with change.waking(partial(wakes.append, True)):
            if place is None and under_way:
                ended = under_way.pop(0)
                if refuses:
                    bench.balancer.refuse(ended, errors.QueueFull("full"), seconds)
                else:
                    bench.balancer.end(ended, outcome)
            if place is None and (place := bench.balancer.take()) is not None:
                assert wakes or bench.clock.now_s >= room_s
        if place is not None:
            under_way.append(place)


def test_a_service_whose_answers_are_late_gets_half_as_many_at_once() -> None:
    bench = Bench([A], Rules(at_once=8))
    for now_s, capacity in ((0.0, 4), (1.0, 4), (6.0, 2), (12.0, 1), (18.0, 1)):
        bench.clock.now_s = now_s
        bench.fail(A, Outcome.SILENT, 3)
        assert bench.balancer.capacity() == capacity
    assert bench.states() == ["open"]


def test_one_that_takes_less_at_once_is_sent_less() -> None:
    bench = Bench([A, B], Rules(at_once=8))
    under_way = [bench.take(B) for _ in range(3)]
    bench.balancer.refuse(under_way.pop(), errors.QueueFull("full"), 1.0)
    bench.clock.now_s = 1.0
    under_way += [bench.take() for _ in range(12)]
    assert Counter(place.address for place in under_way) == {A: 2, B: 12}


# Leaving failing services alone


@pytest.mark.parametrize(("outcome", "times"), [(Outcome.NOT_CONNECTED, 1), (Outcome.BROKEN, 3), (Outcome.FAULTY, 3)])
def test_a_service_that_fails_is_ejected(outcome: Outcome, times: int) -> None:
    bench = Bench()
    bench.fail(A, outcome, times - 1)
    assert bench.states() == ["open"] * 3
    bench.fail(A, outcome)
    assert bench.states() == ["ejected", "open", "open"]
    assert {bench.take().address for _ in range(6)} == {B, C}


def test_an_answer_between_failures_makes_them_forgotten() -> None:
    bench = Bench()
    for _ in range(5):
        bench.fail(A, Outcome.BROKEN, 2)
        bench.fail(A, Outcome.ANSWERED)
    assert bench.states() == ["open"] * 3


def test_one_request_tries_it_when_its_time_is_over_and_an_answer_brings_it_back() -> None:
    bench = Bench()
    bench.fail(A, Outcome.NOT_CONNECTED)
    bench.clock.now_s = 0.99
    assert bench.take().address != A
    bench.clock.now_s = 1.0
    probe = bench.take()
    assert (probe.address, probe.probe) == (A, True)
    assert {bench.take().address for _ in range(6)} == {B, C}
    bench.balancer.end(probe, Outcome.ANSWERED)
    assert bench.states() == ["open"] * 3
    assert bench.take().address == A


def test_the_time_grows_with_each_try_that_fails_up_to_a_limit() -> None:
    bench, begun = Bench([A]), list[float]()
    bench.fail(A, Outcome.NOT_CONNECTED)
    while len(begun) < 6:
        bench.clock.now_s += 0.5
        if (place := bench.balancer.take()) is not None:
            begun.append(bench.clock.now_s)
            bench.balancer.end(place, Outcome.BROKEN)
    assert [late - early for early, late in zip([0.0, *begun], begun, strict=False)] == [1, 2, 4, 8, 8, 8]


def test_a_service_that_fails_again_soon_is_left_alone_for_longer_and_one_that_was_good_long_enough_is_not() -> None:
    bench = Bench([A])
    bench.fail(A, Outcome.NOT_CONNECTED)
    bench.clock.now_s = 1.0
    bench.fail(A, Outcome.ANSWERED)
    bench.fail(A, Outcome.NOT_CONNECTED)
    bench.clock.now_s = 2.9
    assert bench.balancer.take() is None
    bench.clock.now_s = 3.0
    bench.fail(A, Outcome.ANSWERED)
    bench.clock.now_s = 5.5
    bench.fail(A, Outcome.ANSWERED)
    bench.fail(A, Outcome.NOT_CONNECTED)
    bench.clock.now_s = 6.5
    assert bench.balancer.take() is not None


def test_what_was_under_way_at_an_ejection_does_not_prolong_it_and_an_answer_to_it_ends_it() -> None:
    bench = Bench()
    first, second = bench.take(B, C), bench.take(B, C)
    bench.fail(A, Outcome.NOT_CONNECTED)
    bench.clock.now_s = 0.5
    bench.balancer.end(first, Outcome.BROKEN)
    bench.clock.now_s = 1.0
    assert bench.take().address == A
    bench.balancer.end(second, Outcome.ANSWERED)
    assert bench.states() == ["open"] * 3


def test_silence_counts_only_where_others_answer_meanwhile_and_it_answers_nothing() -> None:
    bench = Bench()
    bench.clock.now_s = 10.0
    silent = [bench.take(B, C) for _ in range(9)]
    bench.clock.now_s = 20.0
    for place in silent[:3]:
        bench.balancer.end(place, Outcome.SILENT)
    assert bench.states() == ["open"] * 3
    bench.fail(B, Outcome.ANSWERED)
    for place in silent[3:6]:
        bench.balancer.end(place, Outcome.OVERTAKEN)
    assert bench.states() == ["ejected", "open", "open"]
    busy = Bench()
    silent = [busy.take(B, C) for _ in range(3)]
    busy.fail(A, Outcome.ANSWERED)
    busy.fail(B, Outcome.ANSWERED)
    for place in silent:
        busy.balancer.end(place, Outcome.SILENT)
    assert busy.states() == ["open"] * 3


@given(st.lists(st.tuples(st.sampled_from([*Outcome]), st.floats(0, 3), st.booleans()), max_size=60))
def test_every_place_comes_back_and_at_most_one_request_tries_an_ejected_service(
    events: list[tuple[Outcome, float, bool]],
) -> None:
    bench, under_way = Bench(), list[Place]()
    for outcome, seconds, ends in events:
        bench.clock.now_s += seconds
        if ends and under_way:
            bench.balancer.end(under_way.pop(0), outcome)
        elif (place := bench.balancer.take()) is not None:
            under_way.append(place)
        ejected = {each.url for each in bench.balancer.states() if each.state == "ejected"}
        for url in ejected:
            assert sum(place.probe and place.address.url == url for place in under_way) <= 1
    for place in under_way:
        bench.balancer.end(place, Outcome.ANSWERED)
    assert [each.in_flight for each in bench.balancer.states()] == [0, 0, 0]


# One request on its way


def test_a_refused_request_goes_to_another_at_once_and_waits_only_when_all_refuse() -> None:
    bench = Bench()
    attempts = bench.attempts()
    for retry_after_s in (7, 3, 5):
        assert attempts.failed(next_place(attempts), errors.QueueFull("full", retry_after_s=retry_after_s))
    assert attempts.next() == Pause(3.0)
    bench.clock.now_s = 3.0
    assert next_place(attempts).address == B


def test_a_service_that_asked_for_time_is_asked_by_nobody_before() -> None:
    bench = Bench()
    attempts = bench.attempts()
    attempts.failed(next_place(attempts), errors.QueueFull("full", retry_after_s=7))
    bench.clock.now_s = 6.9
    assert {next_place(bench.attempts()).address for _ in range(6)} == {B, C}
    bench.clock.now_s = 7.0
    assert next_place(bench.attempts()).address == A


def test_a_refusal_of_all_that_outlasts_the_deadline_stands_at_once() -> None:
    bench = Bench([A, B])
    attempts = bench.attempts(timeout_s=5)
    for _ in range(2):
        attempts.failed(next_place(attempts), errors.QuotaExceeded("none left", retry_after_s=3600))
    with pytest.raises(errors.QuotaExceeded):
        attempts.next()


def test_a_broken_request_goes_to_others_five_times_in_all() -> None:
    bench = Bench([Address("http", str(number), str(number), 80) for number in range(9)])
    attempts, asked = bench.attempts(), []
    while True:
        asked.append(place := next_place(attempts))
        if not attempts.failed(place, errors.Unreachable("broke")):
            break
    assert len({place.address for place in asked}) == len(asked) == BROKEN_TRIES


def test_services_that_cannot_be_reached_are_no_reason_to_give_up_while_one_can() -> None:
    bench = Bench([Address("http", str(number), str(number), 80) for number in range(9)])
    attempts = bench.attempts()
    for _ in range(8):
        assert attempts.failed(next_place(attempts), errors.NotConnected("refused"))
    place = next_place(attempts)
    attempts.answered(place)
    assert bench.states().count("ejected") == 8


def reach(bench: Bench, is_there: Callable[[Place], bool]) -> int:
    """A request to services that cannot be connected to, but for those that are there; how many were asked."""
    attempts, asked = bench.attempts(), 0
    while True:
        step = attempts.next()
        if isinstance(step, Pause):
            assert 0.1 <= step.seconds <= 1
            bench.clock.now_s += step.seconds
            continue
        attempts.begun(step)
        asked += 1
        if is_there(step):
            attempts.answered(step)
            return asked
        attempts.failed(step, errors.NotConnected("refused"))


def test_while_none_can_be_reached_it_waits_with_patience_and_then_gives_up() -> None:
    bench = Bench()
    with pytest.raises(errors.NotConnected, match="refused"):
        reach(bench, lambda _: False)
    assert 10 <= bench.clock.now_s <= 11


def test_one_that_comes_back_during_that_patience_is_found() -> None:
    bench = Bench()
    asked = reach(bench, lambda place: bench.clock.now_s > 6 and place.address == C)
    assert bench.clock.now_s < 10
    assert 6 < asked < 40
    assert bench.states() == ["ejected", "ejected", "open"]


def test_a_fault_is_tried_once_elsewhere_and_the_service_alone_is_to_blame_if_that_answers() -> None:
    bench = Bench()
    for _ in range(3):
        attempts = bench.attempts()
        place = bench.take(B, C)
        attempts.begun(place)
        assert attempts.failed(place, errors.ServerError("nonsense"))
        attempts.answered(next_place(attempts))
    assert bench.states() == ["ejected", "open", "open"]


def test_a_page_that_fails_everywhere_stands_after_two_and_nobody_is_blamed() -> None:
    bench = Bench()
    for _ in range(9):
        attempts = bench.attempts()
        assert attempts.failed(next_place(attempts), errors.EngineFailed("this page"))
        assert not attempts.failed(next_place(attempts), errors.EngineFailed("this page"))
    assert bench.states() == ["open"] * 3


@pytest.mark.parametrize("error", [errors.BrokenImage("x"), errors.KeyRefused("x"), errors.DeadlineExceeded("x")])
def test_what_another_service_would_not_answer_otherwise_stands(error: errors.OcrsvcError) -> None:
    attempts = Bench().attempts()
    assert not attempts.failed(next_place(attempts), error)


def test_a_deadline_that_has_passed_says_what_came_last() -> None:
    bench = Bench()
    attempts = bench.attempts(timeout_s=2)
    attempts.failed(next_place(attempts), errors.Unreachable("The connection broke."))
    bench.clock.now_s = 2.0
    with pytest.raises(errors.DeadlineExceeded, match=r"within 2 seconds.*The connection broke"):
        attempts.next()


# Second requests


def test_what_is_long_is_known_after_some_answers_and_follows_the_latest() -> None:
    hedging = Hedging(Rules(hedge_share=0.05, hedge_first_s=7), Clock())
    for number in range(LEAST_ANSWERS):
        assert hedging.delay_s() == 7
        hedging.note(1 + number / 100)
    assert hedging.delay_s() == 1.19
    assert hedging.delay_s(parts=16) == 16 * 1.19
    for _ in range(300):
        hedging.note(5.0, parts=10)
    assert hedging.delay_s() == 0.5


def test_no_more_than_the_share_is_sent_twice_and_ten_at_a_time() -> None:
    hedging, spent = Hedging(Rules(hedge_share=0.03), Clock()), 0
    for _ in range(10_000):
        hedging.begun()
        spent += hedging.spend()
    assert 299 <= spent <= 301
    for _ in range(10_000):
        hedging.begun()
    assert sum(hedging.spend() for _ in range(100)) == 10


def test_one_request_alone_is_sent_twice_after_a_while() -> None:
    clock = Clock()
    hedging = Hedging(Rules(hedge_share=0.03), clock)
    assert [hedging.spend(), hedging.spend()] == [True, False]
    clock.now_s = 2.0
    assert [hedging.spend(), hedging.spend()] == [True, False]


def test_without_a_share_nothing_is_sent_twice() -> None:
    clock = Clock()
    hedging = Hedging(Rules(), clock)
    hedging.note(1.0)
    clock.now_s = 100.0
    assert (hedging.delay_s(), hedging.spend()) == (None, False)


def test_a_request_that_waits_in_a_queue_is_sent_twice_only_where_the_queue_is_shorter() -> None:
    bench = Bench([A, B])
    first = [bench.take(B) for _ in range(3)]
    others = [bench.take(A) for _ in range(3)]
    bench.clock.now_s = 10.0
    bench.balancer.end(first.pop(0), Outcome.ANSWERED)
    assert bench.balancer.take_second(first[0], {A}) is None
    for _ in range(2):
        bench.balancer.end(others.pop(), Outcome.ANSWERED)
    second = bench.balancer.take_second(first[0], {A})
    assert second is not None
    assert second.address == B


@pytest.mark.parametrize("is_ejected", [True, False])
def test_one_whose_service_is_silent_or_ejected_is_sent_to_any_other(is_ejected: bool) -> None:
    bench = Bench([A, B])
    first = bench.take(B)
    for _ in range(3):
        bench.take(A)
    if is_ejected:
        bench.balancer.end(bench.take(B), Outcome.ANSWERED)
        bench.fail(A, Outcome.NOT_CONNECTED)
    second = bench.balancer.take_second(first, {A})
    assert second is not None
    assert second.address == B


# Looking up


@dataclass
class Resolver:
    """Names with the addresses that the test gives them; one that it does not give is unknown."""

    known: dict[str, list[str]]
    asked: int = 0

    def __call__(self, name: str, port: int) -> list[str]:
        assert port == 8000
        self.asked += 1
        if name not in self.known:
            raise OSError(-2, "Name or service not known")
        return self.known[name]


def discover(bench: Bench, resolver: Resolver, *urls: str) -> Discovery:
    return Discovery(services_of(urls), bench.balancer, 30.0, bench.clock, resolver)


def test_a_name_is_all_its_addresses_beside_those_that_are_fixed() -> None:
    bench = Bench([services_of("http://fixed:8000").fixed[0]])
    discovery = discover(bench, Resolver({"all": ["10.0.0.1", "fd00::1"]}), "dns+http://all:8000", "http://fixed:8000")
    assert discovery.needed() is None
    discovery.wait(10)
    assert [each.url for each in bench.balancer.states()] == [
        "http://fixed:8000",
        "http://10.0.0.1:8000",
        "http://[fd00::1]:8000",
    ]


def test_names_are_looked_up_again_and_what_is_known_of_those_that_stay_is_kept() -> None:
    bench, resolver = Bench([]), Resolver({"all": ["10.0.0.1", "10.0.0.2"]})
    discovery = discover(bench, resolver, "dns+http://all:8000")
    first = discovery.needed()
    assert first is not None
    first()
    bench.balancer.end(bench.take(), Outcome.NOT_CONNECTED)
    resolver.known["all"] = ["10.0.0.1", "10.0.0.3"]
    bench.clock.now_s = 29.0
    assert discovery.needed() is None
    discovery.wait(10)
    assert resolver.asked == 1
    bench.clock.now_s = 30.0
    assert discovery.needed() is None
    discovery.wait(10)
    assert [(each.url, each.state) for each in bench.balancer.states()] == [
        ("http://10.0.0.1:8000", "ejected"),
        ("http://10.0.0.3:8000", "open"),
    ]


def test_a_name_that_is_unknown_for_a_while_keeps_its_addresses() -> None:
    bench, resolver = Bench([]), Resolver({"all": ["10.0.0.1"]})
    discovery = discover(bench, resolver, "dns+http://all:8000")
    first = discovery.needed()
    assert first is not None
    first()
    resolver.known.clear()
    discovery.refresh(0.0)
    discovery.wait(10)
    assert (len(bench.balancer), resolver.asked) == (1, 2)


def test_a_name_that_was_never_known_says_so() -> None:
    bench = Bench([])
    look_up = discover(bench, Resolver({}), "dns+http://nowhere:8000").needed()
    assert look_up is not None
    with pytest.raises(errors.NotConnected, match="nowhere: Name or service not known"):
        look_up()
