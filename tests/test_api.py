"""POST /v1/ocr: answers, options and errors as documented."""

import gc
import io
import json
import logging
import re
from dataclasses import asdict
from typing import Any

import pytest
from described_errors import KEY_ERRORS, READING_ERRORS
from flask.testing import FlaskClient
from image_support import png
from support import ROOT, data_of
from urllib3.filepost import encode_multipart_formdata
from web_support import INFO, TEXT, as_base64, client_raising, json_of, running_app, texts

from ocrsvc import errors
from ocrsvc.formats.json_values import page_to_dict
from ocrsvc.http import options as http_options
from ocrsvc.http.options import OPTIONS
from ocrsvc.results import Box, Character, Line, Page, ReadOptions, Word
from ocrsvc.settings.settings import Settings

PNG = png(64, 32)
BLACK = png(shade=0)
DOCS = ROOT / "docs" / "api.md"
CASES = data_of("api_cases")


CLIENT_SETTINGS = Settings(max_body_bytes=200_000, max_pixels=1_000_000)


def post(
    client: FlaskClient, data: Any = PNG, content_type: str = "image/png", url: str = "/v1/ocr", **more: Any
) -> Any:
    return client.post(url, data=data, content_type=content_type, **more)


def files(*datas: bytes, field: str = "file") -> dict[str, Any]:
    return {field: [(io.BytesIO(data), f"{number}.png") for number, data in enumerate(datas)]}


def test_response_has_lines_engine_and_timing(client: FlaskClient) -> None:
    response = post(client, headers={"X-Request-Id": "mine"})
    assert (response.status_code, response.content_type) == (200, "application/json")
    answer = json.loads(response.data)
    timing = answer.pop("timing")
    assert answer == {"id": "mine", "engine": asdict(INFO), **data_of("native_answers")["plain"]}
    assert list(timing) == ["decode_s", "queue_s", "engine_s", "total_s"]
    assert 0 < timing["decode_s"] + timing["queue_s"] + timing["engine_s"] <= timing["total_s"] < 60


def test_base64_in_a_form_field_may_be_larger_than_half_a_megabyte() -> None:
    with running_app() as app:
        body, content_type = encode_multipart_formdata({"image": as_base64(PNG + bytes(1_500_000))})
        assert post(app.test_client(), body, content_type).status_code == 200


@pytest.mark.parametrize("where", ["query", "field", "member"])
@pytest.mark.parametrize(("name", "value", "seen"), CASES["options"])
def test_an_option_reaches_the_engine(client: FlaskClient, where: str, name: str, value: str, seen: str) -> None:
    sent: dict[str, Any] = {
        "query": {"data": PNG, "query_string": {name: value}},
        "field": {"data": files(PNG) | {name: value}, "content_type": "multipart/form-data"},
        "member": {"json": {"image": as_base64(PNG), name: value}},
    }
    (text,) = texts(json_of(client.post("/v1/ocr", **sent[where])))
    assert text == f"{TEXT}\n{seen}"


def test_tables_and_regions_appear_only_on_request(client: FlaskClient) -> None:
    (page,) = json_of(post(client, query_string={"tables": "true"}))["pages"]
    expected = data_of("native_answers")
    assert page["tables"] == expected["tables"]
    (page,) = json_of(post(client, query_string={"layout": "true"}))["pages"]
    assert page["regions"] == expected["regions"]
    assert not {"tables", "regions"} & set(json_of(post(client))["pages"][0])


@pytest.mark.parametrize(("options", "seen"), CASES["json_options"])
def test_json_options_may_have_their_native_type(client: FlaskClient, options: dict[str, Any], seen: str) -> None:
    answer = json_of(client.post("/v1/ocr", json={"image": as_base64(PNG), **options}))
    assert texts(answer) == [f"{TEXT}\n{seen}"]


