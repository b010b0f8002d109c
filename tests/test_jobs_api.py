"""Jobs over HTTP: submitted, read page by page, downloaded, deleted; and jobs of a real service that is killed."""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from documents import BLACK, GRAY, pdf
from jobs_support import SECRET, JobsApp, JobService, count_page_errors, job_service, numbered_pdf, post_document
from support import data_of, filled
from web_support import TEXT, as_base64, json_of

from ocrsvc.app import create_app
from ocrsvc.cli.main import run
from ocrsvc.client import Client
from ocrsvc.client.response import Page
from ocrsvc.errors import BadOption, DeadlineExceeded, JobNotDone, KeysNeeded, UnknownJob
from ocrsvc.jobs.job import RECORD
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.settings.settings import Settings

THREE = pdf(GRAY, BLACK, GRAY)


class NativeApp(JobsApp):
    """The application with the native API's requests."""

    def submit(self, data: bytes = THREE, headers: Mapping[str, str] | None = None, **fields: Any) -> Any:
        """Submit a document as a form; returns the response."""
        return post_document(self.client, "/v1/jobs", data, headers=headers, **fields)

    def get(self, path: str) -> Any:
        """Return the JSON at a path below /v1/jobs."""
        return json_of(self.client.get(f"/v1/jobs/{path}"))

    def read(self, data: bytes = THREE, **fields: Any) -> str:
        """Submit a document and wait for the end of its job; returns the job's id."""
        job_id: str = json_of(self.submit(data, **fields))["id"]
        self.work_until(lambda: self.get(job_id)["finished_at"])
        return job_id


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeApp]:
    callbacks = {"callback_hosts": ("callbacks.example",), "callback_secret": SECRET}
    settings = Settings(job_pages=12, max_pages=2, **callbacks)  # type: ignore[arg-type]
    with NativeApp.running(tmp_path_factory.mktemp("jobs"), settings, max_waiting=5, max_pages=24) as found:
        yield found


@pytest.fixture
def clean_app(app: NativeApp, done: str) -> Iterator[NativeApp]:
    """The application; after the test, all jobs except `done` are removed."""
    yield app
    for job in app.jobs.all():
        if job.id != done:
            app.jobs.clear(job)


@pytest.fixture(scope="module")
def done(app: NativeApp) -> str:
    """The id of a finished job of three pages, one of which failed; no test deletes it."""
    return app.read(format="txt,json")


def test_job_status_shows_progress(app: NativeApp, done: str) -> None:
    job = app.get(done)
    assert (job["state"], job["name"], job["failed_pages"], job["formats"]) == ("done", "a.pdf", [2], ["text", "json"])
    assert job["pages"] == {"total": 3, "done": 3, "failed": 1, "in_document": 3}
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]


def test_a_new_job_waits_and_has_a_location(clean_app: NativeApp) -> None:
    answer = clean_app.submit(pages="2-3")
    job = json_of(answer)
    assert (answer.status_code, answer.headers["Location"], job["state"]) == (202, f"/v1/jobs/{job['id']}", "waiting")
    assert (job["pages"]["total"], job["pages"]["in_document"]) == (2, 3)
    result = clean_app.client.get(f"{job['links']['result']}?format=pdf")
    assert (result.status_code, json_of(result)["code"]) == (409, "job_not_done")


@pytest.mark.parametrize("send", ["raw", "json", "form"])
def test_a_document_is_submitted_in_each_native_way(clean_app: NativeApp, send: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "raw": {"data": THREE, "content_type": "application/pdf", "query_string": {"name": "b.pdf"}},
        "json": {"json": {"file": as_base64(THREE), "name": "b.pdf", "format": ["json"]}},
        "form": {"data": {"file": (io.BytesIO(THREE), "b.pdf")}},
    }
    answer = clean_app.client.post("/v1/jobs", **ways[send])
    assert (answer.status_code, json_of(answer)["name"]) == (202, "b.pdf")


REFUSED = filled(data_of("jobs_refused"), SECRET=SECRET)


