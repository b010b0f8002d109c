"""A real Prometheus scrapes a real service, evaluates the alert rules and runs every query of the dashboard."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import requests
from image_support import png
from proxies import installed
from support import ROOT, QuietHandler, Server, http_server, reserved_port, run_server, wait_until
from test_monitoring import promtool

from ocrsvc.results import EngineInfo
from ocrsvc.telemetry.metrics import COUNTED
from ocrsvc.telemetry.metrics_store import MetricsStore
from ocrsvc.telemetry.prometheus import Observed, expose
from ocrsvc.telemetry.worker_table import Reason, State, WorkerTable

_ANSWER_S = 20.0
_SOON_S = 60.0
_BEGAN_S = time.monotonic()
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "ocrsvc.json").read_text(encoding="utf-8"))
CHOSEN = {"$job": ".+", "$instance": ".+", "$__rate_interval": "10s"}


def full_page() -> bytes:
    """Return the metrics of a GPU service in which every counter grows with each scrape."""
    store, table = MetricsStore(), WorkerTable()
    table.head.base = table.head.drain_first = 1
    table.head.recycles[Reason.GPU_SOFT] = 1
    entry = table.entry(table.allocate(now_s=0.0))
    entry.state, entry.reason = State.READY, Reason.GPU_SOFT
    entry.rss_bytes, entry.rss_hard_bytes, entry.gpu_bytes = 10**8, 10**9, 10**9
    entry.gpu_used_bytes, entry.gpu_total_bytes, entry.gpu_read_s = 2 * 10**9, 8 * 10**9, 1.0
    entry.gpu_busy_ratio, entry.gpu_busy_read_s = 0.5, 1.0
    scrapes = int(time.monotonic() - _BEGAN_S) + 1
    values = (
        {"stage": "total", "outcome": "success", "code": "queue_full"},
        {"stage": "engine", "outcome": "miss", "code": "queue_full"},
    )
    for metric, of_labels in product(COUNTED, values):
        key = metric.of(*(of_labels.get(label, "x") for label in metric.labels))
        # Histograms grow with each scrape.
        for _ in range(scrapes if metric.kind == "histogram" else 0):
            store.common.record((), ((key, 0.01),))
        if metric.kind != "histogram":
            store.common.put(metric, time.time(), *key[2:])
    engine = EngineInfo("ppocr", "m", "1", "cuda", "fp16", "cuda")
    return expose(Observed(store, table, engine, {"image": 1, "request": 0}), "")[0]


@contextmanager
def page_server() -> Iterator[str]:
    class Page(QuietHandler):
        def do_GET(self) -> None:
            self.answer(body=full_page())

    with http_server(Page) as url:
        yield url.removeprefix("http://")


@contextmanager
def prometheus(folder: Path, port: int, *targets: str) -> Iterator[str]:
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "deploy" / "prometheus" / "alerts.yml")],
        "scrape_configs": [{"job_name": "ocrsvc", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [installed("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        log = process.communicate(timeout=_SOON_S)[1]
    assert "err" not in log, log


def ask(url: str, path: str, **params: str) -> Any:
    """Query Prometheus; return None while it is starting."""
    try:
        response = requests.get(f"{url}/api/v1/{path}", params=params, timeout=_ANSWER_S)
    except requests.ConnectionError:
        return None
    if response.status_code == 503:
        return None
    answer = response.json()
    assert answer["status"] == "success", (path, params, answer)
    return answer["data"]


def use(server: Server) -> None:
    for _ in range(3):
        assert requests.post(f"{server.url}/v1/ocr", data=png(), timeout=_ANSWER_S).status_code == 200
        assert requests.post(f"{server.url}/v1/ocr", data=b"no image", timeout=_ANSWER_S).status_code == 415


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    with (
        run_server({"OCRSVC_WORKERS": "1"}) as server,
        page_server() as page,
        reserved_port() as port,
        prometheus(tmp_path_factory.mktemp("prometheus"), port, server.url.removeprefix("http://"), page) as url,
    ):
        use(server)
        wait_until(lambda: is_scraped(url, 2), "both targets are scraped")
        use(server)
        yield server, url


def is_scraped(url: str, targets: int) -> bool:
    found = ask(url, "query", query="sum(up)")
    return bool(found and found["result"] and float(found["result"][0]["value"][1]) == targets)


def test_promtool_accepts_the_exposed_metrics(scraped: tuple[Server, str]) -> None:
    server, _ = scraped
    promtool("check", "metrics", stdin=requests.get(f"{server.url}/metrics", timeout=_ANSWER_S).text)


def test_prometheus_evaluates_every_rule(scraped: tuple[Server, str]) -> None:
    _, url = scraped

    def evaluated() -> list[dict[str, Any]]:
        rules = [rule for group in ask(url, "rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = wait_until(evaluated, "all rules are evaluated")
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
    texts = [text for rule in rules for alert in rule.get("alerts", ()) for text in alert["annotations"].values()]
    assert [text for text in texts if "error" in text] == []


def test_every_dashboard_query_returns_series(scraped: tuple[Server, str]) -> None:
    _, url = scraped
    waiting = {
        f"{panel['title']} {target['refId']}": filled(target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }
    assert len(waiting) > 50

    def none_is_left() -> bool:
        for name, query in list(waiting.items()):
            if ask(url, "query", query=query)["result"]:
                del waiting[name]
        return not waiting

    try:
        wait_until(none_is_left, "all queries return series")
    except AssertionError:
        assert waiting == {}


def filled(query: str) -> str:
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    return query
