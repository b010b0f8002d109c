"""Umi-OCR's documents: read completely even if workers die, and sent in the original's formats."""

import csv
import fcntl
import io
import json
import os
import signal
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pypdfium2
import pytest
import requests
from documents import BLACK, GRAY, pdf
from golden import differences, read_golden
from image_support import box, png
from jobs_support import JobsApp, post_document
from support import Server, data_of, filled, run_server, wait_until
from web_support import TEXT, HeldEngine, json_of, running_reader

from ocrsvc.adapters.umi_ocr.answers import DocumentOptions
from ocrsvc.adapters.umi_ocr.document_files import write_text_pdf
from ocrsvc.adapters.umi_ocr.documents import name_of, numbers_of
from ocrsvc.app import create_app
from ocrsvc.errors import DeadlineExceeded, SettingsError
from ocrsvc.jobs.job import BEGUN
from ocrsvc.jobs.job_folder import LASTING, PREFIX, make_folder
from ocrsvc.jobs.job_runner import MAX_TRIES
from ocrsvc.plugins import adapters
from ocrsvc.results import Line, Page, ReadOptions
from ocrsvc.serving.work_queue import NeverStarted
from ocrsvc.settings.settings import Settings

WHITE = b"1 g 0 0 10000 10000 re f"
PAGES = 20
DATA = data_of("umi_documents")
KINDS = ("txt", "txtPlain", "jsonl", "csv", "pdfLayered", "pdfOneLayer")


def grays(count: int) -> bytes:
    return pdf(*(b"%.3f g 0 0 10000 10000 re f" % ((number + 1) / (count + 1)) for number in range(count)))


class UmiApp(JobsApp):
    """The application with Umi-OCR's requests for documents."""

    def upload(self, data: bytes, name: str = "a.pdf", **options: Any) -> Any:
        return json_of(post_document(self.client, "/api/doc/upload", data, name, json=json.dumps(options)))

    def ask(self, task_id: object, **how: object) -> Any:
        return json_of(self.client.post("/api/doc/result", json={"id": task_id, **how}))

    def read(self, data: bytes, **options: Any) -> str:
        """Upload a document and wait until its task is done; returns the task's id."""
        task_id: str = self.upload(data, **options)["data"]
        self.work_until(lambda: self.ask(task_id)["is_done"])
        return task_id

    def make(self, task_id: str, *kinds: str, **how: object) -> Any:
        return json_of(self.client.post("/api/doc/download", json={"id": task_id, "file_types": kinds, **how}))

    def download(self, task_id: str, *kinds: str, **how: object) -> bytes:
        return bytes(self.client.get(self.make(task_id, *kinds, **how)["data"]).data)


@pytest.fixture(scope="module")
def umi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UmiApp]:
    with UmiApp.running(tmp_path_factory.mktemp("jobs"), Settings(job_pages=12)) as found:
        yield found


@pytest.fixture(scope="module")
def done(umi: UmiApp) -> str:
    """The id of a finished task with a page of text and a blank page."""
    return umi.read(pdf(GRAY, WHITE))


def test_pages_have_the_originals_format_and_reported_ones_come_again_only_on_request(umi: UmiApp) -> None:
    task_id = umi.read(grays(2))
    seen = [len(umi.ask(task_id, is_data=True, is_unread=unread)["data"]) for unread in (True, True, False)]
    assert seen == [2, 0, 2]
    body = umi.ask(task_id, is_data=True, is_unread=False)
    assert (body["code"], body["state"], body["processed_count"], body["pages_count"]) == (100, "success", 2, 2)
    first, second = body["data"]
    assert (first["page"], first["path"], second["fileName"]) == (1, "a.pdf - 1", "a.pdf - 2")
    assert (first["data"][0]["text"], set(first["data"][0])) == (TEXT, {"text", "score", "box", "end"})


