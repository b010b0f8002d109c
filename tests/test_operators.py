"""Health, metrics, /ops and access to them, and the commands `ocrsvc status` and `recycle`."""

import json
import os
import platform
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import requests
from flask import Flask
from flask.testing import FlaskClient
from image_support import png
from prometheus_client.parser import text_string_to_metric_families as parse_text
from support import Server, data_of, ocrsvc, repeating, run_server, wait_until
from web_support import INFO, as_base64, client_raising, json_of, running_app

from ocrsvc import __version__
from ocrsvc.cli.service import address_of, refusal_of
from ocrsvc.cli.status import describe_overview
from ocrsvc.errors import NotReady
from ocrsvc.http.origins import is_local
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics import METRICS

_ANSWER_S = 20.0
REMOTE_CALLER = {"REMOTE_ADDR": "192.0.2.7"}


def samples(text: str) -> dict[str, float]:
    """Samples of a metrics page by name and sorted labels: `name{a=1,b=2}`."""
    return {
        sample.name
        + (f"{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}" if sample.labels else ""): (
            sample.value
        )
        for family in parse_text(text)
        for sample in family.samples
    }


def numbers_of(app: Flask) -> dict[str, float]:
    return samples(app.test_client().get("/metrics").text)


def numbers(server: Server) -> dict[str, float]:
    return samples(requests.get(f"{server.url}/metrics", timeout=_ANSWER_S).text)


def workers(server: Server) -> list[dict[str, Any]]:
    answer = requests.get(f"{server.url}/ops/workers", timeout=_ANSWER_S).json()
    assert answer["arbiter_pid"] == server.pid
    return list(answer["workers"])


def post(server: Server) -> int:
    return requests.post(f"{server.url}/v1/ocr", data=png(), timeout=_ANSWER_S).status_code


@pytest.fixture(scope="module")
def ready_server() -> Iterator[Server]:
    with run_server({"OCRSVC_WORKERS": "2"}) as server:
        server.wait_for("READY in", count=2)
        yield server


def test_worker_without_an_engine_is_healthy_but_not_ready() -> None:
    client = client_raising(NotReady("The engine is not loaded yet."))
    response = client.get("/healthz")
    assert (response.status_code, json_of(response)) == (200, {"status": "ok"})
    assert json_of(client.get("/version"))["engine"] is None
    response = client.get("/readyz")
    assert (response.status_code, response.content_type) == (503, "application/problem+json")
    assert json_of(response)["code"] == "not_ready"
    assert int(response.headers["Retry-After"]) >= 1


def test_worker_is_ready_until_stop_and_its_version_names_service_engine_and_libraries() -> None:
    with running_app() as app:
        response = app.test_client().get("/readyz")
        assert (response.status_code, json_of(response)) == (200, {"status": "ready"})
        answer = json_of(app.test_client().get("/version"))
    assert app.test_client().get("/readyz").status_code == 503
    assert (answer["name"], answer["version"]) == ("ocrsvc", __version__)
    assert (answer["engine"]["name"], answer["engine"]["provider"]) == (INFO.name, INFO.provider)
    assert answer["libraries"]["python"] == platform.python_version()
    assert {"flask", "numpy"} <= set(answer["libraries"])
    assert ("openvino" in answer["libraries"]) is (find_spec("openvino") is not None)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/openapi.json"])
def test_live_routes_forbid_caching_and_answer_head(client: FlaskClient, path: str) -> None:
    get, head = client.get(path), client.head(path)
    assert (get.headers["Cache-Control"], bool(get.headers["X-Request-Id"])) == ("no-store", True)
    assert (head.status_code, head.data, head.headers["Content-Length"]) == (200, b"", get.headers["Content-Length"])


def test_requests_and_failures_count_by_adapter_status_and_code() -> None:
    with running_app() as app:
        client = app.test_client()
        client.post("/v1/ocr", data=png())
        client.post("/v1/ocr", data=b"no image")
        # One image fails, but the request succeeds.
        client.post("/v1/ocr", json={"images": [as_base64(png()), as_base64(b"no image at all")]})
        client.post("/api/tr-run/", data={"img": as_base64(png())})
        client.post("/api/trocr")
        client.get("/nowhere")
        assert numbers_of(app)["ocrsvc_in_flight_requests"] == 1, "only /metrics itself"
    client.post("/v1/ocr", data=png())
    found = numbers_of(app)
    assert {key: count for key, count in found.items() if key.startswith("ocrsvc_requests_total{adapter=")} == {
        "ocrsvc_requests_total{adapter=api,code=ok,status=200}": 2,
        "ocrsvc_requests_total{adapter=api,code=unsupported_image,status=415}": 1,
        "ocrsvc_requests_total{adapter=api,code=not_ready,status=503}": 1,
        "ocrsvc_requests_total{adapter=trwebocr,code=ok,status=200}": 1,
        "ocrsvc_requests_total{adapter=trwebocr_cpp,code=nothing_sent,status=400}": 1,
        "ocrsvc_requests_total{adapter=none,code=not_found,status=404}": 1,
        "ocrsvc_requests_total{adapter=operators,code=ok,status=200}": 1,
    }
    assert found["ocrsvc_failures_total{code=unsupported_image}"] == 2
    assert found["ocrsvc_refused_total{reason=not_ready}"] == 1
    assert found["ocrsvc_request_seconds_count{adapter=api}"] == 4


