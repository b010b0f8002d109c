"""Model serving over HTTP: KServe v2 with Triton's extensions, TensorFlow Serving, KServe v1.

Expected shapes come from the protocol specifications; test_clients.py replays recorded requests of clients.
"""

import gzip
import json
import struct
import time
import zlib
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from image_support import png
from support import data_of, filled, read_data
from web_support import CONFIDENCE, TEXT, FailingReader, as_base64, client_over, json_of, running_app

from ocrsvc.adapters.model_protocols.ocr_model import options_from_parameters
from ocrsvc.adapters.model_protocols.tensors import OUTPUT_NAMES
from ocrsvc.errors import ClientGone, NotReady, QueueFull
from ocrsvc.results import ReadOptions
from ocrsvc.settings.settings import Settings

HEADER = "Inference-Header-Content-Length"
INFER = "/v2/models/ocr/infer"
PREDICT = "/v1/models/ocr:predict"
# web_support's boxes on a page of 64 x 32: a rectangle from (16, 8) to (48, 16), and a square turned by 45°.
BOXES = [[16, 8], [48, 8], [48, 16], [16, 16]], [[32, 8], [40, 16], [32, 24], [24, 16]]
SEEN = "64x32 auto True False None"
PLAIN = as_base64(png())
GRAY = bytes([200]) * (32 * 64 * 3)
COMPRESSED = pytest.mark.parametrize(("encoding", "pack_body"), [("gzip", gzip.compress), ("deflate", zlib.compress)])


