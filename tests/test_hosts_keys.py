"""API keys over several hosts with one Redis: a key's limits hold for all hosts together, even if one fails."""

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
# Pages counted less than this before a host dies may be missing in the store.
_SETTLED_S: Final = 1.5
# Requests may be refused for 0.25 s while another worker has reserved the rest of a limit.
_REFUSED_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three hosts that are not started, a node with Redis, a node for clients, and a key for each limit."""

    network: Network
    hosts: list[Host]
    redis: Node
    clients: Node
    keys: dict[str, str]


@contextmanager
def running_redis(network: Network, folder: Path) -> Iterator[Node]:
    """Run Redis on a node; every node can reach it."""
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
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three hosts and two keys: one key has a daily quota of pages, the other a rate limit."""
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
        yield Cluster(network, add_hosts(network, 3, env), redis, clients, keys)


class Load:
    """Sends requests with a key to each host over separate connections; records the outcomes and when each came."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self._cluster, self._key = cluster, key
        self._lock, self._pause = threading.Lock(), threading.Event()
        self.answered_s: dict[str, list[float]] = {host.node.name: [] for host in cluster.hosts}
        self.outcomes: Counter[tuple[str, int]] = Counter()

    @property
    def answered(self) -> int:
        """Pages read by all hosts together."""
        return sum(len(times) for times in self.answered_s.values())

    def refusals(self, host: Host, status: int) -> int:
        return self.outcomes[host.node.name, status]

    @contextmanager
    def on(self, hosts: Sequence[Host]) -> Iterator[None]:
        """Send requests to these hosts during the block."""
        with ExitStack() as stack:
            with entered(self._cluster.clients):
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


def is_ready(cluster: Cluster, host: Host) -> bool:
    with entered(cluster.clients):
        return status_of(host, "GET", "/readyz") == http.client.OK


def use_up(load: Load, hosts: list[Host]) -> None:
    """Send requests to all hosts until none has answered for _REFUSED_S."""
    began_s = time.monotonic()

    def is_silent() -> bool:
        last_s = max(began_s, *(max(times, default=0.0) for times in load.answered_s.values()))
        return time.monotonic() - last_s > _REFUSED_S

    with load.on(hosts):
        wait_until(is_silent, "the limit is reached on all hosts")


@pytest.mark.usefixtures("one_day")
def test_key_limits_hold_over_hosts_when_one_dies_and_one_loses_redis(cluster: Cluster) -> None:
    _, dying, parted = cluster.hosts
    with services(cluster.hosts):
        wait_until(lambda: all(is_ready(cluster, host) for host in cluster.hosts), "all hosts have seen the keys")
        rated = Load(cluster, cluster.keys["rate"])
        began_s = time.monotonic()
        with rated.on(cluster.hosts):
            enough = RATE * RATED_S / 2
            wait_until(lambda: time.monotonic() > began_s + RATED_S and rated.answered > enough, "the rate is measured")
        took_s = time.monotonic() - began_s
        # A burst may have as many requests as a second allows.
        assert rated.answered <= RATE * (took_s + 1) + 1, rated.outcomes

        load = Load(cluster, cluster.keys["pages"])
        with load.on(cluster.hosts):
            wait_until(lambda: load.answered > PAGES // 3, "pages are read")
            dying.kill()
            killed_s = time.monotonic()
            cluster.network.separate(parted.node, cluster.redis)
        with load.on([parted]):
            wait_until(lambda: load.refusals(parted, 503) > 0, "a host without its store refuses requests")
        wait_until(lambda: not is_ready(cluster, parted), "the host reports that it is not ready")
        cluster.network.join(parted.node, cluster.redis)
        dying.start()
        dying.wait_until_ready()
        wait_until(lambda: is_ready(cluster, parted) and is_ready(cluster, dying), "all hosts are back")
        use_up(load, cluster.hosts)
    unsettled = sum(when > killed_s - _SETTLED_S for when in load.answered_s[dying.node.name] if when < killed_s)
    assert PAGES - 1 <= load.answered <= PAGES + unsettled, load.outcomes
    assert all(load.refusals(host, 429) for host in cluster.hosts)
