"""Jobs of a real service: read to their end whatever is killed, and left and fetched by the client library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import GRAY, pdf
from jobs_support import JobService, check_once, job_service, numbered_pdf

from ocrsvc.cli.main import run
from ocrsvc.client import Client
from ocrsvc.client.response import Page
from ocrsvc.errors import BadOption, DeadlineExceeded, JobNotDone, KeysNeeded, UnknownJob

PAGES = 40
READ_AHEAD = 2
# So long that the rest of the pages takes longer than killing the service, and than asking for what is not there yet.
LATENCY_S = 0.15


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobService, str]]:
    """A service that was killed twice while it read a job, and started again; and the job."""
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
    assert (job["pages"]["failed"], check_once(list(service.pages(job_id)), PAGES)) == (0, (0, 0, True))
    (kept,) = service.folder.glob(f"*/{job_id}/out/pdf")
    assert kept.read_bytes().startswith(b"%PDF-")


def test_a_job_that_is_deleted_ends_within_a_page_and_no_client_has_waited_for_its_pages(service: JobService) -> None:
    job_id = service.submit(numbered_pdf(PAGES))
    service.wait(job_id, lambda job: job["pages"]["done"] > 0)
    service.delete(job_id)
    read = service.server.metric("ocrsvc_images_total")
    assert service.server.metric('ocrsvc_stage_seconds_count{source="job",stage="total"}') > 0
    assert service.server.metric('ocrsvc_stage_seconds_count{source="request",stage="total"}') == 0
    # Begun when the other is left.
    service.wait(service.submit(numbered_pdf(1)), lambda job: job["state"] == "done")
    assert service.server.metric("ocrsvc_images_total") <= read + READ_AHEAD + 1


def test_a_document_is_left_and_fetched(client: Client) -> None:
    job = client.submit_job(numbered_pdf(20), formats=["text"], name="twenty.pdf")
    with pytest.raises(JobNotDone):
        job.result("text")
    pages = list(job.pages(30.0))
    assert [page.number for page in pages if isinstance(page, Page)] == list(range(1, 21))
    state = client.job(job.id).wait(30.0)
    assert (state.state, state.pages_done, state.data["name"]) == ("done", 20, "twenty.pdf")
    assert job.result("text").count(b"\f") == 19
    assert len(json.loads(job.result())["pages"]) == 20


def test_a_job_that_is_cancelled_is_gone(client: Client) -> None:
    job = client.submit_job(numbered_pdf(40))
    with pytest.raises(DeadlineExceeded, match="It continues"):
        job.wait(0.0)
    job.cancel()
    with pytest.raises(UnknownJob):
        job.state()


def test_what_cannot_be_is_raised_in_its_class(client: Client, service: JobService) -> None:
    with pytest.raises(KeysNeeded):
        client.jobs()
    with pytest.raises(BadOption, match="callback"):
        client.submit_job(pdf(GRAY), callback="https://told.example", callback_secret="s" * 20)
    with Client([service.server.url, "http://127.0.0.1:1"]) as several, pytest.raises(BadOption, match="several"):
        several.submit_job(pdf(GRAY))


def test_the_same_key_gives_the_same_job_and_none_gives_one_for_each(client: Client) -> None:
    ids = [client.submit_job(pdf(GRAY), idempotency_key=key).id for key in ("k", "k", None, None)]
    assert (ids[0] == ids[1], len(set(ids))) == (True, 3)


def test_the_command_line_leaves_a_document_and_fetches_it(
    service: JobService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
