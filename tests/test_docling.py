"""docling-serve's API: synchronous conversions, archives, and tasks that the client polls."""

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from documents import BLACK, GRAY, pdf
from image_support import png
from jobs_support import JobsApp
from support import data_of
from web_support import TEXT, as_base64, json_of

from ocrsvc.adapters.docling.conversion import parse_conversion, values_of_form
from ocrsvc.settings.settings import Settings

PNG = png(64, 32)
WHITE = b"1 g 0 0 10000 10000 re f"
WAIT_S = 30.0
SEEN = "200x100 auto True False None"


class DoclingApp(JobsApp):
    """The application with the requests of docling-serve."""

    def convert(self, data: bytes, name: str = "a.pdf", path: str = "/v1/convert/file", **fields: Any) -> Any:
        return self.client.post(path, data={"files": (io.BytesIO(data), name), **fields})

    def job(self, data: bytes, **fields: Any) -> str:
        response = self.convert(data, path="/v1/convert/file/async", **fields)
        assert response.status_code == 200, response.text
        task_id: str = json_of(response)["task_id"]
        return task_id

    def ask(self, task_id: str, wait: float = 0.0) -> Any:
        return json_of(self.client.get(f"/v1/status/poll/{task_id}?wait={wait}"))

    def done(self, data: bytes, **fields: Any) -> str:
        task_id = self.job(data, **fields)
        self.work_until(lambda: self.ask(task_id)["task_status"] in {"success", "failure"})
        return task_id


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoclingApp]:
    with DoclingApp.running(tmp_path_factory.mktemp("jobs"), Settings(max_pages=12)) as found:
        yield found


def test_only_requested_formats_are_returned(app: DoclingApp) -> None:
    sent: Any = {"to_formats": ["md", "json", "html", "doctags"], "do_table_structure": "false"}
    answer = json_of(app.convert(PNG, "folder/page one.png", **sent))
    document = answer["document"]
    assert (answer["status"], answer["errors"], document["filename"]) == ("success", [], "page one.png")
    assert document["text_content"] is None
    assert TEXT.splitlines()[0] in document["md_content"].replace("\\", "")
    assert f"<p>{TEXT}</p>" in document["html_content"]
    assert document["doctags_content"].startswith(f"<doctag><text><loc_125><loc_125><loc_375><loc_250>{TEXT}</text>\n")
    first = document["json_content"]["texts"][0]
    assert (first["text"], first["prov"][0]["page_no"]) == (TEXT, 1)
    assert first["prov"][0]["bbox"] == {"l": 16, "t": 8, "r": 48, "b": 16, "coord_origin": "TOPLEFT"}


def test_refusals_name_no_parameter_of_another_api(app: DoclingApp) -> None:
    many = json_of(app.convert(pdf(*[GRAY] * 13)))
    assert "Request at most 12 pages at a time" in many["detail"]
    assert "pages=" not in many["detail"]
    image = json_of(app.convert(PNG, "a.png", do_ocr="false"))
    assert "text_layer" not in json.dumps(image)


def test_table_replaces_its_lines(app: DoclingApp) -> None:
    document = json_of(app.convert(PNG, to_formats=["json", "html", "doctags"]))["document"]
    content = document["json_content"]
    assert [child["$ref"] for child in content["body"]["children"]] == ["#/tables/0", "#/texts/0"]
    data = content["tables"][0]["data"]
    assert (data["num_rows"], data["num_cols"], data["table_cells"][0]["text"]) == (1, 2, TEXT)
    assert f"<td>{TEXT}</td>" in document["html_content"]
    assert f"<fcel>{TEXT}<ecel><nl></otsl>" in document["doctags_content"]


def test_page_break_is_inserted_and_blank_pages_are_skipped(app: DoclingApp) -> None:
    sent: Any = {"to_formats": ["md", "json"], "md_page_break_placeholder": "<<break>>"}
    document = json_of(app.convert(pdf(GRAY, WHITE, GRAY), **sent))["document"]
    assert document["md_content"].count("<<break>>") == 1
    pages = {item["prov"][0]["page_no"] for item in document["json_content"]["texts"]}
    assert (pages, list(document["json_content"]["pages"])) == ({1, 3}, ["1", "2", "3"])


@pytest.mark.parametrize("sent", [["2", "9223372036854775807"], "[2, 3]"])
def test_only_requested_pages_are_read(app: DoclingApp, sent: object) -> None:
    document = json_of(app.convert(pdf(GRAY, GRAY, GRAY), to_formats="json", page_range=sent))["document"]
    assert list(document["json_content"]["pages"]) == ["2", "3"]


def test_abort_on_error_decides_whether_a_failed_page_fails_the_document(app: DoclingApp) -> None:
    answer = json_of(app.convert(pdf(GRAY, BLACK)))
    assert (answer["status"], [error["page_no"] for error in answer["errors"]]) == ("partial_success", [2])
    assert SEEN in answer["document"]["md_content"]
    answer = json_of(app.convert(pdf(GRAY, BLACK), abort_on_error="true"))
    assert (answer["status"], answer["document"]["md_content"]) == ("failure", None)


@pytest.mark.parametrize(
    ("fields", "text_layer"),
    [([], "ignore"), ([("force_ocr", b"false")], "auto"), ([("do_ocr", b"false"), ("force_ocr", b"true")], "only")],
)
def test_pdf_text_layer_is_used_on_request(fields: list[tuple[str, object]], text_layer: str) -> None:
    asked = parse_conversion(values_of_form(fields), None)
    assert asked.read_options(has_models=False).text_layer == text_layer


