"""The routes that Open WebUI's document engines call: PaddleOCR-VL's, MinerU's, and the external loader's."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from image_support import box, png
from keys_support import bearer, keys_in
from support import data_of, filled
from web_support import as_base64, json_of, running_app

from ocrsvc.adapters.paddlex.layout_parsing import layout_result
from ocrsvc.results import Cell, Line, Page, Table
from ocrsvc.settings.settings import Settings

FILES = {"PAGE": as_base64(png()), "SCAN": as_base64(pdf(GRAY, GRAY, GRAY)), "TEXT": as_base64(b"a text")}
EXCHANGES = [(path, *row) for path, rows in data_of("open_webui").items() for row in rows]


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with running_app() as app:
        yield app.test_client()


def holds(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return all(name in found and holds(found[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    return expected in found if isinstance(expected, str) else bool(found == expected)


@pytest.mark.parametrize(("path", "row", "status", "expected"), EXCHANGES)
def test_requests_are_answered(client: FlaskClient, path: str, row: dict[str, Any], status: int, expected: Any) -> None:
    sent = filled(row, **FILES)
    if files := sent.pop("files", None):
        parts = [(io.BytesIO(base64.b64decode(file)), name) for name, file in files.items()]
        sent["data"] = {**sent.get("data", {}), "files": parts}
    if body := sent.pop("body", None):
        sent["data"] = base64.b64decode(body)
    response = client.open(path, **{"method": "POST"} | sent)
    assert response.status_code == status, response.text
    assert holds(json_of(response), expected), response.text


def test_layout_parsing_returns_tables_as_html() -> None:
    places = [box(0, 0, 20, 10), box(30, 0, 50, 10), box(0, 20, 20, 30), box(30, 20, 50, 30)]
    cells = tuple(Cell(at // 2, at % 2, 1, 1, place, str(at), (at,)) for at, place in enumerate(places))
    lines = tuple(Line(str(at), 1.0, place) for at, place in enumerate(places))
    page = Page(60, 40, 0, lines, tables=(Table(box(0, 0, 50, 30), 2, 2, cells),))
    pruned: Any = layout_result(page, "", 1)["prunedResult"]
    (block,) = pruned["parsing_res_list"]
    assert (block["block_label"], block["block_bbox"]) == ("table", [0, 0, 50, 30])
    assert block["block_content"].count("<td>") == 4


def test_text_files_count_towards_request_memory() -> None:
    with running_app(Settings(request_memory_bytes=4 << 20, max_body_bytes=2 << 20)) as app:
        for size, status in ((1 << 18, 200), (1 << 19, 413)):
            assert app.test_client().put("/process", data=b"a" * size).status_code == status


def test_a_long_text_is_refused_rather_than_left_unmasked(client: FlaskClient) -> None:
    assert client.put("/process?mask=id", data=b"a" * ((1 << 20) + 1)).status_code == 413


def test_put_counts_in_the_limits_of_a_key(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys, running_app(Settings(keys=keys.address), keys.gate) as app:
        client, headers = app.test_client(), bearer(keys.add("one", pages_a_day=2))
        answers = [client.put("/process", data=png(), headers=headers).status_code for _ in range(3)]
        assert answers == [200, 200, 429]
