"""Triton's and TensorFlow Serving's APIs on a repository: list, address, load and unload each version.

Over HTTP with Flask's test client, over gRPC with grpcio. The fake engine's text names the version that read a page.
"""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from flask.testing import FlaskClient
from grpc_support import MESSAGES, V2, calling, infer_request, raw_outputs, serving, strings, unary
from image_support import png
from keys_support import bearer, keys_in
from models_support import make_fake
from web_support import as_base64, json_of, running_reader

from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import Routes
from ocrsvc.adapters.model_protocols.ocr_model import make_model
from ocrsvc.app import create_app
from ocrsvc.grpc_server.access import CallAccess
from ocrsvc.grpc_services import make_services
from ocrsvc.models.state import StateStore, Verdict
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics_store import MetricsStore

POLICY = '[fake]\nversions = "all"\nlabels = {canary = 2}\n'
TFS = "/tensorflow.serving."


class Repository:
    """A repository with two versions of model `fake` (fake engine), its state and settings."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder / "models"
        self.store = StateStore(folder / "state")
        chosen = {"models": self.folder, "models_state": folder / "state", "model": "fake", "engine": "fake"}
        self.settings = Settings.model_validate(chosen | settings)
        for number in (1, 2):
            self.add(number)
        (self.folder / "models.toml").write_text(POLICY)

    def add(self, number: int, verdict: Verdict | None = None, name: str = "fake") -> str:
        """Add a version with a verdict, by default accepted; returns its manifest's digest."""
        digest = make_fake(self.folder, number, name).digest
        self.store.record_verdict(digest, verdict or Verdict(accepted=True))
        return digest

    @contextmanager
    def http(self, gate: AccessGate | None = None) -> Iterator[FlaskClient]:
        with running_reader(self.settings, None, 1) as reader:
            yield create_app(self.settings, reader, gate=gate).test_client()

    @contextmanager
    def grpc(self, gate: AccessGate | None = None) -> Iterator[grpc.Channel]:
        access = CallAccess(gate, Routes(self.settings.adapters, has_models=True)) if gate is not None else None
        store = MetricsStore()
        with running_reader(self.settings, None, 1) as reader:
            services = make_services(make_model(self.settings, reader, store, store.common))
            listener = socket.create_server(("127.0.0.1", 0))
            with serving(services, listener, access), calling(listener.getsockname()[1]) as channel:
                yield channel


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def infer(client: FlaskClient, model: str) -> tuple[int, str, str]:
    """Infer one image; returns status, version name and error, and checks that the named version read it."""
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [as_base64(png())]}
    response = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]})
    answer = json_of(response)
    if response.status_code != 200:
        return response.status_code, "", answer["error"]
    text = next(output["data"][0] for output in answer["outputs"] if output["name"] == "text")
    named = f"{answer['model_name']}/{answer['model_version']}"
    assert text.splitlines()[-1] == named
    return 200, named, ""


def index(client: FlaskClient, **body: object) -> list[tuple[str, str, str]]:
    found = json_of(client.post("/v2/repository/index", json=body))
    return [(f"{one['name']}/{one['version']}", one["state"], one["reason"]) for one in found]


def test_triton_describes_each_model(repository: Repository) -> None:
    with repository.http() as client:
        assert json_of(client.get("/v2/models"))["models"] == ["fake", "ppocr"]
        found = json_of(client.get("/v2/models/fake"))
        assert (found["name"], found["versions"]) == ("fake", ["1", "2"])
        assert json_of(client.get("/v2/models/ocr/config"))["version_policy"] == {"specific": {"versions": [1, 2]}}
        assert client.get("/v2/models/fake/versions/2/ready").status_code == 200
        assert client.get("/v2/models/fake/versions/9/ready").status_code == 404
        assert "model_repository(unload_dependents)" in json_of(client.get("/v2"))["extensions"]
        assert infer(client, "nope")[2] == "Request for unknown model: 'nope' is not found"
        assert infer(client, "fake/versions/9")[2] == "Request for unknown model: 'fake' version 9 is not found"
        assert "Versions: 1, 2." in infer(client, "fake/versions/x")[2]