def test_do_ocr_false_uses_no_engine_and_a_bad_document_fails_with_200(app: DoclingApp) -> None:
    answer = json_of(app.convert(pdf(GRAY), do_ocr="false"))
    assert (answer["status"], answer["document"]["md_content"].strip()) == ("success", "")
    answer = json_of(app.convert(b"hello", "a.docx"))
    assert answer["status"] == "failure"
    assert "plain text" in answer["errors"][0]["error_message"]


def test_several_files_are_returned_as_an_archive_without_failed_ones(app: DoclingApp) -> None:
    files = [(io.BytesIO(data), name) for data, name in ((PNG, "a.png"), (PNG, "../a.png"), (b"no", "b.png"))]
    response = app.client.post("/v1/convert/file", data={"files": files, "to_formats": ["text", "json"]})
    packed = zipfile.ZipFile(io.BytesIO(response.data))
    assert response.content_type == "application/zip"
    assert packed.namelist() == ["a.txt", "a.json", "a_2.txt", "a_2.json"]
    assert json.loads(packed.read("a.json"))["schema_name"] == "DoclingDocument"


@pytest.mark.parametrize(
    "body",
    [
        {"sources": [{"kind": "file", "base64_string": as_base64(PNG), "filename": "a.png"}]},
        {"file_sources": [{"base64_string": as_base64(PNG), "filename": "a.png"}], "options": None, "target": None},
        {"sources": [{"base64_string": as_base64(PNG), "filename": "a.png"}], "target": {"kind": "inbody"}},
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_sources_in_json_are_read_in_both_versions(app: DoclingApp, version: str, body: dict[str, Any]) -> None:
    answer = json_of(app.client.post(f"/{version}/convert/source", json=body))
    assert (answer["status"], answer["document"]["filename"]) == ("success", "a.png")


@pytest.mark.parametrize(("fields", "named"), data_of("docling_refused")["fields"])
@pytest.mark.parametrize("path", ["/v1/convert/file", "/v1/convert/file/async"])
def test_unsupported_options_are_refused(app: DoclingApp, path: str, fields: dict[str, Any], named: str) -> None:
    response = app.convert(PNG, path=path, **fields)
    assert response.status_code == 422
    assert named in json_of(response)["detail"]


@pytest.mark.parametrize(("body", "named"), data_of("docling_refused")["bodies"])
def test_invalid_sources_are_refused(app: DoclingApp, body: dict[str, Any], named: str) -> None:
    response = app.client.post("/v1/convert/source", json=body)
    if named == "to_formats":
        # An empty list of formats counts as absent, as in every other adapter.
        assert json_of(response)["status"] == "failure"
        return
    assert response.status_code == 422
    assert named in json_of(response)["detail"]


def test_asynchronous_request_is_polled_and_fetched(app: DoclingApp) -> None:
    task_id = app.job(pdf(GRAY, BLACK), to_formats=["md", "json"], page_range=["1", "2"])
    assert app.ask(task_id)["task_status"] == "pending"
    early = app.client.get(f"/v1/result/{task_id}")
    # The client takes this message to mean "not ready yet".
    assert (early.status_code, json_of(early)["detail"].startswith("Task result not found")) == (404, True)
    with app.working():
        status = app.ask(task_id, wait=WAIT_S)
    assert (status["task_status"], status["task_meta"]["num_succeeded"]) == ("success", 1)
    answer = json_of(app.client.get(f"/v1/result/{task_id}"))
    assert (answer["status"], [error["page_no"] for error in answer["errors"]]) == ("partial_success", [2])
    assert SEEN in answer["document"]["md_content"]
    assert answer["document"]["json_content"]["texts"][-1]["text"] == SEEN


def test_asynchronous_archive_and_abort_on_error(app: DoclingApp) -> None:
    response = app.client.get(f"/v1/result/{app.done(pdf(GRAY), target_type='zip')}")
    assert zipfile.ZipFile(io.BytesIO(response.data)).namelist() == ["a.md"]
    answer = json_of(app.client.get(f"/v1/result/{app.done(pdf(GRAY, BLACK), abort_on_error='true')}"))
    assert (answer["status"], answer["document"]["md_content"]) == ("failure", None)


@pytest.mark.parametrize("path", ["/v1/status/poll/{}", "/v1/result/{}"])
def test_unknown_task_or_one_of_another_adapter_is_404(app: DoclingApp, path: str) -> None:
    upload = {"file": (io.BytesIO(pdf(GRAY)), "a.pdf"), "json": "{}"}
    other = json_of(app.client.post("/api/doc/upload", data=upload))["data"]
    for name in ("none", "%2e%2e", other):
        response = app.client.get(path.format(name))
        assert (response.status_code, json_of(response)) == (404, {"detail": "Task not found."})


def test_asynchronous_request_takes_one_document(app: DoclingApp) -> None:
    files = [(io.BytesIO(PNG), "a.png"), (io.BytesIO(PNG), "b.png")]
    response = app.client.post("/v1/convert/file/async", data={"files": files})
    assert (response.status_code, "one document" in json_of(response)["detail"]) == (422, True)


def test_time_limit_covers_all_documents(app: DoclingApp, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    read = app.reader.read

    def noting(data: bytes, options: Any, limit_s: float, context: Any) -> Any:
        limits.append(limit_s)
        return read(data, options, limit_s, context)

    monkeypatch.setattr(app.reader, "read", noting)
    files = [(io.BytesIO(PNG), f"{number}.png") for number in range(3)]
    response = app.client.post("/v1/convert/file", data={"files": files, "document_timeout": "60"})
    assert response.status_code == 200, response.text
    assert 60 >= limits[0] > limits[1] > limits[2] > 0
