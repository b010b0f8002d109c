"""Random malformed input to every route is answered in its format, never by a 500; benchmarks/fuzz.py sends more."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_support import png
from support import data_of, run_program
from web_support import as_base64, running_app

from ocrsvc.jobs.job_store import JobStore
from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings

B64 = as_base64(png(16, 16))
PATHS, NAMES = (data_of("fuzz")[name] for name in ("paths", "names"))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from([B64, "image", "max", "true", "data:,", "http://x"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
)
OBJECTS = st.dictionaries(st.sampled_from((*NAMES, "options")), VALUES, max_size=6)
BODIES = st.one_of(
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(NAMES), st.text("aA%+=&/", max_size=8), max_size=4).map(
        lambda fields: "&".join(f"{name}={value}" for name, value in fields.items()).encode()
    ),
)
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
TYPES = st.sampled_from(["application/json", *_FORMS, "image/png", "text/plain"])


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FlaskClient]]:
    ports = ("rapidocr_api", "paddlex", "turboocr")
    jobs = JobStore(tmp_path_factory.mktemp("jobs"), 10**7, 3600.0)
    with running_app(Settings(max_body_bytes=4096, usual_ports=ports), jobs=jobs) as app:
        yield {name: app.test_client() for name in adapters()}


@pytest.mark.parametrize("adapter", adapters())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_responses_have_the_adapters_format(clients: dict[str, FlaskClient], adapter: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PATHS[adapter]))
    base_url = f"http://127.0.0.1:{adapters()[adapter].port or 8000}"
    headers: dict[str, Any] = {"X-Width": data.draw(st.sampled_from(["1", "x", "99999", ""])), "X-Height": "1"}
    headers["X-Amz-Target"] = "Textract.DetectDocumentText"
    if adapter == "kserve_v2":
        headers["Inference-Header-Content-Length"] = data.draw(st.sampled_from(["0", "2", "20", "x", "99999"]))
    body, content_type = data.draw(BODIES), data.draw(TYPES)
    response = clients[adapter].post(path, data=body, content_type=content_type, base_url=base_url, headers=headers)
    assert response.status_code != 500
    # Mistral shares its path with the native API, which answers requests without a document.
    assert response.content_type != "application/problem+json" or adapter == "mistral"


def run(tmp_path: Path, script: str, *args: str) -> Any:
    """Run a benchmark that must succeed and return its results."""
    out = tmp_path / "figures.json"
    done = run_program(f"benchmarks/{script}", *args, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text("utf-8"))


def test_malformed_grpc_calls_end_with_a_status(tmp_path: Path) -> None:
    figures = run(tmp_path, "fuzz.py", "--only", "grpc", "--inputs", "500")
    # Calls end in every way.
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "served", "GOAWAY"} <= set(figures["ends"])
    assert figures["inputs"] == 500


def test_responses_match_the_openapi_description(tmp_path: Path) -> None:
    figures = run(tmp_path, "schemathesis_run.py", "--examples", "1")
    assert figures["without keys"]["cases"] >= 1000
    for kind in ("without keys", "a right key"):
        checks = {"not_a_server_error", "status_code_conformance", "response_schema_conformance"}
        assert checks <= set(figures[kind]["checks"])
    assert min(found["cases"] for kind, found in figures.items() if kind.endswith("key")) >= 40
