"""The addresses that Open WebUI's engines for documents call: PaddleOCR-VL's, MinerU's, and the external loader's."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from image_support import box, png
from keys_support import bearer, keys_in
from support import data_of, filled
from web_support import TEXT, as_base64, json_of, running_app

from ocrsvc.adapters.paddlex.layout_parsing import layout_result
from ocrsvc.results import Cell, Line, Page, Table
from ocrsvc.settings.settings import Settings

PAGE = as_base64(png())
SEEN = "64x32 0 True False None"
SCAN = pdf(*[GRAY] * 12)
LAYOUT, MINERU, PROCESS = (data_of("open_webui")[name] for name in ("layout", "mineru", "process"))


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with running_app() as app:
        yield app.test_client()


def layout(client: FlaskClient, **members: object) -> Any:
    return client.post("/layout-parsing", json=LAYOUT["sent"] | {"file": PAGE, "fileType": 1} | members)


@pytest.mark.parametrize(("members", "text"), LAYOUT["texts"])
def test_layout_parsing_answers_markdown(client: FlaskClient, members: dict[str, object], text: str) -> None:
    answer = json_of(layout(client, **members))
    (page,) = answer["result"]["layoutParsingResults"]
    assert (answer["errorCode"], page["markdown"]["text"], page["markdown"]["images"]) == (0, text, {})


def test_layout_parsing_answers_blocks_with_their_places(client: FlaskClient) -> None:
    result = json_of(layout(client, logId="a"))["result"]
    assert result["dataInfo"] == {"width": 64, "height": 32, "type": "image"}
    pruned = result["layoutParsingResults"][0]["prunedResult"]
    assert (pruned["page_count"], pruned["width"], pruned["height"]) == (1, 64, 32)
    found = [[block[f"block_{name}"] for name in ("label", "content", "bbox")] for block in pruned["parsing_res_list"]]
    assert found == [["text", TEXT, [16, 8, 48, 16]], ["text", SEEN, [24, 8, 40, 24]]]


def test_layout_parsing_answers_tables_as_html() -> None:
    places = [box(0, 0, 20, 10), box(30, 0, 50, 10), box(0, 20, 20, 30), box(30, 20, 50, 30)]
    cells = tuple(Cell(at // 2, at % 2, 1, 1, place, str(at), (at,)) for at, place in enumerate(places))
    lines = tuple(Line(str(at), 1.0, place) for at, place in enumerate(places))
    page = Page(60, 40, 0, lines, tables=(Table(box(0, 0, 50, 30), 2, 2, cells),))
    pruned: Any = layout_result(page, "", 1)["prunedResult"]
    (block,) = pruned["parsing_res_list"]
    assert (block["block_label"], block["block_bbox"]) == ("table", [0, 0, 50, 30])
    assert block["block_content"].count("<td>") == 4


def test_layout_parsing_answers_every_page_of_a_document(client: FlaskClient) -> None:
    result = json_of(layout(client, file=as_base64(SCAN), fileType=0))["result"]
    assert (result["dataInfo"]["numPages"], len(result["layoutParsingResults"])) == (12, 12)


@pytest.mark.parametrize(("members", "status", "said"), LAYOUT["refused"])
def test_layout_parsing_refuses_as_paddlex(
    client: FlaskClient, members: dict[str, object], status: int, said: str
) -> None:
    response = layout(client, **filled(members, TEXT=as_base64(b"a text")))
    answer = json_of(response)
    assert (response.status_code, answer["errorCode"], said in answer["errorMsg"]) == (status, status, True), answer


def test_the_token_of_paddleocr_vl_is_an_api_key(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys, running_app(Settings(keys=keys.address), keys.gate) as app:
        client, secret = app.test_client(), keys.add("one")
        for token, status in ((secret, 200), ("wrong", 401)):
            headers = {"Authorization": f"token {token}"}
            response = client.post("/layout-parsing", json={"file": PAGE, "fileType": 1}, headers=headers)
            assert response.status_code == status


def file_parse(client: FlaskClient, *files: tuple[str, bytes], **fields: str) -> Any:
    parts = [(io.BytesIO(data), name) for name, data in files]
    return client.post("/file_parse", data={**MINERU["sent"], **fields, "files": parts})


@pytest.mark.parametrize(("fields", "pages", "members"), MINERU["read"])
def test_file_parse_answers_the_requested_pages_and_members(
    client: FlaskClient, fields: dict[str, str], pages: list[int], members: list[str]
) -> None:
    answer = json_of(file_parse(client, ("第 1 页.pdf", pdf(*[GRAY] * 3)), **fields))
    assert (answer["status"], answer["backend"]) == ("completed", fields.get("backend", "pipeline"))
    (result,) = answer["results"].values()
    assert (list(answer["results"]), list(result)) == (["第 1 页"], members)
    if "md_content" in result:
        assert result["md_content"].count(TEXT) == len(pages)
    else:
        entries = json.loads(result["content_list"])
        assert [entry["page_idx"] for entry in entries if entry["text"] == TEXT] == pages
        assert entries[0] == {"type": "text", "text": TEXT, "bbox": [250, 250, 750, 500], "page_idx": 0}


def test_file_parse_answers_each_file_by_its_name(client: FlaskClient) -> None:
    files = (("a.pdf", SCAN), ("x/a.png", png()), ("a.b.png", png()))
    answer = json_of(file_parse(client, *files))
    assert list(answer["results"]) == answer["file_names"] == ["a", "a_2", "a.b"]
    assert file_parse(client).status_code == 422


@pytest.mark.parametrize(("fields", "status", "said"), MINERU["refused"])
def test_file_parse_refuses_as_fastapi(client: FlaskClient, fields: dict[str, str], status: int, said: str) -> None:
    response = file_parse(client, ("a.pdf", pdf(*[GRAY] * 3)), **fields)
    answer = json_of(response)
    assert (response.status_code, list(answer), said in answer["detail"]) == (status, ["detail"], True), answer


def process(client: FlaskClient, data: bytes, kind: str = "application/pdf", **headers: str) -> Any:
    return client.put("/process", data=data, content_type=kind, headers=headers)


def test_process_answers_each_page_with_text(client: FlaskClient) -> None:
    response = process(client, pdf(GRAY, b"", GRAY), **{"X-Filename": "%E7%AC%AC%201%20%E9%A1%B5.pdf"})
    first, last = json_of(response)
    assert first["page_content"].startswith(TEXT)
    about = {"source": "第 1 页.pdf", "page": 2, "page_label": "3", "total_pages": 3}
    assert last["metadata"] == about
    assert json_of(client.post("/process", data=png()))[0]["metadata"]["source"] == "file"


@pytest.mark.parametrize(("data", "kind", "text"), PROCESS["texts"])
def test_process_answers_text_files_as_they_are(client: FlaskClient, data: str, kind: str, text: str) -> None:
    expected = [{"page_content": text, "metadata": {"source": "a.md"}}]
    assert json_of(process(client, data.encode(), kind, **{"X-Filename": "..%2Fa.md"})) == expected


@pytest.mark.parametrize(("data", "kind", "status", "said"), PROCESS["refused"])
def test_process_says_why_a_file_has_no_text(client: FlaskClient, data: str, kind: str, status: int, said: str) -> None:
    response = process(client, data.encode(), kind)
    answer = json_of(response)
    assert (response.status_code, list(answer), said in answer["detail"]) == (status, ["detail"], True), answer


def test_text_files_count_as_held_in_memory() -> None:
    with running_app(Settings(request_memory_bytes=4 << 20, max_body_bytes=2 << 20)) as app:
        for size, status in ((1 << 19, 200), (1 << 20, 413)):
            assert process(app.test_client(), b"a" * size, "text/plain").status_code == status


def test_put_counts_in_the_limits_of_a_key(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys, running_app(Settings(keys=keys.address), keys.gate) as app:
        client, headers = app.test_client(), bearer(keys.add("one", pages_a_day=2))
        assert [process(client, png(), **headers).status_code for _ in range(3)] == [200, 200, 429]
