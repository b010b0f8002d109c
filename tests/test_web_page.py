"""The web page in a real browser against a real server."""

import base64
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser_support import Open, low_contrast_texts, opening
from described_errors import READING_ERRORS
from documents import GRAY, pdf, tiff
from flask.testing import FlaskClient
from image_support import png
from models_support import make_several
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Page, Route, expect
from support import ROOT, Server, run_server
from web_support import client_raising, json_of

from ocrsvc.api.page_pictures import MAX_PICTURE_SIDE_PX
from ocrsvc.api.web_page import FILES, FOLDER, TABS
from ocrsvc.errors import ClientGone, NotReady
from ocrsvc.plugins import OutputFormat, output_formats, text_formats

PAGES = ROOT / "tests" / "pages"
BROWSER_ACCEPT = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


def png_upload(width: int = 120, height: int = 40) -> FilePayload:
    """Return a white image for a file field; the fake engine reads its size as text."""
    return {"name": f"{width}.png", "mimeType": "image/png", "buffer": png(width, height, 255)}


@pytest.fixture
def unready() -> FlaskClient:
    return client_raising(NotReady("Not loaded."))


@pytest.mark.parametrize("path", ["/", "/index.html"])
def test_a_browser_gets_the_page(unready: FlaskClient, path: str) -> None:
    response = unready.get(path, headers={"Accept": BROWSER_ACCEPT})
    assert (response.status_code, response.content_type) == (200, "text/html; charset=utf-8")
    head, rest = (FOLDER / "index.html").read_text(encoding="utf-8").split(TABS)
    assert response.text.startswith(head)
    assert response.text.endswith(rest.split(FILES)[1])
    places = [f'data-{"tab" if name in text_formats() else "file"}="{name}"' for name in output_formats()]
    assert [place in response.text for place in places] == [True] * len(places)


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_programs_get_the_address_of_the_api(unready: FlaskClient, accept: str) -> None:
    response = unready.get("/", headers={"Accept": accept})
    assert (response.status_code, response.content_type) == (200, "application/json")
    assert (json_of(response)["name"], json_of(response)["read"]) == ("ocrsvc", "POST /v1/ocr")
    assert response.headers["Vary"] == "Accept"


def test_every_file_of_the_page_is_served_with_its_type_and_a_strict_policy(unready: FlaskClient) -> None:
    names = {file.name for file in FOLDER.iterdir()} - {"index.html", "docs.html"}
    answers = {name: unready.get(f"/static/{name}") for name in names}
    for answer in answers.values():
        assert (answer.status_code, answer.headers["X-Content-Type-Options"]) == (200, "nosniff")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
    assert (answers["page.js"].mimetype, answers["page.css"].mimetype) == ("text/javascript", "text/css")
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 110_000
    again = unready.get("/static/page.js", headers={"If-None-Match": answers["page.js"].headers["ETag"]})
    assert (again.status_code, again.data, again.headers["Cache-Control"]) == (304, b"", "no-cache")


@pytest.mark.parametrize("path", ["/static/", "/static/page.py", "/static/../page.py", "/static/index.html"])
def test_nothing_else_is_served(unready: FlaskClient, path: str) -> None:
    assert unready.get(path).status_code == 404


def test_both_languages_have_the_same_words_and_every_api_error_has_a_chinese_title() -> None:
    english, chinese = re.split(r"\n  zh: \{", (FOLDER / "words.js").read_text(encoding="utf-8"))
    keys = [set(re.findall(r"[ ,{](\w+): (?=['(])", part.split("errors: {")[0])) for part in (english, chinese)]
    assert keys[0] == keys[1]
    assert len(keys[0]) > 40
    # A client that disconnected needs no title.
    codes = {error.code for error in READING_ERRORS if error is not ClientGone}
    assert codes - set(re.findall(r"(\w+): '", chinese.rsplit("errors: {", 1)[1])) == set()


