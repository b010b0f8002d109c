"""Google Cloud Vision and AWS Textract: words with positions, errors in each API's form, and where keys are sent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from documents import BLACK, GRAY, pdf
from flask.testing import FlaskClient
from image_support import png
from keys_support import WRONG, keys_in
from support import data_of, filled
from web_support import TEXT, as_base64, client_raising, json_of, running_app, running_reader

from ocrsvc import errors
from ocrsvc.adapters.google_vision.annotations import annotations_of
from ocrsvc.app import create_app
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.results import Line, Page
from ocrsvc.settings.settings import Settings

ANNOTATE = "/v1/images:annotate"
TARGET = {"X-Amz-Target": "Textract.DetectDocumentText"}
PHONE = "13800138000"
STARS = "*" * len(PHONE)
CLIENT_SETTINGS = Settings(max_pages=2)
ROWS = data_of("google_aws")
PAGES = {name: as_base64(png(100, 100, shade)) for name, shade in (("PAGE", 200), ("BLACK", 0), ("WHITE", 255))}
PAGES |= {"DOCUMENT": as_base64(pdf(GRAY, GRAY)), "PARTLY": as_base64(pdf(GRAY, BLACK))}
PAGES["LONG"] = as_base64(pdf(GRAY, GRAY, GRAY))
SPACES = {"SPACE": " ", "EOL_SURE_SPACE": "\n", "LINE_BREAK": "\n"}


@pytest.fixture(scope="module")
def words() -> Iterator[FlaskClient]:
    """A client whose engine reads three lines from 10 % of the height to the bottom, with equally wide characters."""
    settings = Settings(engine="fake", fake_text=f"call {PHONE} now")
    with running_reader(settings, None) as reader:
        yield create_app(settings, reader).test_client()


def annotate(client: FlaskClient, *requests: Any, **headers: str) -> list[dict[str, Any]]:
    response = client.post(ANNOTATE, json={"requests": requests}, headers=headers)
    assert response.status_code == 200, response.text
    return list(json_of(response)["responses"])


def image_request(feature: object = "DOCUMENT_TEXT_DETECTION") -> dict[str, Any]:
    return {"image": {"content": PAGES["PAGE"]}, "features": [{"type": feature}]}


def words_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = answer["fullTextAnnotation"]["pages"][0]["blocks"]
    return [word for block in blocks for paragraph in block["paragraphs"] for word in paragraph["words"]]


def text_of(word: dict[str, Any]) -> str:
    """A word's symbols and the space or line break after them."""
    breaks = [symbol.get("property", {}).get("detectedBreak", {}).get("type", "") for symbol in word["symbols"]]
    return "".join(symbol["text"] + SPACES.get(kind, "") for symbol, kind in zip(word["symbols"], breaks, strict=True))


def vertices(left: int, top: int, right: int, bottom: int) -> dict[str, Any]:
    corners = (left, top), (right, top), (right, bottom), (left, bottom)
    return {"vertices": [{"x": x, "y": y} for x, y in corners]}


@pytest.mark.parametrize("feature", ["TEXT_DETECTION", "DOCUMENT_TEXT_DETECTION", 5, 11])
def test_google_words_have_boxes_and_their_symbols_form_the_text(words: FlaskClient, feature: object) -> None:
    (answer,) = annotate(words, image_request(feature))
    text, (page,) = answer["fullTextAnnotation"]["text"], answer["fullTextAnnotation"]["pages"]
    assert (text[:8], text[-20:]) == ("100x100\n", f"call {PHONE} now")
    assert "".join(map(text_of, words_of(answer))) == text + "\n"
    assert (page["width"], page["height"], page["blocks"][0]["blockType"]) == (100, 100, "TEXT")
    whole, first, *_, last = answer["textAnnotations"]
    assert whole == {"description": text, "boundingPoly": vertices(0, 10, 100, 100)}
    assert first == {"description": "100x100", "boundingPoly": vertices(0, 10, 100, 40)}
    # The last word is three of the line's twenty characters.
    assert last == {"description": "now", "boundingPoly": vertices(85, 90, 100, 100)}
    assert words_of(answer)[-1]["symbols"][0]["boundingBox"] == vertices(85, 90, 90, 100)


def test_google_words_have_the_lines_box_if_the_engine_returns_no_words() -> None:
    line = Line("one two", 0.5, ((1, 2), (31, 2), (31, 12), (1, 12)))
    found = words_of(annotations_of(Page(40, 20, 0, (line,))))
    assert [text_of(word) for word in found] == ["one ", "two\n"]
    assert [part["boundingBox"] for word in found for part in (word, *word["symbols"])] == [vertices(1, 2, 31, 12)] * 8


@pytest.mark.parametrize(("request_", "code", "said"), ROWS["images"])
def test_wrong_image_affects_no_other(client: FlaskClient, request_: dict[str, Any], code: int, said: str) -> None:
    wrong, right = annotate(client, filled(request_, **PAGES), image_request())
    assert (wrong["error"]["code"], said in wrong["error"]["message"]) == (code, True)
    assert right["fullTextAnnotation"]["text"].startswith(TEXT)


