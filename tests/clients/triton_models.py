"""Lists, loads and unloads models with NVIDIA's unmodified tritonclient, in a separate virtual environment.

python triton_models.py http|grpc ADDRESS IMAGE VERSION…

The service has these versions of the model `fake`; the last one is the default. Each reads NAME/VERSION on every page.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

MODEL = "fake"


def states(client: Any) -> dict[str, str]:
    """Return the state of each version of the model, with the reason, by number."""
    index = client.get_model_repository_index()
    if not isinstance(index, list):
        index = [{field.name: value for field, value in one.ListFields()} for one in index.models]
    return {one["version"]: f"{one['state']} {one.get('reason', '')}".strip() for one in index if one["name"] == MODEL}


def read(client: Any, kind: Any, image: bytes, version: str = "") -> str:
    """Read an image; returns the version that read it, which page and answer must both name."""
    tensor = kind.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([image], dtype=np.object_))
    result = client.infer(MODEL, [tensor], model_version=version)
    answer = result.get_response()
    named = answer["model_version"] if isinstance(answer, dict) else answer.model_version
    text = result.as_numpy("texts")[0][-1].decode()
    assert text == f"{MODEL}/{named}", (text, named)
    return str(named)


def refusal(call: Any) -> str:
    """Return the message of the error that the call must raise."""
    try:
        call()
    except InferenceServerException as error:
        return str(error)
    raise AssertionError("the call was not refused")


def check(client: Any, kind: Any, image: bytes, versions: list[str]) -> None:
    """List the versions, read with each, and unload and load the model."""
    client.load_model(MODEL)
    assert states(client) == dict.fromkeys(versions, "READY"), states(client)
    assert read(client, kind, image) == versions[-1]
    for version in versions:
        assert client.is_model_ready(MODEL, version)
        assert read(client, kind, image, version) == version
    assert "is not found" in refusal(lambda: read(client, kind, image, "99"))
    assert "'config' is not supported" in refusal(lambda: client.load_model(MODEL, config="{}"))
    client.unload_model(MODEL, unload_dependents=True)
    assert "is not found" in refusal(lambda: read(client, kind, image))
    if kind is over_http:
        assert not client.is_model_ready(MODEL)
    assert not [state for state in states(client).values() if state == "READY"]
    client.load_model(MODEL)
    assert read(client, kind, image) == versions[-1]


what, address, file, *versions = sys.argv[1:]
kind: Any = over_http if what == "http" else over_grpc
with kind.InferenceServerClient(address) as client:
    check(client, kind, Path(file).read_bytes(), versions)
print("all good")  # noqa: T201  the test reads it
