"""/openapi.json matches the running service: paths, options, statuses and schemas."""

import io
import re
from dataclasses import fields
from typing import Any

import pytest
from described_errors import FIND_JOB_ERRORS, JOB_RESULT_ERRORS, KEY_ERRORS, READING_ERRORS, SUBMIT_ERRORS, Errors
from flask.testing import FlaskClient
from image_support import png
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from web_support import as_base64, client_raising, json_of

from ocrsvc import errors
from ocrsvc.api.openapi import openapi
from ocrsvc.http.options import OPTIONS, read_options
from ocrsvc.results import ReadOptions

QUEUE_OPTIONS = {"priority"}
ANSWER_OPTIONS = {"lines", "format", "pages", "partial", "timing"}


@pytest.fixture(scope="module")
def served(client: FlaskClient) -> Any:
    return json_of(client.get("/openapi.json"))


def responses(served: Any, path: str, method: str) -> Any:
    found = served["paths"][path][method]["responses"]
    shared = served["components"]["responses"]
    return {status: shared[status] if "$ref" in one else one for status, one in found.items()}


def check(served: Any, path: str, method: str, response: Any) -> None:
    """Check a response's status, content type and body against the description."""
    described = responses(served, path, method)[str(response.status_code)]
    schema = described["content"][response.content_type.partition(";")[0]]["schema"]
    # Validate within the whole document, so that $ref resolves.
    Draft202012Validator(served | schema).validate(json_of(response))


def test_the_description_is_valid_openapi_and_served_as_written(served: Any) -> None:
    validate(served)
    assert served == openapi()


def test_every_path_is_described_and_every_description_is_a_path(client: FlaskClient, served: Any) -> None:
    routes = {
        (re.sub("<(.*?)>", r"{\1}", rule.rule), method.lower())
        for rule in client.application.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.endpoint.partition(".")[0] in {"api", "ops"}
    }
    assert routes == {(path, method) for path, item in served["paths"].items() for method in item}


def test_every_option_is_a_parameter_with_its_actual_default(served: Any) -> None:
    assert {field.name for field in fields(ReadOptions)} | ANSWER_OPTIONS | QUEUE_OPTIONS == set(OPTIONS)
    parameters = served["paths"]["/v1/ocr"]["post"]["parameters"]
    schemas = {item["name"]: item["schema"] for item in parameters if item["in"] == "query"}
    assert set(schemas) == set(OPTIONS)
    for field in fields(ReadOptions):
        assert schemas[field.name].get("default") == (None if field.default == () else field.default)
    defaults = [(name, schema["default"]) for name, schema in schemas.items() if "default" in schema]
    assert read_options(defaults) == read_options([])


def leaves(error: type[errors.OcrsvcError]) -> set[type[errors.OcrsvcError]]:
    below = error.__subclasses__()
    return {error} if not below else set().union(*map(leaves, below))


def test_every_error_that_answers_a_request_is_described(served: Any) -> None:
    answering = (leaves(errors.CallerError) | leaves(errors.ServerError)) - leaves(errors.OperatorError)
    described = served["components"]["responses"]
    for error in answering:
        if error.__module__ == errors.__name__:
            assert f"{error.code}: {error.title}" in described[str(error.status)]["description"]


@pytest.mark.parametrize(
    ("path", "method", "raised"),
    [
        ("/v1/ocr", "post", READING_ERRORS),
        ("/v1/jobs", "post", (*SUBMIT_ERRORS, errors.KeysNeeded)),
        ("/v1/jobs/{job_id}", "get", FIND_JOB_ERRORS),
        ("/v1/jobs/{job_id}/result", "get", JOB_RESULT_ERRORS),
    ],
)
def test_an_operation_names_all_statuses_of_its_errors(served: Any, path: str, method: str, raised: Errors) -> None:
    every: Errors = (*raised, *KEY_ERRORS, errors.OcrsvcError)
    assert {str(error.status) for error in every} == {
        status for status in responses(served, path, method) if status >= "400"
    }


def test_described_bounds_are_exact(served: Any) -> None:
    asked = served["paths"]["/v1/ocr"]["post"]
    schemas = {item["name"]: item["schema"] for item in asked["parameters"] if item["in"] == "query"}
    for name, schema in schemas.items():
        for one in schema.get("anyOf", [schema]):
            values = one.get("enum", [one["const"]] if "const" in one else [])
            values = values + [True, False] * (one.get("type") == "boolean")
            values = values + [one[end] for end in ("minimum", "maximum") if end in one]
            for value in values:
                read_options([(name, value)])
            for beyond in (one["minimum"] - 1, one["maximum"] + 1) if "minimum" in one else ("no value of any\x00",):
                with pytest.raises(errors.BadOption):
                    read_options([(name, beyond)])
    for content in ("application/json", "multipart/form-data", "application/x-www-form-urlencoded"):
        members = asked["requestBody"]["content"][content]["schema"]["properties"]
        assert {name: members[name] for name in OPTIONS} == schemas


@pytest.mark.parametrize(
    "query", ["", "?lines=false", "?tables=true", "?layout=true", "?words=true", "?characters=true"]
)
def test_a_real_answer_fits_its_schema(client: FlaskClient, served: Any, query: str) -> None:
    sent = {"images": [as_base64(png()), "!!!!"]}
    response = client.post(f"/v1/ocr{query}", json=sent)
    assert response.status_code == 200
    check(served, "/v1/ocr", "post", response)


@pytest.mark.parametrize("error", [error for error in READING_ERRORS if error is not errors.OcrsvcError])
def test_a_real_problem_fits_its_schema(served: Any, error: type[errors.OcrsvcError]) -> None:
    response = client_raising(error("It happened.")).post("/v1/ocr", data=png())
    check(served, "/v1/ocr", "post", response)
    described = responses(served, "/v1/ocr", "post")[str(error.status)]["headers"]
    assert {"X-Request-Id"} <= set(described)
    assert ("Retry-After" in response.headers) <= ("Retry-After" in described)


def test_answers_of_a_worker_that_is_not_ready_fit_their_schema(served: Any) -> None:
    client = client_raising(errors.NotReady("Loading."))
    check(served, "/readyz", "get", client.get("/readyz"))
    check(served, "/version", "get", client.get("/version"))


@pytest.mark.parametrize(
    "sent",
    [
        {"json": {"image": as_base64(png()), "max_side": 64, "detect": True}},
        {"data": {"file": (io.BytesIO(png()), "a.png")}, "content_type": "multipart/form-data"},
        {"data": {"image": as_base64(png())}, "content_type": "application/x-www-form-urlencoded"},
        {"data": png(), "content_type": "application/octet-stream"},
    ],
)
def test_every_body_type_that_is_described_is_read(client: FlaskClient, served: Any, sent: dict[str, Any]) -> None:
    described = set(served["paths"]["/v1/ocr"]["post"]["requestBody"]["content"])
    assert sent.get("content_type", "application/json") in described
    assert client.post("/v1/ocr", **sent).status_code == 200