def test_service_exposes_exactly_the_declared_metrics(client: FlaskClient) -> None:
    shown = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.documentation)
        for family in parse_text(client.get("/metrics").text)
    }
    assert shown == {(metric.shown_name, metric.help) for metric in METRICS}


@pytest.mark.parametrize(("environ", "local"), data_of("local_callers"))
def test_caller_is_local_only_without_a_proxy(environ: dict[str, object], local: bool) -> None:
    assert is_local(environ) is local


@pytest.mark.parametrize("path", ["/metrics", "/ops/workers", "/ops", "/ops/overview", "/ops/static/ops.js"])
@pytest.mark.parametrize(
    ("ops", "here", "elsewhere"), [("open", 200, 200), ("local", 200, 403), ("off", 404, 404)], ids=lambda value: value
)
def test_ops_setting_controls_access(path: str, ops: Any, here: int, elsewhere: int) -> None:
    with running_app(Settings(ops=ops)) as app:
        client = app.test_client()
        assert client.get(path).status_code == here
        response = client.get(path, environ_base=REMOTE_CALLER)
        assert client.get("/healthz", environ_base=REMOTE_CALLER).status_code == 200
    assert response.status_code == elsewhere
    if elsewhere == 403:
        assert json_of(response)["code"] == "local_only"
        assert "OCRSVC_OPS" in json_of(response)["remedy"]


def test_every_worker_exposes_the_metrics_of_all(ready_server: Server) -> None:
    before = numbers(ready_server).get("ocrsvc_images_total{source=request}", 0)
    assert {post(ready_server) for _ in range(12)} == {200}
    for _ in range(6):
        found = numbers(ready_server)
        assert found["ocrsvc_images_total{source=request}"] == before + 12
        assert found["ocrsvc_lines_total"] == 2 * found["ocrsvc_images_total{source=request}"]
        assert found["ocrsvc_workers{state=ready}"] == found["ocrsvc_workers_wanted"] == 2
        assert found["ocrsvc_stage_seconds_count{source=request,stage=engine}"] == before + 12
    assert found["ocrsvc_worker_rss_bytes{slot=0}"] > 10e6
    assert sum(value for key, value in found.items() if key.startswith("ocrsvc_engine_info{")) == 1


def test_ops_workers_lists_process_state_and_memory(ready_server: Server) -> None:
    found = workers(ready_server)
    assert sorted(worker["pid"] for worker in found) == sorted(ready_server.workers())
    for worker in found:
        assert (worker["state"], worker["reason"], worker["wanted_s_ago"]) == ("ready", None, None)
        assert worker["rss_bytes"] > 10e6
        assert worker["forked_s_ago"] >= worker["ready_s_ago"] > 0


def test_counters_survive_a_killed_worker() -> None:
    with run_server({"OCRSVC_WORKERS": "1"}) as server:
        for _ in range(5):
            assert post(server) == 200
        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait_for("READY in", count=2)
        found = numbers(server)
        assert (found["ocrsvc_images_total{source=request}"], found["ocrsvc_in_flight_requests"]) == (5, 1)
        assert found["ocrsvc_workers_most"] == 1


def test_every_worker_reports_waiting_images() -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "1", "OCRSVC_FAKE_LATENCY_S": "2"}
    with run_server(env) as server:
        clients = [threading.Thread(target=post, args=(server,)) for _ in range(3)]
        for client in clients:
            client.start()
        wait_until(lambda: numbers(server)["ocrsvc_queue_waiting_images"] == 2, "two images wait")
        for client in clients:
            client.join()
        assert numbers(server)["ocrsvc_queue_waiting_images"] == 0


def test_access_log_is_off_by_default(ready_server: Server) -> None:
    assert post(ready_server) == 200
    assert "/v1/ocr" not in ready_server.log