BOXED = {"confidence": 0.9877, "box": [[16, 8], [48, 8], [48, 16], [16, 16]]}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("words=true", [{"text": "True", **BOXED}]),
        ("words=1&characters=false", [{"text": "True", **BOXED}]),
        ("characters=true", [{"text": "False", **BOXED, "characters": [{"text": "x", **BOXED}]}]),
    ],
)
def test_lines_have_the_requested_words(client: FlaskClient, query: str, words: list[object]) -> None:
    first, second = json_of(client.post(f"/v1/ocr?{query}", data=PNG))["pages"][0]["lines"]
    assert first == {"text": TEXT, **BOXED, "words": words}
    assert "words" not in second


def test_segmented_words_need_their_package(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_options, "find_spec", lambda name: object() if name == "jieba" else None)
    answer = json_of(client.post("/v1/ocr?words=Segmented", data=PNG))
    assert answer["pages"][0]["lines"][0]["words"] == [{"text": "segmented", **BOXED}]
    monkeypatch.setattr(http_options, "find_spec", lambda _: None)
    problem = json_of(client.post("/v1/ocr?words=segmented", data=PNG))
    assert (problem["status"], problem["code"]) == (400, "bad_option")
    assert ".[segment]" in problem["remedy"]


LONG = [("max_side", "9" * 5000, "from 16 to 65535"), ("pages", ",".join("1" * 200), "1-3,7")]


@pytest.mark.parametrize(("name", "value", "accepted"), CASES["bad_options"] + LONG)
def test_a_bad_option_is_named_with_accepted_values(client: FlaskClient, name: str, value: str, accepted: str) -> None:
    problem = json_of(post(client, query_string={name: value}))
    assert (problem["status"], problem["code"]) == (400, "bad_option")
    text = problem["detail"] + problem.get("remedy", "")
    assert [part for part in (name, value[:40], accepted) if part not in text] == []


@pytest.mark.parametrize(("name", "problem"), CASES["unknown_options"])
def test_an_unknown_option_is_named_with_a_similar_one(client: FlaskClient, name: str, problem: str) -> None:
    sent = {"image": as_base64(PNG), name: "zh"}
    for response in (post(client, query_string={name: "zh"}), client.post("/v1/ocr", json=sent)):
        found = json_of(response)
        assert (found["status"], f"{found['detail']} {found['remedy']}"[: len(problem)]) == (400, problem)


def test_ignored_options_are_refused(client: FlaskClient) -> None:
    sent = {"image": as_base64(PNG), "rotate": "90"}
    assert client.post("/v1/ocr?rotate=90", json=sent).status_code == 200
    problem = json_of(client.post("/v1/ocr?rotate=180", json=sent))
    assert (problem["code"], "twice" in problem["detail"]) == ("bad_option", True)
    # A file in an unknown field is refused.
    problem = json_of(post(client, files(PNG) | files(PNG, field="mask"), "multipart/form-data"))
    assert (problem["code"], "'mask'" in problem["detail"]) == ("bad_option", True)


PAGE = f"{TEXT}\n64x32 auto True False None\n"
FORMS = {
    "text": ("text/plain; charset=utf-8", f"{PAGE}\f{PAGE}"),
    "tsv": ("text/tab-separated-values; charset=utf-8", f"4\t2\t0\t0\t1\t0\t16\t8\t32\t8\t98.77\t{TEXT}\n"),
    "hocr": ("text/vnd.hocr+html; charset=utf-8", 'title="bbox 0 0 64 32; ppageno 1"'),
    "alto": ("application/alto+xml; charset=utf-8", '<Page ID="page_2" PHYSICAL_IMG_NR="2"'),
}


