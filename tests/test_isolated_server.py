"""OCRSVC_ISOLATION=process in the real service: real workers, fork servers, children and signals."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from image_support import png
from isolation_support import children_of
from support import Server, process_state, run_program, run_server, start_server, wait_until

ANSWER_S = 30.0
# Well below the minute that a hanging read may take.
GONE_S = 25.0
PROCESS = {"OCRSVC_ISOLATION": "process", "OCRSVC_ENGINE_THREADS": "2"}
ONE = {**PROCESS, "OCRSVC_WORKERS": "1"}


def post(server: Server) -> requests.Response:
    return requests.post(f"{server.url}/v1/ocr", data=png(), timeout=ANSWER_S)


def process_tree(pid: int) -> list[int]:
    return [pid, *(below for child in children_of(pid) for below in process_tree(child))]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return process_state(pid) not in ("", "Z")


@contextmanager
def request_in_flight(server: Server) -> Iterator[list[int]]:
    """Hold a request in flight during the block; yield a list that receives its status, 0 for a broken connection."""
    statuses: list[int] = []

    def ask() -> None:
        try:
            statuses.append(post(server).status_code)
        except requests.ConnectionError:
            statuses.append(0)

    client = threading.Thread(target=ask)
    client.start()
    try:
        server.wait_for("POST /v1/ocr")
        yield statuses
    finally:
        client.join()


def test_only_children_load_models() -> None:
    with run_server({**ONE, "OCRSVC_ENGINE": "ppocr", "OCRSVC_DEVICE": "cpu", "OCRSVC_ENGINE_THREADS": "1"}) as server:
        [worker] = server.workers()
        [fork_server] = children_of(worker)
        [child] = children_of(fork_server)
        maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (worker, fork_server, child)}
        assert ["onnxruntime" in text or "libopenvino" in text for text in maps.values()] == [False, False, True]
        assert requests.get(f"{server.url}/version", timeout=ANSWER_S).json()["engine"]["name"] == "ppocr"


def test_poison_image_is_refused_by_other_workers() -> None:
    with run_server({**PROCESS, "OCRSVC_WORKERS": "2", "OCRSVC_FAKE_FAULT": "abort"}) as server:
        server.wait_for("READY in", count=2)
        first = post(server)
        assert (first.status_code, first.json()["code"]) == (422, "image_crashes_engine")
        # The response may arrive before the log line.
        server.wait_for(r"CHILD \d+ LOST: SIGABRT", count=2)
        worker = int(server.wait_for(r"\[(\d+)\] \[ERROR\] DENYLISTED image [0-9a-f]{32}: SIGABRT")[1])
        os.kill(worker, signal.SIGSTOP)
        try:
            assert post(server).status_code == 422
        finally:
            os.kill(worker, signal.SIGCONT)
        assert len(re.findall(r"CHILD \d+ LOST", server.log)) == 2


def test_operators_can_list_and_clear_the_denylist() -> None:
    with run_server({**ONE, "OCRSVC_FAKE_FAULT": "segfault"}) as server:
        assert post(server).status_code == 422
        [entry] = requests.get(f"{server.url}/ops/denylist", timeout=ANSWER_S).json()["images"]
        assert (entry["cause"], entry["crashes"], entry["is_refused"]) == ("SIGSEGV", 2, True)
        address = f"{server.url}/ops/denylist/{entry['hash']}"
        assert requests.delete(address, timeout=ANSWER_S).json() == {"forgotten": 1}
        assert requests.delete(f"{server.url}/ops/denylist", timeout=ANSWER_S).json() == {"forgotten": 0}
        assert requests.get(f"{server.url}/ops/denylist", timeout=ANSWER_S).json() == {"images": [], "requests": []}


def test_a_signal_to_the_whole_group_loses_no_request() -> None:
    env = {**ONE, "OCRSVC_FAKE_LATENCY_S": "1.0", "OCRSVC_LOG_LEVEL": "debug"}
    with start_server(env) as server:
        server.wait_for("READY in")
        tree = process_tree(server.pid)
        with request_in_flight(server) as statuses:
            for pid in tree:
                os.kill(pid, signal.SIGTERM)
        assert statuses == [200]
        assert server.wait_for_exit() == 0
        assert [pid for pid in tree if is_alive(pid)] == []


def test_killed_worker_leaves_no_process_and_is_replaced() -> None:
    with run_server(ONE) as server:
        [worker] = server.workers()
        tree = process_tree(worker)
        assert len(tree) == 4
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, tree)), "all children have ended", GONE_S)
        server.wait_for("READY in", count=2)
        assert post(server).status_code == 200


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_killed_arbiter_leaves_no_process_even_during_a_hang(isolation: str) -> None:
    env = {**ONE, "OCRSVC_ISOLATION": isolation, "OCRSVC_FAKE_FAULT": "hang", "OCRSVC_LOG_LEVEL": "debug"}
    with start_server(env) as server:
        server.wait_for("READY in")
        tree = process_tree(server.pid)
        with request_in_flight(server) as statuses:
            server.process.kill()
            wait_until(lambda: not any(map(is_alive, tree)), f"processes {tree} have ended", GONE_S)
        assert statuses == [0]


# Sends 1 % poison images, kills a child every 0.5 s, and finally kills the arbiter.
def test_random_kills_fail_only_poison_images() -> None:
    done = run_program("benchmarks/chaos.py", "--seconds", "6", "--gone", GONE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (result["failures"], result["kills"] >= 5, result["refused_poison"] >= 1) == ({}, True, True), result
    assert result["children_lost"]["SIGSEGV"] >= 2
    assert result["gone_s"] < GONE_S