def test_no_further_file_is_fetched_after_a_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Mock(side_effect=errors.ClientGone("gone"))
    monkeypatch.setattr(UrlFiles, "fetch", fetch)
    image = {"source": {"imageUri": "http://files.example/a.png"}}
    with running_app(Settings(url_hosts=("files.example",))) as app:
        response = app.test_client().post(ANNOTATE, json={"requests": [image_request() | {"image": image}] * 3})
    assert (response.status_code, fetch.call_count) == (499, 1)


@pytest.mark.parametrize(("path", "sent", "status", "said"), ROWS["google"])
def test_google_calls_return_their_status(client: FlaskClient, path: str, sent: Any, status: int, said: str) -> None:
    response = client.post(path, **filled(sent, **PAGES))
    assert (response.status_code, said in response.text) == (status, True), response.text


def detect(client: FlaskClient, page: str, **headers: str) -> dict[str, Any]:
    response = client.post("/", json={"Document": {"Bytes": PAGES[page]}}, headers=TARGET | headers)
    assert (response.status_code, response.content_type) == (200, "application/x-amz-json-1.1")
    assert response.headers["x-amzn-RequestId"] == response.headers["X-Request-Id"]
    return dict(json_of(response))


def of_type(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [block for block in answer["Blocks"] if block["BlockType"] == kind]


def children(block: dict[str, Any]) -> list[str]:
    return [number for relation in block.get("Relationships", []) for number in relation["Ids"]]


def test_textract_lines_and_words_are_blocks_with_relative_positions(words: FlaskClient) -> None:
    answer = detect(words, "PAGE")
    (page,), lines, found = (of_type(answer, kind) for kind in ("PAGE", "LINE", "WORD"))
    assert children(page) == [line["Id"] for line in lines]
    assert page["Geometry"]["BoundingBox"] == {"Width": 1.0, "Height": 1.0, "Left": 0.0, "Top": 0.0}
    texts = {word["Id"]: word["Text"] for word in found}
    assert [[texts[number] for number in children(line)] for line in lines] == [line["Text"].split() for line in lines]
    last = found[-1]
    assert (last["Text"], last["Confidence"], last["TextType"], last["Page"]) == ("now", 100.0, "PRINTED", 1)
    assert last["Geometry"] == {
        "BoundingBox": {"Width": 0.15, "Height": 0.1, "Left": 0.85, "Top": 0.9},
        "Polygon": [{"X": x, "Y": y} for x, y in ((0.85, 0.9), (1.0, 0.9), (1.0, 1.0), (0.85, 1.0))],
    }


def test_textract_blocks_of_all_pages_have_different_ids(client: FlaskClient) -> None:
    answer = detect(client, "DOCUMENT")
    assert answer["DocumentMetadata"] == {"Pages": 2}
    assert [(page["Page"], len(children(page))) for page in of_type(answer, "PAGE")] == [(1, 2), (2, 2)]
    assert len({block["Id"] for block in answer["Blocks"]}) == len(answer["Blocks"])


@pytest.mark.parametrize(("sent", "status", "exception"), ROWS["textract"])
def test_errors_are_textracts_exceptions(client: FlaskClient, sent: Any, status: int, exception: str) -> None:
    response = client.post("/", **{"headers": TARGET} | filled(sent, **PAGES))
    assert (response.status_code, json_of(response)["__type"]) == (status, exception), response.text
    assert response.headers["x-amzn-ErrorType"] == exception


def test_a_busy_service_is_a_throttling_exception() -> None:
    sent = {"Document": {"Bytes": PAGES["PAGE"]}}
    response = client_raising(errors.QueueFull("Full.", retry_after_s=3)).post("/", json=sent, headers=TARGET)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "3")
    assert json_of(response) == {"__type": "ThrottlingException", "message": "Full."}


def test_a_post_without_an_aws_operation_is_refused(client: FlaskClient) -> None:
    response = client.post("/", data=png())
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert json_of(response)["code"] == "method_not_allowed"


def test_masked_parts_are_stars_in_every_member(words: FlaskClient) -> None:
    (google,), aws = (
        annotate(words, image_request(), **{"X-Mask": "phone"}),
        detect(words, "PAGE", **{"X-Mask": "phone"}),
    )
    assert PHONE not in f"{google}{aws}"
    assert "".join(map(text_of, words_of(google))).endswith(f"call {STARS} now\n")
    assert (google["textAnnotations"][-2]["description"], of_type(aws, "WORD")[-2]["Text"]) == (STARS, STARS)


def test_each_api_accepts_keys_where_its_clients_send_them(tmp_path: Path) -> None:
    body = {"requests": [image_request()], "Document": {"Bytes": PAGES["PAGE"]}, "image": PAGES["PAGE"]}
    with keys_in(tmp_path) as keys:
        secrets = {"READER": keys.add("reader"), "OPERATOR": keys.add("operator", "operate"), "WRONG": WRONG}
        with running_app(Settings(keys=keys.address), keys.gate) as app:
            for path, row, status, said in ROWS["keys"]:
                sent = filled(row, **secrets)
                headers = TARGET | sent.pop("headers", {})
                response = app.test_client().post(path, json=body, headers=headers, **sent)
                assert (response.status_code, said in response.text) == (status, True), (row, response.text)