@pytest.mark.parametrize(("options", "pages"), DATA["pages of five"])
def test_pages_are_chosen_as_the_original_does(options: dict[str, Any], pages: list[int]) -> None:
    assert numbers_of(DocumentOptions.from_values(options), 5, 5) == pages


@pytest.mark.parametrize(
    ("data", "options", "codes"),
    [
        (grays(2), {"tbpu.ignoreArea": [[[0, 0], [9999, 9999]]], "tbpu.ignoreRangeStart": -1}, [100, 101]),
        (pdf(GRAY, BLACK, WHITE), {}, [100, 902, 101]),
    ],
    ids=["an area ignored on one page", "a page that fails"],
)
def test_a_page_does_not_affect_others(umi: UmiApp, data: bytes, options: dict[str, Any], codes: list[int]) -> None:
    body = umi.ask(umi.read(data, **options), is_data=True, is_unread=False)
    assert (body["state"], [page["code"] for page in body["data"]]) == ("success", codes)


def test_all_files_come_in_one_archive(umi: UmiApp, done: str) -> None:
    packed = zipfile.ZipFile(io.BytesIO(umi.download(done, *KINDS, ingore_blank=False)))
    files = {name.removeprefix("[OCR]_a"): packed.read(name) for name in packed.namelist()}
    assert set(files) == {".txt", ".p.txt", ".jsonl", ".csv", ".layered.pdf", ".text.pdf"}
    assert files[".txt"].decode().count("≦ a.pdf - ") == 2
    assert files[".p.txt"].decode().splitlines()[0] == TEXT
    assert [json.loads(line)["code"] for line in files[".jsonl"].splitlines()] == [100, 101]
    rows = list(csv.reader(io.StringIO(files[".csv"].decode())))
    assert (rows[0], rows[2]) == (["Name", "OCR", "Path"], ["a.pdf - 2", "", "a.pdf - 2"])
    for kind in (".layered.pdf", ".text.pdf"):
        assert TEXT in texts_of(files[kind])[0]


def test_blank_pages_are_omitted_by_default(umi: UmiApp, done: str) -> None:
    counts = [umi.download(done, "txt", **how).decode().count("≦") for how in ({}, {"ignore_blank": False})]
    assert counts == [1, 2]


@pytest.mark.parametrize(("asked", "code"), DATA["refused downloads"])
def test_refused_downloads_have_the_originals_code(umi: UmiApp, done: str, asked: dict[str, Any], code: int) -> None:
    answer = umi.client.post("/api/doc/download", json={"id": done, **asked})
    assert (answer.status_code, json_of(answer)["code"]) == (200, code)


@pytest.mark.parametrize(("options", "code"), DATA["refused options"])
def test_refused_options_have_the_originals_code(umi: UmiApp, options: dict[str, Any], code: int) -> None:
    before = len(umi.jobs.all())
    assert umi.upload(grays(2), **options)["code"] == code
    assert len(umi.jobs.all()) == before


def test_too_many_pages_keep_their_status(umi: UmiApp) -> None:
    assert post_document(umi.client, "/api/doc/upload", pdf(*[GRAY] * 13)).status_code == 413


def test_the_options_are_reported_with_their_defaults(umi: UmiApp) -> None:
    body = json_of(umi.client.get("/api/doc/get_options"))
    assert (body["pageRangeEnd"]["default"], body["tbpu.ignoreArea"]["default"]) == (-1, [])


@pytest.fixture(scope="module")
def new(umi: UmiApp) -> str:
    return str(umi.upload(grays(1))["data"])


@pytest.mark.parametrize("title", DATA["recorded"])
def test_responses_match_recordings_of_the_original(umi: UmiApp, done: str, new: str, title: str) -> None:
    expected = read_golden("umi_ocr.txt")[title]
    method, path, sent = filled(DATA["recorded"][title], NEW=new, DONE=done)
    if "file" in sent:
        name, text = sent.pop("file")
        sent["data"] = {"file": (io.BytesIO(text.encode() or grays(1)), name), **sent.get("data", {})}
    answer = umi.client.open(f"/api/doc/{path}", method=method, **sent)
    assert (answer.status_code, answer.mimetype) == (expected.status, expected.mimetype)
    body = json_of(answer)
    assert body["code"] == expected.json["code"]
    if title == "doc result dict all":
        # The recording has no blank page.
        assert body["data"].pop()["code"] == 101
    assert differences(expected.json, body) == []


