"""API adapters other than TrWebOCR's: options, refusals and limits that no recording (test_golden.py) covers."""

import io
import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from image_support import png
from support import data_of, filled
from web_support import TEXT, FailingReader, as_base64, client_over, client_raising, json_of, running_app
from werkzeug.test import EnvironBuilder

from ocrsvc import errors
from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings

PNG = png(64, 32)
B64 = as_base64(PNG)
SEEN = "64x32 auto True False None"
# The boxes of `KnownEngine`'s lines, worked out by hand for an image of 64 x 32 pixels.
FIRST, SECOND = [[16, 8], [48, 8], [48, 16], [16, 16]], [[32, 8], [40, 16], [32, 24], [24, 16]]
LINES = [
    {"confidence": 0.98765, "text": TEXT, "text_region": FIRST},
    {"confidence": 0.5, "text": SEEN, "text_region": SECOND},
]


CLIENT_SETTINGS = Settings(max_body_bytes=300_000, max_pixels=10_000_000)


def part(name: str, data: bytes = PNG, **fields: str) -> dict[str, Any]:
    return {"data": {name: (io.BytesIO(data), "a.png"), **fields}}


def arguments_of(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which Flask's client sends a row of the data file."""
    if "raw" in row:
        return {"data": PNG, "content_type": row["raw"]}
    if "file" not in row:
        return dict(filled(row, PAGE=B64))
    return part(row["file"], **{name: value for name, value in row.items() if name != "file"})


ROWS = data_of("adapter_requests")


def reusable_arguments_of(row: dict[str, Any]) -> dict[str, Any]:
    """Arguments that several requests can use: forms are bytes, because a stream can be read only once."""
    sent = arguments_of(row)
    if "file" not in row:
        return sent
    request = EnvironBuilder(method="POST", data=sent["data"]).get_request()
    return {"data": request.get_data(), "content_type": request.content_type}


SENT = {adapter: (path, reusable_arguments_of(row)) for adapter, (path, row) in ROWS["sent"].items()}
# Adapters that offer only jobs.
JOBS_ONLY = {"azure_read"}
# Shares a path with the native API; until the body is parsed, errors have the native API's format.
SHARES_THE_NATIVE_PATH = {"mistral"}


def test_every_adapter_has_a_sample_request() -> None:
    assert set(SENT) == set(adapters()) - JOBS_ONLY


@pytest.mark.parametrize("adapter", SENT)
def test_requests_are_routed_to_their_adapter_on_one_port(client: FlaskClient, adapter: str) -> None:
    path, sent = SENT[adapter]
    response = client.post(path, **sent)
    assert response.status_code == 200
    assert SEEN in response.text
    owners = {"rapidocr_api": "rec_txt", "paddlex": "ocrResults", "turboocr": "bounding_box", "mistral": "markdown"}
    assert owners.get(adapter, "") in response.text


REFUSALS = [
    (errors.QueueFull("Full.", retry_after_s=3), 503, "3"),
    (errors.TooManyAtOnce("Wait.", retry_after_s=4), 429, "4"),
    (errors.NotReady("Loading.", retry_after_s=2), 503, "2"),
    (errors.DeadlineExceeded("Late."), 504, None),
    (KeyError("a secret"), 500, None),
]


@pytest.mark.parametrize(("error", "status", "retry_after"), REFUSALS)
@pytest.mark.parametrize("adapter", SENT)
def test_service_failures_keep_their_status(
    adapter: str, error: Exception, status: int, retry_after: str | None
) -> None:
    path, sent = SENT[adapter]
    response = client_raising(error).post(path, **sent)
    assert (response.status_code, response.headers.get("Retry-After")) == (status, retry_after)
    assert "secret" not in response.text
    assert response.content_type != "application/problem+json"


TOO_LARGE = {"data": bytes(300_001), "content_type": "application/octet-stream"}


@pytest.mark.parametrize("adapter", SENT)
def test_too_large_body_returns_413_in_every_format(client: FlaskClient, adapter: str) -> None:
    path, sent = SENT[adapter]
    named = {name: value for name, value in sent.items() if name == "environ_overrides"}
    response = client.post(path, **TOO_LARGE, **named)
    is_problem = response.content_type == "application/problem+json"
    assert (response.status_code, is_problem) == (413, adapter in SHARES_THE_NATIVE_PATH)


@pytest.mark.parametrize("adapter", SENT)
def test_request_deadline_reaches_the_reader(adapter: str) -> None:
    failing = FailingReader(errors.DeadlineExceeded("Late."))
    response = client_over(failing).post(SENT[adapter][0], **SENT[adapter][1], headers={"X-Request-Timeout": "0.5"})
    assert response.status_code == 504
    assert all(0 < limit <= 0.5 for limit in failing.deadlines)


@pytest.mark.parametrize(("path", "row", "seen"), ROWS["options"])
def test_options_reach_the_engine(client: FlaskClient, path: str, row: dict[str, Any], seen: str) -> None:
    response = client.post(path, **arguments_of(row))
    assert response.status_code == 200
    assert seen in json.dumps(json_of(response), ensure_ascii=False)


@pytest.mark.parametrize(("path", "row", "status", "named"), ROWS["refused"])
def test_bad_options_are_refused(client: FlaskClient, path: str, row: dict[str, Any], status: int, named: str) -> None:
    response = client.post(path, **arguments_of(row))
    assert (response.status_code, named in response.text) == (status, True)
    assert SEEN not in response.text


def floats(box: list[list[int]]) -> list[list[float]]:
    return [[float(x), float(y)] for x, y in box]


def test_rapidocr_returns_numbered_lines_with_words_on_request(client: FlaskClient) -> None:
    lines = {
        "0": {"rec_txt": TEXT, "dt_boxes": floats(FIRST), "score": 0.98765},
        "1": {"rec_txt": SEEN, "dt_boxes": floats(SECOND), "score": 0.5},
    }
    assert json_of(client.post("/ocr", **part("image_file"))) == lines
    words = {"word_results": [["True", 0.98765, floats(FIRST)]]}
    worded = json_of(client.post("/ocr", **part("image_file", return_word_box="true")))
    assert worded == {"0": lines["0"] | words, "1": lines["1"]}


def test_umi_ocr_returns_words_on_request(client: FlaskClient) -> None:
    sent = {"base64": B64, "options": {"data.words": True}}
    first, second = json_of(client.post("/api/ocr", json=sent))["data"]
    assert first["words"] == [{"text": "True", "score": 0.9877, "box": FIRST}]
    assert "words" not in second


def test_paddlex_returns_words_and_draws_their_boxes_on_request(client: FlaskClient) -> None:
    plain, worded = (
        json_of(client.post("/ocr", json={"file": B64, "returnWordBox": asked}))["result"]["ocrResults"][0]
        for asked in (False, True)
    )
    assert plain["prunedResult"]["return_word_box"] is False
    boxes = [[[16, 8, 48, 16]], [[24, 8, 40, 24]]]
    added = {"return_word_box": True, "text_word": [[TEXT], [SEEN]], "text_word_boxes": boxes}
    assert worded["prunedResult"] == plain["prunedResult"] | added
    assert worded["inputImage"] == plain["inputImage"]
    assert worded["ocrImage"] != plain["ocrImage"]


def test_paddlex_returns_lines_with_upright_boxes(client: FlaskClient) -> None:
    answer = json_of(client.post("/ocr", json={"file": B64, "visualize": False}))
    pruned = answer["result"]["ocrResults"][0]["prunedResult"]
    assert (pruned["rec_texts"], pruned["rec_scores"]) == ([TEXT, SEEN], [0.98765, 0.5])
    assert pruned["rec_polys"] == pruned["dt_polys"] == [FIRST, SECOND]
    assert pruned["rec_boxes"] == [[16, 8, 48, 16], [24, 8, 40, 24]]
    assert answer["result"]["dataInfo"] == {"width": 64, "height": 32, "type": "image"}


@pytest.mark.parametrize(
    ("module", "results"),
    [
        ("ocr_system", [LINES, []]),
        ("ocr_det", [[{"text_region": FIRST}, {"text_region": SECOND}], []]),
        ("ocr_rec", [[{"text": TEXT, "confidence": 0.98765}, {"text": "", "confidence": 0.0}]]),
    ],
)
def test_paddlehub_serves_each_module_and_non_images(client: FlaskClient, module: str, results: list[Any]) -> None:
    response = client.post(f"/predict/{module}", json={"images": [B64, as_base64(b"hello")]})
    assert json_of(response) == {"msg": "", "results": results, "status": "000"}


@pytest.mark.parametrize(("module", "row", "status", "said"), ROWS["paddlehub_errors"])
def test_paddlehub_errors_have_status_200(
    client: FlaskClient, module: str, row: dict[str, Any], status: str, said: str
) -> None:
    response = client.post(f"/predict/{module}", **arguments_of(row))
    answer = json_of(response)
    assert (response.status_code, answer["status"], answer["results"]) == (200, status, "")
    assert said in answer["msg"]


def test_paddle_serving_result_evaluates_to_the_lines(client: FlaskClient) -> None:
    answer = json_of(client.post("/ocr/prediction", json={"key": ["image"], "value": [B64]}))
    expected = [[(TEXT, 0.98765), FIRST], [(SEEN, 0.5), SECOND]]
    assert (answer["key"], eval(answer["value"][0], {"__builtins__": {}})) == (["result"], expected)


@pytest.mark.parametrize(("value", "said"), [(["!"], "base64"), ([as_base64(b"hello")], "plain text"), ([], "image")])
def test_paddle_serving_reports_a_bad_image_by_err_no(client: FlaskClient, value: list[str], said: str) -> None:
    response = client.post("/ocr/prediction", json={"key": ["image"], "value": value})
    assert (response.status_code, json_of(response)["err_no"]) == (200, 5000)
    assert said in json_of(response)["err_msg"]


@pytest.mark.parametrize(
    ("parser", "end"), [(None, "\n"), ("multi_para", "\n"), ("none", "\n"), ("single_none", ""), ("multi_none", "")]
)
def test_umi_line_separators_follow_the_parser_option(client: FlaskClient, parser: str | None, end: str) -> None:
    options = {} if parser is None else {"tbpu.parser": parser}
    answer = json_of(client.post("/api/ocr", json={"base64": B64, "options": options}))
    assert [item["end"] for item in answer["data"]] == [end, ""]
    assert [item["box"] for item in answer["data"]] == [FIRST, SECOND]
    assert answer["score"] == pytest.approx((0.9877 + 0.5) / 2)


def test_umi_omits_lines_in_ignored_areas(client: FlaskClient) -> None:
    sent = {"base64": B64, "options": {"tbpu.ignoreArea": [[[0, 0], [64, 17]]], "data.format": "text"}}
    assert json_of(client.post("/api/ocr", json=sent))["data"] == SEEN


def test_ocr_space_text_has_crlf_line_ends(client: FlaskClient) -> None:
    answer = json_of(client.post("/Parse/Image", **part("whatever")))
    (parsed,) = answer["ParsedResults"]
    assert (answer["OCRExitCode"], answer["IsErroredOnProcessing"]) == (1, False)
    assert parsed["ParsedText"] == f"{TEXT}\r\n{SEEN}\r\n"
    assert parsed["TextOverlay"]["HasOverlay"] is False


def test_ocr_space_returns_the_overlay_on_request(client: FlaskClient) -> None:
    answer = json_of(client.post("/parse/image", **part("file", isOverlayRequired="true")))
    first = answer["ParsedResults"][0]["TextOverlay"]["Lines"][0]
    word = {"WordText": "True", "Left": 16.0, "Top": 8.0, "Height": 8.0, "Width": 32.0}
    assert first == {"LineText": TEXT, "Words": [word], "MaxHeight": 8.0, "MinTop": 8.0}


@pytest.mark.parametrize("sent", [{}, part("file", b"hello"), {"data": {"base64Image": "!!!!"}}])
def test_ocr_space_reports_errors_in_a_list(client: FlaskClient, sent: dict[str, Any]) -> None:
    response = client.post("/parse/image", **sent)
    answer = json_of(response)
    assert (response.status_code, answer["OCRExitCode"], answer["IsErroredOnProcessing"]) == (200, 3, True)
    assert isinstance(answer["ErrorMessage"], list)
    assert answer["ErrorMessage"][0]


def test_chineseocr_lite_returns_corners_and_numbered_texts() -> None:
    with running_app(Settings(trwebocr_boxes="poly")) as app:
        answer = json_of(app.test_client().post("/api/tr-run/", **part("file", compress="960")))
        for compress in ("63", "x", "-1"):
            refused = app.test_client().post("/api/tr-run/", **part("file", compress=compress))
            assert (refused.status_code, json_of(refused)["code"]) == (400, 400)
    assert list(answer["data"]) == ["img_detected", "raw_out", "speed_time"]
    assert answer["data"]["raw_out"] == [[FIRST, f"1、 {TEXT}", 0.987654], [SECOND, f"2、 {SEEN}", 0.5]]


BANNERS = [("rapidocr_api", "Welcome to RapidOCR API Server!"), ("umi_ocr", "Umi-OCR v2.1.5")]


@pytest.mark.parametrize(("adapter", "banner"), BANNERS)
def test_adapter_serves_its_banner_on_its_default_port(adapter: str, banner: str) -> None:
    with running_app(Settings(usual_ports=(adapter,))) as app:
        url = f"http://localhost:{adapters()[adapter].port}"
        assert banner in app.test_client().get("/", base_url=url).text
        assert json_of(app.test_client().get("/"))["name"] == "ocrsvc"


@pytest.mark.parametrize(("name", "key"), [("rapidocr_api", "detail"), ("paddlex", "errorCode"), ("turboocr", "error")])
def test_adapter_has_priority_on_its_default_port(name: str, key: str) -> None:
    with running_app(Settings(usual_ports=(name,))) as app:
        for sent in ({"data": {"x": "1"}}, {"json": {"x": 1}}, {"data": b"hello"}, {}):
            response = app.test_client().post("/ocr", base_url=f"http://localhost:{adapters()[name].port}", **sent)
            assert 400 <= response.status_code < 500
            assert key in json_of(response)


@pytest.mark.parametrize(("row", "shape"), ROWS["shared_path"])
def test_shared_path_is_routed_by_type_then_field_names(client: FlaskClient, row: dict[str, Any], shape: str) -> None:
    response = client.post("/ocr", **arguments_of(row))
    assert 400 <= response.status_code < 500
    assert shape in json_of(response)


@pytest.mark.parametrize(
    "sent",
    [
        {"base64": B64, "options": {"data.format": "<script src=//evil.example/x.js></script>"}},
        {"base64": "<img src=x onerror=alert(1)>"},
    ],
    ids=["markup in an option", "markup as an image"],
)
def test_umi_escapes_markup_in_client_text(client: FlaskClient, sent: dict[str, Any]) -> None:
    # A form on another site can send text/plain without a CORS preflight.
    answer = client.post("/api/ocr", data=json.dumps(sent), content_type="text/plain")
    assert answer.content_type == "text/html; charset=UTF-8"
    assert not {b"<"[0], b">"[0], b"&"[0]} & set(answer.get_data())
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert isinstance(json.loads(answer.get_data())["code"], int)
