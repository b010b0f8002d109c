"""PDFs that are made for requests: one limit for a worker, whichever APIs they came by."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, pdf
from jobs_support import JobsApp, post_document
from web_support import json_of

from ocrsvc.results import no_check
from ocrsvc.serving.limiter import Limiter

SCAN = pdf(GRAY)
WAIT_S = 30.0


class Place(JobsApp):
    """The application, and documents that are left with it and read."""

    def read_job(self) -> str:
        job_id = json_of(self.client.post("/v1/jobs", data=SCAN))["id"]
        self.work_until(lambda: json_of(self.client.get(f"/v1/jobs/{job_id}"))["state"] == "done")
        return str(job_id)

    def read_of_umi(self) -> str:
        job_id = json_of(post_document(self.client, "/api/doc/upload", SCAN))["data"]
        self.work_until(lambda: json_of(self.client.post("/api/doc/result", json={"id": job_id}))["is_done"])
        return str(job_id)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place.running(tmp_path) as place:
        # Nobody waits, so that whoever finds it taken is refused at once.
        place.reader.pdf_making = Limiter(1, 0)
        yield place


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
