"""The Python client with several real services: refusals, hosts that die or fall silent, forks, TLS."""

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from support import Reply, Server, read_to_end, run_server, start_server, wait_until
from test_client import GOOD, PAGE, ReadMany, both_ways, first_lines, page_of, problem, scripted
from tls_support import Authority, environment

from ocrsvc import errors
from ocrsvc.client import AsyncClient, Client
from ocrsvc.client.balancer import Rules
from ocrsvc.client.request import PATH, Request
from ocrsvc.client.response import Answer, answer_of
from ocrsvc.client.services import Services

# So long that an ejected service is not tried again within a test, even on a slow machine.
LONG = Rules(first_ejection_s=60)


@contextmanager
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """A service that accepts connections and never answers; yields its URL and the open connections."""
    got: list[socket.socket] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                got.append(listening.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", got
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for wire in (listening, *got):
            wire.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def pages_until(is_so: Callable[[], bool]) -> Iterator[bytes]:
    end_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end_s
        yield PAGE


@pytest.fixture(scope="module")
def two_services() -> Iterator[list[Server]]:
    """Two services; each reads one image at a time in 20 ms, and queues one more."""
    env = {"OCRSVC_ENGINE_THREADS": "1", "OCRSVC_QUEUE_SIZE": "1", "OCRSVC_FAKE_LATENCY_S": "0.02"}
    with ExitStack() as stack:
        yield [stack.enter_context(run_server({"OCRSVC_WORKERS": "1"} | env)) for _ in range(2)]


def states(client: Client | AsyncClient) -> list[str]:
    return [each.state for each in client.states()]


@both_ways
def test_pages_are_read_by_several_small_services(two_services: list[Server], read: ReadMany) -> None:
    before = [server.metric("ocrsvc_images_total") for server in two_services]
    urls = [server.url for server in two_services]
    assert first_lines(read(urls, map(page_of, range(20, 28)))) == [f"{width}x20" for width in range(20, 28)]
    with Client(urls) as client:
        assert client.models().default is None
    after = [server.metric("ocrsvc_images_total") for server in two_services]
    assert all(new > old for new, old in zip(after, before, strict=True))


def test_refused_request_goes_elsewhere_and_retry_after_is_kept() -> None:
    full = problem(503, "queue_full", Retry_After="60")
    with scripted(full) as (a, seen_a), scripted(GOOD) as (b, seen_b), Client([a, b]) as client:
        began = time.monotonic()
        assert {client.read(PAGE).text for _ in range(8)} == {"hello"}
        assert time.monotonic() - began < 40
        assert (len(seen_a), len(seen_b), states(client)) == (1, 8, ["refusing", "open"])


@pytest.mark.parametrize("failing", [None, (502, {}, b"<h1>Bad gateway</h1>"), (200, {}, b"<h1>Welcome</h1>")])
def test_broken_service_is_ejected(failing: Reply | None) -> None:
    with scripted(failing) as (a, seen), scripted(GOOD) as (b, _), Client([a, b], rules=LONG) as client:
        assert {client.read(PAGE).text for _ in range(20)} == {"hello"}
        assert (len(seen), states(client)) == (3, ["ejected", "open"])


def has_read_a_page(server: Server) -> bool:
    """Return whether the service is ready and has read a page."""
    return "READY in" in server.log and server.metric("ocrsvc_images_total") > 0


def test_no_request_fails_if_a_service_is_killed_and_returns(free_port: int) -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_FAKE_LATENCY_S": "0.005"}
    place = ["-b", f"127.0.0.1:{free_port}"]
    with run_server(env) as stays, ExitStack() as stack:
        dies = stack.enter_context(start_server(env, place))
        dies.wait_for("READY in")
        outcomes: list[Answer | errors.OcrsvcError] = []
        with Client([stays.url, f"http://127.0.0.1:{free_port}"], timeout_s=30) as client:
            again: list[Server] = []
            for outcome in client.read_many(pages_until(lambda: any(map(has_read_a_page, again))), at_once=4):
                outcomes.append(outcome)
                if len(outcomes) == 50:
                    os.killpg(dies.pid, signal.SIGKILL)
                    dies.wait_for_exit()
                    again.append(stack.enter_context(start_server(env, place)))
            assert [each.in_flight for each in client.states()] == [0, 0]
    assert {type(outcome) for outcome in outcomes} == {Answer}


def test_client_gives_up_after_patience_s(free_port: int) -> None:
    with Client([f"http://127.0.0.1:{free_port}"], rules=Rules(patience_s=0.3)) as client:
        began = time.monotonic()
        with pytest.raises(errors.NotConnected, match=r"Connection refused.*that it runs"):
            client.read(PAGE)
        assert 0.3 <= time.monotonic() - began < 8


@both_ways
@pytest.mark.parametrize("page", [PAGE, bytes(30_000_000)])
def test_deadline_covers_all_attempts_and_is_sent(read: ReadMany, page: bytes) -> None:
    # The silent service does not receive all of the large page.
    with scripted(None) as (broken, seen), silent() as (mute, _):
        began = time.monotonic()
        (late,) = read([broken, mute], [page], timeout_s=2.5)
        assert 2.5 <= time.monotonic() - began < 20
    assert isinstance(late, errors.DeadlineExceeded)
    assert "within 2.5 seconds" in late.detail
    assert all(0.5 < float(each["X-Request-Timeout"]) < 2.5 for each in seen)


def test_cancelled_request_closes_its_connection_and_is_no_longer_in_flight() -> None:
    async def read(url: str, got: list[socket.socket]) -> list[int]:
        async with AsyncClient([url]) as client:
            reading = asyncio.ensure_future(client.read(PAGE))
            await asyncio.to_thread(wait_until, lambda: got)
            assert [each.in_flight for each in client.states()] == [1]
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            return [each.in_flight for each in client.states()]

    with silent() as (url, got):
        assert asyncio.run(read(url, got)) == [0]
        read_to_end(got[0])


def test_closed_or_collected_client_leaves_nothing_running() -> None:
    with silent() as (url, got), ThreadPoolExecutor(1) as pool:
        client = Client(url)
        reading = pool.submit(client.read, PAGE)
        wait_until(lambda: got)
        client.close()
        for each in (reading, pool.submit(client.read, PAGE)):
            with pytest.raises(errors.NotConnected, match="closed"):
                each.result(20)
        read_to_end(got[0])
    with scripted(GOOD) as (url, _):
        assert Client(url).read(PAGE).text == "hello"
        gc.collect()
        wait_until(lambda: not [one for one in threading.enumerate() if one.name == "ocrsvc-client"])


def test_after_a_fork_parent_and_child_use_separate_connections(two_services: list[Server]) -> None:
    with Client([server.url for server in two_services]) as client:
        assert first_lines(list(client.read_many([page_of(30)] * 4))) == ["30x20"] * 4
        child = os.fork()
        if not child:
            with suppress(BaseException):
                os._exit(7 if first_lines(list(client.read_many([page_of(31)] * 4))) == ["31x20"] * 4 else 1)
            os._exit(2)
        assert first_lines(list(client.read_many([page_of(32)] * 4))) == ["32x20"] * 4
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_services_are_found_by_name_and_called_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("own", "ocr.test")
    required = {"OCRSVC_TLS_CLIENT_CA": str(authority.file), "OCRSVC_TLS_CLIENTS": "required"}
    env = {"OCRSVC_WORKERS": "1", **environment(own), **required}
    body = np.random.default_rng(1).bytes(3_000_000)

    async def read(url: str) -> None:
        services = Services(
            url,
            ca=authority.file,
            certificate=(own.certificate, own.key),
            resolve=lambda name, _: ["127.0.0.1"] if name == "ocr.test" else [],
        )
        with pytest.raises(errors.UnsupportedImage):
            await services.ask(Request("POST", PATH, {}, body), answer_of, 60.0)
        for width in (30, 31):
            answer = await services.ask(Request("POST", PATH, {}, page_of(width)), answer_of, 60.0)
            assert first_lines([answer]) == [f"{width}x20"]
        assert [each.url for each in services.balancer.states()] == [f"https://127.0.0.1:{port_of(url)}"]
        await services.close()

    with run_server(env) as server:
        asyncio.run(read(f"dns+https://ocr.test:{port_of(server.url)}"))
        with (
            Client([server.url], ca=authority.file, rules=Rules(patience_s=0.1)) as client,
            pytest.raises(errors.NotConnected, match=r"CERTIFICATE_VERIFY_FAILED.*ca="),
        ):
            client.read(PAGE)


def test_a_body_refused_before_it_was_sent_raises_its_error() -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_MAX_BODY_BYTES": "100000"}
    with run_server(env) as server, Client([server.url]) as client:
        for _ in range(3):
            with pytest.raises(errors.BodyTooLarge):
                client.read(bytes(30_000_000))
        assert client.read(PAGE).text.startswith("120x40")


@pytest.mark.parametrize("headers", [{"X-Mine": "a\nb"}, {"X-Mine": "ä–"}, {"X Mine": "hidden"}])
def test_invalid_headers_are_refused_without_showing_their_value(headers: dict[str, str]) -> None:
    with pytest.raises(errors.BadOption) as caught:
        Client(["http://127.0.0.1:9"], headers=headers)
    assert next(iter(headers.values())) not in str(caught.value)


def test_headers_key_and_priority_are_sent_with_every_request() -> None:
    own = {"authorization": "Basic xyz", "content-type": "image/png"}
    with scripted(GOOD) as (url, seen):
        for where in (url, [url]):
            with Client(where, headers=own, api_key="k", priority="batch") as client:
                client.read(PAGE, lang="ru", min_confidence=0.5)
    assert len(seen) == 2
    for headers in seen:
        sent = {name.lower(): value for name, value in headers.items()}
        assert (sent["authorization"], sent["x-priority"]) == ("Basic xyz", "batch")
        assert sent["content-type"] == "application/octet-stream"