def test_tritons_statistics_count_each_version(repository: Repository) -> None:
    def counts(path: str) -> dict[str, tuple[int, int]]:
        found = json_of(client.get(path))["model_stats"]
        return {
            f"{one['name']}/{one['version']}": (one["inference_count"], one["inference_stats"]["fail"]["count"])
            for one in found
        }

    with repository.http() as client:
        for model, named in (("fake", "fake/2"), ("fake/versions/1", "fake/1"), ("ocr", "fake/2")):
            assert infer(client, model) == (200, named, "")
        broken = {"name": "image", "shape": [1], "datatype": "BYTES", "data": ["no image"]}
        assert client.post("/v2/models/fake/versions/1/infer", json={"inputs": [broken]}).status_code == 415
        assert counts("/v2/models/fake/stats") == {"fake/1": (1, 1), "fake/2": (2, 0)}
        assert counts("/v2/models/ocr/versions/2/stats") == {"fake/2": (2, 0)}
        assert counts("/v2/models/stats") == {"fake/1": (1, 1), "fake/2": (2, 0), "ppocr/1": (0, 0)}
        [stats] = json_of(client.get("/v2/models/fake/versions/1/stats"))["model_stats"]
        assert stats["inference_stats"]["success"]["ns"] > stats["inference_stats"]["compute_infer"]["ns"] > 0


def test_tritons_index_lists_every_version_with_its_state(repository: Repository) -> None:
    repository.add(3, Verdict(accepted=False, reason="It reads garbage."))
    with repository.http() as client:
        ready = [("fake/1", "READY", ""), ("fake/2", "READY", "")]
        assert index(client) == [*ready, ("fake/3", "UNAVAILABLE", "It reads garbage."), ("ppocr/1", "READY", "")]
        assert index(client, ready=True) == [*ready, ("ppocr/1", "READY", "")]


def test_triton_unloads_and_loads(repository: Repository) -> None:
    with repository.http() as client:
        body = {"parameters": {"unload_dependents": True}}
        assert client.post("/v2/repository/models/fake/unload", json=body).status_code == 200
        assert infer(client, "fake")[0] == 404
        # `ocr` is an alias of the default model, here `fake`.
        assert infer(client, "ocr")[0] == 404
        # Version 2 is still loaded: the worker's watcher closes it after its last request.
        assert index(client)[:2] == [("fake/1", "UNAVAILABLE", "unloaded"), ("fake/2", "UNLOADING", "")]
        assert client.post("/v2/repository/models/fake/load").status_code == 200
        assert infer(client, "fake") == (200, "fake/2", "")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"parameters": {"config": "{}"}}, 501, "'config' is not supported"),
        ({"parameters": {"file:1/model.onnx": "AAAA"}}, 501, "'file:1/model.onnx' is not supported"),
        ({"parameters": 1}, 400, "parameters: Input should be"),
    ],
)
def test_a_load_request_that_contains_a_model_is_refused(
    repository: Repository, body: Any, status: int, said: str
) -> None:
    with repository.http() as client:
        response = client.post("/v2/repository/models/fake/load", json=body)
        assert (response.status_code, said in json_of(response)["error"]) == (status, True)
        assert client.post("/v2/repository/models/nope/load").status_code == 404


def test_load_waits_for_the_proof_of_a_new_version(repository: Repository) -> None:
    with repository.http() as client:
        for number, verdict in ((3, Verdict(accepted=True)), (4, Verdict(accepted=False, reason="It is slow."))):
            digest = make_fake(repository.folder, number).digest
            prover = threading.Timer(0.3, repository.store.record_verdict, (digest, verdict))
            prover.start()
            response = client.post("/v2/repository/models/fake/load")
            prover.join()
            assert response.status_code == (200 if verdict.accepted else 400)
            assert verdict.accepted or "fake/4 was refused: It is slow." in json_of(response)["error"]
            assert infer(client, "fake") == (200, "fake/3", "")


