"""`ocrsvc batch --on URL[,URL…]`: the same output as without services, whatever happens to them."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from documents import tiff
from support import Server, run_server, start_server, wait_until

from ocrsvc.access.api_keys import KeyEntry
from ocrsvc.access.manage_keys import add_key, open_store
from ocrsvc.batch.pages import PageGroup, SourceFile
from ocrsvc.batch.readers.service_reader import GroupAdmission, pages_option
from ocrsvc.cli.main import run
from ocrsvc.client.balancing.rules import Rules

ENGINE = {"name": "fake", "model": "none", "version": "1"}


@pytest.fixture(scope="module")
def two() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(run_server({"OCRSVC_WORKERS": "1"})) for _ in range(2)]


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder with images, a document of 20 pages, and a file that is neither."""
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(30):
        write_image(folder / f"{number:02}.png", number)
    (folder / "document.tiff").write_bytes(tiff([30 + number for number in range(20)]))
    (folder / "neither.png").write_text("no image")
    return folder


@pytest.fixture(autouse=True)
def _fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that fail are left alone for a tenth of the time."""
    monkeypatch.setattr("ocrsvc.client.balancing.rules.Rules", partial(Rules, first_ejection_s=0.1))
    monkeypatch.setattr("ocrsvc.client.balancing.attempts._LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr("ocrsvc.batch.readers.service_reader._PAUSE_S", 0.1)


def write_image(file: Path, number: int) -> None:
    cv2.imwrite(str(file), np.full((20 + number, 40, 3), 255, np.uint8))


def output(out: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(out.glob("*.jsonl")))


def failures(out: Path) -> dict[str, str]:
    """The codes of the pages that failed, by the names of their files."""
    records = map(json.loads, output(out).splitlines())
    return {Path(record["source"]).name: record["error"]["code"] for record in records if record["error"]}


def urls(servers: list[Server]) -> str:
    return ",".join(server.url for server in servers)


@pytest.mark.parametrize("options", [[], ["--characters", "--tables"], ["--region", "2,2,16,10"]])
def test_the_output_is_that_of_this_process(pages: Path, tmp_path: Path, two: list[Server], options: list[str]) -> None:
    (pages / "none.png").write_bytes(b"")
    command = ["batch", str(pages), *options, "--out"]
    assert run([*command, str(tmp_path / "local")]) == 1
    assert run([*command, str(tmp_path / "services"), "--on", urls(two)]) == 1
    assert output(tmp_path / "services") == output(tmp_path / "local")
    assert failures(tmp_path / "services") == {"neither.png": "unsupported_image", "none.png": "broken_image"}


def test_a_document_is_sent_once_for_a_group_of_its_pages(tmp_path: Path, two: list[Server]) -> None:
    (tmp_path / "document.tiff").write_bytes(tiff([30 + number for number in range(40)]))
    before = sum(server.metric("ocrsvc_requests_total") for server in two)
    command = ["batch", str(tmp_path / "document.tiff"), "--out", str(tmp_path / "out"), "--on", urls(two)]
    assert run(command) == 0
    # Of the blank page, of 16, 16 and 8 pages, and of the metrics above and below.
    assert sum(server.metric("ocrsvc_requests_total") for server in two) - before <= 4 + 4
    assert len(output(tmp_path / "out").splitlines()) == 40


def test_a_service_that_dies_costs_no_page(pages: Path, tmp_path: Path, two: list[Server]) -> None:
    with start_server({"OCRSVC_WORKERS": "1", "OCRSVC_FAKE_LATENCY_S": "0.02"}) as dies:
        dies.wait_for("READY in")
        on = urls([dies, two[0]])

        def kill() -> None:
            wait_until(lambda: dies.metric("ocrsvc_images_total") > 3)
            os.killpg(dies.pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        command = ["batch", str(pages), "--out", str(tmp_path / "out"), "--on", on]
        assert run(command) == 1
        thread.join()
    assert failures(tmp_path / "out") == {"neither.png": "unsupported_image"}


def test_pages_of_a_service_that_falls_silent_are_read_by_another(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocrsvc.batch.readers.service_reader.PAGE_LIMIT_S", 2.0)
    (pages / "document.tiff").unlink()
    done, asked = threading.Event(), itertools.count()

    def silent_later(_: bytes) -> bytes:
        # The lock is held: those that come later wait for it as long.
        if next(asked) > 5:
            done.wait(60)
        return answer_of_pages([1])

    command = ["batch", str(pages), "--out", str(tmp_path / "out"), "--at-once", "4", "--on"]
    with replying(silent_later) as silent, replying(lambda _: answer_of_pages([1])) as good:
        try:
            assert run([*command, f"{silent},{good}"]) == 0
        finally:
            done.set()
    assert len(output(tmp_path / "out").splitlines()) == 31


def test_when_all_are_gone_the_run_stops_and_goes_on_later(
    pages: Path, tmp_path: Path, two: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["batch", str(pages), "--out", str(out), "--patience", "0.5", "--attempts", "1", "--on"]
    with replying(vanishing_after(10)) as url:
        assert run([*command, url]) == 75
    said = capsys.readouterr().err
    assert "No service has answered for" in said
    assert "Give the same command again" in said
    assert failures(out) == {}
    # What reads now has the same name as what read before.
    assert run([*command, urls(two)]) == 1
    assert len(output(out).splitlines()) == 51
    assert failures(out) == {"neither.png": "unsupported_image"}


def test_services_that_are_not_there_stop_the_run_before_it_begins(
    pages: Path, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocrsvc.batch.readers.open_reader.UNREACHABLE_S", 0.2)
    assert run(["batch", str(pages), "--out", str(tmp_path / "out"), "--on", f"http://127.0.0.1:{free_port}"]) == 69


def test_a_file_that_breaks_every_connection_costs_itself_alone(pages: Path, tmp_path: Path) -> None:
    (pages / "poison.png").write_bytes(b"poison")
    with replying(lambda body: None if body == b"poison" else answer_of_pages([1])) as url:
        command = ["batch", str(pages), "--out", str(tmp_path / "out"), "--attempts", "1", "--at-once", "4"]
        (pages / "document.tiff").unlink()
        assert run([*command, "--on", url]) == 1
    assert failures(tmp_path / "out") == {"poison.png": "unreachable"}


def test_a_page_with_a_confidence_that_is_no_number_costs_itself_alone(pages: Path, tmp_path: Path) -> None:
    (pages / "document.tiff").unlink()
    wrong = answer_of_pages([1]).replace(b'"lines": []', b'"lines": [{"text": "a", "confidence": null}]')
    assert b"null" in wrong
    with replying(lambda body: wrong if body == b"no image" else answer_of_pages([1])) as url:
        command = ["batch", str(pages), "--out", str(tmp_path / "out"), "--attempts", "1", "--on", url]
        assert run(command) == 1
    assert failures(tmp_path / "out").keys() == {"neither.png"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A service that wants a key, which comes with it, and takes bodies of 100,000 bytes."""
    address = f"sqlite:{tmp_path_factory.mktemp('keys') / 'keys.db'}"
    with closing(open_store(address)) as store:
        key = add_key(store, KeyEntry("batch", frozenset({"read"})))
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_KEYS": address, "OCRSVC_MAX_BODY_BYTES": "100000"}
    with run_server(env) as server:
        yield server, key