def test_a_document_page_is_returned_as_a_picture_no_larger_than_a_screen(client: FlaskClient) -> None:
    sent = pdf(b"", GRAY, size=(2000, 1000))
    answer = client.post("/v1/ocr/picture?page=2", data=sent, content_type="application/octet-stream")
    assert (answer.status_code, answer.content_type) == (200, "image/jpeg")
    with Image.open(io.BytesIO(answer.data)) as drawn:
        assert drawn.size == (MAX_PICTURE_SIDE_PX, MAX_PICTURE_SIDE_PX // 2)
        assert drawn.getpixel((800, 400)) == pytest.approx((128, 128, 128), abs=3)


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("page=3", pdf(b"", GRAY), 422, "broken_image"),
        ("page=0", pdf(b""), 400, "bad_option"),
        ("page=one", pdf(b""), 400, "bad_option"),
        ("page=" + "9" * 5000, pdf(b""), 400, "bad_option"),
        ("", b"text", 415, "unsupported_image"),
        ("", b"", 400, "nothing_sent"),
    ],
)
def test_missing_pictures_are_refused(client: FlaskClient, query: str, body: bytes, status: int, code: str) -> None:
    answer = client.post(f"/v1/ocr/picture?{query}", data=body, content_type="application/octet-stream")
    assert (answer.status_code, json_of(answer)["code"]) == (status, code)


@pytest.fixture
def opened(browser: Browser, server: Server) -> Iterator[Open]:
    with opening(browser, server.url) as open_page:
        yield open_page


QUOTA = {"title": "A limit is reached", "code": "quota_exceeded", "remedy": "More."}


def upload(page: Page, *files: Any) -> None:
    page.set_input_files("#files", list(files))


def wait_for(page: Page, state: str, count: int = 1) -> None:
    expect(page.locator(f"#items [data-state={state}]")).to_have_count(count)


def clipboard(page: Page) -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


def dispatch_files(page: Page, event: str, *files: FilePayload) -> None:
    """Dispatch a drop or paste event with these files."""
    sent = [[file["name"], file["mimeType"], base64.b64encode(file["buffer"]).decode()] for file in files]
    page.evaluate((ROOT / "tests" / "data" / "give_files.js").read_text("utf-8"), [event, sent])


def test_lines_and_boxes_highlight_each_other_and_lines_can_be_copied(opened: Open) -> None:
    page = opened()
    upload(page, png_upload())
    lines, boxes = page.locator(".lines button"), page.locator(".sheet polygon")
    expect(lines.first).to_contain_text("120x40")
    expect(boxes).to_have_count(2)
    expect(page.locator("#facts")).to_contain_text(re.compile(r"2 lines · \d+\.\d\d s · 120 × 40 · fake"))
    lines.nth(1).hover()
    expect(boxes.nth(1)).to_have_class("on")
    boxes.nth(0).hover()
    expect(lines.nth(0)).to_have_class("on")
    expect(boxes.nth(1)).not_to_have_class("on")
    boxes.nth(1).click()
    expect(lines.nth(1)).to_be_focused()
    lines.first.click()
    expect(page.locator("#toast")).to_have_text("Copied")
    assert clipboard(page) == "120x40"
    # The page falls back if the clipboard API fails.
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    lines.nth(1).click()
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => /^[0-9a-f]{8}$/.test(text))")


