"""Mistral's OCR API, which shares the native path: documents from data URLs, uploaded files and signed URLs."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from image_support import png
from keys_support import bearer, keys_in
from support import Clock, data_of, filled
from web_support import TEXT, as_base64, json_of, running_app

from ocrsvc.adapters.mistral.uploaded_files import EXPIRES, SIGNATURE, SignatureRefused, UploadedFiles
from ocrsvc.errors import BodyTooLarge
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.settings.settings import Settings

PAGE = png()
DATA_URL = "data:image/png;base64," + as_base64(PAGE)
SCAN = pdf(GRAY, GRAY, GRAY)
KEEP_S = 3600
NOWHERE = "00000000-0000-0000-0000-000000000000"
ERRORS = data_of("mistral_errors")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    jobs = JobStore(tmp_path_factory.mktemp("jobs"), 10**8, KEEP_S)
    with running_app(Settings(), jobs=jobs) as app:
        yield app.test_client()


def ocr(client: FlaskClient, document: object, **more: object) -> Any:
    return client.post("/v1/ocr", json={"model": "mistral-ocr-latest", "document": document, **more})


def upload(client: FlaskClient, data: bytes = SCAN, **how: Any) -> Any:
    form = {"file": (io.BytesIO(data), "scan.pdf"), "purpose": "ocr"}
    return json_of(client.post("/v1/files", data=form, **how))


@pytest.mark.parametrize(
    "document",
    [
        {"type": "document_url", "document_url": DATA_URL},
        {"type": "image_url", "image_url": DATA_URL},
        {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "high"}},
        {"image_url": DATA_URL},
    ],
)
def test_a_document_in_a_data_url_is_read(client: FlaskClient, document: object) -> None:
    answer = json_of(ocr(client, document))
    assert (answer["model"], answer["document_annotation"]) == ("mistral-ocr-latest", None)
    assert answer["usage_info"] == {"pages_processed": 1, "doc_size_bytes": len(PAGE)}
    (page,) = answer["pages"]
    assert page["markdown"].replace("\\", "").startswith(TEXT)
    assert (page["index"], page["images"]) == (0, [])
    assert page["dimensions"] == {"dpi": Settings().pdf_dpi, "height": 32, "width": 64}


@pytest.mark.parametrize(
    ("pages", "read"), [(None, [0, 1, 2]), ([2, 0], [0, 2]), ("1-2", [1, 2]), ("0,2-9", [0, 2]), ([1], [1])]
)
def test_page_numbers_start_at_zero(client: FlaskClient, pages: object, read: list[int]) -> None:
    document = {"type": "document_url", "document_url": "data:application/pdf;base64," + as_base64(SCAN)}
    assert [page["index"] for page in json_of(ocr(client, document, pages=pages))["pages"]] == read


def test_tables_and_confidences_appear_on_request(client: FlaskClient) -> None:
    document = {"type": "image_url", "image_url": DATA_URL}
    (plain,) = json_of(ocr(client, document))["pages"]
    assert not {"tables", "confidence_scores"} & set(plain)
    (page,) = json_of(ocr(client, document, table_format="html", confidence_scores_granularity="word"))["pages"]
    assert [(table["id"], table["format"]) for table in page["tables"]] == [("tbl-0.html", "html")]
    assert page["tables"][0]["content"].startswith("<table>")
    ((word, sure),) = [(one["text"], one["confidence"]) for one in page["confidence_scores"]["word_confidence_scores"]]
    assert (word, sure) == ("True", 0.9877)
    (page,) = json_of(ocr(client, document, confidence_scores_granularity="page", include_blocks=True))["pages"]
    places = ("top_left_x", "top_left_y", "bottom_right_x", "bottom_right_y")
    block = page["blocks"][0]
    assert (block["type"], block["content"], [block[place] for place in places]) == ("text", TEXT, [16, 8, 48, 16])
    scores = {"average_page_confidence_score": 0.7438, "minimum_page_confidence_score": 0.5}
    assert page["confidence_scores"] == scores


@pytest.mark.parametrize(("document", "more", "status", "code"), ERRORS["errors"])
def test_errors_have_mistrals_form(
    client: FlaskClient, document: object, more: dict[str, object], status: int, code: str | None
) -> None:
    texts = {"PAGE": DATA_URL, "NOWHERE": NOWHERE, "TEXT": as_base64(b"no image")}
    response = ocr(client, filled(document, **texts), **filled(more, **texts))
    answer = json_of(response)
    assert (response.status_code, answer["object"], answer["raw_status_code"]) == (status, "error", status)
    assert answer["message"]
    assert code is None or answer["type"] == code


def test_request_without_document_goes_to_the_native_api(client: FlaskClient) -> None:
    answers = [
        client.post("/v1/ocr", json={"image": as_base64(PAGE)}),
        client.post("/v1/ocr", data=PAGE),
        client.post("/v1/ocr", data={"file": (io.BytesIO(PAGE), "a.png")}),
    ]
    assert [json_of(answer)["pages_total"] for answer in answers] == [1, 1, 1]
    refused = client.post("/v1/ocr", json={"image": 5})
    assert (refused.status_code, refused.content_type) == (400, "application/problem+json")


def test_a_file_is_uploaded_read_listed_and_deleted(client: FlaskClient) -> None:
    file = upload(client)
    assert (file["object"], file["bytes"], file["filename"], file["purpose"]) == ("file", len(SCAN), "scan.pdf", "ocr")
    assert file["expires_at"] - file["created_at"] == KEEP_S
    answer = json_of(ocr(client, {"type": "file", "file_id": file["id"]}))
    assert len(answer["pages"]) == 3
    assert client.get(f"/v1/files/{file['id']}/content").data == SCAN
    assert json_of(client.get(f"/v1/files/{file['id']}"))["deleted"] is False
    listed = json_of(client.get("/v1/files?page=0&page_size=5&search=scan"))
    assert ([found["id"] for found in listed["data"]], listed["total"]) == ([file["id"]], 1)
    assert json_of(client.get("/v1/files?page=1"))["data"] == []
    deleted = json_of(client.delete(f"/v1/files/{file['id']}"))
    assert deleted == {"id": file["id"], "object": "file", "deleted": True}
    assert client.get(f"/v1/files/{file['id']}").status_code == 404
    assert json_of(client.get("/v1/files"))["data"] == []


def test_signed_url_works_on_any_host_name(client: FlaskClient) -> None:
    file = upload(client)
    url = json_of(client.get(f"/v1/files/{file['id']}/url?expiry=1"))["url"]
    assert url.startswith(f"http://localhost/v1/files/{file['id']}/content?")
    assert client.get(url).data == SCAN
    behind_a_proxy = url.replace("http://localhost", "https://ocr.example.com:8443")
    for sent in (url, behind_a_proxy):
        assert len(json_of(ocr(client, {"type": "document_url", "document_url": sent}))["pages"]) == 3
    for changed in (url[:-1] + ("1" if url[-1] == "0" else "0"), url.replace(f"{EXPIRES}=", f"{EXPIRES}=9")):
        assert client.get(changed).status_code == 403
        assert ocr(client, {"type": "document_url", "document_url": changed}).status_code == 403
    client.delete(f"/v1/files/{file['id']}")
    assert ocr(client, {"type": "document_url", "document_url": url}).status_code == 404


@pytest.mark.parametrize(("method", "path", "status"), ERRORS["files"])
def test_invalid_file_requests_are_refused(client: FlaskClient, method: str, path: str, status: int) -> None:
    path = filled(path, NOWHERE=NOWHERE, SIGNATURE=SIGNATURE, EXPIRES=EXPIRES)
    response = client.open(f"/v1/files{path}", method=method)
    assert (response.status_code, json_of(response)["object"]) == (status, "error")


def test_wrong_purpose_and_expiry_are_refused(client: FlaskClient) -> None:
    form = {"file": (io.BytesIO(SCAN), "a.pdf"), "purpose": "fine-tune"}
    assert client.post("/v1/files", data=form).status_code == 400
    file = upload(client)
    for hours in ("0", "99999", "x", "1.5"):
        assert client.get(f"/v1/files/{file['id']}/url?expiry={hours}").status_code == 400
    client.delete(f"/v1/files/{file['id']}")


def test_file_belongs_to_its_api_key_but_signed_url_needs_none(tmp_path: Path) -> None:
    jobs = JobStore(tmp_path, 10**8, 3600.0)
    (tmp_path / "keys").mkdir()
    with keys_in(tmp_path / "keys") as keys:
        own, other = (bearer(keys.add(name)) for name in ("one", "other"))
        with running_app(Settings(keys=keys.address), keys.gate, jobs) as app:
            client = app.test_client()
            assert client.get("/v1/files").status_code == 401
            file = upload(client, headers=own)
            for path in ("", "/url", "/content"):
                assert client.get(f"/v1/files/{file['id']}{path}", headers=other).status_code == 404
            assert client.delete(f"/v1/files/{file['id']}", headers=other).status_code == 404
            sent = {"document": {"type": "file", "file_id": file["id"]}}
            assert client.post("/v1/ocr", json=sent, headers=other).status_code == 404
            assert client.post("/v1/ocr", json=sent, headers=own).status_code == 200
            assert [len(json_of(client.get("/v1/files", headers=asks))["data"]) for asks in (own, other)] == [1, 0]
            url = json_of(client.get(f"/v1/files/{file['id']}/url", headers=own))["url"]
            signed = {"document": {"type": "document_url", "document_url": url}}
            assert client.post("/v1/ocr", json=signed, headers=other).status_code == 200


def test_expired_files_are_removed_with_expired_jobs(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    jobs = JobStore(tmp_path, 4000, KEEP_S, clock, wall=clock)
    UploadedFiles(jobs.uploads).add(b"x", "a", "one", None)
    clock.now_s += KEEP_S + 1
    jobs.sweep()
    assert [path for path in (tmp_path / "uploads").iterdir() if path.is_dir()] == []


def files_in(folder: Path, clock: Clock, keep_s: float = 1.0) -> UploadedFiles:
    folder.mkdir(exist_ok=True)
    return UploadedFiles(JobStore(folder / "uploads", 100_000, keep_s, clock, wall=clock, max_jobs=2))


def test_signed_url_expires_at_its_time_and_with_its_file(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    files = files_in(tmp_path / "files", clock, 2 * 3600)
    file = files.add(b"x", "a", "caller", None)
    short, long = (f"http://x/v1/files/{file.job.id}/content?{files.signed_query(file, hours)}" for hours in (1, 100))
    assert files.signed_id(short) == files.signed_id(long) == file.job.id
    # Another process with the same folder has the same secret; a service with another folder does not.
    assert files_in(tmp_path / "files", clock).signed_id(short) == file.job.id
    with pytest.raises(SignatureRefused):
        files_in(tmp_path / "others", clock).signed_id(short)
    clock.now_s += 3600
    with pytest.raises(SignatureRefused):
        files.signed_id(short)
    assert files.signed_id(long) == file.job.id
    clock.now_s += 3600
    with pytest.raises(SignatureRefused):
        files.signed_id(long)
    assert files.find(file.job.id) is None


@pytest.mark.parametrize("url", ["http://x/a", f"http://x/b?{SIGNATURE}=1", f"http://[?{SIGNATURE}", "x" * 9999])
def test_other_urls_are_not_recognized_as_signed(tmp_path: Path, url: str) -> None:
    assert files_in(tmp_path, Clock(1000.0)).signed_id(url) is None


def test_file_store_is_bounded_fair_and_removes_old_files(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    files = files_in(tmp_path, clock, 60)
    with pytest.raises(BodyTooLarge):
        files.add(bytes(100_001), "a", "one", None)
    for name in ("a", "b"):
        files.add(bytes(40_000), name, "one", None)
    clock.now_s += 1
    # A caller's oldest file is evicted first; other callers' files only if they exceed their share.
    files.add(bytes(40_000), "c", "one", None)
    assert sorted(file.record.name for file in files.all()) in (["a", "c"], ["b", "c"])
    files.add(bytes(40_000), "d", "other", None)
    assert sorted(file.record.caller for file in files.all()) == ["one", "other"]
    files.add(b"", "e", "other", None)
    assert len(files.all()) == 2
