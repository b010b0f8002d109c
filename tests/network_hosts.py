"""Hosts with a service each in network namespaces, which are killed, cut off, drained, slowed down and started again.

Nodes (hosts, proxies, clients) hang on one bridge. All of it lies in namespaces of its own, so that nothing of the
machine's own network changes and several such networks stand side by side. It needs root and iproute2, no more.
"""

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support import ROOT, SERVE, Server, wait_until

HTTP_PORT: Final = 8000
GRPC_PORT: Final = 8001
# A hardware address that no node has.
_NOBODY: Final = "02:00:00:00:ff:ff"
_CLONE_NEWNET: Final = 0x40000000
_FIRST_HOST: Final = 10
_IP_S: Final = 10.0
_NUMBERS = itertools.count()


class NetworkUnavailable(Exception):
    """This machine has no network namespaces; says what is missing."""


@dataclass(frozen=True, slots=True)
class Node:
    """One end of the network; `port` is its end on the bridge, an interface in the bridge's namespace."""

    name: str
    namespace: str
    address: str
    port: str
    mac: str


class Network:
    """A bridge with nodes. Raises NetworkUnavailable.

    Every node knows the others' hardware addresses for good, so that packets to one that is cut off vanish.
    """

    def __init__(self) -> None:
        check_namespaces()
        self._name = f"ocr{os.getpid()}-{next(_NUMBERS)}"
        self._hub = f"{self._name}-hub"
        self.nodes: list[Node] = []
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "up", "type", "bridge", "stp_state", "0", "forward_delay", "0")

    def add(self, name: str, number: int = 0) -> Node:
        """A node of this name at 10.99.0.NUMBER, by default the next one; it reaches all others, and nothing else."""
        number = number or len(self.nodes) + 1
        mac = f"02:00:00:00:00:{number:02x}"
        node = Node(name, f"{self._name}-{name}", f"10.99.0.{number}", f"port{number}", mac)
        _ip("netns", "add", node.namespace)
        link = ("link", "add", node.port, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
        _ip("-n", self._hub, *link)
        _ip("-n", self._hub, "link", "set", node.port, "master", "bridge", "up")
        _ip("-n", node.namespace, "link", "set", "lo", "up")
        _ip("-n", node.namespace, "link", "set", "eth0", "address", node.mac, "up")
        _ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", "eth0")
        for other in self.nodes:
            self.join(node, other)
        self.nodes.append(node)
        return node

    def cut_off(self, node: Node) -> None:
        _ip("-n", self._hub, "link", "set", node.port, "nomaster")

    def restore(self, node: Node) -> None:
        _ip("-n", self._hub, "link", "set", node.port, "master", "bridge")

    def part(self, node: Node, other: Node) -> None:
        """From now on every packet between these two vanishes."""
        for one, unknown in ((node, other), (other, node)):
            _introduce(one, unknown, _NOBODY)

    def join(self, node: Node, other: Node) -> None:
        _introduce(node, other, other.mac)
        _introduce(other, node, node.mac)

    def slow(self, node: Node, bits_per_s: int) -> None:
        shape = ("tbf", "rate", f"{bits_per_s}bit", "burst", "16kb", "latency", "2000ms")
        _run("tc", "-n", self._hub, "qdisc", "replace", "dev", node.port, "root", *shape)
        _run("tc", "-n", node.namespace, "qdisc", "replace", "dev", "eth0", "root", *shape)

    def quicken(self, node: Node) -> None:
        _run("tc", "-n", self._hub, "qdisc", "del", "dev", node.port, "root")
        _run("tc", "-n", node.namespace, "qdisc", "del", "dev", "eth0", "root")

    def set_kernel(self, node: Node, values: Mapping[str, str]) -> None:
        _run(*inside(node), "sysctl", "-qw", *(f"{name}={value}" for name, value in values.items()))

    def close(self) -> None:
        """End what runs on the nodes, and take everything down."""
        for node in self.nodes:
            for pid in _run("ip", "netns", "pids", node.namespace).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", node.namespace)
        _ip("netns", "del", self._hub)


class Host:
    """A node with a service: the fake engine, one worker, HTTP at HTTP_PORT and gRPC at GRPC_PORT."""

    def __init__(self, network: Network, node: Node, env: Mapping[str, str]) -> None:
        self.network, self.node = network, node
        addresses = {"OCRSVC_BIND": f"0.0.0.0:{HTTP_PORT}", "OCRSVC_GRPC_BIND": f"0.0.0.0:{GRPC_PORT}"}
        self.env = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "1", **addresses, **env}
        self.server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://{self.node.address}:{HTTP_PORT}"

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """A service, which need not be ready; `env` comes on top."""
        self.server = Server(SERVE, {**self.env, **(env or {})}, ROOT, prefix=inside(self.node))

    def wait_until_ready(self) -> None:
        assert self.server is not None
        self.server.wait_for("READY in", count=int(self.env["OCRSVC_WORKERS"]))

    def kill(self) -> None:
        """kill -9 to all of the service at once; the kernel of the host is there, and resets its connections."""
        if self.server is not None:
            self.server.kill()
        self.server = None

    def ask_to_end(self) -> None:
        assert self.server is not None
        self.server.process.send_signal(signal.SIGTERM)


def add_hosts(network: Network, count: int, env: Mapping[str, str] | None = None) -> list[Host]:
    """So many hosts, h1 at 10.99.0.11, h2, …, as in the files of deploy/hosts/; no service is started yet."""
    return [Host(network, network.add(f"h{number}", _FIRST_HOST + number), env or {}) for number in range(1, count + 1)]


@contextmanager
def serving(hosts: Sequence[Host]) -> Iterator[None]:
    """A service on each host, ready; whatever runs there ends with the block."""
    try:
        for host in hosts:
            host.start()
        for host in hosts:
            host.wait_until_ready()
        yield
    finally:
        for host in hosts:
            host.kill()


def inside(node: Node) -> list[str]:
    return ["ip", "netns", "exec", node.namespace]


def popen(node: Node, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A process on the node, in a session of its own; `options` as Popen has them."""
    return subprocess.Popen([*inside(node), *command], text=True, start_new_session=True, **options)


@contextmanager
def entered(node: Node) -> Iterator[None]:
    """Sockets that this thread makes in the block are the node's, and so are those of threads that it starts there."""
    with Path("/proc/thread-self/ns/net").open("rb") as own, Path("/run/netns", node.namespace).open("rb") as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def check_namespaces() -> None:
    """Raises NetworkUnavailable where there can be none, with what is missing."""
    if shutil.which("ip") is None:
        raise NetworkUnavailable("ip is missing: apt-get install iproute2")
    if os.geteuid() != 0:
        raise NetworkUnavailable("network namespaces need root")
    name = f"ocr{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
    except subprocess.CalledProcessError as error:
        raise NetworkUnavailable(f"no network namespaces: {error.stderr.strip()}") from error
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=_IP_S, check=False)


def wait_until_listening(node: Node, port: int) -> None:
    """Until somebody listens on the port of the node, on any of its addresses."""
    wait_until(lambda: f":{port} " in _run(*inside(node), "ss", "-Hltn"), f"{node.name} listens at {port}")


def _introduce(node: Node, other: Node, mac: str) -> None:
    known = (other.address, "lladdr", mac, "dev", "eth0", "nud", "permanent")
    _ip("-n", node.namespace, "neighbour", "replace", *known)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_IP_S, check=True)
    return done.stdout
