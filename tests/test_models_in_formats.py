"""Every format with a model repository: the options model, tier and lang, and which version reads a request."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from image_support import png
from models_support import make_several
from support import data_of, read_data
from test_adapters import SENT
from web_support import as_base64, json_of, running_app, running_reader

from ocrsvc.app import create_app
from ocrsvc.client.response import Response, model_list_of
from ocrsvc.errors import BadModel, BadOption, UnknownModel
from ocrsvc.http.options import read_options
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.models.model_control import ModelControl
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.version_selection import VersionSelector
from ocrsvc.models.worker_models import WorkerModels
from ocrsvc.results import ReadOptions
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings

PAGE = png()
BASE64 = as_base64(PAGE)
DATA_URI = f"data:image/png;base64,{BASE64}"
TENSOR = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [BASE64]}]}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> JobStore:
    return JobStore(tmp_path_factory.mktemp("jobs"), 2**20, 60.0)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, jobs: JobStore) -> Iterator[FlaskClient]:
    settings = read_settings(make_several(tmp_path_factory.mktemp("models")))
    with running_reader(settings, None) as reader:
        yield create_app(settings, reader, jobs=jobs).test_client()


def readers(response: Any) -> list[str]:
    """The versions whose names appear in the response; each fake version reads its name as text."""
    return [name for name in ("east/1", "east/2", "north/1") if name in response.text]


@pytest.mark.parametrize(
    ("query", "version"), read_data("models_in_formats.json")["the answer names the version that read"]
)
def test_the_answer_names_the_version_that_read(client: FlaskClient, query: str, version: str) -> None:
    answer = json_of(client.post(f"/v1/ocr{query}", data=PAGE))
    assert answer["pages"][0]["lines"][-1]["text"] == version
    assert f"{answer['engine']['model']}/{answer['engine']['version']}" == version


@pytest.mark.parametrize(("query", "there"), read_data("models_in_formats.json")["unknown model error"])
def test_unknown_model_error_lists_the_models(client: FlaskClient, query: str, there: str) -> None:
    problem = json_of(client.post(f"/v1/ocr?{query}", data=PAGE))
    assert (problem["status"], problem["code"]) == (404, "unknown_model")
    assert there in problem["remedy"]


def test_the_list_has_every_version(client: FlaskClient) -> None:
    listed = model_list_of(Response(200, None, client.get("/v1/ocr/models").data))
    assert listed.default == "east"
    found = {f"{one.name}/{one.version}": (one.state, one.labels, one.tier) for one in listed.models}
    assert found == {
        "east/1": ("AVAILABLE", ("stable",), "small"),
        "east/2": ("AVAILABLE", ("canary",), "small"),
        "north/1": ("AVAILABLE", (), "tiny"),
        "ppocr/1": ("AVAILABLE", (), "small"),
    }


BY_NAME = (
    "trwebocr",
    "trwebocr_cpp",
    "rapidocr_api",
    "paddlex",
    "paddlehub",
    "paddle_serving",
    "umi_ocr",
    "ocr_space",
    "mineru",
    "open_webui",
)
QUERY_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *(SENT[name] for name in BY_NAME),
    ("/ocr/raw", {"data": PAGE}),
    ("/ocr/batch", {"json": {"images": [BASE64]}}),
]


@pytest.mark.parametrize(("path", "sent"), QUERY_REQUESTS)
def test_every_format_accepts_the_model_in_the_query(client: FlaskClient, path: str, sent: dict[str, Any]) -> None:
    assert readers(client.post(path, **sent)) == ["east/1"]
    assert readers(client.post(f"{path}?lang=ru", **sent)) == ["north/1"]
    assert readers(client.post(f"{path}?model=east/2", **sent)) == ["east/2"]


@pytest.mark.parametrize(
    ("language", "version"),
    [("chs", "east/1"), ("ENG", "east/1"), ("rus", "north/1"), ("auto", "east/1"), ("", "east/1")],
)
def test_the_language_of_ocr_space_chooses_the_model(client: FlaskClient, language: str, version: str) -> None:
    sent = {"base64Image": DATA_URI, "language": language, "OCREngine": "2"}
    assert readers(client.post("/parse/image", data=sent)) == [version]


@pytest.mark.parametrize(("language", "version"), [("english", "east/1"), ("ru", "north/1"), ("klingon", None)])
def test_the_language_of_docling_chooses_the_model(client: FlaskClient, language: str, version: str | None) -> None:
    lang = {"name": "lang_type", "shape": [1, 1], "datatype": "BYTES", "data": [language]}
    response = client.post("/v2/models/ocr/infer", json={"inputs": [lang, *TENSOR["inputs"]]})
    assert (response.status_code, readers(response)) == ((200, [version]) if version else (400, []))


def test_a_language_that_no_model_reads_is_invalid_to_ocr_space(client: FlaskClient) -> None:
    answer = json_of(client.post("/parse/image", data={"base64Image": DATA_URI, "language": "kor"}))
    assert (answer["OCRExitCode"], answer["IsErroredOnProcessing"]) == (99, True)
    assert answer["ErrorMessage"] == ["E201: Value for parameter 'language' is invalid"]
    assert "Languages: " in answer["ErrorDetails"]


@pytest.mark.parametrize(("hints", "versions"), read_data("models_in_formats.json")["google language hints"])
def test_googles_language_hint_chooses_the_model(client: FlaskClient, hints: list[str], versions: list[str]) -> None:
    image: dict[str, Any] = {"image": {"content": BASE64}, "features": [{"type": "TEXT_DETECTION"}]}
    sent = {"requests": [image | {"imageContext": {"languageHints": hints}}, image]}
    first, second = json_of(client.post("/v1/images:annotate", json=sent))["responses"]
    assert [name for name in ("east/1", "north/1", "error") if name in str(first)] == versions
    assert "east/1" in str(second)


def test_umi_ocr_reads_with_every_language_and_model_that_it_lists(client: FlaskClient) -> None:
    described = json_of(client.get("/api/ocr/get_options"))["ocr.language"]
    titles = dict(described["optionsList"])
    values = list(titles)
    assert [titles[value] for value in values[:2]] == ["简体中文", "English"]
    assert values[0] == described["default"] == "models/config_chinese.txt"
    # Skip the built-in model's languages, so that it need not be loaded.
    for value, version, is_listed in data_of("umi_languages"):
        assert value in values or not is_listed
        assert readers(_by_umi_ocr(client, value)) == [version]


@pytest.mark.parametrize(
    "value",
    [
        *("models/config_korean.txt", "model=west", "klingon", "en", "models/../../etc/passwd", "rotate=90"),
        *("model=", "lang=klingon", 7, ["en"]),
    ],
)
def test_umi_ocr_refuses_options_that_it_does_not_list(client: FlaskClient, value: object) -> None:
    response = _by_umi_ocr(client, value)
    assert (response.status_code, json_of(response)["code"]) == (200, 804)


def _by_umi_ocr(client: FlaskClient, value: object) -> Any:
    return client.post("/api/ocr", json={"base64": BASE64, "options": {"ocr.language": value}})


def test_an_uploaded_umi_ocr_document_keeps_its_language(client: FlaskClient, jobs: JobStore) -> None:
    added = _upload(client, "/api/doc/upload", "models/config_cyrillic.txt")
    job = jobs.find(added["data"])
    assert job is not None
    assert job.record().options["lang"] == "ru"
    job = jobs.find(_upload(client, "/api/doc/upload?model=east/2", None)["data"])
    assert job is not None
    assert job.record().options["model"] == "east/2"
    assert _upload(client, "/api/doc/upload", "models/config_korean.txt")["code"] == 108
    assert json_of(client.get("/api/doc/get_options"))["ocr.language"]["default"] == "models/config_chinese.txt"


def _upload(client: FlaskClient, path: str, language: str | None) -> Any:
    options = {} if language is None else {"ocr.language": language}
    form = {"file": (io.BytesIO(pdf(GRAY)), "a.pdf"), "json": json.dumps(options)}
    return json_of(client.post(path, data=form))


def test_the_parameters_of_a_tensor_choose_tier_and_language(client: FlaskClient) -> None:
    for parameters in ({"lang": "ru"}, {"tier": "tiny"}):
        assert readers(client.post("/v2/models/ocr/infer", json={**TENSOR, "parameters": parameters})) == ["north/1"]


def test_unreadable_repository_error_contains_no_path(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = BadModel("The model repository /srv/models cannot be read: Stale file handle.")
    monkeypatch.setattr(WorkerModels, "list", Mock(side_effect=failure))
    response = client.get("/v1/ocr/models")
    assert (response.status_code, json_of(response)["code"]) == (503, "not_ready")
    assert "/srv" not in response.text


@pytest.mark.parametrize(("name", "sent", "value"), read_data("models_in_formats.json")["option is parsed"])
def test_option_is_parsed(name: str, sent: str, value: str) -> None:
    assert getattr(read_options([(name, sent)]).read, name) == value


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        *(
            ("model", text)
            for text in ("", "..", "ppocr/0", "ppocr/x", "ppocr/99999999999", "a:b/1", "ppocr/1:x", "模")
        ),
        *(("model", text) for text in ("a" * 65, "../../etc/passwd", "ppocr/", "ppocr:")),
        *(("tier", text) for text in ("huge", "")),
        *(("lang", text) for text in ("", "e", "englisch", "en-", "zh--tw", "en;fr", "e1", "x" * 5000)),
    ],
)
def test_invalid_option_is_refused(name: str, sent: str) -> None:
    with pytest.raises(BadOption, match=f"The option '{name}'"):
        read_options([(name, sent)])


def test_an_engine_with_its_own_model_lists_no_models() -> None:
    with running_app(Settings(engine="tr")) as app:
        assert json_of(app.test_client().get("/v1/ocr/models")) == {"default": None, "models": []}
    control = ModelControl(ModelRepository(None, engine="fake"), None)
    selector = VersionSelector(control, WantedModel(control.catalogue().available[0].name))
    for asked in ({"model": "fake"}, {"tier": "small"}, {"lang": "en"}):
        with pytest.raises(UnknownModel, match="The engine fake has its own model"):
            selector.select(replace(ReadOptions(), **asked))  # type: ignore[arg-type]  # names from the table
    selector.select(ReadOptions(lang="auto"))
