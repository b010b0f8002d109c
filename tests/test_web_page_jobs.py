"""The web page in a real browser: documents with too many pages for one request, tables, and the page's layout."""

import re
from collections.abc import Iterator

import httpx
import pytest
from browser_support import Open, opening
from documents import tiff
from image_support import png
from playwright.sync_api import Browser, FilePayload, Page, Route, expect
from support import ROOT, Server

DOCUMENT: FilePayload = {"name": "book.tif", "mimeType": "image/tiff", "buffer": tiff([120, 130, 140])}
IMAGE: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": png(120, 40, 255)}
BROKEN: FilePayload = {"name": "b.png", "mimeType": "image/png", "buffer": b"text"}
WIDTHS_PX = (390, 768, 1366, 1920)
OVERLAPS = (ROOT / "tests" / "data" / "overlaps.js").read_text("utf-8")


SERVER_ENV = {"OCRSVC_MAX_PAGES": "2"}


@pytest.fixture
def opened(browser: Browser, server: Server) -> Iterator[Open]:
    with opening(browser, server.url) as open_page:
        yield open_page


def read_document(page: Page) -> None:
    """Read a document of three pages; a request may have two."""
    page.set_input_files("#files", [DOCUMENT])
    expect(page.locator("#items [data-state=done]")).to_have_count(1)
    expect(page.locator("#leaf-of")).to_have_text("/ 3")


def test_a_long_document_becomes_a_job_that_survives_closing_the_tab(opened: Open) -> None:
    page = opened()
    read_document(page)
    assert re.search(r"#jobs=[0-9a-f-]{36}$", page.url)
    other = page.context.new_page()
    other.goto(page.url)
    page.close()
    expect(other.locator("#name")).to_have_text("book.tif")
    expect(other.locator("#leaf-of")).to_have_text("/ 3")
    other.wait_for_function("() => document.querySelector('.sheet img')?.naturalWidth === 120")
    other.get_by_role("button", name="Next page").click()
    expect(other.locator(".lines button").first).to_contain_text("130x32")
    other.wait_for_function("() => document.querySelector('.sheet img')?.naturalWidth === 130")
    expect(other.get_by_label("Rotate right")).to_be_disabled()


def test_files_of_a_job_are_made_without_reading_it_again(opened: Open) -> None:
    page = opened()
    read_document(page)
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
    with page.expect_download() as download:
        page.get_by_role("button", name="Searchable PDF").click()
    assert download.value.suggested_filename == "book.pdf"
    for tab in ("TSV", "Markdown"):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator("#panel pre")).to_contain_text("140x32")
    assert posted == []


def test_removed_job_is_deleted_and_a_missing_one_is_reported(opened: Open) -> None:
    page = opened()
    read_document(page)
    url = page.url
    with page.expect_response(lambda response: response.request.method == "DELETE") as deleted:
        page.locator("#clear").click()
    assert deleted.value.status == 204
    assert "#" not in page.url
    page.goto(url)
    expect(page.get_by_role("alert")).to_contain_text("You have no job")
    expect(page.get_by_role("alert").get_by_role("button")).to_have_text("Choose another file")


def test_a_job_is_followed_through_a_failed_request(opened: Open) -> None:
    page, failures = opened(), iter([True])
    page.route("**/v1/jobs/*/pages*", lambda route: route.abort() if next(failures, False) else route.continue_())
    read_document(page)


def test_document_is_refused_where_jobs_are_off(opened: Open) -> None:
    page = opened()
    page.route(
        re.compile("/v1/jobs"),
        lambda route: route.fulfill(status=501, json={"title": "Jobs are off", "code": "jobs_off", "status": 501}),
    )
    page.set_input_files("#files", [DOCUMENT])
    expect(page.get_by_role("alert")).to_contain_text("The document has too many pages")


