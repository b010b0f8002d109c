"""The proxies in deploy/ hide a worker's death from clients: the real nginx and HAProxy with the files as shipped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from support import ROOT, Server, run_server, wait_until
from web_support import picture

DEPLOY = ROOT / "deploy"
CLIENTS = 8
KILLS = 3
_ANSWER_S = 20.0
_SOON_S = 20.0
# Above HAProxy's default buffer of 16 KiB, which a page would not fit into.
PAGES = [picture(40 + 8 * number, 30, shade=number, suffix=".bmp") for number in range(1, CLIENTS)]
PAGES.append(picture(400, 300, shade=99, suffix=".bmp"))
assert len(PAGES[-1]) > 100_000

ENV = {"OCRSVC_WORKERS": "2", "OCRSVC_ENGINE_THREADS": "4", "OCRSVC_FAKE_LATENCY_S": "0.05"}


def installed(program: str) -> str:
    """Where a program is; skips where it is not, but never on the machine that decides."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{program} is missing; .ci/run installs it")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def replaced(name: str, port: int, service: str) -> str:
    """A file of deploy/ with its ports replaced, and nothing else."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    for shipped, here in (
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("bind :80", f"bind 127.0.0.1:{port}"),
        ("127.0.0.1:8000", service),
    ):
        text = text.replace(shipped, here)
    return text


def nginx(folder: Path, port: int, service: str) -> list[str]:
    """nginx over the shipped file, as a distribution's own nginx.conf includes it; all it writes is in the folder."""
    (folder / "ocrsvc.conf").write_text(replaced("nginx.conf", port, service))
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/nginx.pid; error_log {folder}/error.log notice; daemon off; worker_processes 1;\n"
        f"events {{}}\nhttp {{ access_log off;\n{temporary}\ninclude {folder}/ocrsvc.conf; }}\n"
    )
    return [installed("nginx"), "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]


def haproxy(folder: Path, port: int, service: str) -> list[str]:
    """HAProxy with the shipped file as its whole configuration."""
    (folder / "haproxy.cfg").write_text(replaced("haproxy.cfg", port, service))
    return [installed("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


Proxy = Callable[[Path, int, str], list[str]]
PROXIES: Mapping[str, Proxy] = {"nginx": nginx, "haproxy": haproxy}


@contextmanager
def proxied(proxy: Proxy, folder: Path, port: int, server: Server) -> Iterator[str]:
    """The URL of a proxy in front of a service."""
    # A master of nginx that is root serves as nobody, who must reach its files.
    folder.chmod(0o755)
    command = proxy(folder, port, server.url.removeprefix("http://"))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: is_listening(port) or process.poll() is not None, "the proxy listens")
        assert process.poll() is None, process.communicate()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=_SOON_S)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def text_of(url: str, page: bytes, session: requests.Session) -> str:
    """What came back for a page: its text, or what went wrong."""
    try:
        response = session.post(f"{url}/v1/ocr", data=page, timeout=_ANSWER_S)
    except requests.RequestException as error:
        return type(error).__name__
    return str(response.json()["pages"][0]["text"]) if response.ok else f"status {response.status_code}"


@contextmanager
def asking(url: str, expected: list[str]) -> Iterator[Counter[str]]:
    """Clients that ask for a page each, over and over; counts what they got: "right", or what was wrong."""
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


def texts_of(server: Server) -> list[str]:
    """What each page reads as while nothing goes wrong."""
    with requests.Session() as session:
        return [text_of(server.url, page, session) for page in PAGES]


def kill_workers(server: Server, outcomes: Counter[str], kills: int) -> None:
    """kill -9 a worker with requests in work, and wait for its successor; so many times."""
    for number in range(kills):
        answered = outcomes.total()
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait_for("READY in", count=3 + number)
        wait_until(lambda before=answered: outcomes.total() > before + 2 * CLIENTS, "answers after a kill")  # type: ignore[misc]


@pytest.mark.parametrize("name", PROXIES)
def test_behind_a_proxy_nothing_fails_while_workers_are_killed_and_recycled(
    name: str, tmp_path: Path, free_port: int
) -> None:
    with run_server(ENV) as server:
        server.wait_for("READY in", count=2)
        expected = texts_of(server)
        with proxied(PROXIES[name], tmp_path, free_port, server) as url, asking(url, expected) as outcomes:
            kill_workers(server, outcomes, KILLS)
            for worker in server.workers():
                os.kill(worker, signal.SIGUSR2)
            server.wait_for("RECYCLED worker .*: operator", count=2)
        assert set(outcomes) == {"right"}, outcomes


def test_without_a_proxy_clients_see_that_workers_are_killed() -> None:
    """The control: the clients above do find what is lost."""
    with run_server(ENV) as server:
        server.wait_for("READY in", count=2)
        expected = texts_of(server)
        with asking(server.url, expected) as outcomes:
            kill_workers(server, outcomes, 2)
        assert set(outcomes) == {"right", "ConnectionError"}, outcomes


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_keeps_the_operators_pages_to_itself(name: str, tmp_path: Path, free_port: int) -> None:
    with (
        run_server({"OCRSVC_WORKERS": "1", "OCRSVC_OPS": "open"}) as server,
        proxied(PROXIES[name], tmp_path, free_port, server) as url,
    ):
        assert requests.get(f"{server.url}/metrics", timeout=_ANSWER_S).status_code == 200
        statuses = {
            path: requests.get(f"{url}{path}", timeout=_ANSWER_S).status_code
            for path in ("/healthz", "/metrics", "//metrics", "/%6detrics", "/ops/workers", "/ops", "/opsx")
        }
    assert statuses.pop("/healthz") == 200
    assert statuses.pop("/opsx") == 404
    assert set(statuses.values()) == {403}


@pytest.mark.parametrize("name", PROXIES)
def test_a_service_that_trusts_its_machine_alone_does_not_trust_a_proxy_on_it(
    name: str, tmp_path: Path, free_port: int
) -> None:
    def without_refusals(folder: Path, port: int, service: str) -> list[str]:
        command = PROXIES[name](folder, port, service)
        for file in folder.glob("*"):
            if file.is_file():
                file.write_text(re.sub(r"(metrics|ops)", "nothing", file.read_text()))
        return command

    with (
        run_server({"OCRSVC_WORKERS": "1"}) as server,
        proxied(without_refusals, tmp_path, free_port, server) as url,
    ):
        assert requests.get(f"{server.url}/metrics", timeout=_ANSWER_S).status_code == 200
        assert requests.get(f"{url}/metrics", timeout=_ANSWER_S).status_code == 403
        assert requests.get(f"{url}/readyz", timeout=_ANSWER_S).status_code == 200


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / "ocrsvc.service"
    text = (DEPLOY / "ocrsvc.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/ocrsvc/.venv/bin/ocrsvc serve", "/bin/true serve"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=_SOON_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