def test_status_prints_workers_and_main_metrics(ready_server: Server) -> None:
    assert post(ready_server) == 200
    done = ocrsvc("status", ready_server.url)
    assert (done.returncode, done.stderr) == (0, "")
    for pid in ready_server.workers():
        assert str(pid) in done.stdout
    assert "ready" in done.stdout
    assert "requests" in done.stdout
    assert re.search(r"^memory +[\d.]+ [kMG]B of [\d.]+ [GT]B in use$", done.stdout, re.MULTILINE)
    assert re.search(r"^jobs +0, 0 B of 1.1 GB, [\d.]+ [MGT]B free on the disk$", done.stdout, re.MULTILINE)
    assert re.search(r"^denied +0 images, 0 requests$", done.stdout, re.MULTILINE)


def test_status_prints_the_overview() -> None:
    case = data_of("status_overview")
    assert list(describe_overview(case["overview"])) == case["printed"]


def test_status_connects_to_a_unix_socket(tmp_path: Path) -> None:
    bind = f"unix:{tmp_path}/s"
    with run_server({"OCRSVC_WORKERS": "1"}, ["-b", bind]):
        done = ocrsvc("status", OCRSVC_BIND=bind)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 workers" in done.stdout


@pytest.mark.parametrize(("bind", "url"), data_of("status_overview")["addresses"])
def test_status_uses_the_bind_address(bind: str, url: str) -> None:
    assert address_of(bind) == url


def test_status_and_health_report_an_unreachable_service(free_port: int) -> None:
    for command in ("status", "health"):
        done = ocrsvc(command, "--url", f"http://127.0.0.1:{free_port}")
        assert (done.returncode, done.stdout) == (69, "")
        assert "cannot be reached: Connection refused. Check its address" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b'{"code":"key_missing","detail":"None was sent.","remedy":"Send it."}', "None was sent. .*--key-file"),
        (503, b'{"code":"not_ready","detail":"No store.","remedy":"Ask again."}', "No store. Ask again"),
        (400, b"This port speaks TLS.\n", "answers 400: This port speaks TLS. .*https"),
        (404, b"[]", r"answers 404: \[\]"),
    ],
)
def test_status_prints_the_services_error_with_a_remedy(status: int, body: bytes, said: str) -> None:
    assert re.search(said, str(refusal_of("http://ocr", status, body)))


def test_recycle_replaces_every_worker_without_failed_requests(tmp_path: Path) -> None:
    pidfile, audit = str(tmp_path / "pid"), tmp_path / "audit.jsonl"
    env = {"OCRSVC_WORKERS": "2", "OCRSVC_PIDFILE": pidfile, "OCRSVC_AUDIT_LOG": str(audit)}
    with run_server(env) as server:
        server.wait_for("READY in", count=2)
        old, statuses = set(server.workers()), list[int]()
        with repeating(lambda: statuses.append(post(server))):
            recycled = ocrsvc("recycle", "--timeout", "60", OCRSVC_PIDFILE=pidfile, OCRSVC_AUDIT_LOG=str(audit))
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "service.reload" in audit.read_text("utf-8"), "the reload is in the audit log")
        assert (recycled.returncode, recycled.stderr) == (0, "")
        assert "replaced all 2 workers" in recycled.stdout
        assert not old & set(server.workers())
        assert set(statuses) == {200}
        lines = [json.loads(line) for line in audit.read_text("utf-8").splitlines()]
        assert [(line["action"], line["who"].partition(":")[0]) for line in lines] == [
            ("workers.recycle", "user"),
            ("service.reload", "signal"),
        ]


def test_recycle_reports_a_timeout() -> None:
    with run_server({"OCRSVC_WORKERS": "1", "OCRSVC_FAKE_WARM_UP_S": "3"}) as server:
        done = ocrsvc("recycle", "--pid", str(server.pid), "--timeout", "0.2")
        assert done.returncode == 75
        assert "replaced 0 of 1 workers" in done.stdout


def test_recycle_signals_only_the_service(ready_server: Server) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        for pid, message in (
            (sleeper.pid, "is not gunicorn"),
            (os.getpid(), "is no"),
            (ready_server.workers()[0], "is not the arbiter"),
            (2**22 - 1, "does not exist"),
        ):
            done = ocrsvc("recycle", "--pid", str(pid))
            assert (done.returncode, message in done.stderr) == (78, True), done.stderr
        assert sleeper.poll() is None
        assert "WANTS" not in ready_server.log
    finally:
        sleeper.terminate()
        sleeper.wait()


@pytest.mark.parametrize(("name", "text", "message"), data_of("status_overview")["recycle"])
def test_recycle_requires_a_pid_or_pid_file(name: str | None, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(text)
    done = ocrsvc("recycle", **({} if name is None else {"OCRSVC_PIDFILE": str(tmp_path / name)}))
    assert (done.returncode, message in done.stderr) == (78, True), done.stderr
