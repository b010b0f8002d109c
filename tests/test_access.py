"""API keys over HTTP: where a key is read, how it is refused, which pages count, and which jobs it sees."""

import base64
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import pytest
from documents import GRAY, pdf
from flask import Flask
from flask.testing import FlaskClient
from image_support import png
from jobs_support import reading_jobs
from keys_support import WRONG, Keys, answer, bearer, keys_in
from openapi_spec_validator import validate
from pydantic import SecretStr
from support import data_of, wait_until
from test_adapters import B64, SENT
from web_support import TEXT, json_of, running_app, running_reader

from ocrsvc.access.gate import AccessGate
from ocrsvc.api.openapi import openapi
from ocrsvc.app import create_app
from ocrsvc.errors import KeysUnavailable
from ocrsvc.http.request import request
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving import work_queue
from ocrsvc.settings.settings import Settings

PAGE = png()
OCR = "/v1/ocr"
DAY_S = 86_400


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    with keys_in(tmp_path_factory.mktemp("keys")) as found:
        found.add("reader")
        found.add("spent", pages_a_day=1)
        found.add("operator", "operate")
        found.add("tensors", adapters=frozenset({"turboocr", "kserve_v2"}))
        found.add("batches", priority="batch")
        yield found


@pytest.fixture(scope="module")
def app(keys: Keys) -> Iterator[Flask]:
    with running_app(Settings(keys=keys.address, cors=("https://app.example",), caller_requests=9), keys.gate) as found:
        post(found.test_client(), keys, "spent")
        yield found


