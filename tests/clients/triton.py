"""Runs NVIDIA's unmodified tritonclient against the service, in a separate virtual environment.

python triton.py http|grpc|paddlex ADDRESS IMAGE EXPECTED_FIRST_LINE
"""

from __future__ import annotations

import json
import queue
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException


def check(client: Any, kind: Any, image: bytes, expected: str) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("ocr")
    client.get_server_metadata()
    client.get_model_config("ocr")
    client.get_model_repository_index()
    client.load_model("ocr")
    tensor = kind.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([image], dtype=np.object_))
    result = client.infer("ocr", [tensor], request_id="7", timeout=20_000_000)
    texts = result.as_numpy("texts")
    assert texts[0][0].decode() == expected, texts
    lines = int(result.as_numpy("counts")[0])
    assert result.as_numpy("boxes").shape == (1, lines, 4, 2)
    assert result.as_numpy("scores").shape == texts.shape == (1, lines)
    only = client.infer("ocr", [tensor], outputs=[kind.InferRequestedOutput("text")])
    assert only.as_numpy("text")[0].decode().startswith(expected)
    assert only.as_numpy("texts") is None
    client.get_inference_statistics("ocr")
    message = ""
    try:
        client.infer("nope", [tensor])
    except InferenceServerException as error:
        message = str(error)
    assert "Request for unknown model: 'nope' is not found" in message


def check_compression(client: Any, image: bytes) -> None:
    """Check compressed requests and responses (HTTP only)."""
    tensor = over_http.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([image], dtype=np.object_))
    for name in ("gzip", "deflate"):
        result = client.infer("ocr", [tensor], request_compression_algorithm=name, response_compression_algorithm=name)
        assert result.as_numpy("counts")[0] > 0


def check_stream(client: Any, image: bytes) -> None:
    """Send five requests in one stream (gRPC only)."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    tensor = over_grpc.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([image], dtype=np.object_))
    for number in range(5):
        client.async_stream_infer("ocr", [tensor], request_id=str(number))
    for number in range(5):
        result, error = answers.get(timeout=20)
        assert error is None, error
        assert result.get_response().id == str(number)
    client.stop_stream()


def check_paddlex(client: Any, image: bytes) -> None:
    """Call the model like PaddleX's client for "high-stability serving": input and output are JSON in a tensor."""
    import base64

    body = json.dumps({"file": base64.b64encode(image).decode(), "fileType": 1, "visualize": False}).encode()
    tensor = over_grpc.InferInput("input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[body]], dtype=np.object_))
    answer = json.loads(client.infer("ocr", [tensor]).as_numpy("output")[0][0])
    assert answer["errorCode"] == 0, answer
    assert answer["result"]["ocrResults"][0]["prunedResult"]["rec_texts"]


what, address, file, expected = sys.argv[1:]
image = Path(file).read_bytes()
if what == "http":
    with over_http.InferenceServerClient(address) as client:
        check(client, over_http, image, expected)
        check_compression(client, image)
else:
    with over_grpc.InferenceServerClient(address) as client:
        if what == "paddlex":
            check_paddlex(client, image)
        else:
            check(client, over_grpc, image, expected)
            check_stream(client, image)
print("all good")  # noqa: T201  the test reads it
