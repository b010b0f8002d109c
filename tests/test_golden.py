"""The adapters answer recorded requests as the real servers did: same status, type and structure."""

import base64
import io
import json
from typing import Any

import pytest
from documents import GRAY, pdf, tiff
from flask.testing import FlaskClient
from golden import differences, parse_json, read_golden
from image_support import png
from support import data_of, filled
from web_support import as_base64

from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings

PAGE = as_base64(png())
TEXTS = {
    "PAGE": PAGE,
    "WHITE": as_base64(png(shade=255)),
    "BLACK": as_base64(png(shade=0)),
    "LARGE": as_base64(png() + bytes(4 << 20)),
    "TIFF": as_base64(tiff([40] * 12)),
    "PDF": as_base64(pdf(*[GRAY] * 12)),
}
CASES = data_of("golden_cases")


def request_of(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which Flask's client sends the request of a row."""
    row = {"type": "application/json", **filled(row, **TEXTS)}
    if "file" in row:
        file = io.BytesIO(base64.b64decode(row["file"]))
        return {"data": {"image_file": (file, "a.png"), **row.get("fields", {})}}
    if "fields" in row:
        return {"data": row["fields"], "content_type": None if row["type"] == "application/json" else row["type"]}
    if "json" in row:
        return {"data": json.dumps(row["json"]), "content_type": row["type"]}
    return {"data": row["text"], "content_type": row["type"]} if "text" in row else {}


GOLDEN = {
    "rapidocr_api": ("rapidocr_api.txt", "/ocr"),
    "paddlex": ("paddlex_ocr.txt", "/ocr"),
    "paddle_serving": ("paddle_serving_pipeline.txt", "/ocr/prediction"),
    "umi_ocr": ("umi_ocr.txt", "/api/ocr"),
}


CLIENT_SETTINGS = Settings(usual_ports=tuple(GOLDEN))


@pytest.mark.parametrize(("adapter", "title"), [(name, title) for name in GOLDEN for title in CASES[name]])
def test_a_recorded_request_gets_the_recorded_response(client: FlaskClient, adapter: str, title: str) -> None:
    name, path = GOLDEN[adapter]
    golden, case = read_golden(name), CASES[adapter][title]
    expected = golden[case.get("like", title)]
    url = f"http://127.0.0.1:{adapters()[adapter].port}"
    method, path = case.get("at", f"POST {path}").split()
    response = client.open(path, method=method, base_url=url, **request_of(case))
    assert response.status_code == case.get("status", expected.status)
    if "differs" in case and "like" not in case:
        return
    answer = parse_json(response.text)
    assert (response.mimetype, answer is None) == (expected.mimetype, expected.json is None)
    if "like" in case and title == "health":
        answer.pop("status")
    assert differences(expected.json, answer) == []
    for member in case.get("equal", ()):
        sent, answered = golden[title].json[member], answer[member]
        # A message may be longer than the recorded one.
        assert answered == sent or (isinstance(sent, str) and answered.startswith(sent.rstrip(".")))