@pytest.mark.parametrize(("fields", "code"), [({"data": b"no image at all"}, "unsupported_image"), *REFUSED["codes"]])
def test_impossible_job_options_are_refused(app: NativeApp, fields: dict[str, Any], code: str) -> None:
    before = len(app.jobs.all())
    answer = app.submit(**fields)
    assert (answer.status_code // 100, json_of(answer)["code"]) == (4, code)
    assert len(app.jobs.all()) == before


def test_refused_options_name_a_remedy_and_the_mask_header_counts(app: NativeApp) -> None:
    options = json_of(app.submit(timings="1"))["remedy"].rstrip(".").split(": ")[1].split(", ")
    assert {"words", "callback", "name"} <= set(options)
    assert not {"priority", "timing"} & set(options)
    for fields, expected in REFUSED["told"]:
        problem = json_of(app.submit(**fields))
        assert f"{problem['detail']} {problem.get('remedy', '')}" == expected
    answer = app.submit(headers={"X-Mask": "phone"}, format="pdf")
    assert (answer.status_code, json_of(answer)["code"]) == (400, "bad_option")
    assert "POST /v1/ocr?format=pdf&mask=" in json_of(answer)["remedy"]


def test_words_that_a_pdf_needs_are_in_json_only_on_request(clean_app: NativeApp) -> None:
    ids = clean_app.read(format="pdf"), clean_app.read(format="pdf", words="true")
    lines = [clean_app.get(f"{job_id}/pages")["pages"][0]["lines"] for job_id in ids]
    assert ["words" in line[0] for line in lines] == [False, True]


def test_a_job_may_have_more_pages_than_a_request_up_to_its_limit(clean_app: NativeApp) -> None:
    assert clean_app.submit(pdf(*[GRAY] * 12)).status_code == 202
    answer = clean_app.submit(pdf(*[GRAY] * 13))
    assert (answer.status_code, json_of(answer)["code"]) == (413, "too_many_pages")
    assert "OCRSVC_JOB_PAGES" in json_of(answer)["detail"]


def test_unfinished_jobs_and_pages_of_a_caller_are_limited(tmp_path: Path, app: NativeApp) -> None:
    jobs = JobStore(tmp_path, 10**8, 3600.0, max_waiting=2, max_pages=7)
    client = create_app(Settings(caller_header="X-Real-IP"), app.reader, jobs=jobs).test_client()

    def submit(caller: str, pages: int) -> int:
        document = pdf(*[GRAY] * pages)
        return post_document(client, "/v1/jobs", document, headers={"X-Real-IP": caller}).status_code

    assert [submit("a", 4), submit("a", 4), submit("b", 7), submit("a", 3), submit("a", 1)] == [202, 429, 202, 202, 429]
    jobs.all()[0].finish()
    assert 202 in (submit("a", 1), submit("b", 1))


def test_pages_are_returned_in_parts(app: NativeApp, done: str) -> None:
    first = app.client.get(f"/v1/jobs/{done}/pages?limit=2")
    body = json_of(first)
    assert ([page["page"] for page in body["pages"]], body["next"], body["state"]) == ([1, 2], 2, "done")
    assert (body["pages"][0]["text"].splitlines()[0], body["pages"][1]["error"]["code"]) == (TEXT, "engine_failed")
    assert first.headers["Link"] == f'</v1/jobs/{done}/pages?after=2>; rel="next"'
    rest = app.client.get(f"/v1/jobs/{done}/pages?after=2", headers={"Accept": "application/x-ndjson"})
    assert [json.loads(line)["page"] for line in rest.data.splitlines()] == [3]
    assert app.get(f"{done}/pages?after=99")["pages"] == []


def test_an_answer_with_pages_is_limited_in_bytes(app: NativeApp, done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.api.jobs.MAX_PAGES_BYTES", 10)
    assert [page["page"] for page in app.get(f"{done}/pages")["pages"]] == [1]


WRONG_PAGES = ("after=-1", "limit=0", "limit=101", "after=x", "format=xml")


@pytest.mark.parametrize("asked", [*map("pages?{}".format, WRONG_PAGES), "result?format=docx", "result?format=answer"])
def test_malformed_job_requests_are_refused(app: NativeApp, done: str, asked: str) -> None:
    assert json_of(app.client.get(f"/v1/jobs/{done}/{asked}"))["code"] == "bad_option"


def test_a_result_file_is_made_once_and_kept(app: NativeApp, done: str) -> None:
    job = app.jobs.find(done)
    assert job is not None
    assert {file.name for file in (job.folder / "out").iterdir()} == {"text", "json"}
    answer = app.client.get(f"/v1/jobs/{done}/result?format=txt")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="a.txt"'
    assert answer.content_type == "text/plain; charset=utf-8"
    assert answer.text.splitlines()[0] == TEXT
    (job.folder / "out" / "text").write_bytes(b"kept")
    assert app.client.get(f"/v1/jobs/{done}/result?format=text").data == b"kept"


@pytest.mark.parametrize(
    ("name", "counted", "count"),
    [("json", b'{"page":', 3), ("ndjson", b'{"page":', 3), ("hocr", b'class="ocr_page"', 2), ("pdf", b"%PDF-", 1)],
)
def test_a_result_has_every_page_read(app: NativeApp, done: str, name: str, counted: bytes, count: int) -> None:
    data = app.client.get(f"/v1/jobs/{done}/result?format={name}").data
    assert data.count(counted) == count


def test_a_failed_job_has_its_error(clean_app: NativeApp) -> None:
    job_id = json_of(clean_app.submit())["id"]
    job = clean_app.jobs.find(job_id)
    assert job is not None
    job.put(RECORD, {**job.get(RECORD), "options": {"of_tomorrow": 1}})
    clean_app.work_until(lambda: clean_app.get(job_id)["finished_at"])
    job = clean_app.get(job_id)
    assert (job["state"], "of_tomorrow" in job["error"]["detail"]) == ("failed", True)
    result = clean_app.client.get(f"/v1/jobs/{job_id}/result")
    assert (result.status_code, json_of(result)["code"]) == (409, "job_failed")


def test_a_deleted_job_is_not_found(clean_app: NativeApp) -> None:
    job_id = json_of(clean_app.submit())["id"]
    assert clean_app.client.delete(f"/v1/jobs/{job_id}").status_code == 204
    for path in ("", "/pages", "/result"):
        assert json_of(clean_app.client.get(f"/v1/jobs/{job_id}{path}"))["code"] == "unknown_job"
    assert clean_app.client.delete(f"/v1/jobs/{job_id}").status_code == 404


@pytest.mark.parametrize("name", ["..", "x", "%2e%2e", ".lock", "0" * 36, "a" * 3000])
def test_malformed_job_ids_are_not_found(app: NativeApp, name: str) -> None:
    assert app.client.get(f"/v1/jobs/{name}").status_code == 404


def test_jobs_of_other_formats_are_not_shown(clean_app: NativeApp) -> None:
    of_umi = json_of(post_document(clean_app.client, "/api/doc/upload", THREE, json='{"pageList": [1, 2]}'))["data"]
    assert clean_app.client.get(f"/v1/jobs/{of_umi}").status_code == 404
    assert json_of(clean_app.client.post("/api/doc/result", json={"id": of_umi}))["code"] == 100


def test_listing_needs_keys_and_submitting_needs_a_store(app: NativeApp) -> None:
    listed = app.client.get("/v1/jobs")
    assert (listed.status_code, json_of(listed)["code"]) == (403, "keys_needed")
    off = create_app(Settings(), app.reader).test_client().post("/v1/jobs", data=THREE)
    assert (off.status_code, json_of(off)["code"]) == (501, "jobs_off")
    assert "OCRSVC_JOBS_BYTES" in json_of(off)["remedy"]


def test_same_idempotency_key_returns_the_same_job(clean_app: NativeApp) -> None:
    def send(key: str, **fields: Any) -> Any:
        return clean_app.submit(headers={"Idempotency-Key": key}, **fields)

    first, again, other = send("one"), send("one"), send("two")
    assert json_of(first)["id"] == json_of(again)["id"] != json_of(other)["id"]
    changed = send("one", rotate="90")
    assert (changed.status_code, json_of(changed)["code"]) == (422, "idempotency_key_reused")
    assert send("x" * 256).status_code == 400


PAGES = 40
READ_AHEAD = 2
# So long that pages are still unread after the service was killed and restarted, and its progress requested.
LATENCY_S = 0.15


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobService, str]]:
    """A service that was killed and restarted twice while it read a job, and the job's id."""
    with job_service(tmp_path_factory.mktemp("jobs"), {"OCRSVC_FAKE_LATENCY_S": str(LATENCY_S)}) as running:
        job_id = running.submit(numbered_pdf(PAGES), format="pdf")
        for upto in (8, 16):
            running.wait(job_id, lambda job, upto=upto: job["pages"]["done"] >= upto)  # type: ignore[misc]
            running.restart()
            assert running.ask(job_id)["pages"]["done"] < PAGES
        yield running, job_id