@pytest.mark.parametrize("name", FORMS)
def test_format_is_selected_by_option_or_accept_header(client: FlaskClient, name: str) -> None:
    media_type, piece = FORMS[name]
    asked = post(client, files(PNG, PNG), "multipart/form-data", f"/v1/ocr?format={name}")
    assert (asked.content_type, asked.headers["X-Content-Type-Options"]) == (media_type, "nosniff")
    assert piece in asked.text
    sent = files(PNG, PNG)
    accepted = client.post("/v1/ocr", data=sent, headers={"Accept": f"{media_type.partition(';')[0]}, */*;q=0.1"})
    assert (accepted.content_type, accepted.text) == (media_type, asked.text)


@pytest.mark.parametrize(("accept", "query", "answered"), CASES["accepted"])
def test_response_is_json_unless_accept_differs(client: FlaskClient, accept: str, query: str, answered: str) -> None:
    response = client.post(f"/v1/ocr{query}", data=PNG, content_type="image/png", headers={"Accept": accept})
    assert (response.status_code, response.content_type) == (200, answered)


def test_zip_without_formats_is_refused(client: FlaskClient) -> None:
    response = client.post("/v1/ocr", data=PNG, headers={"Accept": "application/zip"})
    assert (response.status_code, json_of(response)["code"]) == (400, "bad_option")
    assert "format=pdf,md" in json_of(response)["remedy"]
    response = client.post("/v1/ocr?format=json,text", data=PNG, headers={"Accept": "application/zip"})
    assert (response.status_code, response.content_type) == (200, "application/zip")


@pytest.mark.parametrize("name", FORMS)
def test_text_formats_report_a_failed_page_as_error(client: FlaskClient, name: str) -> None:
    response = post(client, files(PNG, b"no image"), "multipart/form-data", f"/v1/ocr?format={name}")
    assert (response.status_code, json_of(response)["code"]) == (415, "unsupported_image")


def test_failed_page_does_not_affect_other_pages(client: FlaskClient) -> None:
    sent = {"images": [as_base64(PNG), "!!!!", as_base64(b"no image"), as_base64(BLACK), as_base64(png(40))]}
    response = client.post("/v1/ocr", json=sent)
    assert response.status_code == 200
    pages = json_of(response)["pages"]
    assert [(page["page"], page.get("width")) for page in pages] == [(1, 64), (2, None), (3, None), (4, None), (5, 40)]
    assert [page["error"]["code"] for page in pages[1:4]] == ["bad_base64", "unsupported_image", "engine_failed"]
    assert all(page["error"]["id"] == json_of(response)["id"] for page in pages[1:4])


def test_first_error_is_returned_if_all_pages_fail(client: FlaskClient) -> None:
    response = post(client, files(b"no image", BLACK), "multipart/form-data")
    assert (response.status_code, json_of(response)["code"]) == (415, "unsupported_image")