def test_load_reports_a_proof_that_takes_too_long(repository: Repository) -> None:
    repository.settings = repository.settings.model_copy(update={"deadline_s": 0.2})
    make_fake(repository.folder, 3)
    with repository.http() as client:
        assert client.post("/v2/repository/models/fake/load").status_code == 504
        assert index(client)[2] == ("fake/3", "LOADING", "It is not proved yet.")


def statuses(client: FlaskClient, path: str) -> tuple[int, list[tuple[str, str, str]]]:
    response = client.get(path)
    found = json_of(response).get("model_version_status", [])
    return response.status_code, [(one["version"], one["state"], one["status"]["error_message"]) for one in found]


def test_tensorflow_serving_lists_every_version(repository: Repository) -> None:
    repository.add(3, Verdict(accepted=False, reason="It reads garbage."))
    with repository.http() as client:
        bad, good = ("3", "END", "It reads garbage."), [("2", "AVAILABLE", ""), ("1", "AVAILABLE", "")]
        assert statuses(client, "/v1/models/fake") == (200, [bad, *good])
        assert statuses(client, "/v1/models/ocr") == (200, [bad, *good])
        assert statuses(client, "/v1/models/fake/versions/3") == (200, [bad])
        assert statuses(client, "/v1/models/fake/labels/canary") == (200, [good[0]])
        assert statuses(client, "/v1/models/fake/labels/nope")[0] == 404
        assert statuses(client, "/v1/models/fake/versions/9")[0] == 404
        assert statuses(client, "/v1/models/nope")[0] == 404
        assert json_of(client.get("/v1/models"))["models"] == ["fake", "ppocr"]


@pytest.mark.parametrize(
    ("path", "read"), [("", "2"), ("/versions/1", "1"), ("/labels/canary", "2"), ("/versions/9", None)]
)
def test_tensorflow_serving_predicts_by_version_and_label(repository: Repository, path: str, read: str | None) -> None:
    with repository.http() as client:
        response = client.post(f"/v1/models/fake{path}:predict", json={"instances": [{"b64": as_base64(png())}]})
        metadata = client.get(f"/v1/models/fake{path}/metadata")
        if read is None:
            assert response.status_code == metadata.status_code == 404
            assert json_of(response)["error"] == "Could not find version 9 of model fake"
            return
        assert json_of(response)["predictions"][0]["texts"][-1] == f"fake/{read}"
        assert json_of(metadata)["model_spec"] == {"name": "fake", "signature_name": "", "version": read}


def call(channel: grpc.Channel, path: str, request: Any, metadata: Any = None) -> Any:
    """The response, or (status code, message) of a failed call."""
    package = "inference." if path.startswith(V2) else "tensorflow.serving."
    name = path.rsplit("/", 1)[1]
    answer = {"HandleReloadConfigRequest": "ReloadConfig"}.get(name, name)
    try:
        return unary(channel, path, f"{package}{answer}Response")(request, timeout=20, metadata=metadata)
    except grpc.RpcError as error:
        return error.code(), error.details()


def spec(name: str = "fake", version: int | None = None, label: str = "") -> Any:
    made = MESSAGES["tensorflow.serving.ModelSpec"](name=name)
    if version is not None:
        made.version.value = version
    if label:
        made.version_label = label
    return made


def predicted(channel: grpc.Channel, model_spec: Any) -> Any:
    request = MESSAGES["tensorflow.serving.PredictRequest"](model_spec=model_spec)
    tensor = request.inputs["image"]
    tensor.dtype = 7
    tensor.tensor_shape.dim.add(size=1)
    tensor.string_val.append(png())
    answer = call(channel, f"{TFS}PredictionService/Predict", request)
    if isinstance(answer, tuple):
        return answer
    read = answer.outputs["texts"].string_val[-1].decode()
    assert read == f"{answer.model_spec.name}/{answer.model_spec.version.value}"
    return read


