"""`ocrsvc batch --on URL[,URL…]`: the output equals that of a local run, even if services fail."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from email.message import Message
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from batch_support import draw_images, use_fake_engine
from documents import tiff
from support import Reply, replying, run_server

from ocrsvc.access.api_keys import KeyEntry
from ocrsvc.access.manage_keys import add_key, open_store
from ocrsvc.batch.human_readable import visible
from ocrsvc.batch.page_queue import GroupAdmission
from ocrsvc.batch.readers.service_reader import page_of, parse_answer
from ocrsvc.cli.main import run
from ocrsvc.client.balancer import Rules
from ocrsvc.client.response import Response
from ocrsvc.errors import OcrsvcError, ServerError

# anyio never awaits this coroutine if the client closes before the connection is tried.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'connect_tcp:RuntimeWarning")

ENGINE = {"name": "fake", "model": "none", "version": "1"}
NEITHER = {"neither.png": "unsupported_image"}


@pytest.fixture(scope="module")
def two_services() -> Iterator[str]:
    """The URLs of two services, separated by a comma."""
    with ExitStack() as stack:
        yield ",".join(stack.enter_context(run_server({"OCRSVC_WORKERS": "1"})).url for _ in range(2))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with thirty images and one other file, neither.png."""
    draw_images(folder := tmp_path / "pages", 30)
    (folder / "neither.png").write_text("no image")
    return folder


