"""The operators' view: recent failures, ten minutes of history, and the page /ops in a real browser."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from browser_support import Open, low_contrast_texts, opening
from image_support import png
from keys_support import answer as answer_request
from keys_support import bearer, keys_in
from playwright.sync_api import Browser, expect
from support import Server, run_server, wait_until
from web_support import as_base64, json_of, running_app

from ocrsvc.access.api_keys import KeyLimits
from ocrsvc.access.gate import read_key_counts
from ocrsvc.access.rate_limits import is_near_quota
from ocrsvc.api.web_page import OPERATORS_FOLDER
from ocrsvc.errors import BadOption, EngineFailed, QueueFull, QuotaExceeded
from ocrsvc.results import EngineInfo, Reading, Timing
from ocrsvc.results import Page as ReadPage
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.history import EVERY_S, SPAN_S, History, curves, observe, quantile
from ocrsvc.telemetry.metric import BUCKETS_S
from ocrsvc.telemetry.metrics import FAILURES, KEYS, KEYS_NEAR_QUOTA, REFUSED, REQUESTS
from ocrsvc.telemetry.metrics_store import MetricsStore, WorkerMetrics, count_reading
from ocrsvc.telemetry.recent_errors import KEPT, RecentErrors, fault_of
from ocrsvc.telemetry.worker_table import State, WorkerTable

_ANSWER_S = 20.0
SECRET = "secret-name-of-a-person"


def test_flood_of_one_kind_keeps_other_failures() -> None:
    errors = RecentErrors()
    recorder = errors.recorder()
    recorder.note("service", 500, "internal", adapter="api", route="/v1/ocr", request_id="1")
    for number in range(10 * KEPT):
        recorder.note("caller", 400, "bad_option", adapter="api", route="/v1/ocr", request_id=str(number))
    found = errors.read()
    assert [error.fault for error in found].count("service") == 1
    assert next(error.id for error in found if error.fault == "caller") == str(10 * KEPT - 1)
    assert len(found) == KEPT + 1


def test_failures_outlive_their_worker_and_are_listed_newest_first() -> None:
    clock = iter((10.0, 20.0, 15.0))
    errors = RecentErrors(2, clock=lambda: next(clock))
    for slot, code in ((0, "first"), (0, "second"), (1, "other")):
        errors.recorder(slot).note("service", 500, code, adapter="api", route="", request_id="x")
    assert [(error.code, error.slot) for error in errors.read(2)] == [("second", 0), ("other", 1), ("first", 0)]


def test_failures_are_classified_by_fault_and_long_values_truncated() -> None:
    found = [fault_of(error("x")) for error in (EngineFailed, QueueFull, QuotaExceeded, BadOption)]
    assert found == ["service", "refused", "caller", "caller"]
    errors = RecentErrors()
    errors.recorder().note("caller", 400, "c" * 500, adapter="文" * 500, route="/" * 500, request_id="i" * 500)
    [long] = errors.read()
    assert (len(long.code), len(long.route), len(long.id), set(long.adapter)) == (48, 96, 128, {"?"})


def test_failures_are_listed_without_request_content() -> None:
    with running_app() as app:
        client = app.test_client()
        client.post(f"/v1/ocr?{SECRET}=1", data=SECRET.encode(), headers={"X-Request-Id": "mine"})
        client.get(f"/{SECRET}")
        client.post("/v1/ocr", json={"images": [as_base64(png()), *[as_base64(SECRET.encode())] * 3]})
        client.post("/v1/ocr", data=png(shade=0))
        client.post("/api/trocr")
        overview = client.get("/ops/overview")
    found = json_of(overview)["errors"]
    assert SECRET not in overview.text
    assert [(error["fault"], error["status"], error["code"], error["route"], error["adapter"]) for error in found] == [
        ("caller", 400, "nothing_sent", "/api/trocr", "trwebocr_cpp"),
        ("service", 500, "engine_failed", "/v1/ocr", "api"),
        ("caller", 415, "unsupported_image", "/v1/ocr", "api"),
        ("caller", 404, "not_found", "", "none"),
        ("caller", 400, "bad_option", "/v1/ocr", "api"),
    ]
    assert found[-1]["id"] == "mine"


def read_one(metrics: WorkerMetrics, wait_s: float, total_s: float) -> None:
    engine = EngineInfo("fake", "none", "1", "cpu", "none", "none")
    count_reading(metrics, Reading(ReadPage(1, 1, 0, ()), engine, Timing(0.0, wait_s, 0.0, total_s)))


def test_curves_have_rates_and_gauges() -> None:
    store, table, history = MetricsStore(), WorkerTable(), History()
    table.entry(table.allocate(0.0)).state = State.READY
    history.add(observe(store, table, 100.0))
    for _ in range(20):
        store.common.count(REQUESTS, "api", "200", "ok")
        read_one(store.common, wait_s=0.3, total_s=0.7)
    for adapter in ("operators", "ops", "page"):
        store.common.count(REQUESTS, adapter, "200", "ok", by=1000)
    store.common.count(FAILURES, "internal", by=5)
    store.common.count(FAILURES, "bad_option", by=10)
    store.common.count(FAILURES, "queue_full", by=15)
    store.common.count(REFUSED, "queue_full", by=15)
    store.common.count(REFUSED, "quota_exceeded", by=100)
    history.add(observe(store, table, 105.0))
    history.add(observe(store, table, 110.0))
    found = curves(history.read())
    assert (found["requests_per_s"], found["images_per_s"]) == ([4.0, 0.0], [4.0, 0.0])
    assert (found["own_failures_per_s"], found["caller_failures_per_s"]) == ([1.0, 0.0], [2.0, 0.0])
    assert (found["refused_per_s"], found["ready"]) == ([3.0, 0.0], [1.0, 1.0])
    # 95 % of the way through the bucket: 0.25 to 0.5 for the wait, 0.5 to 1 for the total.
    assert found["wait_p95_s"] == [pytest.approx(0.4875), None]
    assert found["total_p95_s"] == [pytest.approx(0.975), None]


def test_history_keeps_ten_minutes() -> None:
    store, table, history = MetricsStore(), WorkerTable(), History()
    for number in range(500):
        assert history.is_due(number * EVERY_S)
        history.add(observe(store, table, number * EVERY_S))
        assert not history.is_due(number * EVERY_S + 1)
    points = history.read()
    assert points[-1].when_s - points[0].when_s == SPAN_S
    assert {len(curve) for curve in curves(points).values()} == {SPAN_S / EVERY_S}


@pytest.mark.parametrize(
    ("seconds", "found"),
    [((), None), ((0.0005,), 0.0005), ((0.2,) * 2, 0.175), ((100.0,), BUCKETS_S[-1]), ((0.0005, 100.0), 0.001)],
)
def test_a_quantile_is_estimated_as_prometheus_does(seconds: tuple[float, ...], found: float | None) -> None:
    """Expected medians: interpolated within the bucket of the middle observation."""
    store = MetricsStore()
    for value in seconds:
        read_one(store.common, value, value)
    buckets = observe(store, WorkerTable(), 0.0).wait
    assert quantile(0.5, buckets) == (None if found is None else pytest.approx(found))


def test_the_page_loads_only_its_own_files() -> None:
    with running_app() as app:
        client = app.test_client()
        for file in OPERATORS_FOLDER.iterdir():
            path = "/ops" if file.name == "index.html" else f"/ops/static/{file.name}"
            response = client.get(path)
            assert (response.status_code, response.data) == (200, file.read_bytes())
            assert "default-src 'self'" in response.headers["Content-Security-Policy"]
            assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert sum(file.stat().st_size for file in OPERATORS_FOLDER.iterdir()) < 35_000


def test_the_overview_works_without_arbiter_and_keys() -> None:
    with running_app() as app:
        client = app.test_client()
        client.post("/v1/ocr", data=png())
        found = json_of(client.get("/ops/overview"))
        assert json_of(client.get("/ops/workers")) == {"arbiter_pid": None, "workers": []}
        assert json_of(client.get("/ops/keys")) == {"keys": None}
    assert (found["workers"], found["workers_wanted"], found["documents"]) == ([], 0, None)
    assert found["counts"]["requests_by_adapter"] == {"api": 1}
    assert set(map(len, found["history"]["curves"].values())) == {0}


CRASHING = png(50, 40, shade=10)
"""An image that crashes the fake engine, which recognizes it by the CRC-32 of its pixels."""
CRASHING_CRC = f"{zlib.crc32(bytes([10] * 50 * 40)):08x}"


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    with opening(browser, "about:blank") as open_page:
        yield open_page


@pytest.fixture(scope="module")
def busy_server() -> Iterator[Server]:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "1", "OCRSVC_ISOLATION": "process"}
    with run_server(env | {"OCRSVC_FAKE_FAULT": "segfault", "OCRSVC_FAKE_FAULT_ON": CRASHING_CRC}) as server:
        for _ in range(4):
            assert requests.post(f"{server.url}/v1/ocr", data=png(), timeout=_ANSWER_S).status_code == 200
        assert requests.post(f"{server.url}/v1/ocr", data=b"no image", timeout=_ANSWER_S).status_code == 415
        assert requests.post(f"{server.url}/v1/ocr", data=CRASHING, timeout=_ANSWER_S).status_code == 422
        yield server


def test_the_page_shows_workers_failures_and_plots_and_clears_the_denylist(opened: Open, busy_server: Server) -> None:
    url = f"{busy_server.url}/ops/overview"
    wait_until(lambda: requests.get(url, timeout=_ANSWER_S).json()["history"]["curves"]["ready"], "two points")
    page = opened(f"{busy_server.url}/ops")
    expect(page.locator("#notes")).to_have_text("1 inputs are on the crash denylist.")
    expect(page.locator("#workers tbody tr")).to_have_count(1)
    for pid in busy_server.workers():
        expect(page.get_by_role("cell", name=str(pid), exact=True)).to_be_visible()
    expect(page.get_by_role("table", name="Last failures")).to_contain_text("unsupported_image")
    plot = page.get_by_role("img", name=re.compile(r"Workers ready, last 10 minutes: now 1, max 1"))
    expect(plot.locator("path.line")).to_have_count(1)
    page.get_by_role("button", name="Service").click()
    expect(page.locator("#errors")).to_contain_text("None recorded.")
    page.locator("#denied button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cleared")).to_have_text("1 cleared.")
    expect(page.locator("#denied")).to_have_text("None.")
    expect(page.locator("#notes")).to_contain_text("No problems: 1 of 1 workers are ready.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_light_and_dark(opened: Open, busy_server: Server, scheme: Any) -> None:
    page = opened(f"{busy_server.url}/ops", viewport={"width": 360, "height": 740}, color_scheme=scheme)
    expect(page.locator("#workers tbody tr")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert low_contrast_texts(page) == []


def test_keys_are_listed_with_usage_and_without_secrets(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys:
        keys.add("operator", "operate")
        keys.add("reader", "read", pages_a_day=10)
        answer_request(keys.enter("reader"), 9)
        keys.gate.refresh()
        with running_app(Settings(keys=keys.address, ops="open"), keys.gate) as app:
            answer = app.test_client().get("/ops/keys", headers=bearer(keys.secrets["operator"]))
        found = {key["name"]: (key["state"], key["usage"]["pages_today"]) for key in json_of(answer)["keys"]}
        assert found == {"operator": ("valid", 0), "reader": ("valid", 9)}
        assert not [secret for secret in keys.secrets.values() if secret in answer.text]
        # The gate's clock is stopped at keys.now_s.
        usage = dict(keys.gate.usage())[keys.gate.check_named("reader")]
        assert is_near_quota(KeyLimits(pages_a_day=10), usage, keys.now_s)
        assert not is_near_quota(KeyLimits(pages_a_day=11, requests_per_s=1), usage, keys.now_s)
        assert dict(read_key_counts(keys.gate)) == {KEYS: 2, KEYS_NEAR_QUOTA: 1}


@pytest.mark.usefixtures("one_day")
def test_the_page_requires_a_key_and_shows_usage(opened: Open, tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys:
        operator, reader = keys.add("operator", "operate"), keys.add("reader", "read", pages_a_day=10)
        with run_server({"OCRSVC_WORKERS": "1", "OCRSVC_KEYS": keys.address}) as server:
            answer = requests.post(f"{server.url}/v1/ocr", data=png(), headers=bearer(reader), timeout=_ANSWER_S)
            assert answer.status_code == 200
            page = opened(f"{server.url}/ops", http_credentials={"username": "", "password": operator})
            expect(page.locator("#keys tbody tr")).to_have_count(2)
            expect(page.locator("#keys")).to_contain_text(re.compile("reader.*1 of 10"))
            numbers = requests.get(f"{server.url}/metrics", headers=bearer(operator), timeout=_ANSWER_S).text
            assert "ocrsvc_keys 2.0" in numbers
            page.get_by_role("button", name="Pause").click()


def test_page_can_be_paused_and_reports_an_unreachable_service(opened: Open) -> None:
    with run_server({"OCRSVC_WORKERS": "1"}) as server:
        page = opened(f"{server.url}/ops")
        page.clock.install()
        page.reload()
        expect(page.locator("#workers tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Paused")).to_have_attribute("aria-pressed", "true")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(20_000)
        assert asked == []
        page.get_by_role("button", name="Paused").click()
        wait_until(lambda: page.evaluate("1") and asked, "the page asks again")
        # Otherwise the stopping worker waits for the next request on the browser's connection.
        page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Paused").click()
    expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