def test_triton_over_grpc(repository: Repository) -> None:
    repository.add(3, Verdict(accepted=False, reason="It reads garbage."))
    with repository.grpc() as channel:
        answer = call(channel, f"{V2}RepositoryIndex", MESSAGES["inference.RepositoryIndexRequest"]())
        found = [(one.name, one.version, one.state, one.reason) for one in answer.models]
        assert found[1:3] == [("fake", "2", "READY", ""), ("fake", "3", "UNAVAILABLE", "It reads garbage.")]
        request = infer_request(png(), model="fake")
        request.model_version = "1"
        answer = call(channel, f"{V2}ModelInfer", request)
        assert (answer.model_name, answer.model_version) == ("fake", "1")
        assert strings(raw_outputs(answer)["texts"])[-1] == "fake/1"
        unload = MESSAGES["inference.RepositoryModelUnloadRequest"](model_name="fake")
        unload.parameters["unload_dependents"].bool_param = True
        call(channel, f"{V2}RepositoryModelUnload", unload)
        assert call(channel, f"{V2}ModelInfer", request)[0] is grpc.StatusCode.NOT_FOUND
        load = MESSAGES["inference.RepositoryModelLoadRequest"](model_name="fake")
        load.parameters["config"].string_param = "{}"
        assert call(channel, f"{V2}RepositoryModelLoad", load)[0] is grpc.StatusCode.UNIMPLEMENTED
        load.ClearField("parameters")
        call(channel, f"{V2}RepositoryModelLoad", load)
        assert call(channel, f"{V2}ModelInfer", request).model_version == "1"


def test_tensorflow_serving_over_grpc(repository: Repository) -> None:
    repository.add(3, Verdict(accepted=False, reason="It reads garbage."))
    with repository.grpc() as channel:
        request = MESSAGES["tensorflow.serving.GetModelStatusRequest"](model_spec=spec())
        answer = call(channel, f"{TFS}ModelService/GetModelStatus", request)
        found = [(one.version, one.state, one.status.error_code) for one in answer.model_version_status]
        assert found == [(3, 50, 9), (2, 30, 0), (1, 30, 0)]
        assert predicted(channel, spec()) == "fake/2"
        assert predicted(channel, spec(version=1)) == "fake/1"
        assert predicted(channel, spec(label="canary")) == "fake/2"
        assert predicted(channel, spec(version=3))[0] is grpc.StatusCode.NOT_FOUND


def reload_request(numbers: list[int], labels: dict[str, int], **members: str) -> Any:
    request = MESSAGES["tensorflow.serving.ReloadConfigRequest"]()
    model = request.config.model_config_list.config.add(**{"name": "fake", **members})
    model.model_version_policy.specific.versions.extend(numbers)
    for label, number in labels.items():
        model.version_labels[label] = number
    return request


def test_a_reload_changes_the_serving_versions_and_labels(repository: Repository) -> None:
    path = f"{TFS}ModelService/HandleReloadConfigRequest"
    with repository.grpc() as channel:
        for request, said in (
            (reload_request([1], {"canary": 9}), "The label canary of fake names version 9"),
            (reload_request([1], {}, base_path="/elsewhere"), "base_path"),
            (reload_request([1], {}, name="nope"), "no model nope"),
        ):
            assert said in call(channel, path, request)[1]
            assert predicted(channel, spec(label="canary")) == "fake/2"
        answer = call(channel, path, reload_request([1], {"old": 1}, base_path=str(repository.folder / "fake")))
        assert answer.status.error_code == 0
        assert predicted(channel, spec()) == predicted(channel, spec(label="old")) == "fake/1"
        assert predicted(channel, spec(version=2))[0] is grpc.StatusCode.NOT_FOUND
    # The new configuration also applies after a restart.
    with repository.grpc() as channel:
        assert predicted(channel, spec()) == "fake/1"


def test_grpc_callers_behind_a_local_proxy_are_not_local(repository: Repository) -> None:
    reload_path, elsewhere = f"{TFS}ModelService/HandleReloadConfigRequest", (("x-forwarded-for", "10.0.0.7"),)
    load = MESSAGES["inference.RepositoryModelLoadRequest"](model_name="fake")
    with repository.grpc() as channel:
        for path, request in (
            (f"{V2}RepositoryModelLoad", load),
            (reload_path, reload_request([1], {}, name="nope")),
            (reload_path, reload_request([1], {}, base_path="/elsewhere")),
        ):
            assert call(channel, path, request, elsewhere)[0] is grpc.StatusCode.PERMISSION_DENIED
        assert not isinstance(call(channel, f"{V2}RepositoryModelLoad", load), tuple)


