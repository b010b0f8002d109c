"""The service under a real gunicorn: start, refused starts, READY, draining, and stop."""

import errno
import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from image_support import png
from support import ROOT, Server, data_of, process_state, run_program, run_server, start_server, wait_until

from ocrsvc.errors import SettingsError
from ocrsvc.worker.config import listen
from ocrsvc.worker.event_loop import STOP_LINGER_S

_ANSWER_S = 20.0
_SETTINGS_TYPE = b"\4"
_EMPTY_SETTINGS = b"\0\0\0" + _SETTINGS_TYPE + b"\0" * 5


def post(server: Server) -> requests.Response:
    return requests.post(f"{server.url}/v1/ocr", files={"file": ("page.png", png())}, timeout=_ANSWER_S)


def get(server: Server, path: str) -> requests.Response:
    return requests.get(f"{server.url}{path}", timeout=_ANSWER_S)


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def is_refused(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == errno.ECONNREFUSED


def is_pending(pid: int, sent: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd")]
    return bool(int(mask, 16) >> (sent - 1) & 1)


def test_plan_is_logged_and_gunicorns_flags_override_settings() -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_THREADS": "9", "OCRSVC_BIND": "127.0.0.1:1", "OCRSVC_ENGINE_THREADS": "3"}
    with run_server(env, ["-w", "2", "--threads", "5"]) as server:
        plan = "workers=2 threads=5 engine_threads=3 library_threads=1"
        server.wait_for(rf"ocrsvc \d\S+ engine=fake device=\w+ plan: {plan}")
        server.wait_for("Jobs and uploaded files are kept until the service ends")
        server.wait_for("READY in", count=2)
        assert len(server.workers()) == 2
        assert get(server, "/healthz").status_code == 200


@pytest.mark.parametrize(
    ("env", "modules", "unneeded"),
    [
        ({"OCRSVC_ENGINE": "ppocr"}, "wsgi", ("onnxruntime", "rapidocr", "onnx", "tr", "cupy")),
        (
            {"OCRSVC_ENGINE": "fake", "OCRSVC_OPS": "open"},
            "wsgi, ocrsvc.worker.boot, ocrsvc.worker.service_context, ocrsvc.grpc_services",
            tuple(
                f"ocrsvc.models.{name}" for name in ("watcher", "proof.prover", "proof.measure", "importers.find_model")
            ),
        ),
    ],
    ids=["engine", "repository"],
)
def test_the_application_imports_no_heavy_modules(env: dict[str, str], modules: str, unneeded: tuple[str, ...]) -> None:
    code = (
        f"import sys, {modules}; print(set({unneeded}) & set(sys.modules), 'libcuda' in open('/proc/self/maps').read())"
    )
    assert run_program("-c", code, env=env).stdout == "set() False\n"


@pytest.mark.parametrize("library", ["libcuda", "onnxruntime", "cv2", "numpy", "libtr", "libcrnn"])
def test_the_arbiter_loads_neither_a_model_nor_a_numeric_library(library: str, server: Server) -> None:
    assert library not in mapped(server.pid)


@pytest.mark.parametrize(("env", "args", "message"), data_of("wrong_starts"))
def test_wrong_setting_or_flag_is_named_and_stops_the_start(env: dict[str, str], args: list[str], message: str) -> None:
    with start_server(env, args) as server:
        assert server.wait_for_exit() == 78
        assert message in server.log
        assert "Traceback" not in server.log


def test_a_usual_port_in_use_is_reported_with_its_setting() -> None:
    env = {"OCRSVC_BIND": "127.0.0.9:1223", "OCRSVC_USUAL_PORTS": "umi_ocr"}
    args = ["-b", "127.0.0.9:1223", "-b", "127.0.0.9:1224"]
    with socket.create_server(("127.0.0.9", 1224)), start_server(env, args) as server:
        assert server.wait_for_exit() == 78
        assert "Port 1224 is in use: leave its adapter out of OCRSVC_USUAL_PORTS." in server.log


@pytest.mark.parametrize("variable", ["--bind", "OCRSVC_BIND", "OCRSVC_GRPC_BIND"])
def test_a_port_in_use_stops_the_start_and_a_free_one_is_suggested(variable: str, free_port: int) -> None:
    taken = f"127.0.0.1:{free_port}"
    args = [] if variable == "OCRSVC_GRPC_BIND" else ["-b", taken]
    env = {} if variable == "--bind" else {variable: taken}
    with socket.create_server(("127.0.0.1", free_port)), start_server(env, args) as server:
        assert server.wait_for_exit() == 78
        assert re.search(rf"Port {free_port} is in use: set {variable}=127\.0\.0\.1:\d+\.", server.log)
        assert server.log.count("in use") == 1
        assert "Retrying" not in server.log


@pytest.mark.parametrize(("address", "code", "free", "said"), data_of("listening"))
def test_an_unusable_address_is_refused_with_a_remedy(
    address: str, code: str, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(at: tuple[str, int], **_more: object) -> socket.socket:
        if at[1] < free:
            raise OSError(getattr(errno, code), "")
        return socket.socket()

    if code:
        monkeypatch.setattr(socket, "create_server", create)
    with pytest.raises(SettingsError, match=re.escape(said)):
        listen(address)


@pytest.mark.parametrize("variable", ["OCRSVC_BIND", "OCRSVC_GRPC_BIND"])
def test_a_stale_unix_socket_is_replaced_and_one_in_use_is_kept(variable: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    address = f"unix:{path}"
    args = ["-b", address] if variable == "OCRSVC_BIND" else []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with start_server({variable: address}, args) as server:
            assert server.wait_for_exit() == 78
            assert f"{variable}: cannot listen on {address}: Address already in use. Choose a free" in server.log
    assert path.is_socket()
    with run_server({variable: address}, args):
        assert path.is_socket()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_unusable_engine_stops_the_service(workers: str) -> None:
    with start_server({"OCRSVC_ENGINE": "tr", "OCRSVC_WORKERS": workers}) as server:
        assert server.wait_for_exit() == 3
        assert "The engine cannot be opened: " in server.log
        assert "OCRSVC_TR_HOME" in server.log
        assert "Traceback" not in server.log


def test_loading_worker_exits_at_once_on_sigterm() -> None:
    with start_server({"OCRSVC_FAKE_WARM_UP_S": "300"}) as server:
        server.wait_for("Loading the engine fake")
        # Wait until the worker sleeps: SIGTERM must also end that wait, not only running code.
        wait_until(lambda: process_state(server.workers()[0]) == "S", "the worker sleeps")
        assert server.stop() == 0


def test_loading_worker_exits_during_a_finalizer(tmp_path: Path) -> None:
    # Python ignores exceptions in finalizers, some of which run at each import.
    slow = "class Slow:\n    def __del__(self):\n        print('finalizing', flush=True)\n        signal.pause()\n"
    (config := tmp_path / "conf.py").write_text(
        f"{(ROOT / 'gunicorn.conf.py').read_text()}import signal\n{slow}post_worker_init = lambda _: Slow() and None\n"
    )
    with start_server({}, ["-c", str(config)]) as server:
        server.wait_for("finalizing")
        assert server.stop() == 0


def test_load_may_take_longer_than_the_heartbeat_timeout() -> None:
    with start_server({"OCRSVC_FAKE_WARM_UP_S": "4"}, ["--timeout", "2"]) as server:
        server.wait_for("READY in 4")
        assert "TIMEOUT" not in server.log


def test_draining_service_is_not_ready_but_serves_until_a_second_sigterm() -> None:
    with run_server({"OCRSVC_DRAIN_S": "600"}) as server:
        assert get(server, "/readyz").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("LEAVING: .* 600 s")
        statuses = [get(server, path).status_code for path in ("/readyz", "/healthz")]
        assert (statuses, post(server).status_code) == ([503, 200], 200)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_for_exit() == 0


def test_draining_service_stops_after_its_drain_time() -> None:
    with run_server({"OCRSVC_DRAIN_S": "0.1"}) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_for_exit() == 0
        assert "LEAVING" in server.log


def test_queued_connections_are_answered_at_stop_and_later_ones_refused(free_port: int) -> None:
    sent = (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _EMPTY_SETTINGS)
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_GRPC_BIND": f"127.0.0.1:{free_port}"}
    with run_server(env) as server, ExitStack() as opened:
        addresses = [("127.0.0.1", int(server.url.rpartition(":")[2])), ("127.0.0.1", free_port)]
        assert post(server).status_code == 200
        [worker] = server.workers()
        os.kill(worker, signal.SIGSTOP)
        clients = [opened.enter_context(socket.create_connection(address, _ANSWER_S)) for address in addresses]
        for client, request in zip(clients, sent, strict=True):
            client.sendall(request)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_pending(worker, signal.SIGTERM), "the arbiter has closed its sockets")
        os.kill(worker, signal.SIGCONT)
        over_http, over_grpc = (client.recv(1000) for client in clients)
        assert (over_http[:12], over_grpc[3:4]) == (b"HTTP/1.1 200", _SETTINGS_TYPE)
        # Meanwhile the worker keeps these two connections for STOP_LINGER_S.
        wait_until(lambda: all(map(is_refused, addresses)), "connections are refused", within_s=STOP_LINGER_S - 1)
