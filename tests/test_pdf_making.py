"""PDFs that are made for requests: one limit for a worker, whichever APIs they came by."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from jobs_support import reading_jobs
from support import wait_until
from web_support import KnownEngine, json_of

from ocrsvc.app import create_app
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import no_check
from ocrsvc.serving.limiter import Limiter
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

SCAN = pdf(GRAY)
WAIT_S = 30.0


class Place:
    """The application, and documents that are left with it and read."""

    def __init__(self, folder: Path) -> None:
        self.reader = Reader(Settings(), ThreadPlan(1, 4, 2), engine_opener=KnownEngine)
        # Nobody waits, so that whoever finds it taken is refused at once.
        self.reader.pdf_making = Limiter(1, 0)
        self.jobs = JobStore(folder, 10**8, 3600.0)
        self.client: FlaskClient = create_app(Settings(), self.reader, jobs=self.jobs).test_client()

    def read_job(self) -> str:
        """The id of a job of which nothing was made yet."""
        job_id = json_of(self.client.post("/v1/jobs", data=SCAN))["id"]
        self._read(lambda: json_of(self.client.get(f"/v1/jobs/{job_id}"))["state"] == "done")
        return str(job_id)

    def read_of_umi(self) -> str:
        """The id of a document of Umi-OCR's."""
        sent = self.client.post("/api/doc/upload", data={"file": (io.BytesIO(SCAN), "a.pdf")})
        job_id = json_of(sent)["data"]
        self._read(lambda: json_of(self.client.post("/api/doc/result", json={"id": job_id}))["is_done"])
        return str(job_id)

    def _read(self, is_done: Callable[[], bool]) -> None:
        with reading_jobs(self.jobs, self.reader):
            wait_until(is_done)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    place.reader.start()
    yield place
    place.reader.stop(5.0)


def test_all_apis_share_the_places_for_making_pdfs(place: Place) -> None:
    client, job_id, umi_id = place.client, place.read_job(), place.read_of_umi()
    ways: dict[str, Callable[[], Any]] = {
        "native": lambda: client.post("/v1/ocr?format=pdf", data=SCAN),
        "a zip": lambda: client.post("/v1/ocr?format=text,pdf", data=SCAN),
        "TurboOCR": lambda: client.post("/ocr/pdf?output=pdf", data=SCAN, content_type="application/pdf"),
        "jobs": lambda: client.get(f"/v1/jobs/{job_id}/result?format=pdf"),
        "Umi-OCR": lambda: client.post("/api/doc/download", json={"id": umi_id, "file_types": ["pdfLayered"]}),
    }
    with place.reader.pdf_making.take(no_check):
        assert {name: send().status_code for name, send in ways.items()} == dict.fromkeys(ways, 503)
        assert client.get(f"/v1/jobs/{job_id}/result?format=md").status_code == 200
    assert {name: send().status_code for name, send in ways.items()} == dict.fromkeys(ways, 200)


class WatchedLimiter(Limiter):
    """One at once and one that waits, which is told."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.waits = threading.Event()

    @contextmanager
    def take(self, check: Callable[[], object], caller: str = "") -> Iterator[None]:
        def waiting() -> None:
            self.waits.set()
            check()

        with super().take(waiting, caller):
            yield


def test_a_text_file_of_umi_ocr_does_not_wait_behind_a_pdf(place: Place) -> None:
    umi_id, app = place.read_of_umi(), place.client.application
    limiter = place.reader.pdf_making = WatchedLimiter()

    def send(kind: str) -> int:
        sent = {"id": umi_id, "file_types": [kind]}
        limit_s = {"X-Request-Timeout": str(WAIT_S)}
        return app.test_client().post("/api/doc/download", json=sent, headers=limit_s).status_code

    with ThreadPoolExecutor(1) as other:
        with limiter.take(no_check):
            waiting = other.submit(send, "pdfLayered")
            assert limiter.waits.wait(WAIT_S)
            assert [send(kind) for kind in ("txt", "csv")] == [200, 200]
            assert not waiting.done()
        assert waiting.result(WAIT_S) == 200
