"""Azure Document Intelligence: documents are read as jobs; results have positions, and can be searchable PDFs."""

from collections.abc import Iterator
from typing import Any

import pypdfium2
import pytest
from documents import BLACK, GRAY, pdf
from image_support import png
from jobs_support import JobsApp
from keys_support import bearer, keys_in
from support import data_of
from web_support import CONFIDENCE, TEXT, as_base64, json_of, running_app

from ocrsvc.adapters.azure_read.analyze_result import PageText, Scale, page_members
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.results import Box, Line, Page
from ocrsvc.settings.settings import Settings

PAGE = png()
SCAN = pdf(GRAY, BLACK, GRAY)
READ = "/documentintelligence/documentModels/prebuilt-read"
LAYOUT = "/documentintelligence/documentModels/prebuilt-layout"
VERSION = "api-version=2024-11-30"
NOWHERE = "00000000-0000-0000-0000-000000000000"
WAIT_S = 30.0
FIRST = [16.0, 8.0, 48.0, 8.0, 48.0, 16.0, 16.0, 16.0]
"""The polygon of `KnownEngine`'s first line on a page of 64 x 32 pixels."""


class AzureApp(JobsApp):
    """The application with Azure's requests."""

    def analyze(self, data: bytes = PAGE, query: str = "", model: str = READ) -> Any:
        kind = "application/octet-stream"
        return self.client.post(f"{model}:analyze?{VERSION}&{query}", data=data, content_type=kind)

    def read(self, data: bytes = PAGE, query: str = "", model: str = READ) -> Any:
        where = self.analyze(data, query, model).headers["Operation-Location"]
        self.work_until(lambda: json_of(self.client.get(where))["status"] in {"succeeded", "failed"})
        return where, json_of(self.client.get(where))


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureApp]:
    with AzureApp.running(tmp_path_factory.mktemp("jobs")) as found:
        yield found


def test_document_is_a_job_with_a_result(azure: AzureApp) -> None:
    taken = azure.analyze()
    assert (taken.status_code, taken.headers["Retry-After"], taken.data) == (202, "1", b"")
    where = taken.headers["Operation-Location"]
    assert where.startswith(f"http://localhost{READ}/analyzeResults/")
    assert where.endswith(f"?{VERSION}")
    waiting = azure.client.get(where)
    assert (json_of(waiting)["status"], waiting.headers["Retry-After"]) == ("notStarted", "1")
    assert waiting.headers["apim-request-id"] == waiting.headers["X-Request-Id"]
    assert azure.client.get(where.replace("?", "/pdf?")).status_code == 404
    assert azure.client.delete(where).status_code == 204
    assert [azure.client.get(where).status_code, azure.client.delete(where).status_code] == [404, 404]


def test_lines_and_words_have_polygons_and_spans(azure: AzureApp) -> None:
    _, answer = azure.read()
    result = answer["analyzeResult"]
    assert (result["apiVersion"], result["modelId"]) == ("2024-11-30", "prebuilt-read")
    assert (result["stringIndexType"], result["contentFormat"], result["styles"]) == ("textElements", "text", [])
    (page,) = result["pages"]
    assert [page[name] for name in ("pageNumber", "angle", "width", "height", "unit")] == [1, 0, 64, 32, "pixel"]
    content = result["content"]
    assert content.startswith(f"{TEXT}\n64x32 ")
    assert page["spans"] == [{"offset": 0, "length": len(content)}]
    assert page["lines"][0] == {"content": TEXT, "polygon": FIRST, "spans": [{"offset": 0, "length": len(TEXT)}]}
    # `KnownEngine`'s word does not occur in its line's text; its span is not checked.
    assert page["words"][0]["confidence"] == round(CONFIDENCE, 3)
    pieces = [content[span["offset"] :][: span["length"]] for line in page["lines"] for span in line["spans"][:1]]
    assert pieces == [line["content"] for line in page["lines"]]
    assert [paragraph["content"] for paragraph in result["paragraphs"]] == content.split("\n")
    assert result["paragraphs"][0]["boundingRegions"] == [{"pageNumber": 1, "polygon": FIRST}]
    assert "role" not in result["paragraphs"][0]


def test_pages_of_a_pdf_are_measured_in_inches_and_failed_ones_are_warnings(azure: AzureApp) -> None:
    where, answer = azure.read(SCAN, "output=pdf&pages=1-2")
    result = answer["analyzeResult"]
    (page,) = result["pages"]
    with pypdfium2.PdfDocument(SCAN) as document:
        width, height = document[0].get_size()
    assert (page["unit"], page["width"], page["height"]) == ("inch", width / 72, height / 72)
    (warning,) = result["warnings"]
    assert (warning["code"], warning["target"]) == ("engine_failed", "page 2")
    made = azure.client.get(where.replace("?", "/pdf?"))
    assert made.content_type == "application/pdf"
    with pypdfium2.PdfDocument(made.data) as document:
        assert len(document) == 3
        assert TEXT in document[0].get_textpage().get_text_bounded()


