"""Documents on the web page: pages shown as they arrive, many pages, downloads."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from browser_support import Open, opening
from playwright.sync_api import Browser, FilePayload, Page, Route, expect
from support import wsgi_server
from web_support import running_app

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_WAIT_S: Final = 30.0


class HeldAnswers:
    """WSGI middleware that answers reads with lines from the test; `gone` is set if the client disconnects early."""

    def __init__(self, app: WSGIApplication) -> None:
        self.app = app
        self.asked: list[str] = []
        self.accepted: list[str] = []
        self.gone = threading.Event()
        self._lines: queue.SimpleQueue[object] = queue.SimpleQueue()

    def send(self, line: object) -> None:
        """Send a line to the client; None ends the answer."""
        self._lines.put(line)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/v1/ocr":
            return self.app(environ, start_response)
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        self.asked.append(environ["QUERY_STRING"])
        self.accepted.append(environ["HTTP_ACCEPT"])
        start_response("200 OK", [("Content-Type", "application/x-ndjson")])
        return self._answer()

    def _answer(self) -> Iterator[bytes]:
        try:
            while (line := self._lines.get(timeout=_WAIT_S)) is not None:
                yield orjson.dumps(line) + b"\n"
        except GeneratorExit:
            self.gone.set()
            raise


@contextmanager
def held_server() -> Iterator[tuple[str, HeldAnswers]]:
    """Run a server whose answers the test controls; yields its URL and the HeldAnswers."""
    with running_app() as app:
        held = HeldAnswers(app.wsgi_app)
        with wsgi_server(held) as url:
            yield url, held


def page_line(number: int, total: int, lines: int = 2) -> dict[str, object]:
    """The NDJSON line of a page."""
    box = [[10, 0], [90, 0], [90, 1], [10, 1]]
    texts = [f"page {number} line {place}" for place in range(lines)]
    return {
        "page": number,
        "width": 100,
        "height": lines + 1,
        "angle": 0,
        "text": "\n".join(texts),
        "lines": [
            {
                "text": text,
                "confidence": 0.9,
                "box": [[x, y + place] for x, y in box],
                "words": [{"text": word, "confidence": 0.9, "box": box} for word in text.split()],
            }
            for place, text in enumerate(texts)
        ],
        "pages_total": total,
        "pages_wanted": total,
    }


END: Final = {
    "end": {"id": "e", "engine": {"name": "held", "model": "none"}, "timing": {"total_s": 1.5}, "pages_read": 1}
}


PDF: FilePayload = {"name": "long.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7"}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, HeldAnswers]]:
    with held_server() as server:
        yield server


@pytest.fixture
def opened(browser: Browser, server: tuple[str, HeldAnswers]) -> Iterator[Open]:
    with opening(browser, server[0]) as open_page:
        yield open_page


@pytest.fixture
def held(server: tuple[str, HeldAnswers]) -> HeldAnswers:
    held = server[1]
    held.asked.clear()
    held.gone.clear()
    return held


def choose_pdf(page: Page) -> None:
    page.set_input_files("#files", PDF)


def state_of(page: Page) -> Any:
    return page.locator("#items .state")


def test_pages_are_shown_as_they_arrive(opened: Open, held: HeldAnswers) -> None:
    page = opened()
    choose_pdf(page)
    held.send(page_line(1, 3))
    expect(page.locator(".lines button").first).to_contain_text("page 1 line 0")
    expect(state_of(page)).to_have_text("reading page 2 of 3")
    expect(page.locator("#leaf-of")).to_have_text("/ 3")
    expect(page.get_by_role("button", name="Searchable PDF")).to_be_disabled()
    assert page.locator("#all").evaluate("(bar) => bar.value") == pytest.approx(1 / 3)
    held.send(page_line(2, 3))
    page.get_by_role("button", name="Next page").click()
    expect(page.locator(".lines button").first).to_contain_text("page 2 line 0")
    held.send({"page": 3, "error": {"title": "Broken", "code": "broken_image"}, "pages_total": 3, "pages_wanted": 3})
    held.send(END)
    held.send(None)
    expect(state_of(page)).to_have_text("3 pages, 4 lines")
    expect(page.locator(".lines button").first).to_contain_text("page 2 line 0")
    expect(page.locator("#facts")).to_contain_text("1.50 s")
    assert "application/x-ndjson" in held.accepted[-1]
    assert held.asked == ["rotate=auto&words=true&tables=true"]


def test_cancelling_ends_the_request_and_keeps_the_pages_that_came(opened: Open, held: HeldAnswers) -> None:
    page = opened()
    choose_pdf(page)
    held.send(page_line(1, 3))
    held.send(page_line(2, 3))
    expect(state_of(page)).to_have_text("reading page 3 of 3")
    page.locator("#cancel").click()
    expect(state_of(page)).to_have_text("cancelled · 2 pages, 4 lines")
    expect(page.locator(".lines button").first).to_contain_text("page 1 line 0")
    for _ in range(300):
        # The server notices the disconnect only when it sends.
        held.send(page_line(3, 3, lines=2000))
        if held.gone.wait(0.1):
            break
    assert held.gone.is_set()
    with page.expect_request("**/v1/ocr?*format=pdf") as asked:
        page.get_by_role("button", name="Searchable PDF").click()
    assert "pages=1-2&" in asked.value.url
    held.send(None)


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (({"error": {"title": "Took too long", "code": "x"}}, None), "Took too long"),
        ((None,), "The service cannot be reached"),
    ],
)
def test_early_end_keeps_the_pages_so_far(opened: Open, held: HeldAnswers, ending: Sequence[Any], said: str) -> None:
    page = opened()
    choose_pdf(page)
    for part in (page_line(1, 3), *ending):
        held.send(part)
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.locator(".lines button").first).to_contain_text("page 1 line 0")
    expect(state_of(page)).to_have_text("failed · 2 lines")


def test_hundred_pages_use_as_much_memory_as_one(opened: Open, held: HeldAnswers) -> None:
    page = opened()

    def count_nodes() -> int:
        return int(page.evaluate("document.querySelectorAll('*').length"))

    choose_pdf(page)
    held.send(page_line(1, 100, lines=60))
    expect(page.locator(".lines button")).to_have_count(60)
    with_one = count_nodes()
    for number in range(2, 101):
        held.send(page_line(number, 100, lines=60))
    held.send(END)
    held.send(None)
    expect(state_of(page)).to_have_text("100 pages, 6000 lines")
    field = page.get_by_label("Page number")
    for number in (57, 100, 3):
        field.fill(str(number))
        field.press("Enter")
        expect(page.locator(".lines button").first).to_contain_text(f"page {number} line 0")
    assert count_nodes() == with_one
    page.get_by_role("tab", name="JSON").click()
    expect(page.locator("#panel")).to_contain_text("Only the beginning is shown")
    assert len(page.locator("#panel pre").text_content() or "") == 100_000
    with page.expect_download() as download:
        page.locator("#save").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert text.count('"angle": 0') == 100
    assert len(re.findall(r'"pages_\w+"', text)) == 2


def test_pdf_creation_can_be_cancelled_and_reports_failures(opened: Open, held: HeldAnswers) -> None:
    page = opened()
    choose_pdf(page)
    for line in (page_line(1, 1), END, None):
        held.send(line)
    button = page.locator("[data-file=pdf]")
    expect(button).to_be_enabled()
    waiting: list[Route] = []
    page.route("**/v1/ocr?*format=pdf", lambda route: waiting.append(route))  # noqa: PLW0108  builtins cannot be handlers
    button.click()
    expect(button).to_have_text("Creating file… (cancel)")
    button.click()
    expect(page.locator("#said")).to_have_text("cancelled")
    expect(button).to_have_text("Searchable PDF")
    page.unroute_all()
    problem = {"title": "No room", "code": "resources_exhausted_x"}
    page.route("**/v1/ocr?*format=pdf", lambda route: route.fulfill(status=507, json=problem))
    button.click()
    expect(page.locator("#said")).to_have_text("No room")