FAILURES: dict[str, tuple[Any, str, int, str]] = {
    "nothing sent": (b"", "image/png", 400, "nothing_sent"),
    "bad base64": (b'{"image": "!!!!"}', "application/json", 400, "bad_base64"),
    "bad JSON": (b'{"image"', "application/json", 400, "bad_request"),
    "bad form": (b"x", "multipart/form-data", 400, "bad_request"),
    "too many bytes": (bytes(200_001), "image/png", 413, "body_too_large"),
    "too many pixels": (png(1001, 1000), "image/png", 413, "image_too_large"),
    "not an image": (b"PK\x03\x04", "image/png", 415, "unsupported_image"),
    "a broken document": (b"%PDF-1.7", "image/png", 422, "broken_image"),
    "not an image at all": (b"hello", "text/plain", 415, "unsupported_image"),
    "a broken image": (PNG[:40], "image/png", 422, "broken_image"),
    "the engine fails": (BLACK, "image/png", 500, "engine_failed"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_problem_json_with_status_and_code(client: FlaskClient, case: str) -> None:
    data, content_type, status, code = FAILURES[case]
    check_problem(post(client, data, content_type), status, code)


def check_problem(response: Any, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.content_type) == (status, "application/problem+json")
    problem: dict[str, Any] = json.loads(response.data)
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == f"urn:problem-type:ocrsvc:{code}"
    assert problem["id"] == response.headers["X-Request-Id"]
    assert problem["title"]
    assert re.search(r"[.:]$|\.\s*$", problem["detail"])
    assert response.headers["Cache-Control"] == "no-store"
    return problem


RAISED = [error for error in READING_ERRORS if error is not errors.OcrsvcError]


@pytest.mark.parametrize("error", RAISED)
def test_every_error_of_the_reader_keeps_its_status_code_and_remedy(error: type[errors.OcrsvcError]) -> None:
    problem = check_problem(post(client_raising(error("It happened.", "Do this."))), error.status, error.code)
    assert (problem["title"], problem["detail"], problem["remedy"]) == (error.title, "It happened.", "Do this.")
    assert problem["retryable"] is error.retryable


def test_unexpected_error_is_logged_with_id_but_hidden_from_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "ocrsvc.web"):
        response = post(client_raising(KeyError("a secret")), headers={"X-Request-Id": "find-me"})
    problem = check_problem(response, 500, "internal")
    assert "secret" not in json.dumps(problem)
    assert "find-me" in caplog.text


@pytest.mark.parametrize(("method", "path", "status", "remedy"), CASES["routes"])
def test_wrong_path_or_method_names_a_right_one(
    client: FlaskClient, method: str, path: str, status: int, remedy: str
) -> None:
    response = client.open(path, method=method)
    problem = check_problem(response, status, {404: "not_found", 405: "method_not_allowed"}[status])
    assert problem["remedy"].startswith(remedy)
    assert ("Allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("/v1/ocr", {"image": "QUJD!"}),
        ("/v1/ocr", {"images": [as_base64(PNG[:40])] * 2}),
        ("/predict/ocr_system", {"images": [as_base64(PNG[:40]), "QUJD!"]}),
    ],
)
def test_errors_release_the_body_without_collection(client: FlaskClient, url: str, sent: dict[str, object]) -> None:
    def kept() -> int:
        return sum(isinstance(each, errors.OcrsvcError) for each in gc.get_objects())

    gc.collect()
    before = kept()
    gc.disable()
    try:
        post(client, json.dumps(sent), "application/json", url)
        assert kept() == before
    finally:
        gc.enable()


def test_documentation_lists_exactly_the_options_and_errors() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    options = {name: accepted for name, accepted in rows if not accepted.isdecimal()}
    codes = {(name, int(status)) for name, status in rows if status.isdecimal()}
    assert options == {name: option.accepted for name, option in OPTIONS.items()}
    declared = {(error.code, error.status) for error in (*READING_ERRORS, *KEY_ERRORS)}
    assert codes == declared | {("not_found", 404), ("method_not_allowed", 405)}


def test_empty_field_is_named(client: FlaskClient) -> None:
    assert json_of(client.post("/v1/ocr", data={"file": ""}))["detail"] == "The field 'file' is empty."


def test_thousands_of_characters_keep_their_boxes() -> None:
    def at(x: int) -> Box:
        return (float(x), 0.0), (x + 1.0, 0.0), (x + 1.0, 1.0), (float(x), 1.0)

    characters = [Character(chr(0x4E00 + x), x / 10_000, at(x)) for x in range(9000)]
    words = [Word("", 0.5, at(x), tuple(characters[x : x + 2])) for x in range(0, 9000, 2)]
    page = Page(9000, 1, 0, tuple(Line("", 0.5, at(x), tuple(words[x : x + 3])) for x in range(0, 4500, 3)))
    lines: Any = page_to_dict(page, 1, ReadOptions(words=True, characters=True))["lines"]
    found = [each for line in lines for word in line["words"] for each in word["characters"]]
    assert [(each["text"], each["confidence"], each["box"][0][0]) for each in found] == [
        (chr(0x4E00 + x), round(x / 10_000, 4), x) for x in range(9000)
    ]
