"""The addresses that Open WebUI's engines for documents call: PaddleOCR-VL's, MinerU's, and the external loader's."""

from collections.abc import Iterator
from typing import Any

import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from image_support import box, png
from keys_support import keys_in
from support import data_of, filled
from web_support import TEXT, as_base64, json_of, running_app

from ocrsvc.adapters.paddlex.layout_parsing import layout_result
from ocrsvc.results import Cell, Line, Page, Table
from ocrsvc.settings.settings import Settings

PAGE = as_base64(png())
SEEN = "64x32 0 True False None"
SCAN = pdf(*[GRAY] * 12)
LAYOUT = data_of("open_webui")["layout"]


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


def test_the_token_of_paddleocr_vl_is_an_api_key(tmp_path: Any) -> None:
    with keys_in(tmp_path) as keys, running_app(Settings(keys=keys.address), keys.gate) as app:
        client, secret = app.test_client(), keys.add("one")
        for token, status in ((secret, 200), ("wrong", 401)):
            headers = {"Authorization": f"token {token}"}
            response = client.post("/layout-parsing", json={"file": PAGE, "fileType": 1}, headers=headers)
            assert response.status_code == status
