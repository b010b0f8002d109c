"""The proxies in deploy/ hide a worker's death from clients: the real nginx and HAProxy as configured there."""

import os
import re
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import requests
from proxies import ANSWER_S, CLIENTS, ENV, PROXIES, proxied, reading_clients, texts_of
from support import Server, run_server, wait_until

KILLS = 3


def kill_workers(server: Server, outcomes: Counter[str], kills: int) -> None:
    for number in range(kills):
        answered = outcomes.total()
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait_for("READY in", count=3 + number)
        wait_until(lambda before=answered: outcomes.total() > before + 2 * CLIENTS, "answers after a kill")  # type: ignore[misc]


@pytest.mark.parametrize("name", PROXIES)
def test_no_request_fails_behind_a_proxy_while_workers_are_replaced(name: str, tmp_path: Path, free_port: int) -> None:
    with run_server(ENV) as server:
        server.wait_for("READY in", count=2)
        expected = texts_of(server.url)
        with proxied(PROXIES[name], tmp_path, free_port, server) as url, reading_clients(url, expected) as outcomes:
            kill_workers(server, outcomes, KILLS)
            for worker in server.workers():
                os.kill(worker, signal.SIGUSR2)
            server.wait_for("RECYCLED worker .*: operator", count=2)
        assert set(outcomes) == {"right"}, outcomes


@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("is_shipped", [True, False], ids=["as shipped", "without blocked paths"])
def test_operator_routes_are_hidden_behind_a_proxy(name: str, is_shipped: bool, tmp_path: Path, free_port: int) -> None:
    def configured(folder: Path, port: int, services: Sequence[str]) -> list[str]:
        command = PROXIES[name](folder, port, services)
        for file in folder.glob("*") if not is_shipped else ():
            if file.is_file():
                file.write_text(re.sub(r"(metrics|ops)", "nothing", file.read_text()))
        return command

    def status(url: str) -> int:
        return requests.get(url, timeout=ANSWER_S).status_code

    hidden = ("/metrics", "//metrics", "/%6detrics", "/ops/workers", "/ops") if is_shipped else ("/metrics",)
    with (
        run_server({"OCRSVC_WORKERS": "1", "OCRSVC_OPS": "open" if is_shipped else "local"}) as server,
        proxied(configured, tmp_path, free_port, server) as url,
    ):
        assert status(f"{server.url}/metrics") == 200
        assert {path: status(f"{url}{path}") for path in hidden} == dict.fromkeys(hidden, 403)
        assert (status(f"{url}/healthz"), status(f"{url}/opsx")) == (200, 404)
