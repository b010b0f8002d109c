"""API keys over several hosts with one Redis: a key's limits hold for all together, whatever happens to one of them."""

import http.client
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from image_support import png
from network_hosts import (
    HTTP_PORT,
    Host,
    Network,
    NetworkUnavailable,
    Node,
    add_hosts,
    entered,
    popen,
    wait_until_listening,
)
from network_hosts import serving as services
from support import repeating, wait_until

from ocrsvc.access.api_keys import KeyEntry, KeyLimits
from ocrsvc.access.manage_keys import add_key, open_store

PAGE: Final = png()
PAGES: Final = 200
RATE: Final = 20
RATED_S: Final = 1.0
REDIS_PORT: Final = 6379
_ANSWER_S: Final = 20.0
_END_S: Final = 60.0
# Pages counted in this time before a host dies may be missing in the store.
_SETTLED_S: Final = 1.5
# A refusal may last for a quarter of a second while another worker holds the last of a limit.
_REFUSED_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """Three hosts, not started, a node with a Redis, and one for clients with a key for each limit."""

    network: Network
    hosts: list[Host]
    redis: Node
    clients: Node
    keys: dict[str, str]


@contextmanager
def running_redis(network: Network, folder: Path) -> Iterator[Node]:
    """A node with a Redis that every node may ask."""
    node = network.add("redis")
    command = ["redis-server", "--bind", "0.0.0.0", "--port", str(REDIS_PORT), "--protected-mode", "no", "--save", ""]
    process = popen(node, [*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        wait_until_listening(node, REDIS_PORT)
        yield node
    finally:
        process.terminate()
        process.wait(_END_S)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Hosts and two keys: one with a daily quota of pages, one with a rate limit."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    with ExitStack() as stack:
        try:
            network = stack.enter_context(closing(Network()))
        except NetworkUnavailable as error:
            pytest.skip(str(error))
        redis, clients = stack.enter_context(running_redis(network, tmp_path)), network.add("clients")
        url = f"redis://{redis.address}:{REDIS_PORT}/0"
        env = {"OCRSVC_KEYS": url, "OCRSVC_FAKE_LATENCY_S": "0.02", "OCRSVC_THREADS": "8"}
        limits = {"pages": KeyLimits(pages_a_day=PAGES), "rate": KeyLimits(requests_per_s=RATE)}
        with entered(clients), closing(open_store(url)) as store:
            entries = {name: KeyEntry(name, frozenset({"read"}), limits=limit) for name, limit in limits.items()}
            keys = {name: add_key(store, entry) for name, entry in entries.items()}
        yield Place(network, add_hosts(network, 3, env), redis, clients, keys)


class Asking:
    """A client for each host, over connections of their own; knows when each of them was answered what."""

    def __init__(self, place: Place, key: str) -> None:
        self._place, self._key = place, key
        self._lock, self._pause = threading.Lock(), threading.Event()
        self.answered_s: dict[str, list[float]] = {host.node.name: [] for host in place.hosts}
        self.outcomes: Counter[tuple[str, int]] = Counter()

    @property
    def answered(self) -> int:
        """Pages by all hosts together."""
        return sum(len(times) for times in self.answered_s.values())

    def refusals(self, host: Host, status: int) -> int:
        return self.outcomes[host.node.name, status]

    @contextmanager
    def of(self, hosts: Sequence[Host]) -> Iterator[None]:
        """While the block runs, these are asked."""
        with ExitStack() as stack:
            with entered(self._place.clients):
                for host in hosts:
                    stack.enter_context(repeating(partial(self._ask, host)))
            yield

    def _ask(self, host: Host) -> None:
        self._pause.wait(0.005)
        status = status_of(host, "POST", "/v1/ocr", PAGE, {"Authorization": f"Bearer {self._key}"})
        with self._lock:
            self.outcomes[host.node.name, status] += 1
            if status == http.client.OK:
                self.answered_s[host.node.name].append(time.monotonic())


def status_of(host: Host, method: str, path: str, *sent: Any) -> int:
    connection = http.client.HTTPConnection(host.node.address, HTTP_PORT, timeout=_ANSWER_S)
    try:
        connection.request(method, path, *sent)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def is_ready(place: Place, host: Host) -> bool:
    with entered(place.clients):
        return status_of(host, "GET", "/readyz") == http.client.OK


def use_up(asking: Asking, hosts: list[Host]) -> None:
    """Ask all until none has answered for a while."""
    began_s = time.monotonic()

    def is_silent() -> bool:
        last_s = max(began_s, *(max(times, default=0.0) for times in asking.answered_s.values()))
        return time.monotonic() - last_s > _REFUSED_S

    with asking.of(hosts):
        wait_until(is_silent, "the limit is reached on all hosts")


@pytest.mark.usefixtures("one_day")
def test_key_limits_hold_over_hosts_when_one_dies_and_one_loses_redis(place: Place) -> None:
    _, dying, parted = place.hosts
    with services(place.hosts):
        wait_until(lambda: all(is_ready(place, host) for host in place.hosts), "all hosts have seen the keys")
        rated = Asking(place, place.keys["rate"])
        began_s = time.monotonic()
        with rated.of(place.hosts):
            enough = RATE * RATED_S / 2
            wait_until(lambda: time.monotonic() > began_s + RATED_S and rated.answered > enough, "the rate is measured")
        took_s = time.monotonic() - began_s
        # As many may come at once as come in a second.
        assert rated.answered <= RATE * (took_s + 1) + 1, rated.outcomes

        asking = Asking(place, place.keys["pages"])
        with asking.of(place.hosts):
            wait_until(lambda: asking.answered > PAGES // 3, "pages are read")
            dying.kill()
            killed_s = time.monotonic()
            place.network.part(parted.node, place.redis)
        with asking.of([parted]):
            wait_until(lambda: asking.refusals(parted, 503) > 0, "a host without its store admits nobody")
        wait_until(lambda: not is_ready(place, parted), "proxies are told")
        place.network.join(parted.node, place.redis)
        dying.start()
        dying.wait_until_ready()
        wait_until(lambda: is_ready(place, parted) and is_ready(place, dying), "all hosts are back")
        use_up(asking, place.hosts)
    unsettled = sum(when > killed_s - _SETTLED_S for when in asking.answered_s[dying.node.name] if when < killed_s)
    assert PAGES - 1 <= asking.answered <= PAGES + unsettled, asking.outcomes
    assert all(asking.refusals(host, 429) for host in place.hosts)
