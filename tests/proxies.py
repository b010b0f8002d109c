"""nginx and HAProxy in front of services, with the configurations of deploy/, and clients that check every answer."""

import os
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import host_proxies
import pytest
import requests
from image_support import png
from support import ROOT, Server, wait_until

DEPLOY = ROOT / "deploy"
CLIENTS = 8
ANSWER_S = 60.0
SOON_S = 60.0
# Image files that fit into HAProxy's default buffer of 16 KiB, and one that does not.
PAGES = [png(40 + 8 * number, 30, shade=number, suffix=".bmp") for number in range(1, CLIENTS)]
PAGES.append(png(400, 300, shade=99, suffix=".bmp"))
assert len(PAGES[-1]) > 100_000

ENV = {"OCRSVC_WORKERS": "2", "OCRSVC_ENGINE_THREADS": "4", "OCRSVC_FAKE_LATENCY_S": "0.05"}


def installed(program: str) -> str:
    """The path of a program; if it is not installed, skips the test, or fails it in CI."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{program} is missing; .ci/run installs it")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def replaced(name: str, port: int, services: Sequence[str]) -> str:
    """A configuration of deploy/ in which only the ports and the addresses of services are replaced."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};").replace("bind :80", f"bind 127.0.0.1:{port}")
    # haproxy.cfg has two server lines, one for each try.
    text = text.replace("server a 127.0.0.1:8000", f"server a {services[0]}")
    text = text.replace("server b 127.0.0.1:8000", f"server b {services[-1]}")
    return text.replace(
        "server 127.0.0.1:8000 max_fails=0;", "\n".join(f"server {service} max_fails=0;" for service in services)
    )


def nginx(folder: Path, port: int, services: Sequence[str]) -> list[str]:
    """The command that runs nginx with the configuration of deploy/; nginx writes to this folder only."""
    installed("nginx")
    (folder / "ocrsvc.conf").write_text(replaced("nginx.conf", port, services))
    return host_proxies.nginx(folder, folder / "ocrsvc.conf")


def haproxy(folder: Path, port: int, services: Sequence[str]) -> list[str]:
    (folder / "haproxy.cfg").write_text(replaced("haproxy.cfg", port, services))
    return [installed("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


Proxy = Callable[[Path, int, Sequence[str]], list[str]]
PROXIES: Mapping[str, Proxy] = {"nginx": nginx, "haproxy": haproxy}


@contextmanager
def proxied(proxy: Proxy, folder: Path, port: int, *servers: Server) -> Iterator[str]:
    command = proxy(folder, port, [server.url.removeprefix("http://") for server in servers])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: is_listening(port) or process.poll() is not None, "the proxy listens")
        assert process.poll() is None, process.communicate()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=SOON_S)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def text_of(url: str, page: bytes, session: requests.Session) -> str:
    """Send a page; returns its text, or what went wrong."""
    try:
        response = session.post(f"{url}/v1/ocr", data=page, timeout=ANSWER_S)
    except requests.RequestException as error:
        return type(error).__name__
    return str(response.json()["pages"][0]["text"]) if response.ok else f"status {response.status_code}"


@contextmanager
def reading_clients(url: str, expected: list[str]) -> Iterator[Counter[str]]:
    """Run clients that each send one page repeatedly; yields counts of their outcomes: "right", or what was wrong."""
    outcomes: Counter[str] = Counter()
    done, lock = threading.Event(), threading.Lock()

    def ask(page: bytes, text: str) -> None:
        with requests.Session() as session:
            while not done.is_set():
                found = text_of(url, page, session)
                with lock:
                    outcomes["right" if found == text else found] += 1

    clients = [threading.Thread(target=ask, args=pair) for pair in zip(PAGES, expected, strict=True)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: outcomes["right"] > CLIENTS, "the first answers")
        yield outcomes
    finally:
        done.set()
        for client in clients:
            client.join()


def texts_of(url: str) -> list[str]:
    with requests.Session() as session:
        return [text_of(url, page, session) for page in PAGES]
