"""The proxies in deploy/ hide a worker's death from clients: the real nginx and HAProxy with the files as shipped."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import requests
from proxies import ANSWER_S, CLIENTS, ENV, PROXIES, asking, proxied, texts_of
from support import Server, run_server, wait_until

KILLS = 3


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
        assert requests.get(f"{server.url}/metrics", timeout=ANSWER_S).status_code == 200
        statuses = {
            path: requests.get(f"{url}{path}", timeout=ANSWER_S).status_code
            for path in ("/healthz", "/metrics", "//metrics", "/%6detrics", "/ops/workers", "/ops", "/opsx")
        }
    assert statuses.pop("/healthz") == 200
    assert statuses.pop("/opsx") == 404
    assert set(statuses.values()) == {403}


@pytest.mark.parametrize("name", PROXIES)
def test_a_service_that_trusts_its_machine_alone_does_not_trust_a_proxy_on_it(
    name: str, tmp_path: Path, free_port: int
) -> None:
    def without_refusals(folder: Path, port: int, services: Sequence[str]) -> list[str]:
        command = PROXIES[name](folder, port, services)
        for file in folder.glob("*"):
            if file.is_file():
                file.write_text(re.sub(r"(metrics|ops)", "nothing", file.read_text()))
        return command

    with (
        run_server({"OCRSVC_WORKERS": "1"}) as server,
        proxied(without_refusals, tmp_path, free_port, server) as url,
    ):
        assert requests.get(f"{server.url}/metrics", timeout=ANSWER_S).status_code == 200
        assert requests.get(f"{url}/metrics", timeout=ANSWER_S).status_code == 403
        assert requests.get(f"{url}/readyz", timeout=ANSWER_S).status_code == 200
