"""Benchmarks: events of regions.py by worked examples and its autoscaler; percentiles and names of peers.py."""

import json
from typing import Any

import pytest
from support import run_beside_benchmarks

FLEET = """
import json
from bench.fleet import Fleet, FleetSettings

def fleet_of(hosts, places=2, tries_next=False, workers=1):
    trips = [[0.0, 0.5], [0.5, 0.0]] if len(hosts) == 2 else [[0.0]]
    return Fleet(FleetSettings(workers, places, 10.0, 10.0, tries_next, trips, 3.0), hosts, 2, 1)

def show(fleet):
    rows = {"interactive": fleet.interactive, "batch": fleet.of_batch}
    seconds = {name: [[round(s, 3) for s in one.waits_s] for one in row] for name, row in rows.items()}
    took = [[round(s, 3) for s in one.took_s] for one in fleet.interactive]
    print(json.dumps({**seconds, "took": took, "refused": sum(one.refused for one in fleet.interactive),
                      "given up": sum(one.given_up for one in fleet.interactive)}))
"""


def simulated(code: str) -> Any:
    """What a program over FLEET prints, as JSON."""
    return json.loads(run_beside_benchmarks(FLEET + code))


def test_pages_wait_for_the_worker_and_interactive_goes_before_batch() -> None:
    found = simulated("""
fleet = fleet_of([1])
fleet.run(iter([(0.0, 0, False, 2.0), (0.5, 0, True, 1.0), (1.0, 0, False, 1.0)]), 100.0)
show(fleet)
""")
    # The second interactive page begins at 2 s, the batch page at 3 s.
    assert found["interactive"] == [[0.0, 1.0]]
    assert found["batch"] == [[2.5]]


def test_a_full_host_refuses_and_the_caller_retries_or_tries_the_next_region() -> None:
    calls = "iter([(0.0, 0, False, 4.0), (0.1, 0, False, 4.0), (0.2, 0, False, 4.0), (0.3, 0, False, 4.0)])"
    alone = simulated(f"fleet = fleet_of([1, 1]); fleet.run({calls}, 100.0); show(fleet)")
    asking = simulated(f"fleet = fleet_of([1, 1], tries_next=True); fleet.run({calls}, 100.0); show(fleet)")
    # Three pages of 4 s are ahead of one worker: Retry-After is 12 s, more than the caller has.
    assert (alone["refused"], alone["given up"]) == (1, 1)
    assert (asking["refused"], asking["given up"]) == (0, 0)
    # Read at once by the other region, half a second away.
    assert 4.5 in asking["took"][0]


def test_pages_of_a_lost_region_are_read_by_the_nearest_once_callers_have_noticed() -> None:
    found = simulated("""
fleet = fleet_of([1, 1])
fleet.at(1.0, lambda now_s: fleet.lose(0, now_s))
fleet.run(iter([(0.0, 0, False, 2.0), (1.5, 0, False, 0.5)]), 100.0)
show(fleet)
""")
    # Both are sent at 4 s, half a second of network away: one is read until 6 s, the other until 6.5 s.
    assert found["took"] == [[6.5, 5.5], []]


def test_hosts_serve_after_their_start_and_cost_from_their_order() -> None:
    code = """
import json
from bench.autoscaling import Autoscaler, Rule, load_per_worker
from bench.fleet import CLOSED, Fleet, FleetSettings

fleet = Fleet(FleetSettings(1, 64, 600.0, 600.0, False, [[0.0]], 3.0), [1], 4, 1)
scaler = Autoscaler(fleet, 0, (Rule("load", 1.0, load_per_worker),), 1, 2, 100.0)
scaler.begin(0.0)
opened = []
for at_s in (114, 116):
    fleet.at(at_s, lambda now_s: opened.append(sum(load < CLOSED for load in fleet.regions[0].loads)))
# Two seconds of work come each second, to one worker.
fleet.run(((float(second), 0, False, 2.0) for second in range(200)), 200.0)
print(json.dumps([opened, fleet.regions[0].host_s, scaler.history]))
"""
    opened, host_s, history = json.loads(run_beside_benchmarks(code))
    assert history == [[0.0, 1], [15.0, 2]]
    assert opened == [1, 2]
    assert host_s == 200 + 185


@pytest.mark.parametrize(
    ("share", "counts", "told"),
    [(0.5, (1, 2, 24), [None, 1, 12]), (0.95, (19, 20, 24), [None, 19, 22]), (0.99, (24, 99, 100), [None, None, 99])],
)
def test_a_percentile_is_reported_only_with_requests_beyond_it(
    share: float, counts: tuple[int, ...], told: list[int | None]
) -> None:
    code = f"""
import json
from bench.peer_load import quantile
print(json.dumps([quantile(range(count), {share}) for count in {counts}]))
"""
    assert json.loads(run_beside_benchmarks(code)) == told
