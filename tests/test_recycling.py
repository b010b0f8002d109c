"""Worker replacement without failed requests, with a real gunicorn, signals and memory limits."""

import json
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from image_support import png
from support import ROOT, Server, process_state, repeating, run_program, run_server, start_server, wait_until

_ANSWER_S = 30.0
PAGE = png()


def post(server: Server) -> int:
    return requests.post(f"{server.url}/v1/ocr", data=PAGE, timeout=_ANSWER_S).status_code


def post_ignoring_disconnects(server: Server) -> None:
    with suppress(requests.ConnectionError):
        post(server)


@contextmanager
def repeated_requests(server: Server, *, keep_alive: bool = True) -> Iterator[list[int]]:
    """Send requests in sequence during the block and yield the list of statuses; 0 is a broken connection."""
    statuses: list[int] = []
    kept = requests.Session()

    def ask() -> None:
        try:
            client = kept if keep_alive else requests
            statuses.append(client.post(f"{server.url}/v1/ocr", data=PAGE, timeout=_ANSWER_S).status_code)
        except requests.ConnectionError:
            statuses.append(0)

    with kept, repeating(ask):
        yield statuses


def test_successor_is_ready_before_a_worker_stops_at_max_requests() -> None:
    with run_server({"OCRSVC_MAX_REQUESTS": "20", "OCRSVC_WORKERS": "1"}) as server:
        (old,) = server.workers()
        with repeated_requests(server) as statuses:
            server.wait_for(f"RECYCLED worker {old}: max_requests")
        assert set(statuses) == {200}
        order = [line for line in server.lines if "READY in" in line or "DRAINING" in line]
        assert ["READY" in line for line in order[:3]] == [True, True, False]
        wait_until(lambda: len(server.workers()) == 1, server.log)


def test_worker_at_its_hard_limit_stops_and_the_service_continues() -> None:
    env = {"OCRSVC_FAKE_LEAK_BYTES": "200MB", "OCRSVC_RSS_HARD_BYTES": "300MB", "OCRSVC_RSS_SOFT_BYTES": "0"}
    with run_server({**env, "OCRSVC_WORKERS": "2"}) as server:
        server.wait_for("READY in", count=2)
        with repeated_requests(server) as statuses:
            server.wait_for("RECYCLED worker .*: rss_hard")
            server.wait_for("READY in", count=3)
        assert set(statuses) == {200}


def test_limit_below_the_footprint_is_disabled_and_logged() -> None:
    with run_server({"OCRSVC_RSS_SOFT_BYTES": "1MB", "OCRSVC_WORKERS": "1"}) as server:
        server.wait_for("OCRSVC_RSS_SOFT_BYTES is 1000000, but a warm worker holds .* this limit is off")
        assert post(server) == 200
        assert "WANTS" not in server.log


def test_a_worker_is_replaced_at_its_age() -> None:
    with run_server({"OCRSVC_MAX_AGE_S": "1", "OCRSVC_WORKERS": "1"}) as server:
        (old,) = server.workers()
        server.wait_for(f"RECYCLED worker {old}: max_age")
        assert post(server) == 200


