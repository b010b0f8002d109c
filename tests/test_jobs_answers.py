"""Results of long jobs: made once, page by page, and sent from disk."""

import csv
import io
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
import requests
from documents import GRAY, pdf
from jobs_support import JobsApp, job_service, numbered_pdf, post_document
from web_support import json_of

from ocrsvc.errors import QueueFull
from ocrsvc.formats.page_serialization import pack_page
from ocrsvc.jobs.job import Job
from ocrsvc.results import Box, Line, Page
from ocrsvc.serving.memory_budget import Share

BOX: Box = ((10.0, 10.0), (90.0, 10.0), (90.0, 30.0), (10.0, 30.0))
LINES, PAGES = 40, 220
MB = 1 << 20
AZURE = "/documentintelligence/documentModels/prebuilt-read"
FORMATS = {"to_formats": ["md", "json", "html", "text", "doctags"]}
UMI_FILES = ("txt", "txtPlain", "jsonl", "csv", "pdfOneLayer")


def add_pages(job: Job, count: int) -> None:
    """Add `count` dense pages to the job, as if they had been read."""
    for number in range(1, count + 1):
        lines = (Line(f"as long as two lines of page {number} in a book, " * 3, 0.9, BOX),) * LINES
        page = pack_page(Page(1000, 1400, 0, lines, number))
        job.append_page({"number": number, "page": page, "took_s": 0.1, "at_s": 1.0})


class AdaptersApp(JobsApp):
    """The application; creates jobs through several adapters."""

    def docling(self, **fields: Any) -> tuple[Job, str]:
        """Submit a document; returns its job and the path of the result."""
        sent = self.client.post("/v1/convert/file/async", data={"files": (io.BytesIO(pdf(GRAY)), "a.pdf"), **fields})
        task_id = json_of(sent)["task_id"]
        return self._found(task_id), f"/v1/result/{task_id}"

    def azure(self) -> tuple[Job, str]:
        """Submit a document; returns its job and the path of the result."""
        kind = "application/pdf"
        sent = self.client.post(f"{AZURE}:analyze?api-version=2024-11-30", data=pdf(GRAY), content_type=kind)
        where = urlsplit(sent.headers["Operation-Location"]).path
        return self._found(where.rpartition("/")[2]), where

    def umi(self) -> Job:
        """Upload a document; returns its job."""
        return self._found(json_of(post_document(self.client, "/api/doc/upload", pdf(GRAY)))["data"])

    def umi_pages(self, job: Job, **options: object) -> Any:
        """Request the job's pages; returns the answer."""
        with self.client.post("/api/doc/result", json={"id": job.id, "is_data": True, **options}) as answer:
            return json_of(answer)

    def _found(self, job_id: str) -> Job:
        job = self.jobs.find(job_id)
        assert job is not None
        return job


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdaptersApp]:
    with AdaptersApp.running(tmp_path_factory.mktemp("jobs")) as found:
        yield found


def result_fetcher(app: AdaptersApp, way: str) -> Callable[[], Any]:
    """Make a function that fetches the result of a long job, whose pages have been read."""
    if way in {"docling", "azure"}:
        job, where = app.docling(**FORMATS) if way == "docling" else app.azure()
    else:
        job, where = app.umi(), ""
    add_pages(job, PAGES)
    job.finish()
    if where:
        return lambda: app.client.get(where)
    if way not in UMI_FILES:
        sent = {"id": job.id, "is_data": True, "is_unread": False, "format": way}
        return lambda: app.client.post("/api/doc/result", json=sent)
    made = {"id": job.id, "file_types": [way]}
    return lambda: app.client.get(json_of(app.client.post("/api/doc/download", json=made))["data"])


@pytest.mark.parametrize("way", ["docling", "azure", "dict", "text", *UMI_FILES])
def test_a_long_result_needs_the_memory_of_one_page(app: AdaptersApp, way: str) -> None:
    fetch = result_fetcher(app, way)
    tracemalloc.start()
    try:
        size_bytes = 0
        with fetch() as answer:
            assert answer.status_code == 200
            for piece in answer.response:
                size_bytes += len(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size_bytes > (MB if "pdf" not in way else 1 << 16)
    assert peak_bytes < 1.5 * MB


def test_pages_are_refused_while_no_memory_is_left(app: AdaptersApp, monkeypatch: pytest.MonkeyPatch) -> None:
    job = app.umi()
    add_pages(job, 2)
    with monkeypatch.context() as patched:
        patched.setattr(Share, "take", Mock(side_effect=QueueFull("no memory")))
        refused = app.client.post("/api/doc/result", json={"id": job.id, "is_data": True})
    assert (refused.status_code, len(app.umi_pages(job)["data"])) == (503, 2)


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "－1")


@pytest.mark.parametrize("text", [*FORMULAS, "a=1;=2", "plain"])
def test_no_cell_of_a_csv_file_is_a_formula(app: AdaptersApp, text: str) -> None:
    job = app.umi()
    job.append_page({"number": 1, "page": pack_page(Page(9, 9, 0, (Line(text, 0.9, BOX),), 1)), "took_s": 0, "at_s": 0})
    job.finish()
    made = json_of(app.client.post("/api/doc/download", json={"id": job.id, "file_types": ["csv"]}))
    sent = app.client.get(made["data"]).data.decode()
    (_, cell, _) = list(csv.reader(io.StringIO(sent, newline="")))[1]
    assert cell == (f"'{text}" if text in FORMULAS else text)
    assert f'"{cell}"' in sent


def test_an_archive_without_a_readable_page_is_refused(app: AdaptersApp) -> None:
    job, where = app.docling(target_type="zip")
    job.append_page({"number": 1, "error": "It is black.", "code": "engine_failed"})
    job.finish()
    answer = app.client.get(where)
    assert (answer.status_code, "It is black." in answer.text) == (422, True)


def test_clients_that_do_not_read_a_long_result_hold_no_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    env = {"OCRSVC_FAKE_TEXT": "dense " * 16_000, "OCRSVC_THREADS": "2"}
    with job_service(tmp_path_factory.mktemp("service"), env) as service, ExitStack() as stack:
        job_id = service.submit(numbered_pdf(100), format="ndjson")
        service.wait(job_id, lambda job: job["state"] == "done")
        url = f"{service.server.url}/v1/jobs/{job_id}/result?format=ndjson"
        whole = requests.get(url, timeout=30).content
        assert len(whole) > 18 * MB
        before = service.peak_bytes()
        address = urlsplit(url)
        wires = [stack.enter_context(socket.create_connection((address.hostname, address.port), 30)) for _ in range(12)]
        head = f"GET {address.path}?{address.query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        for wire in wires:
            wire.sendall(head.encode())
        assert requests.get(f"{service.server.url}/healthz", timeout=30).ok
        for wire in wires:
            answer = bytearray()
            while piece := wire.recv(MB):
                answer += piece
            assert bytes(answer).partition(b"\r\n\r\n")[2] == whole
        assert service.peak_bytes() - before < 2 * len(whole)
