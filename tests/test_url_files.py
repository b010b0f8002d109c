"""URLs instead of files: off unless the operator allows hosts; supported by each format with a URL field."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient
from image_support import png
from outgoing_support import ScriptedServer, redirect, response, serving
from support import data_of, filled, wait_until
from web_support import as_base64, json_of, running_app

from ocrsvc.settings.settings import Settings

PNG = png(8, 8)


@pytest.fixture(scope="module")
def files() -> Iterator[ScriptedServer]:
    def answer(sock: Any, head: bytes) -> None:
        path = head.split()[1]
        wrong = redirect("http://10.0.0.1/") if path == b"/away" else response(b"", status="404 Not Found")
        sock.sendall(response(PNG, "Content-Type: image/png") if path == b"/page.png" else wrong)

    with serving(answer) as server:
        yield server


@pytest.fixture(scope="module")
def enabled(files: ScriptedServer) -> Iterator[FlaskClient]:
    settings = Settings(url_hosts=(f"127.0.0.1:{files.port}", "10.0.0.1"), url_private=("127.0.0.1/32",))
    with running_app(settings) as app:
        yield app.test_client()


PLACES = data_of("url_places")["places"]


def post_url(client: FlaskClient, path: str, sent: dict[str, Any], url: str) -> tuple[int, str]:
    """Post a request with this URL; returns status and text of the answer."""
    answer = client.post(filled(path, URL=url), **filled(sent, URL=url, PAGE=as_base64(PNG)))
    return answer.status_code, answer.text


@pytest.mark.parametrize(("path", "sent", "seen"), PLACES)
def test_url_gives_the_same_result_as_its_file(
    enabled: FlaskClient, files: ScriptedServer, path: str, sent: dict[str, Any], seen: str
) -> None:
    status, text = post_url(enabled, path, sent, f"{files.url}/page.png")
    assert (status, seen in text) == (200, True), text


@pytest.mark.parametrize(("path", "sent", "_seen"), PLACES)
@pytest.mark.parametrize("way", ["/missing", "/away", "http://[::1]/", "http://user@127.0.0.1/"])
def test_unavailable_urls_are_refused_in_each_format(
    enabled: FlaskClient, files: ScriptedServer, path: str, sent: dict[str, Any], _seen: str, way: str
) -> None:
    status, text = post_url(enabled, path, sent, way if "://" in way else files.url + way)
    # OCR.space reports caller errors with status 200; Google reports errors of one image with status 200.
    assert status in {400, 422} or '"IsErroredOnProcessing":true' in text or '[{"error":' in text
    assert "URL" in text


@pytest.mark.parametrize(("path", "sent", "_seen"), PLACES)
def test_no_url_is_fetched_without_allowed_hosts(
    client: FlaskClient, files: ScriptedServer, path: str, sent: dict[str, Any], _seen: str
) -> None:
    before = len(files.heads)
    status, text = post_url(client, path, sent, f"{files.url}/page.png")
    assert status in {400, 422} or "not fetched" in text
    assert len(files.heads) == before


def test_refused_url_names_the_setting_that_allows_it(client: FlaskClient) -> None:
    problem = json_of(client.post("/v1/ocr", json={"url": "http://files.example/a.pdf"}))
    assert (problem["status"], problem["code"]) == (400, "bad_option")
    assert "OCRSVC_URL_HOSTS" in problem["remedy"]


def test_openapi_has_urls_only_where_they_are_fetched(enabled: FlaskClient, client: FlaskClient) -> None:
    for place, is_on in ((enabled, True), (client, False)):
        posted = json_of(place.get("/openapi.json"))["paths"]["/v1/ocr"]["post"]
        schema = posted["requestBody"]["content"]["application/json"]["schema"]
        assert ("url" in schema["properties"] and {"required": ["url"]} in schema["anyOf"]) is is_on


@pytest.mark.parametrize("url", [["a", "b"], [], {}, 1])
def test_a_url_must_be_a_string(enabled: FlaskClient, url: object) -> None:
    answer = enabled.post("/v1/ocr", json={"url": url})
    assert (answer.status_code, answer.json["code"] if answer.json else "") == (400, "bad_option")


def test_a_file_that_is_too_large_is_refused() -> None:
    with serving(response(bytes(2000))) as server:
        settings = Settings(url_hosts=("127.0.0.1:*",), url_private=("127.0.0.1/32",), url_bytes=1024)
        with running_app(settings) as app:
            assert app.test_client().post("/v1/ocr", json={"url": server.url}).status_code == 413


@pytest.mark.parametrize(
    ("fetches", "callers", "statuses"),
    [(1, ["a", "b"], [200, 503]), (4, ["many", "many", "many", "other"], [200, 200, 429, 200])],
)
def test_fetches_leave_threads_to_other_requests(fetches: int, callers: list[str], statuses: list[int]) -> None:
    released = threading.Event()

    def answer(sock: Any, _head: bytes) -> None:
        released.wait(20)
        sock.sendall(response(PNG))

    settings = Settings(
        url_hosts=("127.0.0.1:*",), url_private=("127.0.0.1/32",), url_fetches=fetches, caller_header="X-Caller"
    )
    with serving(answer) as server, running_app(settings) as app, ThreadPoolExecutor(4) as threads:

        def ask(caller: str) -> int:
            headers = {"X-Caller": caller}
            return app.test_client().post("/v1/ocr", json={"url": server.url}, headers=headers).status_code

        asked = []
        for caller, status in zip(callers, statuses, strict=True):
            asked.append(threads.submit(ask, caller))
            held = sum(one == 200 for one in statuses[: len(asked)])
            wait_until(lambda held=held: len(server.heads) == held, "the file is requested")  # type: ignore[misc]
            if status != 200:
                assert asked[-1].result() == status
        released.set()
        assert [one.result() for one in asked] == statuses
        assert ask(callers[0]) == 200