@pytest.fixture
def pages(images: Path) -> Path:
    """The folder `images` with a document of 20 pages added."""
    (images / "document.tiff").write_bytes(tiff([30 + number for number in range(20)]))
    return images


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fake engine; eject failing services for a tenth of the usual time."""
    use_fake_engine(monkeypatch)
    monkeypatch.setattr("ocrsvc.client.balancer.Rules", partial(Rules, first_ejection_s=0.1))
    monkeypatch.setattr("ocrsvc.client.attempts._MAX_PAUSE_S", 0.1)
    monkeypatch.setattr("ocrsvc.batch.readers.service_reader._PAUSE_S", 0.1)


def batch(source: Path, on: str, *options: str, out: str = "out") -> int:
    return run(["batch", str(source), "--out", str(source.parent / out), "--on", on, *options])


def output(source: Path, out: str = "out") -> bytes:
    return b"".join(file.read_bytes() for file in sorted((source.parent / out).glob("*.jsonl")))


def failures(source: Path) -> dict[str, str]:
    """The error codes of failed pages, by file name."""
    records = map(json.loads, output(source).splitlines())
    return {Path(record["source"]).name: record["error"]["code"] for record in records if record["error"]}


@pytest.mark.parametrize("options", [[], ["--characters", "--tables"], ["--region", "2,2,16,10"]])
def test_services_give_the_same_output_as_a_local_run(pages: Path, two_services: str, options: list[str]) -> None:
    (pages / "none.png").write_bytes(b"")
    assert batch(pages, "local", *options, out="local") == batch(pages, two_services, *options) == 1
    assert output(pages) == output(pages, "local")
    assert failures(pages) == NEITHER | {"none.png": "broken_image"}


def test_a_document_is_sent_once_for_a_group_of_its_pages(tmp_path: Path) -> None:
    file, bodies = tmp_path / "document.tiff", list[bytes]()
    file.write_bytes(tiff([30 + number for number in range(40)]))

    def reply(body: bytes) -> bytes:
        bodies.append(body)
        return answer_of_pages(list(range(1, 41)))

    with answering(reply) as url:
        assert batch(file, url) == 0
    # Three groups of 16, 16 and 8 pages are sent as the document; the fourth body is the blank page.
    assert sum(body == file.read_bytes() for body in bodies) == len(bodies) - 1 == 3
    assert len(output(file).splitlines()) == 40


def test_pages_of_a_silent_service_are_read_by_another_after_their_time_limit(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAGE_LIMIT_S", "_BLANK_LIMIT_S"):
        monkeypatch.setattr(f"ocrsvc.batch.readers.service_reader.{name}", 0.5)
    done, asked = threading.Event(), itertools.count()

    def silent_later(_: bytes) -> bytes | None:
        # `replying` answers one request at a time, so later requests wait as well.
        return answer_of_pages([1]) if next(asked) < 5 or done.wait(60) else None

    with answering(silent_later) as silent, answering(lambda _: answer_of_pages([1])) as good:
        try:
            assert batch(images, f"{silent},{good}", "--at-once", "2", "--attempts", "9") == 0
        finally:
            done.set()
    assert len(output(images).splitlines()) == 31


def test_a_run_stops_when_all_services_are_gone_and_resumes_later(
    pages: Path, two_services: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(range(10))
    with answering(lambda _: answer_of_pages([1]) if next(left, None) is not None else None) as url:
        assert batch(pages, url, "--patience", "0.5", "--attempts", "1") == 75
    printed = capsys.readouterr().err
    assert "No service has answered for" in printed
    assert "Give the same command again" in printed
    assert failures(pages) == {}
    # The services that resume the run report the same engine as the first one.
    assert batch(pages, two_services) == 1
    assert len(output(pages).splitlines()) == 51
    assert failures(pages) == NEITHER


def test_unreachable_services_stop_the_run_before_it_begins(
    images: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocrsvc.batch.readers.service_reader._UNREACHABLE_S", 0.2)
    assert batch(images, f"http://127.0.0.1:{free_port}") == 69
    assert batch(images, "somewhere") == 65


@pytest.mark.parametrize(
    ("wrong", "code"), [(None, "unreachable"), (b'"lines": [{"text": "a", "confidence": null}]', "internal")]
)
def test_a_file_with_unusable_responses_fails_alone(images: Path, wrong: bytes | None, code: str) -> None:
    bad = wrong and answer_of_pages([1]).replace(b'"lines": []', wrong)
    with answering(lambda body: bad if body == b"no image" else answer_of_pages([1])) as url:
        assert batch(images, url, "--attempts", "1", "--at-once", "4") == 1
    assert failures(images) == {"neither.png": code}


def test_a_refused_key_stops_the_run_and_a_valid_one_resumes_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"sqlite:{tmp_path / 'keys.db'}"
    with closing(open_store(address)) as store:
        (tmp_path / "key").write_text(add_key(store, KeyEntry("batch", frozenset({"read"}))))
    (images / "large.bmp").write_bytes(bytes(300_000))
    monkeypatch.setenv("OCRSVC_API_KEY", "wrong")
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_KEYS": address, "OCRSVC_MAX_BODY_BYTES": "100000"}
    with run_server(env) as server:
        assert batch(images, server.url) == 77
        assert batch(images, server.url, "--key-file", str(tmp_path / "key")) == 1
    assert failures(images) == NEITHER | {"large.bmp": "body_too_large"}
    assert b"limit of 100000 bytes" in output(images)


def test_a_service_that_changes_its_model_stops_the_run(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    versions = iter(["1"] * 5 + ["2"] * 100)
    with answering(lambda _: answer_of_pages([1], ENGINE | {"version": next(versions)})) as url:
        assert batch(images, url, "--at-once", "1") != 0
    assert "reads with fake none 2" in capsys.readouterr().err


def test_a_small_service_is_not_idled_by_refusals(pages: Path) -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "1", "OCRSVC_QUEUE_SIZE": "2"}
    with run_server(env | {"OCRSVC_FAKE_LATENCY_S": "0.02"}) as server:
        assert batch(pages, server.url) == 1
        # Some refusals at the beginning and few later: each makes the client pause for a second.
        assert 0 < server.metric("ocrsvc_refused_total") <= 24
    assert len(output(pages).splitlines()) == 51


def test_groups_in_flight_are_limited_in_number_and_bytes() -> None:
    admission, order = GroupAdmission(100, lambda: 3), list[str]()

    def enter(size_bytes: int, name: str) -> None:
        with admission.entered(size_bytes):
            order.append(name)

    for sizes, size, names in (((60, 40), 1000, ("two", "larger")), ((1, 1, 1), 1, ("three", "fourth"))):
        thread = threading.Thread(target=enter, args=(size, names[1]))
        with ExitStack() as stack:
            for each in sizes:
                stack.enter_context(admission.entered(each))
            thread.start()
            order.append(names[0])
        thread.join(10)
    assert order == ["two", "larger", "three", "fourth"]


def answer_of_pages(numbers: list[int], engine: dict[str, str] = ENGINE) -> bytes:
    pages = [{"page": each, "width": 9, "height": 9, "angle": 0, "text": "", "lines": []} for each in numbers]
    return json.dumps({"id": "a", "engine": engine, "pages": pages, "pages_total": 1, "timing": {}}).encode()


@contextmanager
def answering(reply: Callable[[bytes], bytes | None]) -> Iterator[str]:
    """Run a service that answers with `reply(body)`, or cuts the connection if that is None; yields its URL."""

    def answer(headers: Message, body: bytes) -> Reply | None:
        assert headers["X-Priority"] == "batch"
        found = reply(body)
        return None if found is None else (200, {}, found)

    with replying(answer) as url:
        yield url


BOX = [[0, 0], [9, 0], [9, 9], [0, 9]]
LINE = {"text": "a", "confidence": 0.5, "box": BOX}
PAGE = {"page": 1, "width": 9, "height": 9, "angle": 0, "text": "a", "lines": [LINE]}


def answered(page: Any) -> Any:
    body = orjson.dumps({"engine": {"name": "fake"}, "pages": [page]})
    return page_of(parse_answer(Response(200, None, body, "http://a:1")).data, 1)


def test_a_valid_page_is_used_unchanged() -> None:
    assert answered(PAGE) == PAGE
    assert answered(PAGE | {"lines": []}) == PAGE | {"lines": []}


WRONG_PAGES: list[Any] = [
    *(1, "page", {"page": 1}),
    *(PAGE | change for change in ({"text": 1}, {"width": "9"}, {"height": 1 << 40}, {"angle": True})),
    *(PAGE | {"lines": {}}, PAGE | {"lines": [1]}),
    *(PAGE | {"lines": [LINE | {"text": None}]}, PAGE | {"lines": [LINE | {"words": 1}]}, PAGE | {"barcodes": "x"}),
    *(PAGE | {"lines": [LINE | {"confidence": wrong}]} for wrong in ("x", 1e308)),
    *(PAGE | {"lines": [LINE | {"box": wrong}]} for wrong in (BOX[:3], [[0, "x"]] * 4)),
]


@pytest.mark.parametrize("page", WRONG_PAGES)
def test_an_invalid_page_fails(page: Any) -> None:
    assert isinstance(answered(page), ServerError)


@pytest.mark.parametrize(
    "error", ["x", 1, [], {}, {"status": "abc"}, {"status": 400, "code": ["x"]}, {"status": 10**18, "detail": {"a": 1}}]
)
def test_a_malformed_error_is_an_error_of_its_page(error: Any) -> None:
    assert isinstance(answered({"page": 1, "error": error}), OcrsvcError)


def test_a_long_error_is_truncated() -> None:
    error = answered({"page": 1, "error": {"status": 400, "detail": "x" * 10**7, "remedy": "y" * 10**7}})
    assert len(error.detail) + len(error.remedy) < 10_000


def test_control_characters_in_names_are_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert visible("a\x1b[31m\x9b\u202e\r中文 é\t\n") == "a\\x1b[31m\\x9b\\u202e\\r中文 é\t\n"
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a\x1b]0;title\x07.png").write_text("no image")
    (folder / "b.\x1b[2J").write_text("no image")
    command = ["batch", str(folder), "--out", str(out), "--format", "jsonl,pdf"]
    assert run(command) == 1
    (folder / "new\x1b[31m.png").write_text("no image")
    assert run(command) != 0
    printed = capfd.readouterr()
    assert r"new\x1b[31m.png" in printed.err
    assert "\x1b" not in printed.out + printed.err + (out / "report.html").read_text()