def test_the_reason_of_a_refusal_contains_no_server_paths(repository: Repository) -> None:
    repository.add(
        3, Verdict(accepted=False, reason="It does not open: '/srv/our models/det.onnx' and /srv/a/b.onnx: bad/1.")
    )
    with repository.http() as client:
        (reason,) = [why for version, _, why in index(client) if version == "fake/3"]
        assert "b.onnx: bad/1." in reason
        assert "/srv" not in reason
        status = json_of(client.get("/v1/models/fake"))
        assert "/srv" not in json.dumps(status)


@pytest.mark.parametrize(
    ("ops", "address", "status"),
    [("local", "127.0.0.1", 200), ("local", "10.0.0.7", 403), ("open", "10.0.0.7", 200), ("off", "127.0.0.1", 403)],
)
def test_without_keys_access_to_ops_permits_loads(tmp_path: Path, ops: str, address: str, status: int) -> None:
    repository = Repository(tmp_path, ops=ops, audit_log=tmp_path / "audit")
    with repository.http() as client:
        response = client.post("/v2/repository/models/fake/load", environ_overrides={"REMOTE_ADDR": address})
        assert response.status_code == status
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()] if status == 200 else []
    assert [(line["who"], line["action"], line["model"]) for line in lines] == [
        (f"address:{address}", "models.load", "fake")
    ] * (status == 200)


def test_with_keys_an_operator_loads_and_a_reader_lists(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys:
        repository = Repository(tmp_path, keys=keys.address)
        keys.add("reader", "read")
        keys.add("operator", "operate", pages_a_day=1)
        reader, operator = (bearer(keys.secrets[name]) for name in ("reader", "operator"))
        with repository.http(keys.gate) as client:
            for action in ("load", "unload", "load"):
                path = f"/v2/repository/models/fake/{action}"
                assert client.post(path).status_code == 401
                assert client.post(path, headers=reader).status_code == 403
                assert client.post(path, headers=operator).status_code == 200
            assert client.post("/v2/repository/index", headers=reader).status_code == 200
        with repository.grpc(keys.gate) as channel:
            load = MESSAGES["inference.RepositoryModelLoadRequest"](model_name="fake")
            secrets = {name: (("x-api-key", keys.secrets[name]),) for name in ("reader", "operator")}
            denied = call(channel, f"{V2}RepositoryModelLoad", load, secrets["reader"])
            assert denied[0] is grpc.StatusCode.PERMISSION_DENIED
            assert not isinstance(call(channel, f"{V2}RepositoryModelLoad", load, secrets["operator"]), tuple)
            denied = call(channel, f"{TFS}ModelService/HandleReloadConfigRequest", reload_request([1], {}))
            assert denied[0] is grpc.StatusCode.UNAUTHENTICATED
        assert keys.usage("operator").today == 0
        log = repository.settings.audit_log or next(tmp_path.glob("*.audit.jsonl"))
        actions = [(line["who"], line["action"]) for line in map(json.loads, log.read_text().splitlines())]
        loads, unloads = ("key:operator", "models.load"), ("key:operator", "models.unload")
        assert actions == [loads, unloads, loads, loads]


def test_paddlex_json_in_a_tensor_is_read_by_the_model_in_the_path(repository: Repository) -> None:
    body = {"file": base64.b64encode(png()).decode(), "fileType": 1, "visualize": False}
    tensor = {"name": "input", "shape": [1], "datatype": "BYTES", "data": [json.dumps(body)]}
    with repository.http() as client:
        answer = json_of(client.post("/v2/models/fake/versions/1/infer", json={"inputs": [tensor]}))
        assert (answer["model_name"], answer["model_version"]) == ("fake", "1")
        read = json.loads(answer["outputs"][0]["data"][0])["result"]["ocrResults"][0]["prunedResult"]
        assert read["rec_texts"][-1] == "fake/1"
