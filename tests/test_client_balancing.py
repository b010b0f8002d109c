"""Client load balancing without sockets: choice of service, retries elsewhere, and ejection of failing services."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc import errors
from ocrsvc.client.address import Address, is_single, services_of
from ocrsvc.client.attempts import MAX_BROKEN, Attempts
from ocrsvc.client.balancer import Balancer, Outcome, Place, Rules
from ocrsvc.client.services import NameLookup

A, B, C = (Address("http", name, name, 8000) for name in "abc")
NINE = tuple(Address("http", str(number), str(number), 80) for number in range(9))
RULES = Rules(first_ejection_s=1, longest_ejection_s=8, patience_s=10)


@dataclass
class Bench:
    """A balancer with a clock set by the test; random numbers are 0, so ties go to the first service."""

    addresses: Sequence[Address] = (A, B, C)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.balancer = Balancer(self.addresses, RULES, self.clock, lambda: 0.0)

    def clock(self) -> float:
        return self.now_s

    def attempts(self) -> Attempts:
        return Attempts(self.balancer, 60.0, RULES, self.clock, lambda: 0.0)

    def take(self, only: Address | None = None) -> Place:
        place = self.balancer.take([each for each in self.addresses if only not in (None, each)])
        assert place is not None
        return place

    def fail(self, address: Address, outcome: Outcome) -> None:
        self.balancer.end(self.take(address), outcome)

    def states(self) -> list[str]:
        return [each.state for each in self.balancer.states()]


def next_place(attempts: Attempts) -> Place:
    place = attempts.next()
    assert isinstance(place, Place)
    return place


def pause_s(attempts: Attempts) -> float:
    pause = attempts.next()
    assert isinstance(pause, float | int)
    return pause


def test_urls_are_deduplicated_and_dns_names_marked() -> None:
    urls = ["http://a:8000/", "https://b/ocr/", "http://[::1]:9", "http://a:8000", "dns+http://all:8000/x"]
    *fixed, name = services_of(urls)
    assert [each.url for each in fixed] == ["http://a:8000", "https://b:443/ocr", "http://[::1]:9"]
    assert [each.authority for each in fixed] == ["a:8000", "b", "[::1]:9"]
    assert [each.is_looked_up for each in (*fixed, name, name.at("x"))] == [False, False, False, True, False]
    assert (name.at("fd00::1").url, name.at("fd00::1").authority) == ("http://[fd00::1]:8000/x", "all:8000")
    assert [is_single(url) for url in ("http://a", "dns+http://a", ["http://a"])] == [True, False, False]


INVALID = ("", "a:8000", "http://", "http://a:8000 ftp://b", "http://a:port", "http://a/?token=secret")


@pytest.mark.parametrize("urls", [*INVALID, "http://me:secret@a", "me:secret@a", "http://me:secret@[::1"])
def test_invalid_addresses_are_refused_without_showing_secrets(urls: str) -> None:
    with pytest.raises(errors.BadOption) as refused:
        services_of(urls.split())
    assert "secret" not in f"{refused.value}{refused.value.__cause__}"


def test_service_with_the_fewest_requests_in_flight_is_chosen() -> None:
    bench = Bench()
    places = [bench.take() for _ in range(6)]
    assert Counter(place.host.address for place in places) == {A: 2, B: 2, C: 2}
    bench.balancer.end(places[4], Outcome.ANSWERED)
    assert bench.take().host is places[4].host


def test_ejection_time_doubles_up_to_a_limit() -> None:
    bench, begun = Bench([A, B]), list[float]()
    bench.fail(A, Outcome.NOT_CONNECTED)
    while len(begun) < 6:
        bench.now_s += 0.5
        if (place := bench.balancer.take([B])) is not None:
            begun.append(bench.now_s)
            bench.balancer.end(place, Outcome.BROKEN)
    assert [late - early for early, late in zip([0.0, *begun], begun, strict=False)] == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("answering", "states"), [([], ["open"] * 3), ([B], ["ejected", "open", "open"]), ([A, B], ["open"] * 3)]
)
def test_silence_counts_only_if_other_services_answer(answering: list[Address], states: list[str]) -> None:
    bench = Bench(now_s=10.0)
    silent = [bench.take(A) for _ in range(3)]
    bench.now_s = 20.0
    for address in answering:
        bench.fail(address, Outcome.ANSWERED)
    for place in silent:
        bench.balancer.end(place, Outcome.SILENT)
    assert bench.states() == states


@given(st.lists(st.tuples(st.sampled_from([*Outcome]), st.floats(0, 3), st.booleans()), max_size=60))
def test_all_places_are_released_and_one_request_probes_an_ejected_service(
    events: list[tuple[Outcome, float, bool]],
) -> None:
    bench, in_flight = Bench(), list[Place]()
    for outcome, seconds, ends in events:
        bench.now_s += seconds
        if ends and in_flight:
            bench.balancer.end(in_flight.pop(0), outcome)
        elif (place := bench.balancer.take()) is not None:
            in_flight.append(place)
        ejected = {each.url for each in bench.balancer.states() if each.state == "ejected"}
        for url in ejected:
            assert sum(place.probe and place.host.address.url == url for place in in_flight) <= 1
    for place in in_flight:
        bench.balancer.end(place, Outcome.ANSWERED)
    assert [each.in_flight for each in bench.balancer.states()] == [0, 0, 0]


def test_a_broken_request_is_tried_on_a_limited_number_of_services() -> None:
    attempts, asked = Bench(NINE).attempts(), []
    while True:
        asked.append(place := next_place(attempts))
        if not attempts.failed(place, errors.Unreachable("broke")):
            break
    assert len({place.host.address for place in asked}) == len(asked) == MAX_BROKEN


def test_single_service_is_retried_with_growing_pauses() -> None:
    attempts, pauses = Bench([A]).attempts(), list[float]()
    while attempts.failed(next_place(attempts), errors.Unreachable("broke")):
        pauses.append(pause_s(attempts))
    assert pauses == [0.1, 0.2, 0.4, 0.5]


def test_probes_of_other_requests_do_not_prolong_the_wait_for_unreachable_services() -> None:
    bench = Bench((A, B))
    attempts = bench.attempts()
    assert [attempts.failed(next_place(attempts), errors.NotConnected("Refused.")) for _ in range(2)] == [True, True]
    bench.now_s = 5.0
    probe = bench.take(A)
    assert pause_s(attempts) > 0
    bench.now_s = RULES.patience_s + 2
    bench.balancer.end(probe, Outcome.NOT_CONNECTED)
    assert attempts.failed(next_place(attempts), errors.NotConnected("Refused."))
    with pytest.raises(errors.NotConnected, match="Refused"):
        attempts.next()


def test_page_that_fails_on_two_services_blames_neither() -> None:
    bench = Bench()
    for _ in range(9):
        attempts = bench.attempts()
        assert attempts.failed(next_place(attempts), errors.EngineFailed("this page"))
        assert not attempts.failed(next_place(attempts), errors.EngineFailed("this page"))
    assert bench.states() == ["open"] * 3


@dataclass
class FakeDns:
    """Resolves the host names of `urls` to the addresses in `known`; other names are unknown."""

    urls: list[str]
    known: dict[str, list[str]]
    bench: Bench = field(default_factory=lambda: Bench([]))
    asked: int = 0

    def __post_init__(self) -> None:
        services, bench = services_of(self.urls), self.bench
        bench.balancer.replace([each for each in services if not each.is_looked_up])
        self.lookup = NameLookup(services, bench.balancer, 30.0, bench.clock, self.resolve)

    def resolve(self, name: str, port: int) -> list[str]:
        assert port == 8000
        self.asked += 1
        if name not in self.known:
            raise OSError(-2, "Name or service not known")
        return self.known[name]

    def at(self, now_s: float) -> list[tuple[str, str]]:
        """Make a request at this time and return the URL and state of every service."""

        async def ask() -> None:
            self.bench.now_s = now_s
            await self.lookup.ready(10.0)
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

        asyncio.run(ask())
        return [(each.url, each.state) for each in self.bench.balancer.states()]


def test_lookups_keep_the_state_of_remaining_services() -> None:
    dns = FakeDns(["dns+http://all:8000"], {"all": ["10.0.0.1", "10.0.0.2"]})
    dns.at(0.0)
    dns.bench.balancer.end(dns.bench.take(), Outcome.NOT_CONNECTED)
    dns.known["all"] = ["10.0.0.1", "10.0.0.3"]
    dns.at(29.0)
    assert dns.asked == 1
    assert dns.at(30.0) == [("http://10.0.0.1:8000", "ejected"), ("http://10.0.0.3:8000", "open")]
    dns.known.clear()
    assert (len(dns.at(60.0)), dns.asked) == (2, 3)
    with pytest.raises(errors.NotConnected, match="nowhere: Name or service not known"):
        FakeDns(["dns+http://nowhere:8000"], {}).at(0.0)