def test_sighup_applies_valid_settings_worker_by_worker(tmp_path: Path) -> None:
    file = tmp_path / "ocrsvc.toml"
    file.write_text("workers = 2\nfake_warm_up_s = 0.5\n")
    with run_server({"OCRSVC_CONFIG": str(file)}) as server, repeated_requests(server) as statuses:
        server.wait_for("READY in", count=2)
        old = set(server.workers())
        file.write_text("workers = 2\nfake_warm_up_s = 0.5\nlog_level = 'debug'\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("RECYCLED worker .*: reload", count=2)
        server.wait_for("DEBUG")
        assert not old & set(server.workers())
        assert len(server.workers()) == 2
        for count in (3, 1):
            file.write_text(f"workers = {count}\n")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda count=count: len(server.workers()) == count, server.log)  # type: ignore[misc]
        [last] = server.workers()
        file.write_text("wrokers = 2\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("ocrsvc keeps its settings: the settings are wrong")
        server.wait_for("did you mean workers?")
        server.wait_for(f"RECYCLED worker {last}: reload")
        assert post(server) == 200
    assert set(statuses) == {200}


def test_sighup_keeps_the_addresses(tmp_path: Path, free_port: int) -> None:
    file = tmp_path / "ocrsvc.toml"
    file.write_text(f'workers = 1\nbind = "127.0.0.1:{free_port}"\n')
    env = {"OCRSVC_ENGINE": "fake", "OCRSVC_CONFIG": str(file)}
    server = Server(["gunicorn", "-c", "gunicorn.conf.py", "wsgi:app"], env, ROOT)
    try:
        server.wait_for("READY in")
        file.write_text(f'workers = 1\nbind = "127.0.0.1:{free_port + 1}"\n')
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("ocrsvc keeps its addresses")
        server.wait_for("RECYCLED worker .*: reload")
        assert post(server) == 200
        assert server.stop() == 0
    finally:
        server.kill()


def test_sigterm_during_sighup_finishes_requests() -> None:
    with start_server({"OCRSVC_WORKERS": "1", "OCRSVC_FAKE_LATENCY_S": "1.5", "OCRSVC_LOG_LEVEL": "debug"}) as server:
        server.wait_for("READY in")
        statuses: list[int] = []
        client = threading.Thread(target=lambda: statuses.append(post(server)))
        client.start()
        server.wait_for("POST /v1/ocr")
        # Both signals are pending when the arbiter continues.
        for sent in (signal.SIGSTOP, signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
            server.process.send_signal(sent)
        assert server.wait_for_exit() == 0
        client.join()
    assert statuses == [200]


def test_failing_successor_boots_with_backoff_and_never_ends_the_service(tmp_path: Path) -> None:
    file = tmp_path / "ocrsvc.toml"
    file.write_text("engine = 'fake'\nworkers = 1\n")
    # An empty variable counts as unset, so the file applies.
    with run_server({"OCRSVC_ENGINE": "", "OCRSVC_CONFIG": str(file)}) as server:
        old = server.workers()
        file.write_text("engine = 'tr'\nworkers = 1\n")
        with repeated_requests(server) as statuses:
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("died before it was ready, as did the one before it; the next one loads in 2 s")
            server.wait_for("exited with code 70")
            assert old[0] in server.workers()
            file.write_text("engine = 'fake'\nworkers = 1\n")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for(f"RECYCLED worker {old[0]}: reload")
        assert set(statuses) == {200}
        # Boots are 1, 2 and 4 s apart, so there is no time for more.
        assert server.log.count("died before it was ready") <= 4


def test_three_failed_boots_end_a_service_that_was_never_ready() -> None:
    with start_server({"OCRSVC_FAKE_WARM_UP_S": "300", "OCRSVC_WORKERS": "1"}) as server:
        for count in (1, 2, 3):
            server.wait_for("Loading the engine fake", count=count)
            os.kill(server.workers()[0], signal.SIGKILL)
        assert server.wait_for_exit() == 3
        assert "Reason: 3 workers could not start, and none was ever ready" in server.log


def test_killed_successor_fails_no_request() -> None:
    with run_server({"OCRSVC_FAKE_WARM_UP_S": "1.5", "OCRSVC_WORKERS": "1"}) as server:
        (old,) = server.workers()
        with repeated_requests(server) as statuses:
            os.kill(old, signal.SIGUSR2)
            server.wait_for("Loading the engine fake", count=2)
            os.kill(max(server.workers()), signal.SIGKILL)
            server.wait_for(f"RECYCLED worker {old}: operator")
        assert set(statuses) == {200}
        assert len(server.workers()) == 1
        # The metrics keep the failed boot after a successful one.
        expected = {"boot_failures_total": 1, "boot_failures_in_a_row": 0, "workers_most": 2}
        assert {name: server.metric(f"ocrsvc_{name}") for name in expected} == expected


def test_ttin_and_ttou_have_no_lasting_effect_and_usr2_is_refused() -> None:
    with run_server({"OCRSVC_WORKERS": "2"}) as server:
        server.wait_for("READY in", count=2)
        before = server.workers()
        server.process.send_signal(signal.SIGUSR2)
        server.wait_for("SIGUSR2 to the arbiter is refused")
        # Send them one by one, because pending signals of one kind merge.
        for change, name, count in (
            (signal.SIGTTIN, "ttin", 1),
            (signal.SIGTTOU, "ttou", 1),
            (signal.SIGTTIN, "ttin", 2),
        ):
            server.process.send_signal(change)
            server.wait_for(f"Handling signal: {name}", count=count)
        assert post(server) == 200
        assert server.workers() == before


def test_hanging_drain_is_killed_after_logging_stacks() -> None:
    env = {"OCRSVC_FAKE_FAULT": "hang", "OCRSVC_WORKERS": "1", "OCRSVC_LOG_LEVEL": "debug"}
    with start_server(env, ["--graceful-timeout", "2"]) as server:
        server.wait_for("READY in")
        (old,) = server.workers()
        client = threading.Thread(target=post_ignoring_disconnects, args=(server,))
        client.start()
        try:
            server.wait_for("POST /v1/ocr")
            os.kill(old, signal.SIGUSR2)
            server.wait_for(r"Timeout \(")
            server.wait_for(r'File ".*fake\.py", line \d+ in _inject_fault')
            server.wait_for(f"Worker {old} has drained for more than 7 s: it is killed")
            wait_until(lambda: old not in server.workers(), server.log)
        finally:
            client.join()


def test_worker_with_one_stuck_thread_is_replaced_successor_first() -> None:
    hanging = png(width=77, height=33, shade=200)
    digest = f"{zlib.crc32(bytes([200]) * (77 * 33)):08x}"
    env = {"OCRSVC_FAKE_FAULT": "hang", "OCRSVC_FAKE_FAULT_ON": digest, "OCRSVC_DEADLINE_S": "1"}
    with run_server({**env, "OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "2"}) as server:
        (old,) = server.workers()
        with repeated_requests(server) as statuses:
            answer = requests.post(f"{server.url}/v1/ocr", data=hanging, timeout=_ANSWER_S)
            assert answer.status_code == 504
            server.wait_for("STUCK: 1 of 2 engine threads")
            server.wait_for(r'File ".*fake\.py", line \d+ in _inject_fault')
            server.wait_for(f"RECYCLED worker {old}: stuck")
        assert set(statuses) == {200}
        order = [line for line in server.lines if "READY in" in line or "DRAINING" in line]
        assert ["READY" in line for line in order[:3]] == [True, True, False]


def test_worker_with_all_threads_stuck_stops_and_exits() -> None:
    env = {"OCRSVC_FAKE_FAULT": "hang", "OCRSVC_DEADLINE_S": "0.5", "OCRSVC_FAKE_WARM_UP_S": "0.5"}
    with run_server({**env, "OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "1"}) as server:
        (old,) = server.workers()
        assert post(server) == 504
        server.wait_for("STUCK: 1 of 1 engine threads")
        server.wait_for(f"RECYCLED worker {old}: stuck")
        assert old not in server.workers()
        order = [line for line in server.lines if "READY in" in line or "DRAINING" in line]
        assert "DRAINING" in order[1]


def test_loading_worker_exits_after_the_arbiter_is_killed() -> None:
    with start_server({"OCRSVC_FAKE_WARM_UP_S": "300", "OCRSVC_WORKERS": "1"}) as server:
        server.wait_for("Loading the engine fake")
        (worker,) = server.workers()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: process_state(worker) in {"", "Z"}, server.log)


def test_hanging_boot_is_ended_after_logging_stacks() -> None:
    env = {"OCRSVC_FAKE_WARM_UP_S": "300", "OCRSVC_BOOT_LIMIT_S": "0.5", "OCRSVC_WORKERS": "1"}
    with start_server(env) as server:
        server.wait_for(r"The engine has not loaded within 0\.5 s: this worker exits")
        server.wait_for(r'File ".*fake\.py", line \d+ in warm_up')
        server.wait_for("died before it was ready; the next one loads in 1 s")


def soak(args: str) -> tuple[int, dict[str, Any]]:
    done = run_program("benchmarks/soak.py", "--latency", "0.02", *args.split())
    assert done.stdout.strip(), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("args", "reasons"),
    [
        # Memory limits together with SIGHUP, SIGTTIN and SIGTTOU.
        ("--requests 700 --leak 2000000 --signal-every 0.7", {"rss_soft", "rss_growth", "reload"}),
        (
            "--requests 500 --gpu --gpu-bytes 1200000000 --leak 1800000 --signal-every 0",
            {"gpu_soft", "gpu_hard", "gpu_growth"},
        ),
    ],
    ids=["memory", "gpu"],
)
def test_short_soak_has_no_lost_or_mixed_up_responses(args: str, reasons: set[str]) -> None:
    code, result = soak(args)
    assert (code, result["failures"], result["log_errors"]) == (0, {}, 0)
    assert result["recycling"]["answered"] == int(args.split()[1])
    assert result["recycles"] >= 2
    assert set(result["recycled"]) <= reasons
    assert result["drain_first"] == 0


def test_soak_on_a_full_gpu_loses_no_response() -> None:
    # A worker needs 200 MB; two may use 0.85 * 640 MB.
    code, result = soak("--requests 500 --gpu --gpu-bytes 640000000 --leak 400000 --signal-every 0")
    assert (code, result["failures"]) == (0, {})
    assert result["drain_first"] >= 1