@pytest.mark.parametrize(
    "name", ["..", "../secret", "/etc/passwd", "%2e%2e", ".alive", "", "x" * 300, 5, None, ["a"], "a\0b", {"id": 1}]
)
def test_malformed_job_ids_are_not_found(umi: UmiApp, name: object) -> None:
    (umi.jobs.folder.parent / "secret").mkdir(exist_ok=True)
    assert umi.ask(name)["code"] in {102, 103}
    assert umi.jobs.find(name) is None


@pytest.mark.parametrize("name", ["..%2Ffile", "%2e%2e%2fjob.json", "file", ".", "..", "..%2f..%2f.alive"])
def test_only_files_that_were_made_can_be_downloaded(umi: UmiApp, done: str, name: str) -> None:
    umi.make(done, "txt")
    assert umi.client.get(f"/api/doc/download/{done}/{name}").status_code == 404
    assert umi.client.get(f"/api/doc/download/{done}/%5BOCR%5D_a.txt").status_code == 200


@pytest.mark.parametrize(("sent", "kept"), DATA["names"])
def test_client_file_name_is_sanitized(sent: str, kept: str) -> None:
    assert name_of(sent) == kept


@pytest.mark.parametrize(("name", "made"), [("../../汉字.pdf", "[OCR]__.._汉字.txt"), ("汉" * 120 + ".pdf", "")])
def test_files_with_any_name_are_read_and_returned(umi: UmiApp, name: str, made: str) -> None:
    task_id = umi.upload(grays(1), name)["data"]
    umi.work_until(lambda: umi.ask(task_id)["is_done"])
    answer = umi.make(task_id, "txt")
    assert (answer["code"], umi.client.get(answer["data"]).status_code) == (100, 200)
    assert made in {"", answer["name"]}


def test_cleared_job_is_not_found(umi: UmiApp) -> None:
    task_id = umi.read(grays(1))
    assert json_of(umi.client.get(f"/api/doc/clear/{task_id}")) == {"code": 100, "data": "Success"}
    assert json_of(umi.client.get(f"/api/doc/clear/{task_id}"))["code"] == 101
    assert umi.ask(task_id)["code"] == 103
    assert not (umi.jobs.folder / task_id).exists()


def test_only_folders_of_killed_services_are_removed(tmp_path: Path) -> None:
    left, strange = tmp_path / f"{PREFIX}left", tmp_path / "strange"
    for folder in (left, strange):
        folder.mkdir()
        (folder / ".alive").touch()
    living = tmp_path / f"{PREFIX}living"
    living.mkdir()
    with (living / ".alive").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        made = make_folder(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {"strange", living.name, made.name}
    assert made.stat().st_mode & 0o777 == 0o700


def test_unusable_folder_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="create it first"):
        make_folder(tmp_path / "missing")


def test_page_that_kills_workers_is_given_up(umi: UmiApp) -> None:
    task_id = umi.upload(grays(2))["data"]
    job = umi.jobs.find(task_id)
    assert job is not None
    job.put(BEGUN, {1: MAX_TRIES})
    umi.work_until(lambda: umi.ask(task_id)["is_done"])
    assert [page["code"] for page in umi.ask(task_id, is_data=True)["data"]] == [902, 100]


def test_waiting_page_does_not_count_as_slow() -> None:
    engine = HeldEngine()
    with running_reader(opener=lambda: engine, threads=1) as reader:
        try:
            # The first page has time to begin even on a busy machine.
            for expected, deadline_s in ((DeadlineExceeded, 3.0), (NeverStarted, 0.5)):
                with pytest.raises(DeadlineExceeded) as late:
                    reader.read(png(), ReadOptions(), deadline_s)
                assert type(late.value) is expected
            # The engine still holds the first page.
            assert engine.count == 1
        finally:
            engine.go.set()