@pytest.fixture
def service(killed: tuple[JobService, str]) -> JobService:
    return killed[0]


@pytest.fixture
def client(service: JobService) -> Iterator[Client]:
    with Client(service.server.url, timeout_s=20.0) as made:
        yield made


def test_a_job_of_a_service_that_is_killed_twice_has_each_page_once(killed: tuple[JobService, str]) -> None:
    service, job_id = killed
    job = service.wait(job_id, lambda job: job["state"] == "done")
    assert (job["pages"]["failed"], count_page_errors(list(service.pages(job_id)), PAGES)) == (0, (0, 0, True))
    (kept,) = service.folder.glob(f"*/{job_id}/out/pdf")
    assert kept.read_bytes().startswith(b"%PDF-")


def test_reading_of_a_deleted_job_ends_within_a_page(service: JobService) -> None:
    job_id = service.submit(numbered_pdf(PAGES))
    service.wait(job_id, lambda job: job["pages"]["done"] > 0)
    service.delete(job_id)
    read = service.server.metric("ocrsvc_images_total")
    assert service.server.metric('ocrsvc_stage_seconds_count{source="job",stage="total"}') > 0
    assert service.server.metric('ocrsvc_stage_seconds_count{source="request",stage="total"}') == 0
    # This job begins after the deleted one was abandoned.
    service.wait(service.submit(numbered_pdf(1)), lambda job: job["state"] == "done")
    assert service.server.metric("ocrsvc_images_total") <= read + READ_AHEAD + 1


