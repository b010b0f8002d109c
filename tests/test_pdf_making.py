"""All APIs share a worker's limit for making PDFs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, pdf
from jobs_support import JobsApp, post_document
from web_support import json_of

from ocrsvc.results import no_check
from ocrsvc.serving.limiter import Limiter

SCAN = pdf(GRAY)


class JobsService(JobsApp):
    """The application in process, with methods that read a document as a job."""

    def read_job(self) -> str:
        job_id = json_of(self.client.post("/v1/jobs", data=SCAN))["id"]
        self.work_until(lambda: json_of(self.client.get(f"/v1/jobs/{job_id}"))["state"] == "done")
        return str(job_id)

    def read_umi_job(self) -> str:
        job_id = json_of(post_document(self.client, "/api/doc/upload", SCAN))["data"]
        self.work_until(lambda: json_of(self.client.post("/api/doc/result", json={"id": job_id}))["is_done"])
        return str(job_id)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[JobsService]:
    with JobsService.running(tmp_path) as service:
        # No waiting: a request that finds the limit taken is refused at once.
        service.reader.pdf_making = Limiter(1, 0)
        yield service


def test_all_apis_share_the_limit_for_making_pdfs(service: JobsService) -> None:
    client, job_id, umi_id = service.client, service.read_job(), service.read_umi_job()
    requests: dict[str, Callable[[], Any]] = {
        "native": lambda: client.post("/v1/ocr?format=pdf", data=SCAN),
        "a zip": lambda: client.post("/v1/ocr?format=text,pdf", data=SCAN),
        "TurboOCR": lambda: client.post("/ocr/pdf?output=pdf", data=SCAN, content_type="application/pdf"),
        "jobs": lambda: client.get(f"/v1/jobs/{job_id}/result?format=pdf"),
        "Umi-OCR": lambda: client.post("/api/doc/download", json={"id": umi_id, "file_types": ["pdfLayered"]}),
    }
    with service.reader.pdf_making.take(no_check):
        assert {name: send().status_code for name, send in requests.items()} == dict.fromkeys(requests, 503)
        assert client.get(f"/v1/jobs/{job_id}/result?format=md").status_code == 200
        texts = {"id": umi_id, "file_types": ["txt", "csv"]}
        assert client.post("/api/doc/download", json=texts).status_code == 200
    assert {name: send().status_code for name, send in requests.items()} == dict.fromkeys(requests, 200)