def test_a_file_over_which_services_died_by_chance_is_sent_again(pages: Path, tmp_path: Path) -> None:
    (pages / "document.tiff").unlink()
    broken = itertools.count()

    def reply(body: bytes) -> bytes | None:
        # As often as one request goes to services in all.
        return None if body == b"no image" and next(broken) < 5 else answer_of_pages([1])

    with replying(reply) as url:
        command = ["batch", str(pages), "--out", str(tmp_path / "out"), "--attempts", "1", "--on", url]
        assert run(command) == 0
    assert next(broken) > 5


def test_a_file_above_the_limit_of_the_services_fails_with_the_limit(
    strict: tuple[Server, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pages").mkdir()
    write_image(tmp_path / "pages/small.png", 1)
    (tmp_path / "pages/large.bmp").write_bytes(bytes(300_000))
    out, (server, key) = tmp_path / "out", strict
    monkeypatch.setenv("OCRSVC_API_KEY", key)
    assert run(["batch", str(tmp_path / "pages"), "--out", str(out), "--on", server.url]) == 1
    assert failures(out) == {"large.bmp": "body_too_large"}
    assert b"limit of 100000 bytes" in output(out)


def test_a_key_that_is_refused_stops_the_run_and_one_that_is_right_goes_on(
    strict: tuple[Server, str], pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, key = strict
    command = ["batch", str(pages), "--out", str(tmp_path / "out"), "--on", server.url]
    monkeypatch.setenv("OCRSVC_API_KEY", "wrong")
    assert run(command) == 77
    (tmp_path / "key").write_text(key)
    assert run([*command, "--key-file", str(tmp_path / "key")]) == 1
    assert failures(tmp_path / "out") == {"neither.png": "unsupported_image"}


def test_a_service_that_begins_to_read_with_another_model_stops_the_run(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = iter(["1"] * 5 + ["2"] * 100)
    (pages / "document.tiff").unlink()
    with replying(lambda _: answer_of_pages([1], ENGINE | {"version": next(versions)})) as url:
        command = ["batch", str(pages), "--out", str(tmp_path / "out"), "--on", url, "--at-once", "1"]
        assert run(command) != 0
    assert "reads with fake none 2" in capsys.readouterr().err


def test_what_is_no_address_is_refused(pages: Path, tmp_path: Path) -> None:
    assert run(["batch", str(pages), "--out", str(tmp_path / "out"), "--on", "somewhere"]) == 65


@pytest.mark.parametrize(
    ("numbers", "total", "option"),
    [((1,), 1, {}), ((1,), 2, {"pages": "1-1"}), ((3, 4, 5), 9, {"pages": "3-5"}), ((3, 5), 9, {"pages": "3,5"})],
)
def test_the_pages_of_a_group_are_named(numbers: tuple[int, ...], total: int, option: dict[str, str]) -> None:
    file = SourceFile("a", "a", "", 1, total, range(1, total + 1))
    assert pages_option(PageGroup(file, numbers, numbers)) == option


def test_groups_are_under_way_within_their_number_and_bytes_and_a_larger_file_alone() -> None:
    admission, order = GroupAdmission(100, lambda: 3), list[str]()

    def enter(size_bytes: int, name: str) -> threading.Thread:
        def body() -> None:
            with admission.entered(size_bytes):
                order.append(name)

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    with admission.entered(60), admission.entered(40):
        larger = enter(1000, "larger")
        order.append("two")
    larger.join(10)
    with admission.entered(1), admission.entered(1), admission.entered(1):
        fourth = enter(1, "fourth")
        order.append("three")
    fourth.join(10)
    assert order == ["two", "larger", "three", "fourth"]


def test_a_service_that_takes_little_at_once_is_not_kept_idle_by_refusals(pages: Path, tmp_path: Path) -> None:
    env = {
        "OCRSVC_WORKERS": "1",
        "OCRSVC_ENGINE_THREADS": "1",
        "OCRSVC_QUEUE_SIZE": "2",
        "OCRSVC_FAKE_LATENCY_S": "0.02",
    }
    with run_server(env) as server:
        assert run(["batch", str(pages), "--out", str(tmp_path / "out"), "--on", server.url]) == 1
        # Those of the beginning, and few later: each idles the service for a second.
        assert 0 < server.metric("ocrsvc_refused_total") <= 24
    assert len(output(tmp_path / "out").splitlines()) == 51


# Services that the test writes

Reply = Callable[[bytes], bytes | None]


def answer_of_pages(numbers: list[int], engine: dict[str, str] = ENGINE) -> bytes:
    pages = [{"page": each, "width": 9, "height": 9, "angle": 0, "text": "", "lines": []} for each in numbers]
    return json.dumps({"id": "a", "engine": engine, "pages": pages, "pages_total": 1, "timing": {}}).encode()


def vanishing_after(count: int) -> Reply:
    """Answers so many requests, and breaks the connections of all others."""
    left = iter(range(count))
    return lambda _: answer_of_pages([1]) if next(left, None) is not None else None


@contextmanager
def replying(reply: Reply) -> Iterator[str]:
    """A service that answers a body so, one after the other, or breaks the connection for None; its address."""
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["X-Priority"] == "batch"
            with lock:
                answer = reply(body)
            if answer is None:
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()