def test_the_client_submits_a_document_and_fetches_its_result(client: Client) -> None:
    job = client.submit_job(numbered_pdf(20), formats=["text"], name="twenty.pdf")
    with pytest.raises(JobNotDone):
        job.result("text")
    pages = list(job.pages(30.0))
    assert [page.number for page in pages if isinstance(page, Page)] == list(range(1, 21))
    state = client.job(job.id).wait(30.0)
    assert (state.state, state.pages_done, state.data["name"]) == ("done", 20, "twenty.pdf")
    assert (job.result("text").count(b"\f"), len(json.loads(job.result())["pages"])) == (19, 20)
    ids = [client.submit_job(pdf(GRAY), idempotency_key=key).id for key in ("k", "k", None, None)]
    assert (ids[0] == ids[1], len(set(ids))) == (True, 3)


def test_a_cancelled_job_is_deleted(client: Client) -> None:
    job = client.submit_job(numbered_pdf(40))
    with pytest.raises(DeadlineExceeded, match="It continues"):
        job.wait(0.0)
    job.cancel()
    with pytest.raises(UnknownJob):
        job.state()


def test_the_client_raises_the_services_errors(client: Client, service: JobService) -> None:
    with pytest.raises(KeysNeeded):
        client.jobs()
    with pytest.raises(BadOption, match="callback"):
        client.submit_job(pdf(GRAY), callback="https://callbacks.example", callback_secret="s" * 20)
    with Client([service.server.url, "http://127.0.0.1:1"]) as several, pytest.raises(BadOption, match="several"):
        several.submit_job(pdf(GRAY))


def test_command_line_controls_jobs(service: JobService, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pdf").write_bytes(numbered_pdf(2))
    url = ("--url", service.server.url)
    assert run(["job", "submit", str(tmp_path / "a.pdf"), "--format", "text", "--pages", "2", "--wait", *url]) == 0
    job_id = capsys.readouterr().out.strip()
    assert run(["job", "status", job_id, *url]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["name"], status["pages"]["total"]) == ("done", "a.pdf", 1)
    assert run(["job", "result", job_id, "--format", "text", "-o", str(tmp_path / "a.txt"), *url]) == 0
    assert (tmp_path / "a.txt").read_text()
    assert run(["job", "cancel", job_id, *url]) == 0
    assert run(["job", "status", job_id, *url]) == UnknownJob.exit_code
    assert run(["job", "list", *url]) == KeysNeeded.exit_code