def test_tables_and_bar_codes_are_shown_and_copied(opened: Open) -> None:
    page = opened()
    box = [[0, 0], [60, 0], [60, 20], [0, 20]]
    cell = {"box": box, "lines": [], "row_span": 1, "column_span": 1}
    cells = [
        {**cell, "row": 0, "column": 0, "column_span": 2, "text": 'A "b", c'},
        {**cell, "row": 1, "column": 0, "text": "1"},
        {**cell, "row": 1, "column": 1, "text": "2\n3"},
    ]

    def add_table(route: Route) -> None:
        answer = route.fetch().json()
        answer["pages"][0]["tables"] = [{"box": box, "rows": 2, "columns": 2, "cells": cells}]
        answer["pages"][0]["barcodes"] = [{"type": "QRCode", "text": "https://example.org", "box": box}]
        route.fulfill(json=answer)

    page.route("**/v1/ocr*", add_table)
    page.set_input_files("#files", [IMAGE])
    page.locator(".codes button").click()
    assert page.evaluate("() => navigator.clipboard.readText()") == "https://example.org"
    page.get_by_role("tab", name="Tables").click()
    expect(page.locator("#panel td")).to_have_text(['A "b", c', "1", "2\n3"])
    assert page.locator("#panel td").first.get_attribute("colspan") == "2"
    page.get_by_role("button", name="Copy as CSV").click()
    assert page.evaluate("() => navigator.clipboard.readText()") == '"A ""b"", c",\r\n1,"2\n3"\r\n'


def test_options_for_tables_codes_regions_text_layer_and_masks_are_sent(opened: Open) -> None:
    page = opened()
    page.locator("summary").click()
    for name in ("Bar codes", "Regions of the layout", "phone numbers", "bank cards"):
        page.get_by_label(name).check()
    page.get_by_label("Text of PDF pages").select_option("auto")
    with page.expect_request("**/v1/ocr*") as asked:
        page.set_input_files("#files", [DOCUMENT])
    sent = "tables=true&barcodes=true&layout=true&mask=phone%2Ccard&text_layer=auto"
    assert asked.value.url.endswith(sent)


def overlaps(page: Page, root: str) -> list[str]:
    """Visible controls inside an element that overlap each other or extend beyond the element."""
    found: list[str] = page.evaluate(OVERLAPS, root)
    return found


@pytest.mark.parametrize("language", ["en-GB", "zh-CN"])
@pytest.mark.parametrize("width_px", WIDTHS_PX)
def test_controls_neither_overlap_nor_leave_their_card(opened: Open, width_px: int, language: str) -> None:
    scheme = "dark" if language == "zh-CN" else "light"
    page = opened(viewport={"width": width_px, "height": 900}, locale=language, color_scheme=scheme)
    page.locator("summary").click()
    assert overlaps(page, "#drop") == []
    page.set_input_files("#files", [IMAGE, DOCUMENT, BROKEN])
    expect(page.locator("#items [data-state=done]")).to_have_count(2)
    for number in range(3):
        page.locator("#items .pick").nth(number).click()
        for tab in ("lines", "tables", "json"):
            page.locator(f"#tab-{tab}").click()
            assert [
                wrong for root in ("#settings", "#tray .bar", "#picture", "#result") for wrong in overlaps(page, root)
            ] == []
    # A running job and a running request, before and after they are cancelled.
    page.route(re.compile("/v1/(ocr|jobs/.*/pages)"), lambda _: None)
    page.set_input_files("#files", [IMAGE, DOCUMENT])
    expect(page.locator("#cancel")).to_be_visible()
    assert overlaps(page, "#tray .bar") == []
    page.locator("#cancel").click()
    expect(page.locator("#items [data-state=cancelled]")).to_have_count(2)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width_px


def test_without_scripts_only_the_form_is_offered(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("button:visible").all_text_contents() == ["Read"]


def test_api_reference_shows_every_operation_of_the_description(opened: Open, server: Server) -> None:
    page = opened(f"{server.url}/docs")
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    expected = [f"{method.upper()}{path}" for path, item in paths.items() for method in item if method != "parameters"]
    expect(page.locator("article h2")).to_have_count(len(expected))
    assert sorted(page.locator("article h2").all_text_contents()) == sorted(expected)
    expect(page.locator("#operation-ocr")).to_contain_text("text_layer")
    expect(page.locator("#operation-ocr pre")).to_have_text(f"curl -F file=@page.png {server.url}/v1/ocr")
    page.get_by_role("link", name="GET /v1/jobs/{job_id}/pages").click()
    expect(page.locator("#operation-jobPages h2")).to_be_in_viewport()
    page.set_viewport_size({"width": WIDTHS_PX[0], "height": 900})
    assert page.evaluate("() => document.documentElement.scrollWidth") == WIDTHS_PX[0]