def test_document_without_readable_pages_fails(azure: AzureApp) -> None:
    _, answer = azure.read(png(shade=0))
    assert (answer["status"], answer["error"]["code"]) == ("failed", "EngineFailed")
    assert "analyzeResult" not in answer


def test_layouts_have_tables_regions_and_markdown(azure: AzureApp) -> None:
    _, answer = azure.read(PAGE, "outputContentFormat=markdown", LAYOUT)
    result = answer["analyzeResult"]
    assert (result["contentFormat"], result["modelId"]) == ("markdown", "prebuilt-layout")
    (table,) = result["tables"]
    assert (table["rowCount"], table["columnCount"], table["cells"][0]["content"]) == (1, 2, TEXT)
    assert result["paragraphs"][0]["role"] in {"title", "sectionHeading"}
    assert result["content"].startswith("#")


def test_base64_and_older_paths_are_supported(azure: AzureApp) -> None:
    old = "/formrecognizer/documentModels/prebuilt-read"
    sent = {"base64Source": as_base64(PAGE)}
    taken = azure.client.post(f"{old}:analyze?api-version=2023-07-31", json=sent)
    where = taken.headers["Operation-Location"]
    assert where.startswith(f"http://localhost{old}/analyzeResults/")
    assert json_of(azure.client.get(where))["status"] == "notStarted"
    assert azure.client.get(where.replace("read", "layout")).status_code == 404
    azure.client.delete(where)


@pytest.mark.parametrize(("path", "sent", "status", "codes"), data_of("azure_errors")["errors"])
def test_errors_use_azure_form(azure: AzureApp, path: str, sent: dict[str, Any], status: int, codes: list[str]) -> None:
    given = {**sent, "data": PAGE} if sent.get("data") == "$PAGE" else sent
    response = azure.client.post(f"/documentintelligence/documentModels/{path}", **given)
    error = json_of(response)["error"]
    assert (response.status_code, [error["code"], error["innererror"]["code"]]) == (status, codes)
    assert response.headers["x-ms-error-code"] == codes[0]


@pytest.mark.parametrize("path", ["", "/pdf"])
def test_unknown_result_id_is_404(azure: AzureApp, path: str) -> None:
    response = azure.client.get(f"{READ}/analyzeResults/{NOWHERE}{path}")
    assert (response.status_code, json_of(response)["error"]["code"]) == (404, "NotFound")


def test_service_without_job_store_reports_it() -> None:
    with running_app(Settings()) as app:
        response = app.test_client().post(f"{READ}:analyze", data=PAGE)
    assert (response.status_code, json_of(response)["error"]["innererror"]["code"]) == (501, "JobsOff")


def test_azure_key_header_is_accepted_and_results_belong_to_the_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    jobs = JobStore(tmp_path_factory.mktemp("jobs"), 10**8, 3600.0)
    with keys_in(tmp_path_factory.mktemp("keys")) as keys:
        keys.add("one", "jobs")
        keys.add("other", "jobs")
        keys.add("reader")
        with running_app(Settings(keys=keys.address), keys.gate, jobs) as app:
            client = app.test_client()
            own = {"Ocp-Apim-Subscription-Key": keys.secrets["one"]}
            refused = client.post(f"{READ}:analyze", data=PAGE)
            assert (refused.status_code, json_of(refused)["error"]["code"]) == (401, "401")
            assert client.post(f"{READ}:analyze", data=PAGE, headers=bearer(keys.secrets["reader"])).status_code == 403
            where = client.post(f"{READ}:analyze", data=PAGE, headers=own).headers["Operation-Location"]
            statuses = [client.get(where, headers=bearer(keys.secrets[name])).status_code for name in ("one", "other")]
            assert statuses == [200, 404]


BOX: Box = ((0, 0), (1, 0), (1, 1), (0, 1))


@pytest.mark.parametrize(
    ("index_type", "spans"), [("unicodeCodePoint", [(5, 2), (8, 1)]), ("utf16CodeUnit", [(5, 4), (10, 1)])]
)
def test_spans_use_the_requested_index_type(index_type: str, spans: list[tuple[int, int]]) -> None:
    page = Page(10, 10, 90, tuple(Line(text, 0.5, BOX) for text in ("😀😀", "b")))
    members = page_members(page, PageText(page.text, 5, index_type), Scale(None))
    found = [line["spans"][0] for line in members["lines"]]
    assert [(span["offset"], span["length"]) for span in found] == spans
    assert [word["span"] for word in members["words"]] == found
    assert members["angle"] == -90