def element(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def image_input(**members: object) -> dict[str, object]:
    return {"name": "image", "shape": [1], "datatype": "BYTES", **members}


def in_json(data: str | list[object], **head: object) -> dict[str, object]:
    values = data if isinstance(data, list) else [data]
    return {"inputs": [image_input(shape=[len(values)], data=values)], **head}


def binary(*images: bytes, shape: list[int] | None = None, **head: object) -> dict[str, Any]:
    """Body and headers of a request with Triton's binary tensor extension."""
    raw = b"".join(map(element, images))
    tensor = image_input(shape=shape or [len(images)], parameters={"binary_data_size": len(raw)})
    members = json.dumps({"inputs": [tensor], **head}).encode()
    return {"data": members + raw, "headers": {HEADER: str(len(members))}}


def split_answer(response: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Split a binary response into its JSON and the raw bytes of each output."""
    length = int(response.headers[HEADER])
    head, raw, at = json.loads(response.data[:length]), {}, length
    for output in head["outputs"]:
        size = output["parameters"]["binary_data_size"]
        raw[output["name"]] = response.data[at : at + size]
        at += size
    assert at == len(response.data)
    return head, raw


def outputs_of(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.data
    return {output["name"]: output for output in json_of(response)["outputs"]}


def test_a_binary_tensor_is_answered_with_binary_tensors(client: FlaskClient) -> None:
    response = client.post(INFER, **binary(png(), id="7", parameters={"binary_data_output": True, "lang": "ch"}))
    assert response.content_type == "application/octet-stream"
    head, raw = split_answer(response)
    assert (head["id"], head["model_name"], head["model_version"]) == ("7", "ocr", "1")
    shapes = {output["name"]: (output["datatype"], output["shape"]) for output in head["outputs"]}
    assert shapes == {
        "text": ("BYTES", [1]),
        "texts": ("BYTES", [1, 2]),
        "scores": ("FP32", [1, 2]),
        "boxes": ("FP32", [1, 2, 4, 2]),
        "counts": ("INT32", [1]),
    }
    assert raw["text"] == element(f"{TEXT}\n{SEEN}".encode())
    assert raw["texts"] == element(TEXT.encode()) + element(SEEN.encode())
    assert np.frombuffer(raw["scores"], "<f4").tolist() == [np.float32(CONFIDENCE), 0.5]
    assert np.frombuffer(raw["boxes"], "<f4").reshape(2, 4, 2).tolist() == list(BOXES)
    assert np.frombuffer(raw["counts"], "<i4").tolist() == [2]


@pytest.mark.parametrize(
    "sent",
    [
        {"json": {"inputs": [image_input(data=[PLAIN], parameters={"content_type": "base64"})]}},
        {"data": json.dumps(in_json(PLAIN))},
        binary(PLAIN.encode()),
    ],
    ids=["the content type base64", "no Content-Type", "base64 in a binary element"],
)
def test_each_encoding_of_an_image_is_accepted(client: FlaskClient, sent: dict[str, Any]) -> None:
    assert outputs_of(client.post(INFER, **sent))["counts"]["data"] == [2]


@pytest.mark.parametrize("body", [png(), element(png())], ids=["the file", "with its length in front"])
def test_a_raw_request_is_the_image_alone(client: FlaskClient, body: bytes) -> None:
    response = client.post(INFER, data=body, headers={HEADER: "0"})
    assert outputs_of(response)["text"]["data"] == [f"{TEXT}\n{SEEN}"]


@pytest.mark.parametrize("shape", [[2], [2, 1], [1, 2]])
def test_a_batch_keeps_its_order_and_shape(client: FlaskClient, shape: list[int]) -> None:
    response = client.post(INFER, **binary(png(), png(width=40), shape=shape))
    outputs = outputs_of(response)
    assert outputs["text"]["shape"] == outputs["counts"]["shape"] == shape
    assert [text.splitlines()[1][:5] for text in outputs["text"]["data"]] == ["64x32", "40x32"]
    assert outputs["boxes"]["shape"] == [2, 2, 4, 2]


def test_requested_outputs_are_returned_as_json_or_binary(client: FlaskClient) -> None:
    asked = [{"name": "counts", "parameters": {"binary_data": True}}, {"name": "text"}]
    response = client.post(INFER, json=in_json(as_base64(png()), outputs=asked))
    head = json.loads(response.data[: int(response.headers[HEADER])])
    assert [output["name"] for output in head["outputs"]] == ["counts", "text"]
    assert head["outputs"][1]["data"] == [f"{TEXT}\n{SEEN}"]
    assert response.data[-4:] == b"\2\0\0\0"


def test_ocrsvc_parameters_reach_the_engine(client: FlaskClient) -> None:
    sent = {"rotate": "90", "detect": False, "upright_boxes": "true", "min_confidence": 0.25, "priority": 3}
    outputs = outputs_of(client.post(INFER, json=in_json(PLAIN, parameters=sent)))
    assert outputs["texts"]["data"][1] == "32x64 0 False True 0.25"
    more = {"decoder": "beam", "spaces": "model", "unwarp": False, "max_side": 900, "sequence_id": 7}
    assert options_from_parameters(more) == ReadOptions(decoder="beam", spaces="model", unwarp=False, max_side=900)


@COMPRESSED
def test_decompressed_bodies_count_as_request_memory(encoding: str, pack_body: Any) -> None:
    body = pack_body(b" " * (3 << 20) + b"{}")
    with running_app(Settings(request_memory_bytes=2 << 20, max_body_bytes=1 << 20)) as app:
        response = app.test_client().post(INFER, data=body, headers={"Content-Encoding": encoding})
        assert response.status_code == 413
    with running_app(Settings(request_memory_bytes=16 << 20, max_body_bytes=16 << 20)) as app:
        client, headers = app.test_client(), {"Content-Encoding": encoding}
        assert client.post(INFER, data=body, headers=headers).status_code == 400
        larger = pack_body(b" " * (16 << 20))
        refused = client.post(INFER, data=larger, headers=headers)
        assert (refused.status_code, "OCRSVC_REQUEST_MEMORY_BYTES" in json_of(refused)["error"]) == (413, True)
        # The refused request released its memory.
        assert client.post(INFER, data=body, headers=headers).status_code == 400


@COMPRESSED
def test_bodies_and_answers_may_be_compressed(client: FlaskClient, encoding: str, pack_body: Any) -> None:
    images: list[object] = [as_base64(png())] * 20
    body = pack_body(json.dumps(in_json(images)).encode())
    response = client.post(INFER, data=body, headers={"Content-Encoding": encoding, "Accept-Encoding": encoding})
    assert response.headers["Content-Encoding"] == encoding
    answer = json.loads(zlib.decompress(response.data, 47))
    assert answer["outputs"][-1] == {"name": "counts", "datatype": "INT32", "shape": [20], "data": [2] * 20}


REFUSED = filled(data_of("models_rest_refused"), PLAIN=PLAIN)


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        *REFUSED["requests"],
        *(
            ({"json": {"inputs": [image_input(**{"data": [PLAIN]} | changed)]}}, *how)
            for changed, *how in REFUSED["tensors"]
        ),
        *(({"json": in_json(PLAIN, **head)}, *how) for head, *how in REFUSED["heads"]),
        ({"json": {"inputs": [image_input(shape=[65], data=[PLAIN] * 65)]}}, 400, "accepted are 1 to 64"),
        ({"data": gzip.compress(b"{}")[:-9], "headers": {"Content-Encoding": "gzip"}}, 400, "too early"),
        ({"data": gzip.compress(bytes(2**26 + 1), 1), "headers": {"Content-Encoding": "gzip"}}, 413, "body exceeds"),
    ],
)
def test_errors_have_the_protocols_format(client: FlaskClient, sent: dict[str, Any], status: int, said: str) -> None:
    response = client.post(INFER, **sent)
    assert response.status_code == status, response.data
    assert list(json_of(response)) == ["error"]
    assert said in json_of(response)["error"]


def raw_tensor(raw: bytes) -> dict[str, Any]:
    """A request with a binary tensor of arbitrary bytes."""
    members = json.dumps({"inputs": [image_input(parameters={"binary_data_size": len(raw)})]}).encode()
    return {"data": members + raw, "headers": {HEADER: str(len(members))}}


def cut(sent: dict[str, Any], length: int) -> dict[str, Any]:
    return {**sent, "data": sent["data"][:-length]}


@pytest.mark.parametrize(
    "sent",
    [
        *(cut(binary(png()), length) for length in (1, 4, 20)),
        *map(raw_tensor, (b"", b"\1", b"\5\0\0\0abc", b"\1\0\0\0ab", b"\xff\xff\xff\xffa")),
    ],
)
def test_a_binary_tensor_of_a_wrong_length_is_refused(client: FlaskClient, sent: dict[str, Any]) -> None:
    response = client.post(INFER, **sent)
    assert (response.status_code, list(json_of(response))) == (400, ["error"])


def pixels_in_binary(pixels: bytes = GRAY, language: bytes = b"english", **changes: object) -> dict[str, Any]:
    """A request like that of docling's KserveV2HttpClient; `changes` apply to its pixel tensor."""
    lang = image_input(name="lang_type", shape=[1, 1], parameters={"binary_data_size": len(element(language))})
    size = {"binary_data_size": len(pixels)}
    image = image_input(shape=[1, 32, 64, 3], datatype="UINT8", parameters=size) | changes
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ("boxes", "txts", "scores")]
    members = json.dumps({"inputs": [lang, image], "outputs": outputs}, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", HEADER: str(len(members))}
    return {"data": members + element(language) + pixels, "headers": headers}


def test_docling_pixels_get_outputs_without_a_batch_dimension(client: FlaskClient) -> None:
    response = client.post(INFER, **pixels_in_binary())
    head, raw = split_answer(response)
    shapes = [(output["name"], output["datatype"], output["shape"]) for output in head["outputs"]]
    assert shapes == [("boxes", "FP32", [2, 4, 2]), ("txts", "BYTES", [2]), ("scores", "FP32", [2])]
    assert np.frombuffer(raw["boxes"], "<f4").reshape(2, 4, 2).tolist() == list(BOXES)
    assert raw["txts"] == element(TEXT.encode()) + element(SEEN.encode())
    assert np.frombuffer(raw["scores"], "<f4").tolist() == [np.float32(CONFIDENCE), 0.5]


@pytest.mark.parametrize(("changes", "said"), data_of("models_rest_refused")["pixels"])
def test_wrong_pixels_are_refused(client: FlaskClient, changes: dict[str, Any], said: str) -> None:
    response = client.post(INFER, **pixels_in_binary(**changes))
    assert (response.status_code, said in json_of(response)["error"]) == (400, True), response.data


def test_pixels_in_json_are_refused_with_a_remedy(client: FlaskClient) -> None:
    for count, status in ((32 * 64 * 3, 400), (100_000, 413)):
        tensor = image_input(shape=[1, 32, 64, 3], datatype="UINT8", data=[200] * count)
        response = client.post(INFER, json={"inputs": [tensor]})
        assert (response.status_code, "binary data" in json_of(response)["error"]) == (status, True)


def test_an_error_names_the_failed_image_of_a_batch(client: FlaskClient) -> None:
    response = client.post(INFER, **binary(png(), b"nonsense!", png()))
    assert response.status_code == 415
    assert json_of(response)["error"].startswith("Image 2 of 3: ")


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    read_data("models_rest.json")["a wrong path is reported in the protocols shape"],
)
def test_wrong_paths_are_reported(client: FlaskClient, method: str, path: str, status: int, said: str) -> None:
    response = client.open(path, method=method)
    assert response.status_code == status, response.data
    assert said in json_of(response)["error"]
    assert ("Allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(("path", "sent"), [(INFER, in_json(PLAIN)), (PREDICT, {"instances": [{"b64": PLAIN}]})])
def test_a_disconnected_client_has_status_499(path: str, sent: object) -> None:
    response = client_over(FailingReader(ClientGone("-"))).post(path, json=sent)
    assert (response.status_code, list(json_of(response))) == (499, ["error"])


def test_the_shortest_time_limit_applies() -> None:
    reader = FailingReader(QueueFull("Full."))
    for timeout_us, header in ((2_000_000, "5"), (5_000_000, "2"), (0, "2")):
        body = in_json(PLAIN, parameters={"timeout": timeout_us})
        client_over(reader).post(INFER, json=body, headers={"X-Request-Timeout": header})
    assert all(1.5 < deadline_s <= 2 for deadline_s in reader.deadlines)
    assert len(reader.deadlines) == 3


def test_metadata_describes_the_model(client: FlaskClient) -> None:
    assert {"binary_tensor_data", "statistics"} <= set(json_of(client.get("/v2"))["extensions"])
    metadata = json_of(client.get("/v2/models/ocr/versions/1"))
    assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1, 1]}]
    outputs = {output["name"]: output["datatype"] for output in metadata["outputs"]}
    assert outputs == {"text": "BYTES", "texts": "BYTES", "scores": "FP32", "boxes": "FP32", "counts": "INT32"}
    config = json_of(client.get("/v2/models/ocr/config"))
    assert config["input"] == [{"name": "image", "data_type": "TYPE_STRING", "dims": [1]}]
    assert config["max_batch_size"] == 64
    assert json_of(client.get("/v2/models")) == json_of(client.get("/v1/models")) == {"models": ["ocr"]}
    assert json_of(client.post("/v2/repository/index", json={"ready": True}))[0]["state"] == "READY"
    assert client.post("/v2/repository/models/ocr/load").status_code == 200


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/ocr/ready", "/v1/models/ocr"])
def test_probes_say_whether_the_model_is_ready(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 200
    loading = client_over(FailingReader(NotReady("Loading.")))
    assert loading.get(path).status_code == (200 if path.endswith("live") else 503)


def test_the_status_of_the_model_is_the_union_of_both_protocols(client: FlaskClient) -> None:
    state = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    expected = {"name": "ocr", "ready": True, "model_version_status": [state]}
    for path in ("/v1/models/ocr", "/v1/models/ocr/versions/1", "/v1/models/ocr/labels/stable"):
        assert json_of(client.get(path)) == expected
    loading = client_over(FailingReader(NotReady("Loading.")))
    assert json_of(loading.post("/v2/repository/index"))[0]["state"] == "LOADING"
    assert json_of(loading.post("/v2/repository/index", json={"ready": True})) == []
    assert json_of(loading.get("/v1/models/ocr"))["model_version_status"][0]["state"] == "LOADING"


def test_statistics_grow_with_each_request(client: FlaskClient) -> None:
    found = []
    for _ in range(2):
        found.append(json_of(client.get("/v2/models/ocr/stats"))["model_stats"][0])
        for images in ([png(), png()], [b"nonsense!"]):
            client.post(INFER, **binary(*images))
    before, after = found
    assert after["inference_count"] == after["execution_count"] == before["inference_count"] + 2
    kinds = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    stats = after["inference_stats"]
    assert [stats[kind]["count"] - before["inference_stats"][kind]["count"] for kind in kinds] == [1] * len(kinds)
    assert stats["success"]["ns"] > stats["compute_infer"]["ns"] > 0
    assert abs(after["last_inference"] / 1000 - time.time()) < 60


@pytest.mark.parametrize(
    "instance",
    [{"b64": PLAIN}, {"image": {"b64": PLAIN}}, PLAIN, {"image": [{"b64": PLAIN}]}],
    ids=["value", "named", "text", "nested"],
)
def test_rows_are_answered_as_rows(client: FlaskClient, instance: object) -> None:
    response = client.post(PREDICT, json={"signature_name": "serving_default", "instances": [instance, instance]})
    first, second = json_of(response)["predictions"]
    assert first == second
    assert first.pop("scores") == pytest.approx([CONFIDENCE, 0.5], rel=1e-6)
    assert first == {"text": f"{TEXT}\n{SEEN}", "texts": [TEXT, SEEN], "boxes": list(BOXES), "counts": 2}


@pytest.mark.parametrize("inputs", [{"image": [{"b64": PLAIN}]}, [{"b64": PLAIN}], {"b64": PLAIN}])
@pytest.mark.parametrize("verb", [":predict", "/versions/1:Predict", "/labels/stable:predict"])
def test_columns_are_answered_as_columns(client: FlaskClient, inputs: object, verb: str) -> None:
    outputs = json_of(client.post(f"/v1/models/ocr{verb}", json={"inputs": inputs}))["outputs"]
    assert (outputs["text"], outputs["texts"]) == ([f"{TEXT}\n{SEEN}"], [[TEXT, SEEN]])
    assert outputs["boxes"] == [list(BOXES)]
    assert outputs["counts"] == [2]


@pytest.mark.parametrize(
    ("sent", "status", "said"), [*REFUSED["predictions"], ({"json": {"instances": [PLAIN] * 65}}, 400, "has 65 images")]
)
def test_an_invalid_predict_request_is_reported(
    client: FlaskClient, sent: dict[str, Any], status: int, said: str
) -> None:
    response = client.post(PREDICT, **sent)
    assert response.status_code == status, response.data
    assert said in json_of(response)["error"]


def test_the_signature_is_described(client: FlaskClient) -> None:
    answer = json_of(client.get("/v1/models/ocr/versions/1/metadata"))
    assert answer["model_spec"] == {"name": "ocr", "signature_name": "", "version": "1"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["image"] == {
        "dtype": "DT_STRING",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "image:0",
    }
    assert set(signature["outputs"]) == set(OUTPUT_NAMES)


def test_shorter_pages_of_a_batch_are_padded(client: FlaskClient) -> None:
    outputs = outputs_of(client.post(INFER, **binary(png(shade=255), png())))
    found = {name: outputs[name]["data"] for name in ("counts", "texts", "scores")}
    assert found == {"counts": [0, 2], "texts": ["", "", TEXT, SEEN], "scores": pytest.approx([0, 0, CONFIDENCE, 0.5])}
    assert (outputs["boxes"]["shape"], any(outputs["boxes"]["data"][:16])) == ([2, 2, 4, 2], False)
    _, raw = split_answer(client.post(INFER, **binary(png(shade=255), parameters={"binary_data_output": True})))
    assert raw == dict.fromkeys(("boxes", "texts", "scores"), b"") | {"text": bytes(4), "counts": bytes(4)}