def post(client: FlaskClient, keys: Keys, name: str, data: Any = PAGE, **more: Any) -> Any:
    return client.post(OCR, data=data, headers={**bearer(keys.secrets[name]), **more})


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def basic(name: str, password: str) -> Mapping[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


# Where a key is read


@pytest.mark.parametrize("place", ["query", "form", "header"])
def test_formats_without_a_key_field_read_only_the_headers(client: FlaskClient, keys: Keys, place: str) -> None:
    secret = keys.secrets["reader"]
    sent: dict[str, dict[str, Any]] = {
        "query": {"query_string": {"apikey": secret, "api_key": secret}, "data": PAGE},
        "form": {"data": {"apikey": secret, "image": B64}},
        "header": {"headers": {"apikey": secret}, "data": PAGE},
    }
    response = client.post(OCR, **sent[place])
    assert (response.status_code, "Authorization: Bearer" in response.text) == (401, True)


def test_ocr_space_reads_its_key_from_a_header_or_the_form(client: FlaskClient, keys: Keys) -> None:
    secret, other, path = keys.secrets["reader"], keys.secrets["operator"], "/parse/image"
    image = {"base64Image": f"data:image/png;base64,{B64}"}
    form = {"file": (io.BytesIO(PAGE), "a.png"), "apikey": secret}
    assert client.post("/Parse/Image", data=form).status_code == 200
    assert client.post(path, data=image, headers={"apikey": secret}).status_code == 200
    assert client.post(path, data=image, query_string={"apikey": WRONG}).status_code == 401
    sent = {key: client.post(path, data=image | {"apikey": key}).status_code for key in (secret, WRONG, other)}
    assert sent == {secret: 200, WRONG: 401, other: 403}
    # Without a key the response reveals nothing about the body.
    broken = client.post(path, data=b"no form", content_type="multipart/form-data; boundary=x")
    assert (broken.status_code, json_of(broken)["IsErroredOnProcessing"]) == (401, True)
    # OCR.space clients send forms; a key in JSON is not read.
    assert client.post(path, json=image | {"apikey": secret}).status_code == 401
    # URLs are never fetched. A GET request can pass the key only in its query.
    asked = client.get("/parse/imageurl", query_string={"apikey": secret, "url": "http://example.com/a.png"})
    assert (asked.status_code, json_of(asked)["OCRExitCode"]) == (200, 3)
    assert client.get("/parse/imageurl", query_string={"apikey": WRONG}).status_code == 401


def test_other_sites_cannot_use_a_browsers_stored_key(client: FlaskClient, keys: Keys) -> None:
    secret = keys.secrets["reader"]
    for origin, status in (("http://localhost", 200), ("https://evil.example", 403), ("null", 403)):
        response = client.post(OCR, data=PAGE, headers={**basic("", secret), "Origin": origin})
        assert response.status_code == status, origin
    # A script that knows the key may run on any site.
    assert client.post(OCR, data=PAGE, headers={**bearer(secret), "Origin": "https://evil.example"}).status_code == 200


def test_only_cors_preflight_needs_no_key(client: FlaskClient) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    response = client.options(OCR, headers=asked | {"Access-Control-Request-Headers": "authorization"})
    assert (response.status_code, response.headers["Access-Control-Allow-Origin"]) == (200, "https://app.example")
    assert client.options(OCR, headers={"Origin": "https://app.example"}).status_code == 401
    assert client.options(OCR, headers=asked | {"Origin": "https://evil.example"}).status_code == 401
    assert client.post(OCR, data=PAGE, headers=asked).status_code == 401


# Refusals in each format. Their HTTP status is real, even in formats that send other errors with 200.

REFUSALS = data_of("key_refusals")


def with_values(shape: Any, **values: Any) -> Any:
    """Return a response body of key_refusals.yaml with its placeholders replaced."""
    if isinstance(shape, dict):
        return {key: with_values(each, **values) for key, each in shape.items()}
    if isinstance(shape, list):
        return [with_values(each, **values) for each in shape]
    return values.get(shape, shape)


# These share a path with PaddleX and the native API, whose format applies until the body is read.
SHAPE = {"turboocr": "paddlex", "mistral": "api"}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {**SENT, "api": (OCR, {"json": {"image": B64}})}


@pytest.mark.parametrize(
    ("name", "status"), [(None, 401), ("wrong", 401), ("operator", 403), ("spent", 429), ("reader", 200)]
)
@pytest.mark.parametrize("adapter", REQUESTS)
def test_refusals_have_the_format_of_each_adapter(
    client: FlaskClient, keys: Keys, adapter: str, name: str | None, status: int
) -> None:
    path, sent = REQUESTS[adapter]
    response = client.post(path, **sent, headers=bearer(keys.secrets.get(name, WRONG)) if name else {})
    assert response.status_code == status
    assert WRONG not in response.get_data(as_text=True) + str(response.headers)
    assert (TEXT in response.get_data(as_text=True) or "\\u" in response.get_data(as_text=True)) is (status == 200)
    assert [value.split()[0] for value in response.headers.getlist("WWW-Authenticate")] == (
        ["Bearer", "Basic"] if status == 401 else []
    )
    assert ("Retry-After" in response.headers) is (status == 429)
    if status != 200 and adapter != "trwebocr_cpp":
        shape = SHAPE.get(adapter, adapter) if status != 429 else adapter
        values = {"GRPC_STATUS": {401: 16, 403: 7, 429: 8}[status], "RETRYABLE": status == 429}
        assert json_of(response) == with_values(REFUSALS[shape], ANY=ANY, STATUS=status, **values)


def test_a_keys_formats_limit_access_and_choose_between_adapters(client: FlaskClient, keys: Keys) -> None:
    headers = bearer(keys.secrets["tensors"])
    statuses = {name: client.post(path, **sent, headers=headers).status_code for name, (path, sent) in REQUESTS.items()}
    # This key makes the shared path TurboOCR's alone, which finds no image in the requests of PaddleX and RapidOCR.
    assert {name for name, status in statuses.items() if status == 200} == {"turboocr", "kserve_v2"}
    assert (statuses["paddlex"], statuses["rapidocr_api"]) == (400, 400)
    assert {statuses[name] for name in ("api", "tfserving", "umi_ocr", "ocr_space")} == {403}
    assert client.get("/version", headers=headers).status_code == 200


# Which pages count


def test_only_successful_pages_count(client: FlaskClient, keys: Keys) -> None:
    keys.add("counted", pages_a_day=20, concurrency=2)
    for data, pages in (
        (PAGE, 1),
        (b"no image", 0),
        (pdf(GRAY, GRAY, GRAY), 3),
        (png(shade=0), 0),
        ({"file": [(io.BytesIO(PAGE), "a.png"), (io.BytesIO(b"x"), "b.png"), (io.BytesIO(PAGE), "c.png")]}, 2),
    ):
        before = keys.usage("counted")
        post(client, keys, "counted", data)
        after = keys.usage("counted")
        assert (after.today - before.today, after.this_month - before.this_month) == (pages, pages)
        assert (after.requests, after.reserved) == (0, 0)


def test_document_with_more_pages_than_left_is_refused(client: FlaskClient, keys: Keys) -> None:
    keys.add("few", pages_a_day=4)
    assert post(client, keys, "few", pdf(GRAY, GRAY)).status_code == 200
    response = post(client, keys, "few", pdf(GRAY, GRAY, GRAY))
    assert (response.status_code, json_of(response)["code"]) == (429, "quota_exceeded")
    # A document larger than the daily quota gets no Retry-After.
    response = post(client, keys, "few", pdf(GRAY, GRAY, GRAY, GRAY, GRAY))
    assert (response.status_code, json_of(response)["code"]) == (413, "pages_over_quota")
    assert "Retry-After" not in response.headers
    assert keys.usage("few").today == 2
    assert post(client, keys, "few", pdf(GRAY, GRAY)).status_code == 200
    assert post(client, keys, "few").status_code == 429
    keys.now_s += DAY_S
    assert post(client, keys, "few").status_code == 200
    keys.now_s -= DAY_S


def test_responses_have_rate_limit_headers(client: FlaskClient, keys: Keys) -> None:
    keys.add("asking", pages_a_day=2)
    for status in (200, 200, 429):
        response = post(client, keys, "asking")
        assert response.status_code == status
        assert response.headers["RateLimit-Policy"] == '"pages-a-day";q=2;w=86400'
        # The count may lag by a request.
        assert re.fullmatch('"pages-a-day";r=[012];t=86400', response.headers["RateLimit"])
        assert len(response.headers.getlist("RateLimit")) == 1
    assert (response.headers["Retry-After"], response.headers["RateLimit"]) == ("86400", '"pages-a-day";r=0;t=86400')
    assert "RateLimit" not in post(client, keys, "reader").headers


def test_requests_without_engine_do_not_wait_for_the_key_store(
    client: FlaskClient, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("reserve", "settle"):
        monkeypatch.setattr(keys.store, name, Mock(side_effect=KeysUnavailable("The store is away.", "Later.", 3)))
    for path in ("/version", "/v2/models/ocr", "/api/ocr/get_options", "/healthz"):
        assert client.get(path, headers=bearer(keys.secrets["spent"])).status_code == 200, path
    assert post(client, keys, "spent").status_code == 503


def test_no_request_is_admitted_before_the_keys_are_loaded(keys: Keys) -> None:
    with running_app(Settings(keys=keys.address), AccessGate(keys.store)) as app:
        client = app.test_client()
        statuses = [
            client.post(OCR, data=PAGE, headers=sent).status_code for sent in (bearer(keys.secrets["reader"]), {})
        ]
        assert statuses == [503, 401]
        assert (client.get("/readyz").status_code, client.get("/healthz").status_code) == (503, 200)


def test_a_key_limits_the_priority(app: Flask, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    put = work_queue.WorkQueue.put

    def noting(self: Any, job: Any) -> None:
        seen.append(job.context.priority)
        put(self, job)

    monkeypatch.setattr(work_queue.WorkQueue, "put", noting)
    client = app.test_client()
    client.post(OCR + "?priority=interactive", data=PAGE, headers=bearer(keys.secrets["batches"]))
    for name, header in (("batches", "interactive"), ("reader", "interactive"), ("reader", "batch")):
        post(client, keys, name, **{"X-Priority": header})
    assert seen == ["batch", "batch", "interactive", "batch"]


def test_cached_pages_count_and_a_key_can_exclude_the_cache(keys: Keys) -> None:
    keys.add("cached")
    keys.add("uncached", may_cache=False)

    with running_app(Settings(keys=keys.address, cache_bytes=1 << 20), keys.gate) as app:
        client = app.test_client()
        names = ("uncached", "uncached", "cached", "cached", "uncached")
        engine_s = [json_of(post(client, keys, name))["timing"]["engine_s"] for name in names]
    # Engine time is 0 only for a cached page.
    assert [spent_s > 0 for spent_s in engine_s] == [True, True, True, False, True]
    assert (keys.usage("cached").today, keys.usage("uncached").today) == (2, 3)


def test_requests_of_a_key_have_one_caller_name(app: Flask, keys: Keys) -> None:
    seen = []
    for address in ("192.0.2.1", "192.0.2.2"):
        base = {"REMOTE_ADDR": address}
        headers = bearer(keys.secrets["reader"])
        with app.test_request_context(OCR, method="POST", headers=headers, environ_base=base):
            app.preprocess_request()
            seen.append((request.admitted_caller, request.caller))
    assert seen == [("key reader", "key reader")] * 2


def test_audit_log_has_operators_actions_and_key_names(keys: Keys, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    headers = bearer(keys.secrets["operator"])
    with running_app(Settings(keys=keys.address, audit_log=log), keys.gate) as app:
        assert app.test_client().delete("/ops/denylist/abc", headers=headers).status_code == 200
        assert app.test_client().delete("/ops/denylist/abc", headers=bearer(WRONG)).status_code == 401
    [line] = log.read_text().splitlines()
    entry = json.loads(line)
    assert (entry["who"], entry["action"], entry["digest"]) == ("key:operator", "denylist.release", "abc")


def test_openapi_describes_keys_if_they_are_needed(client: FlaskClient, keys: Keys) -> None:
    described = json_of(client.get("/openapi.json", headers=bearer(keys.secrets["reader"])))
    validate(described)
    assert set(described["components"]["securitySchemes"]) == {"bearer", "header", "basic"}
    assert described["security"]
    for path, item in described["paths"].items():
        for operation in item.values():
            is_open = path in {"/healthz", "/readyz"}
            assert operation.get("security") == ([] if is_open else None)
            assert ("401" in operation["responses"]) is not is_open
    assert described["components"]["schemas"] == openapi()["components"]["schemas"]
    assert "securitySchemes" not in openapi()["components"]


UNKNOWN = 103


@dataclass(slots=True)
class InProcessService:
    """The Umi-OCR document API with keys, in this process."""

    client: FlaskClient
    keys: Keys
    jobs: JobStore
    reader: Reader

    def upload(self, name: str, pages: int) -> Any:
        """Upload a document of `pages` pages with the key `name`."""
        form = {"file": (io.BytesIO(pdf(*[GRAY] * pages)), "a.pdf")}
        return self.client.post("/api/doc/upload", data=form, headers=bearer(self.keys.secrets[name]))

    def ask(self, name: str, task_id: str, **how: object) -> Any:
        """Request the result of a document with the key `name`."""
        headers = bearer(self.keys.secrets[name])
        return json_of(self.client.post("/api/doc/result", json={"id": task_id, **how}, headers=headers))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Read documents during the block."""
        with reading_jobs(self.jobs, self.reader, gate=self.keys.gate):
            yield


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    with keys_in(tmp_path) as keys:
        callbacks = {"callback_hosts": ("callbacks.example",), "callback_secret": SecretStr("a secret of the service")}
        settings = Settings(keys=keys.address, **callbacks)  # type: ignore[arg-type]
        jobs = JobStore(tmp_path / "jobs", 10**8, 3600.0)
        jobs.folder.mkdir()
        # Jobs do not count towards the concurrency limit.
        keys.add("anna", "jobs", pages_a_day=5, concurrency=1)
        keys.add("berta", "jobs")
        with running_reader(settings) as reader:
            app = create_app(settings, reader, jobs=jobs, gate=keys.gate)
            yield InProcessService(app.test_client(), keys, jobs, reader)


@pytest.mark.parametrize(("pages", "status", "code"), [(4, 429, 903), (6, 413, 204)])
def test_job_above_the_quota_is_refused(service: InProcessService, pages: int, status: int, code: int) -> None:
    answer(service.keys.enter(pages=2), 2)
    response = service.upload("anna", pages)
    assert (response.status_code, json_of(response)["code"]) == (status, code)
    assert service.jobs.all() == []


def test_job_stops_when_the_keys_pages_are_used_up(service: InProcessService) -> None:
    first, second = (json_of(service.upload("anna", 3))["data"] for _ in range(2))
    with service.working():
        wait_until(lambda: service.ask("anna", second)["is_done"])
    assert service.ask("anna", first)["state"] == "success"
    failed = service.ask("anna", second)
    assert (failed["state"], failed["processed_count"]) == ("failure", 2)
    assert service.keys.usage().today == 5


def test_jobs_of_a_revoked_key_are_not_read(service: InProcessService) -> None:
    task_id = json_of(service.upload("anna", 2))["data"]
    service.keys.revoke("anna")
    with service.working():
        wait_until(service.jobs.all()[0].is_done)
    job = service.jobs.find(task_id)
    assert job is not None
    assert (job.progress().state, job.page_count()) == ("failure", 0)


def test_a_job_is_visible_only_to_its_key(service: InProcessService) -> None:
    task_id = json_of(service.upload("anna", 1))["data"]
    mine, others = (bearer(service.keys.secrets[name]) for name in ("anna", "berta"))
    with service.working():
        wait_until(lambda: service.ask("anna", task_id)["is_done"])
    made = service.client.post("/api/doc/download", json={"id": task_id, "file_types": ["txt"]}, headers=mine)
    url = json_of(made)["data"]
    assert service.ask("berta", task_id)["code"] == UNKNOWN
    assert service.client.get(url, headers=others).status_code == 404
    assert json_of(service.client.get(f"/api/doc/clear/{task_id}", headers=others))["code"] != 100
    assert service.client.get(url, headers=mine).status_code == 200
    assert json_of(service.client.get(f"/api/doc/clear/{task_id}", headers=mine))["code"] == 100
    assert service.ask("anna", task_id)["code"] == UNKNOWN


def test_a_key_added_again_cannot_see_earlier_jobs(service: InProcessService) -> None:
    read, waiting = (json_of(service.upload("anna", 1))["data"] for _ in range(2))
    with service.working():
        wait_until(lambda: service.ask("anna", read)["is_done"])
    service.keys.revoke("anna")
    service.keys.now_s += 1.0
    service.keys.add("anna", "jobs")
    before = service.keys.usage().today
    with service.working():
        wait_until(lambda: all(job.is_done() for job in service.jobs.all()))
    for task_id in (read, waiting):
        assert service.ask("anna", task_id)["code"] == UNKNOWN
    assert service.keys.usage().today == before


def test_jobs_belong_to_their_key_and_count_for_it(service: InProcessService) -> None:
    def ask(name: str, method: str, path: str = "", **more: Any) -> Any:
        return service.client.open(f"/v1/jobs{path}", method=method, headers=bearer(service.keys.secrets[name]), **more)

    ids = [
        json_of(ask("anna", "POST", data={"file": (io.BytesIO(pdf(*[GRAY] * pages)), "a.pdf")}))["id"]
        for pages in (1, 2)
    ]
    with service.working():
        wait_until(lambda: all(job.is_done() for job in service.jobs.all()))
    assert service.keys.usage().today == 3
    assert [job["id"] for job in json_of(ask("anna", "GET"))["jobs"]] == ids[::-1]
    assert [job["id"] for job in json_of(ask("anna", "GET", "?limit=1"))["jobs"]] == ids[1:]
    assert json_of(ask("berta", "GET"))["jobs"] == []
    for method, path in (("GET", ""), ("GET", "/pages"), ("GET", "/result"), ("DELETE", "")):
        assert ask("berta", method, f"/{ids[0]}{path}").status_code == 404
    assert ask("anna", "GET", f"/{ids[0]}/result").status_code == 200
    service.keys.add("clara", "read")
    assert [ask("clara", *asked).status_code for asked in (("POST",), ("GET", f"/{ids[0]}"))] == [403, 403]


def test_a_callback_of_a_key_needs_no_secret(service: InProcessService) -> None:
    form = {"file": (io.BytesIO(pdf(GRAY)), "a.pdf"), "callback": "https://callbacks.example/x"}
    answer = service.client.post("/v1/jobs", data=form, headers=bearer(service.keys.secrets["anna"]))
    assert (answer.status_code, json_of(answer)["callback"]["state"]) == (202, "waiting")