def test_the_real_engine_reads_a_page_and_its_boxes_lie_on_the_text(opened: Open) -> None:
    with run_server({"OCRSVC_ENGINE": "ppocr", "OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "1"}) as server:
        page = opened(server.url)
        upload(page, PAGES / "notice.jpg", PAGES / "notice_turned_90.png")
        wait_for(page, "done", 2)
        for number in (0, 1):
            page.locator("#items .pick").nth(number).click()
            expect(page.locator(".lines button").first).to_contain_text("通知 Notice")
            # The page is shown upright for any rotation of the file; the heading is at (32, 24) of 640 x 300.
            box, sheet = page.locator(".sheet polygon").first.bounding_box(), page.locator(".sheet").bounding_box()
            assert box is not None
            assert sheet is not None
            assert (box["x"] - sheet["x"]) / sheet["width"] == pytest.approx(32 / 640, abs=0.03)
            assert (box["y"] - sheet["y"]) / sheet["height"] == pytest.approx(32 / 300, abs=0.05)
        page.context.close()


@pytest.mark.parametrize("event", ["drop", "paste"])
def test_dropped_and_pasted_images_can_be_saved_copied_and_removed(opened: Open, event: str) -> None:
    page = opened()
    dispatch_files(page, event, png_upload(100), png_upload(101))
    wait_for(page, "done", 2)
    expect(page.locator(".lines button").first).to_contain_text("100x40")
    name, text = saved(page, "#json-all")
    assert name == "ocr.json"
    assert [(one["file"], one["pages"][0]["width"]) for one in json.loads(text)] == [("100.png", 100), ("101.png", 101)]
    name, text = saved(page, "#text-all")
    assert text.startswith("==> 100.png <==\n100x40\n")
    page.locator("#copy-all").click()
    expect(page.locator("#toast")).to_be_visible()
    assert clipboard(page) == text
    page.get_by_label("Remove 100.png").click(force=True)
    expect(page.locator("#name")).to_have_text("101.png")
    page.locator("#clear").click()
    expect(page.locator("#detail")).to_be_hidden()
    expect(page.locator("#choose")).to_be_focused()


def test_many_images_are_read_three_at_a_time(opened: Open) -> None:
    page = opened()
    held: list[Route] = []

    def hold_three(route: Route) -> None:
        held.append(route)
        if len(held) > 3:
            route.continue_()

    page.route("**/v1/ocr*", hold_three)
    upload(page, *(png_upload(100 + number) for number in range(7)))
    wait_for(page, "waiting", 4)
    expect(page.locator("#count")).to_have_text("0 of 7 files")
    assert len(held) == 3
    for route in held[:3]:
        route.continue_()
    wait_for(page, "done", 7)
    expect(page.locator("#all")).to_be_hidden()


def test_one_or_all_images_can_be_cancelled_and_retried(opened: Open) -> None:
    page = opened()
    page.route("**/v1/ocr*", lambda _: None)
    upload(page, png_upload(100), png_upload(101), png_upload(102), png_upload(103))
    page.get_by_label("Cancel 100.png").click(force=True)
    wait_for(page, "cancelled", 1)
    page.locator("#cancel").click()
    wait_for(page, "cancelled", 4)
    page.unroute("**/v1/ocr*")
    page.locator("summary").click()
    page.locator("#again").click()
    wait_for(page, "done", 4)


def test_everything_can_be_done_with_the_keyboard(opened: Open) -> None:
    page = opened()
    # Playwright starts to intercept file choosers at the first listener, without waiting, so add one early.
    page.on("filechooser", lambda _chooser: None)

    def tab_to(selector: str) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("(one) => document.activeElement.matches(one)", selector):
                return
        pytest.fail(f"Tab does not lead to {selector}")

    tab_to("#choose")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([png_upload(100), png_upload(101)])
    wait_for(page, "done", 2)
    tab_to(".pick")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#name")).to_have_text("101.png")
    tab_to(".lines button")
    expect(page.locator(".sheet polygon").first).to_have_class("on")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("Copied")
    assert clipboard(page) == "101x40"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark_mode(opened: Open, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    upload(page, png_upload())
    wait_for(page, "done")
    assert low_contrast_texts(page) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(ground[:3]) < 80) == (scheme == "dark")


def test_on_a_phone_everything_fits_and_the_camera_is_offered(opened: Open) -> None:
    page = opened(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Take a photo").tap()
    assert chooser.value.element.get_attribute("capture") == "environment"
    chooser.value.set_files([png_upload()])
    upload(page, png_upload(2000, 100))
    wait_for(page, "done", 2)
    page.locator("summary").tap()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.locator(".lines button").first.tap()
    expect(page.locator(".sheet polygon").first).to_have_class("on")


def test_a_chinese_browser_gets_chinese_and_a_choice_is_remembered(opened: Open) -> None:
    page = opened(locale="zh-CN")
    expect(page.locator("#choose")).to_have_text("选择文件")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    upload(page, png_upload(), {"name": "a.png", "mimeType": "image/png", "buffer": b"text"})
    page.locator("#items .pick").nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("不是本服务能识别的图片")
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("alert")).to_contain_text("Not an image that this service reads")
    page.reload()
    expect(page.locator("#choose")).to_have_text("Choose files")


def test_an_error_of_the_service_is_shown_and_a_broken_connection_can_be_retried(opened: Open) -> None:
    page = opened()
    with page.expect_response("**/v1/ocr*") as answered:
        upload(page, {"name": "a.png", "mimeType": "image/png", "buffer": b"text"})
    body, alert = answered.value.json(), page.get_by_role("alert")
    for member in ("title", "detail", "remedy", "id"):
        expect(alert).to_contain_text(body[member])
    page.locator("#clear").click()
    page.route("**/v1/ocr*", lambda route: route.abort())
    upload(page, png_upload())
    expect(alert).to_contain_text("The service cannot be reached")
    page.unroute("**/v1/ocr*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".lines button").first).to_contain_text("120x40")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"status": 502, "body": "<h1>Bad gateway</h1>"}, "502"),
        # The page does not wait until the key's quota renews tomorrow.
        ({"status": 429, "headers": {"Retry-After": "39012"}, "json": QUOTA}, "More."),
    ],
    ids=["an error of a proxy", "the key's quota"],
)
def test_permanent_failure_is_reported(opened: Open, answer: dict[str, Any], message: str) -> None:
    page = opened()
    page.route("**/v1/ocr*", lambda route: route.fulfill(**answer))
    upload(page, png_upload())
    expect(page.get_by_role("alert")).to_contain_text(message)


def test_a_busy_service_is_retried_after_its_retry_after(opened: Open) -> None:
    page = opened()
    refusals = [(429, "1"), (503, "0")]
    asked_s: list[float] = []

    def refuse_twice(route: Route) -> None:
        asked_s.append(time.monotonic())
        if len(asked_s) > len(refusals):
            route.continue_()
            return
        status, wait = refusals[len(asked_s) - 1]
        route.fulfill(status=status, headers={"Retry-After": wait}, json={"title": "Busy", "code": "queue_full"})

    page.route("**/v1/ocr*", refuse_twice)
    upload(page, png_upload())
    expect(page.locator("#panel")).to_contain_text("busy, retry in 1 s")
    expect(page.locator(".lines button").first).to_contain_text("120x40")
    assert len(asked_s) == 3
    assert asked_s[1] - asked_s[0] >= 1


def test_results_can_be_saved(opened: Open) -> None:
    page = opened()
    with page.expect_response("**/v1/ocr*") as answered:
        upload(page, png_upload())
    wait_for(page, "done")
    assert saved(page, "#save") == ("120.txt", answered.value.json()["pages"][0]["text"] + "\n")
    page.get_by_role("tab", name="JSON").click()
    name, text = saved(page, "#save")
    assert (name, json.loads(text)) == ("120.json", answered.value.json())
    with page.expect_download() as download:
        page.get_by_role("button", name="Searchable PDF").click()
    assert (download.value.suggested_filename, Path(download.value.path()).read_bytes()[:5]) == ("120.pdf", b"%PDF-")
    with page.expect_download() as download:
        page.locator("#save-picture").click()
    with Image.open(download.value.path()) as drawn:
        assert drawn.size == (120, 40)


@pytest.mark.parametrize(("name", "form"), [item for item in text_formats().items() if item[0] != "text"])
def test_the_tab_of_a_format_requests_it_once(opened: Open, server: Server, name: str, form: OutputFormat) -> None:
    page = opened()
    upload(page, png_upload())
    wait_for(page, "done")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for tab in (form.label, "Text", form.label):
        page.get_by_role("tab", name=tab, exact=True).click()
    expect(page.locator("#panel pre")).to_contain_text("120x40")
    query = {"format": name, "words": "true", "tables": "true"}
    written = httpx.post(f"{server.url}/v1/ocr", params=query, content=png_upload()["buffer"]).text
    assert saved(page, "#save") == (f"120{form.suffix}", written)
    assert page.locator("#panel pre").text_content() == written
    assert asked == [f"{server.url}/v1/ocr?rotate=auto&words=true&tables=true&format={name}"]


def test_failed_format_is_reported_and_can_be_retried(opened: Open) -> None:
    page = opened()
    upload(page, png_upload())
    wait_for(page, "done")
    page.route("**/v1/ocr?*format=*", lambda route: route.abort())
    page.get_by_role("tab", name="ALTO").click()
    expect(page.locator("#panel [role=alert]")).to_contain_text("The service cannot be reached")
    expect(page.locator("#copy")).to_be_disabled()
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#panel pre")).to_contain_text('CONTENT="120x40"')


def test_a_format_is_requested_for_successful_pages_only(opened: Open) -> None:
    page = opened()

    def fail_one(route: Route) -> None:
        answer = route.fetch(headers={**route.request.headers, "accept": "application/json"}).json()
        answer["pages"][1] = {"page": 2, "error": {"title": "Broken", "code": "broken_image", "status": 422}}
        route.fulfill(json=answer)

    page.route(re.compile(r"/v1/ocr\?rotate=auto&words=true&tables=true$"), fail_one)
    upload(page, {"name": "three.tif", "mimeType": "image/tiff", "buffer": tiff([120, 121, 122])})
    wait_for(page, "done")
    with page.expect_request("**/v1/ocr?*format=tsv") as asked:
        page.get_by_role("tab", name="TSV").click()
    assert asked.value.url.endswith("?rotate=auto&words=true&tables=true&pages=1%2C3&format=tsv")
    expect(page.locator("#panel pre")).to_contain_text("122x32")


def saved(page: Page, button: str) -> tuple[str, str]:
    with page.expect_download() as download:
        page.locator(button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_text(encoding="utf-8")


def test_model_and_language_can_be_chosen_if_there_are_several(browser: Browser, tmp_path: Path) -> None:
    env = {"OCRSVC_WORKERS": "1", **make_several(tmp_path)}
    with run_server(env) as server, opening(browser, server.url) as opened:
        page = opened()
        page.locator("summary").click()
        language, model = page.locator("[name=lang]"), page.locator("[name=model]")
        expect(model.locator("option")).to_have_text(["automatic", "east", "north", "PP-OCRv6 small (ppocr)"])
        expect(language.locator("option[value=ru]")).to_have_text("Russian")
        language.select_option("ru")
        upload(page, png_upload())
        expect(page.locator("#panel")).to_contain_text("north/1")
        page.locator("[data-language=zh]").click()
        expect(language.locator("option[value=ru]")).to_have_text("俄语")
        expect(language).to_have_value("ru")


def test_options_and_rotations_reach_the_service(opened: Open) -> None:
    page = opened()
    page.locator("summary").click()
    # Without a model repository the page hides the choice and requests no list.
    expect(page.locator("[name=lang]")).to_be_hidden()
    expect(page.locator("[name=model]")).to_be_hidden()
    assert page.evaluate("performance.getEntriesByType('resource').filter((one) => one.name.includes('/v1/'))") == []
    page.get_by_label("Longest side").fill("500")
    page.get_by_label("A single line").check()
    page.locator("[name=min_confidence]").fill("40")
    with page.expect_request("**/v1/ocr*") as first:
        upload(page, png_upload())
    assert first.value.url.endswith("?rotate=auto&words=true&max_side=500&min_confidence=0.4&detect=false&tables=true")
    wait_for(page, "done")
    with page.expect_request("**/v1/ocr*") as second:
        page.get_by_label("Rotate right").click()
    assert "rotate=90&" in second.value.url


def test_boxes_fit_a_photo_rotated_by_its_exif(opened: Open) -> None:
    page = opened()
    file = io.BytesIO()
    exif = Image.Exif()
    exif[274] = 6
    Image.new("L", (120, 40), 255).save(file, "JPEG", exif=exif)
    upload(page, {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": file.getvalue()})
    expect(page.locator(".lines button").first).to_contain_text("40x120")
    assert page.evaluate("document.querySelector('.sheet img').naturalHeight") == 120
    assert page.locator(".sheet svg").bounding_box() == page.locator(".sheet img").bounding_box()


def test_picture_that_the_browser_cannot_show_comes_from_the_service(opened: Open) -> None:
    page = opened()
    file = (Path(__file__).parent / "data/heif/turned.heic").read_bytes()
    upload(page, {"name": "IMG_1.HEIC", "mimeType": "image/heic", "buffer": file})
    expect(page.locator(".lines button").first).to_contain_text("64x96")
    expect(page.locator(".sheet img")).to_be_visible()
    assert page.evaluate("document.querySelector('.sheet img').naturalHeight") == 96


def test_a_page_without_a_picture_is_drawn_from_its_lines(opened: Open) -> None:
    page = opened()
    page.route("**/v1/ocr/picture*", lambda route: route.abort())
    upload(page, {"name": "a.pdf", "mimeType": "application/pdf", "buffer": pdf(b"", GRAY)})
    expect(page.locator("#panel")).to_contain_text("This browser cannot show the file")
    expect(page.locator(".sheet text").first).to_be_visible()


def test_document_pages_are_shown_one_at_a_time_as_pictures_from_the_service(opened: Open) -> None:
    page = opened()
    # Browsers cannot display TIFF.
    upload(page, {"name": "a.tif", "mimeType": "image/tiff", "buffer": tiff([120, 130, 140])})
    expect(page.locator("#leaf")).to_have_value("1")
    expect(page.locator("#leaf-of")).to_have_text("/ 3")
    expect(page.locator(".lines button").first).to_contain_text("120x32")
    page.wait_for_function("() => document.querySelector('.sheet img')?.naturalWidth === 120")
    page.get_by_role("button", name="Next page").press("Enter")
    expect(page.locator(".lines button").first).to_contain_text("130x32")
    page.wait_for_function("() => document.querySelector('.sheet img')?.naturalWidth === 130")
    expect(page.locator(".sheet text").first).to_be_hidden()
    page.get_by_label("Page number").fill("3")
    page.get_by_label("Page number").press("Enter")
    expect(page.locator(".lines button").first).to_contain_text("140x32")
    page.locator(".frame").press("PageUp")
    expect(page.locator("#leaf")).to_have_value("2")
    page.get_by_role("button", name="Previous page").press("Enter")
    expect(page.get_by_role("button", name="Next page")).to_be_focused()
    page.get_by_role("tab", name="Text").click()
    expect(page.locator("#panel")).to_contain_text("120x32")
    expect(page.locator("#panel")).to_contain_text("140x32")


def test_words_of_a_hovered_line_are_shown(opened: Open) -> None:
    page = opened()

    def add_words(route: Route) -> None:
        answer = route.fetch().json()
        line = answer["pages"][0]["lines"][0]
        (x0, y0), _, (x1, y1), _ = line["box"]
        middle = (x0 + x1) / 2
        line["words"] = [
            {"text": text, "confidence": sure, "box": [[left, y0], [right, y0], [right, y1], [left, y1]]}
            for text, sure, left, right in (("one", 0.987, x0, middle), ("two", 0.5, middle, x1))
        ]
        route.fulfill(json=answer)

    page.route("**/v1/ocr*", add_words)
    upload(page, png_upload())
    box = page.locator(".sheet polygon").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] / 2)
    expect(page.locator("#word")).to_have_text("two 50 %")
    expect(page.locator(".sheet .words polygon")).to_have_count(2)
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
    expect(page.locator("#word")).to_have_text("one 98 %")
    page.mouse.move(0, 0)
    expect(page.locator("#word")).to_be_hidden()
    page.locator(".lines button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#said")).to_have_text("two 50 %")