def test_unreadable_job_does_not_block_others(umi: UmiApp) -> None:
    ids = [umi.upload(grays(1))["data"] for _ in range(2)]
    (umi.jobs.folder / ids[0] / "job.json").write_bytes(b"no JSON\n")
    umi.work_until(lambda: umi.ask(ids[1])["is_done"])
    job = umi.jobs.find(ids[0])
    assert job is not None
    assert job.progress().state == "failure"
    umi.jobs.clear(job)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("served")
    with run_server({"OCRSVC_JOBS_DIR": str(folder), "OCRSVC_FAKE_LATENCY_S": "0.15"}, ["-w", "2"]) as server:
        server.wait_for("READY in", count=2)
        yield server, folder
    assert [path.name for path in folder.iterdir()] == [LASTING]


def reading_pid(job: Path) -> int:
    lock = job / "lock"
    if not lock.exists():
        return 0
    inode = lock.stat().st_ino
    rows = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return next((int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].endswith(f":{inode}")), 0)


def test_job_of_killed_workers_is_finished_by_others_exactly_once(served: tuple[Server, Path]) -> None:
    server, folder = served

    def ask(**more: object) -> Any:
        # Each request has a new connection, which either worker may accept.
        return requests.post(f"{server.url}/api/doc/result", json={"id": task_id, **more}, timeout=30).json()

    def more_than(pages: int) -> bool:
        return bool(ask()["processed_count"] > pages)

    sent = requests.post(f"{server.url}/api/doc/upload", files={"file": ("a.pdf", grays(PAGES))}, timeout=30)
    task_id = sent.json()["data"]
    (job,) = folder.glob(f"*/{task_id}")
    ended = set()
    # SIGTERM lets the second worker end in an orderly way.
    for how in (signal.SIGKILL, signal.SIGTERM):
        before = ask()["processed_count"]
        wait_until(partial(more_than, before + 1))
        pid = wait_until(lambda: reading_pid(job))
        assert pid in server.workers()
        os.kill(pid, how)
        ended.add(pid)
    assert len(ended) == 2
    assert ask()["processed_count"] < PAGES
    wait_until(lambda: ask()["is_done"])
    body = ask(is_data=True)
    assert (body["state"], [page["page"] for page in body["data"]]) == ("success", list(range(1, PAGES + 1)))
    assert len({page["data"][1]["text"] for page in body["data"]}) == PAGES


def test_documents_without_job_store_are_refused_in_the_originals_format(umi: UmiApp) -> None:
    client = create_app(Settings(), umi.reader).test_client()
    answer = client.post("/api/doc/upload", base_url=f"http://127.0.0.1:{adapters()['umi_ocr'].port}")
    assert (answer.status_code, list(json_of(answer))) == (501, ["code", "data"])


def texts_of(data: bytes) -> list[str]:
    document = pypdfium2.PdfDocument(data)
    return [page.get_textpage().get_text_range() for page in document]


WORDS = ("正品促销 hello", "한국어 ñ 𠀀 →")
# A page of 72 x 36 points, read at 200 dpi.
READ = Page(200, 100, 0, (Line(WORDS[0], 0.9, box(20, 10, 180, 30)), Line(WORDS[1], 0.9, box(20, 50, 180, 70))), 2)


def test_text_only_pdf_has_page_size_and_text() -> None:
    whole = io.BytesIO()
    write_text_pdf([READ, Page(400, 400, 0, (), 3)], 2, 200, whole)
    made = whole.getvalue()
    assert texts_of(made) == ["\r\n".join(WORDS), ""]
    assert [page.get_size() for page in pypdfium2.PdfDocument(made)] == [(72, 36), (144, 144)]
