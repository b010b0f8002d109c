"""Several hosts behind the real nginx, HAProxy and Envoy, in network namespaces: no request fails."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from grpc_support import V2, infer_request
from host_proxies import GRPC_PORT, HTTP_PORT, PROXIES, ProxyMissing, proxied
from image_support import png
from network_hosts import HTTP_PORT as SERVICE_PORT
from network_hosts import Host, Network, NetworkUnavailable, Node, add_hosts, entered, inside, serving
from support import ROOT, QuietHandler, http_server, wait_until

from ocrsvc.plugins import adapters

PAGE: Final = png(64, 32)
SIZE: Final = "64x32"
OCR: Final = "/v1/ocr"
_CLIENT: Final = ROOT / "benchmarks" / "bench" / "hosts_client.py"
_ANSWER_S: Final = 20.0
_END_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three hosts, a node for clients, and a node for each proxy, by the proxy's name."""

    network: Network
    hosts: list[Host]
    clients: Node
    proxies: dict[str, Node]


@dataclass(frozen=True, slots=True)
class Answer:
    """A response and the time that it took."""

    status: int
    body: bytes
    after_s: float


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The network and its proxies, started once; each test starts the services it needs."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(closing(Network()))
        except NetworkUnavailable as error:
            pytest.skip(str(error))
        clients = network.add("clients")
        proxies = {name: network.add(name) for name in PROXIES}
        hosts = add_hosts(network, 3, {"OCRSVC_DRAIN_S": "1"})
        for name, node in proxies.items():
            folder = tmp_path_factory.mktemp(name)
            folder.parent.chmod(0o755)
            try:
                stack.enter_context(proxied(network, node, name, folder))
            except ProxyMissing as error:
                if os.environ.get("CI"):
                    pytest.fail(str(error))
                pytest.skip(str(error))
        yield Cluster(network, hosts, clients, proxies)


