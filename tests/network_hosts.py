"""Hosts in network namespaces, each with a service, that tests kill, disconnect, drain, slow down and restart.

Nodes (hosts, proxies, clients) are attached to one bridge. Each network has its own namespaces: it leaves the machine's
network unchanged, and several can exist at once. It needs root and iproute2.
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
# A MAC address that no node has.
_UNUSED_MAC: Final = "02:00:00:00:ff:ff"
_CLONE_NEWNET: Final = 0x40000000
_FIRST_HOST: Final = 10
_IP_S: Final = 10.0
_NUMBERS = itertools.count()


class NetworkUnavailable(Exception):
    """Network namespaces cannot be created here; the message says why."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the network; `port` is its interface on the bridge, in the bridge's namespace."""

    name: str
    namespace: str
    address: str
    port: str
    mac: str


class Network:
    """A bridge with nodes. Raises NetworkUnavailable.

    Nodes have permanent ARP entries for each other, so packets to a disconnected node are dropped silently.
    """

    def __init__(self) -> None:
        check_namespaces()
        self._name = f"ocr{os.getpid()}-{next(_NUMBERS)}"
        self._hub = f"{self._name}-hub"
        self.nodes: list[Node] = []
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "up", "type", "bridge", "stp_state", "0", "forward_delay", "0")

    def add(self, name: str, number: int = 0) -> Node:
        """Add a node at 10.99.0.NUMBER, by default the next number; it reaches only the other nodes."""
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

    def disconnect(self, node: Node) -> None:
        _ip("-n", self._hub, "link", "set", node.port, "nomaster")

    def reconnect(self, node: Node) -> None:
        _ip("-n", self._hub, "link", "set", node.port, "master", "bridge")

    def separate(self, node: Node, other: Node) -> None:
        """Drop every packet between two nodes from now on."""
        for one, peer in ((node, other), (other, node)):
            _set_neighbour(one, peer, _UNUSED_MAC)

    def join(self, node: Node, other: Node) -> None:
        _set_neighbour(node, other, other.mac)
        _set_neighbour(other, node, node.mac)

    def throttle(self, node: Node, bits_per_s: int) -> None:
        shape = ("tbf", "rate", f"{bits_per_s}bit", "burst", "16kb", "latency", "2000ms")
        _run("tc", "-n", self._hub, "qdisc", "replace", "dev", node.port, "root", *shape)
        _run("tc", "-n", node.namespace, "qdisc", "replace", "dev", "eth0", "root", *shape)

    def unthrottle(self, node: Node) -> None:
        _run("tc", "-n", self._hub, "qdisc", "del", "dev", node.port, "root")
        _run("tc", "-n", node.namespace, "qdisc", "del", "dev", "eth0", "root")

    def set_kernel(self, node: Node, values: Mapping[str, str]) -> None:
        _run(*inside(node), "sysctl", "-qw", *(f"{name}={value}" for name, value in values.items()))

    def close(self) -> None:
        """Kill the processes on the nodes and delete the namespaces."""
        for node in self.nodes:
            for pid in _run("ip", "netns", "pids", node.namespace).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", node.namespace)
        _ip("netns", "del", self._hub)


class Host:
    """A node that serves the fake engine with one worker on HTTP_PORT and GRPC_PORT."""

    def __init__(self, network: Network, node: Node, env: Mapping[str, str]) -> None:
        self.network, self.node = network, node
        addresses = {"OCRSVC_BIND": f"0.0.0.0:{HTTP_PORT}", "OCRSVC_GRPC_BIND": f"0.0.0.0:{GRPC_PORT}"}
        self.env = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "1", **addresses, **env}
        self.server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://{self.node.address}:{HTTP_PORT}"

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start the service without waiting until it is ready; `env` overrides its environment."""
        self.server = Server(SERVE, {**self.env, **(env or {})}, ROOT, prefix=inside(self.node))

    def wait_until_ready(self) -> None:
        assert self.server is not None
        self.server.wait_for("READY in", count=int(self.env["OCRSVC_WORKERS"]))

    def kill(self) -> None:
        """Kill all processes of the service with SIGKILL; the kernel then resets its connections."""
        if self.server is not None:
            self.server.kill()
        self.server = None

    def terminate(self) -> None:
        assert self.server is not None
        self.server.process.send_signal(signal.SIGTERM)


def add_hosts(network: Network, count: int, env: Mapping[str, str] | None = None) -> list[Host]:
    """Add `count` hosts, h1 at 10.99.0.11, h2, …, as in deploy/hosts/, without starting their services."""
    return [Host(network, network.add(f"h{number}", _FIRST_HOST + number), env or {}) for number in range(1, count + 1)]


@contextmanager
def serving(hosts: Sequence[Host]) -> Iterator[None]:
    """Start a service on each host, wait until all are ready, and kill them after the block."""
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
    """Start a process on the node in a new session; `options` are those of Popen."""
    return subprocess.Popen([*inside(node), *command], text=True, start_new_session=True, **options)


@contextmanager
def entered(node: Node) -> Iterator[None]:
    """Run this thread, and threads that it starts, in the node's network namespace during the block."""
    with Path("/proc/thread-self/ns/net").open("rb") as own, Path("/run/netns", node.namespace).open("rb") as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def check_namespaces() -> None:
    """Raise NetworkUnavailable if network namespaces cannot be created here."""
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
    """Wait until a process listens on the node's port, on any address."""
    wait_until(lambda: f":{port} " in _run(*inside(node), "ss", "-Hltn"), f"{node.name} listens at {port}")


def _set_neighbour(node: Node, other: Node, mac: str) -> None:
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
