"""Documents that are read while nobody is connected belong to the key that left them, and their pages count for it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from jobs_support import reading_jobs
from keys_support import Keys, answer, bearer, keys_in
from pydantic import SecretStr
from support import wait_until
from web_support import json_of, running_reader

from ocrsvc.app import create_app
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings

UNKNOWN = 103


@dataclass(slots=True)
class Place:
    """The document API with keys, in this process."""

    client: FlaskClient
    keys: Keys
    jobs: JobStore
    reader: Reader

    def upload(self, name: str, pages: int) -> Any:
        """What the holder of a key is answered who leaves a document of so many pages."""
        form = {"file": (io.BytesIO(pdf(*[GRAY] * pages)), "a.pdf")}
        return self.client.post("/api/doc/upload", data=form, headers=bearer(self.keys.secrets[name]))

    def ask(self, name: str, task_id: str, **how: object) -> Any:
        """What the holder of a key is answered who asks for a result."""
        headers = bearer(self.keys.secrets[name])
        return json_of(self.client.post("/api/doc/result", json={"id": task_id, **how}, headers=headers))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Documents are read within the block."""
        with reading_jobs(self.jobs, self.reader, gate=self.keys.gate):
            yield


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with keys_in(tmp_path) as keys:
        callbacks = {"callback_hosts": ("told.example",), "callback_secret": SecretStr("a secret of the service")}
        settings = Settings(keys=keys.address, **callbacks)  # type: ignore[arg-type]
        jobs = JobStore(tmp_path / "jobs", 10**8, 3600.0)
        jobs.folder.mkdir()
        keys.add("anna", "jobs", pages_a_day=5)
        keys.add("berta", "jobs")
        with running_reader(settings) as reader:
            yield Place(create_app(settings, reader, jobs=jobs, gate=keys.gate).test_client(), keys, jobs, reader)


@pytest.mark.parametrize(("pages", "status", "code"), [(4, 429, 903), (6, 413, 204)])
def test_job_with_more_pages_than_left_is_refused(place: Place, pages: int, status: int, code: int) -> None:
    answer(place.keys.enter(pages=2), 2)
    response = place.upload("anna", pages)
    assert (response.status_code, json_of(response)["code"]) == (status, code)
    assert place.jobs.all() == []


def test_job_stops_when_the_keys_pages_are_used_up(place: Place) -> None:
    first, second = (json_of(place.upload("anna", 3))["data"] for _ in range(2))
    with place.working():
        wait_until(lambda: place.ask("anna", second)["is_done"])
    assert place.ask("anna", first)["state"] == "success"
    failed = place.ask("anna", second)
    assert (failed["state"], failed["processed_count"]) == ("failure", 2)
    assert place.keys.usage().today == 5


def test_jobs_of_a_revoked_key_are_not_read(place: Place) -> None:
    task_id = json_of(place.upload("anna", 2))["data"]
    place.keys.revoke("anna")
    with place.working():
        wait_until(place.jobs.all()[0].is_done)
    job = place.jobs.find(task_id)
    assert job is not None
    assert (job.progress().state, job.page_count()) == ("failure", 0)


def test_a_job_is_visible_only_to_its_key(place: Place) -> None:
    task_id = json_of(place.upload("anna", 1))["data"]
    mine, others = (bearer(place.keys.secrets[name]) for name in ("anna", "berta"))
    with place.working():
        wait_until(lambda: place.ask("anna", task_id)["is_done"])
    made = place.client.post("/api/doc/download", json={"id": task_id, "file_types": ["txt"]}, headers=mine)
    url = json_of(made)["data"]
    assert place.ask("berta", task_id)["code"] == UNKNOWN
    assert place.client.get(url, headers=others).status_code == 404
    assert json_of(place.client.get(f"/api/doc/clear/{task_id}", headers=others))["code"] != 100
    assert place.client.get(url, headers=mine).status_code == 200
    assert json_of(place.client.get(f"/api/doc/clear/{task_id}", headers=mine))["code"] == 100
    assert place.ask("anna", task_id)["code"] == UNKNOWN


def test_a_re_added_key_cannot_see_earlier_jobs(place: Place) -> None:
    read, waiting = (json_of(place.upload("anna", 1))["data"] for _ in range(2))
    with place.working():
        wait_until(lambda: place.ask("anna", read)["is_done"])
    place.keys.revoke("anna")
    place.keys.now_s += 1.0
    place.keys.add("anna", "jobs")
    before = place.keys.usage().today
    with place.working():
        wait_until(lambda: all(job.is_done() for job in place.jobs.all()))
    for task_id in (read, waiting):
        assert place.ask("anna", task_id)["code"] == UNKNOWN
    assert place.keys.usage().today == before


def test_jobs_belong_to_their_key_and_count_for_it(place: Place) -> None:
    def ask(name: str, method: str, path: str = "", **more: Any) -> Any:
        return place.client.open(f"/v1/jobs{path}", method=method, headers=bearer(place.keys.secrets[name]), **more)

    ids = [
        json_of(ask("anna", "POST", data={"file": (io.BytesIO(pdf(*[GRAY] * pages)), "a.pdf")}))["id"]
        for pages in (1, 2)
    ]
    with place.working():
        wait_until(lambda: all(job.is_done() for job in place.jobs.all()))
    assert place.keys.usage().today == 3
    assert [job["id"] for job in json_of(ask("anna", "GET"))["jobs"]] == ids[::-1]
    assert [job["id"] for job in json_of(ask("anna", "GET", "?limit=1"))["jobs"]] == ids[1:]
    assert json_of(ask("berta", "GET"))["jobs"] == []
    for method, path in (("GET", ""), ("GET", "/pages"), ("GET", "/result"), ("DELETE", "")):
        assert ask("berta", method, f"/{ids[0]}{path}").status_code == 404
    assert ask("anna", "GET", f"/{ids[0]}/result").status_code == 200
    place.keys.add("clara", "read")
    assert [ask("clara", *asked).status_code for asked in (("POST",), ("GET", f"/{ids[0]}"))] == [403, 403]


def test_a_callback_of_a_key_needs_no_secret_of_its_own(place: Place) -> None:
    form = {"file": (io.BytesIO(pdf(GRAY)), "a.pdf"), "callback": "https://told.example/x"}
    answer = place.client.post("/v1/jobs", data=form, headers=bearer(place.keys.secrets["anna"]))
    assert (answer.status_code, json_of(answer)["callback"]["state"]) == (202, "waiting")