def ask(
    cluster: Cluster, proxy: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    began_s = time.monotonic()
    with entered(cluster.clients):
        connection = http.client.HTTPConnection(cluster.proxies[proxy].address, HTTP_PORT, timeout=_ANSWER_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.read(), time.monotonic() - began_s)
        finally:
            connection.close()


@contextmanager
def loads(cluster: Cluster, folder: Path) -> Iterator[dict[str, Any]]:
    """Send requests through each proxy, and directly, during the block; then the yielded dict has results by load."""
    bodies = {"http": PAGE, "grpc": infer_request(PAGE).SerializeToString()}
    for kind, body in bodies.items():
        (folder / kind).write_bytes(body)
    paths, ports = {"http": OCR, "grpc": f"{V2}ModelInfer"}, {"http": HTTP_PORT, "grpc": GRPC_PORT}
    common = {"content_type": "", "expected": SIZE, "requests": 10**6, "clients": 1, "timeout_s": _ANSWER_S}
    plans = {
        f"{kind} by {name}": {"kind": kind, "path": paths[kind], "body": str(folder / kind), "pause_s": 0.02}
        | {"address": f"{node.address}:{ports[kind]}", "grpc_retries": name == "nginx", **common}
        for name, node in cluster.proxies.items()
        for kind in bodies
    }
    urls = ",".join(host.url for host in cluster.hosts)
    plans["ocrsvc.client"] = {**plans["http by nginx"], "kind": "library", "address": urls}
    (folder / "plans.json").write_text(json.dumps(list(plans.values())))
    command = [*inside(cluster.clients), sys.executable, str(_CLIENT), str(folder / "plans.json"), "--until-eof"]
    found: dict[str, Any] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield found
            results = json.loads(process.communicate(timeout=_END_S)[0])
        finally:
            process.kill()
    found.update(zip(plans, results, strict=True))


def test_no_request_fails_while_hosts_are_killed_isolated_and_restarted(cluster: Cluster, tmp_path: Path) -> None:
    first, second, third = cluster.hosts
    with serving(cluster.hosts), loads(cluster, tmp_path) as found:
        wait_until(lambda: pages_read(second) > 20, "clients send requests")
        first.kill()
        before = pages_read(second)
        wait_until(lambda: pages_read(second) > before + 20, "the other hosts take over")
        first.start()
        cluster.network.disconnect(second.node)
        first.wait_until_ready()
        proxies = cluster.proxies.values()
        wait_until(lambda: not any(is_connected(node, second) for node in proxies), "no proxy uses the silent host")
        wait_until(lambda: all(is_connected(node, first) for node in proxies), "all proxies use the first host again")
        third.terminate()
        assert third.server is not None
        assert third.server.wait_for_exit() == 0
        cluster.network.reconnect(second.node)
    wrong = {load: result["outcomes"] for load, result in found.items() if set(result["outcomes"]) != {"right"}}
    assert not wrong
    assert len(found) == 2 * len(PROXIES) + 1


def pages_read(host: Host) -> float:
    assert host.server is not None
    with entered(host.node):
        return host.server.metric("ocrsvc_images_total")


def is_connected(node: Node, host: Host) -> bool:
    command = [*inside(node), "ss", "-Hnt", "state", "established", "dst", host.node.address]
    return bool(subprocess.run(command, capture_output=True, check=True, timeout=_ANSWER_S).stdout)


Seen = dict[str, list[Mapping[str, str]]]


class FirstUnanswered(QuietHandler):
    """Replaces a service: it is ready, reads the first POST of each client, and does not answer it.

    The connection is closed after `break_s`, or when `ended` is set. `seen` has the headers of all POSTs, by client.
    """

    seen: Seen
    break_s: float
    ended: threading.Event

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        posted = self.seen[self.headers["X-Client"]]
        posted.append({name.lower(): value for name, value in self.headers.items()})
        if len(posted) > 1:
            self.answer()
        else:
            self.ended.wait(self.break_s)


@contextmanager
def breaking_once(cluster: Cluster, break_s: float) -> Iterator[Seen]:
    """Run `FirstUnanswered` in place of all services; yields the headers of the POSTs that they received."""
    seen: Seen = defaultdict(list)
    ended = threading.Event()
    handler = type("Handler", (FirstUnanswered,), {"seen": seen, "break_s": break_s, "ended": ended})
    with ExitStack() as stack:
        for host in cluster.hosts:
            with entered(host.node):
                stack.enter_context(http_server(handler, host.node.address, SERVICE_PORT))
            stack.callback(ended.set)
        for name in PROXIES:
            ready = partial(ask, cluster, name, "GET", "/readyz")
            wait_until(lambda ready=ready: ready().status == http.client.OK, f"{name} sees a host")  # type: ignore[misc]
        yield seen


def post_through_each(cluster: Cluster, path: str, timeout: str) -> dict[str, Answer]:
    with ThreadPoolExecutor(len(PROXIES)) as pool:
        headers = [{"X-Request-Timeout": timeout, "X-Client": name} for name in PROXIES]
        answers = pool.map(lambda name, own: ask(cluster, name, "POST", path, PAGE, own), PROXIES, headers)
        return dict(zip(PROXIES, answers, strict=True))


def test_safe_requests_are_retried_with_the_remaining_time(cluster: Cluster) -> None:
    with breaking_once(cluster, 0.5) as seen:
        assert {answer.status for answer in post_through_each(cluster, OCR, "15").values()} == {http.client.OK}
        again = {name: posted[1] for name, posted in seen.items()}
        seen.clear()
        uploads = post_through_each(cluster, "/api/doc/upload", "15")
    left_s = {
        name: float(headers["x-request-timeout"]) - float(headers.get("x-request-elapsed", 0))
        for name, headers in again.items()
    }
    # HAProxy sets the headers once, so its second try has the full time.
    assert left_s.pop("haproxy") == 15
    # On a busy machine, more time may have passed.
    assert all(5.0 < left < 14.6 for left in left_s.values()), left_s
    assert all(answer.status >= http.client.INTERNAL_SERVER_ERROR for answer in uploads.values())
    assert {name: len(posted) for name, posted in seen.items()} == dict.fromkeys(PROXIES, 1)


def test_proxy_waits_for_a_silent_host_until_the_clients_limit(cluster: Cluster) -> None:
    with breaking_once(cluster, _ANSWER_S) as seen:
        answers = post_through_each(cluster, OCR, "0.8")
    assert {answer.status for answer in answers.values()} == {http.client.GATEWAY_TIMEOUT}
    assert {name: len(posted) for name, posted in seen.items()} == dict.fromkeys(PROXIES, 1)
    # nginx takes no timeout from a header; it uses the next longer one of its configuration.
    waits_s = {"nginx": 2.0, "haproxy": 0.8, "envoy": 0.8}
    assert all(-0.05 < answer.after_s - waits_s[name] < 3.0 for name, answer in answers.items()), answers


def test_model_and_operator_routes_are_blocked_by_proxies(cluster: Cluster) -> None:
    closed = [path + "x" for entry in adapters().values() for path in entry.operate_paths]
    assert closed
    statuses = {
        (name, path): ask(cluster, name, "POST", path).status
        for name in PROXIES
        for path in [*closed, "/metrics", "//metrics", "/ops/denylist", "/%6detrics"]
    }
    assert set(statuses.values()) == {403}, statuses
    # The service decodes %2F as a slash; Envoy refuses such a path.
    hidden = {
        (name, path): ask(cluster, name, "POST", path.replace("/", "%2F").replace("%2F", "/", 1)).status
        for name in PROXIES
        for path in [*closed, "/ops/denylist"]
    }
    assert set(hidden.values()) <= {400, 403}, hidden
