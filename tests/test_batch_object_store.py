"""`ocrsvc batch` with object stores and web servers as destination and source."""

import functools
import http.server
import json
import socket
import threading
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from batch_support import output, write_tar
from faulty_s3 import BUCKET, FAULTS, KEYS, FaultyS3, Plan, environment, fsspec_threads, s3_server
from image_support import png
from support import ROOT, Clock, QuietHandler, data_of, http_server, run_program

from ocrsvc.batch import objects
from ocrsvc.batch.destination import Destination, ObjectDestination, open_destination
from ocrsvc.batch.objects import Objects, is_transient, open_objects, os_error_of
from ocrsvc.cli.main import run
from ocrsvc.errors import BadOption

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed; it comes with the extra dev")
pytest.importorskip("s3fs", reason="s3fs is not installed; it comes with the extra dev")
pytest.importorskip("moto", reason="moto is not installed; it comes with the extra dev")
boto3 = pytest.importorskip("boto3", reason="boto3 is not installed; it comes with the extra dev")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[int]:
    """Run an S3 server; the value is its port."""
    with s3_server() as port, fsspec_threads():
        yield port


@pytest.fixture(autouse=True)
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """The S3 endpoint that commands use; it counts requests and injects faults."""
    proxy = FaultyS3(server)
    for name, value in (*environment(proxy.url).items(), ("OCRSVC_ENGINE", "fake"), ("OCRSVC_ISOLATION", "thread")):
        monkeypatch.setenv(name, value)
    objects._objects_of.cache_clear()
    yield proxy
    objects._objects_of.cache_clear()
    proxy.close()


@pytest.fixture
def store(proxy: FaultyS3, request: pytest.FixtureRequest) -> ObjectDestination:
    """A destination in the bucket, under the name of the test."""
    return open_s3(proxy, f"{BUCKET}/{request.node.name}")


def open_s3(proxy: FaultyS3, root: str, retry_s: float = 300.0, timeout_s: float = 0.5) -> ObjectDestination:
    """A destination whose requests time out after `timeout_s` and are retried for `retry_s`."""
    import s3fs

    values = environment(proxy.url)
    system = s3fs.S3FileSystem(
        key=values["AWS_ACCESS_KEY_ID"],
        secret=values["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=proxy.url,
        config_kwargs={"read_timeout": timeout_s, "retries": {"total_max_attempts": 1}},
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    system.retries = 1
    return ObjectDestination(Objects("s3", system, retry_s), f"s3://{root}")


@pytest.fixture(params=["local", "s3", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    """A destination of each kind; all must behave alike."""
    if request.param == "s3":
        found: Destination = request.getfixturevalue("store")
        return found
    return Destination(tmp_path) if request.param == "local" else open_destination(f"memory://bucket/{tmp_path.name}")


def test_files_are_written_atomically(any_store: Destination) -> None:
    with any_store.writing("some/file") as file:
        file.write(b"0123456789")
    with suppress(ZeroDivisionError), any_store.writing("some/other") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert (any_store.names("some"), any_store.read("some/file")) == (["file"], b"0123456789")
    with any_store.open("some/file") as opened:
        opened.seek(3)
        assert opened.read(4) == b"3456"
    with any_store.writing("some/file") as file:
        file.write(b"other")
    assert (file.written().size, any_store.read("some/file")) == (5, b"other")
    any_store.delete("some/file")
    any_store.delete("some/file")
    with pytest.raises(FileNotFoundError):
        any_store.read("some/file")


def test_one_of_several_writers_creates_a_file(any_store: Destination) -> None:
    won: list[str] = []
    # moto's conditional write is not atomic, so its clients take turns.
    barrier = threading.Barrier(1 if isinstance(any_store, ObjectDestination) else 4)

    def create(name: str) -> None:
        barrier.wait(10)
        if any_store.create("run.json", name.encode()):
            won.append(name)

    threads = [threading.Thread(target=create, args=(f"owner {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
        if barrier.parties == 1:
            thread.join()
    for thread in threads:
        thread.join()
    assert [name.encode() for name in won] == [any_store.read("run.json")]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_request_is_retried(store: ObjectDestination, proxy: FaultyS3, fault: str) -> None:
    proxy.plan = Plan(silent_s=0.8, slow_s=0.1, next_faults=[fault])
    assert store.create("once", b"content")
    assert not store.create("once", b"other")
    assert "*" in proxy.conditions, "If-None-Match: * was not sent"
    proxy.plan.next_faults = [fault]
    assert (store.read("once"), proxy.faults[fault]) == (b"content", 2)


@pytest.mark.parametrize(("url", "said"), data_of("batch_object_store")["destinations"])
def test_invalid_destinations_are_refused_without_showing_the_password(url: str, said: str) -> None:
    with pytest.raises(BadOption) as refused:
        open_destination(url)
    assert said in str(refused.value)
    assert "pass-word" not in str(refused.value)


def test_every_page_is_written_once_despite_faults_and_kills() -> None:
    benchmark, options = ROOT / "benchmarks/batch_object_store.py", ["--pages", "150", "--part-pages", "40"]
    done = run_program(benchmark, *options, "--kills", "1", "--rate", "0.06", "--read-timeout", "0.7")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert sum(result["faults"].values()) >= 3
    assert result["once"] == result["lines"] == 150
    assert result["in_order"]
    # Requests cost money: there are fewer than pages.
    assert sum(result["requests"].values()) < 150


def test_error_messages_contain_no_secret(store: ObjectDestination, proxy: FaultyS3) -> None:
    hasty = open_s3(proxy, store.address.removeprefix("s3://"), 0.0)
    proxy.plan.next_faults = ["busy"]
    with pytest.raises(OSError, match="Service Unavailable") as refused:
        hasty.read("anything")
    assert "notsecret" not in "".join(traceback.format_exception(refused.value))


# Retries, without a server


@pytest.mark.parametrize(("has_responded", "min_s", "max_s"), [(True, 290, 350), (False, 0, 61)])
def test_requests_are_retried_for_minutes_once_the_store_has_responded(
    has_responded: bool, min_s: float, max_s: float
) -> None:
    clock, system = Clock(0.0), Mock(_strip_protocol=str, **{"cat_file.return_value": b""})

    def sleep(wait_s: float) -> None:
        clock.now_s += wait_s

    def fail(*_: object, **_more: object) -> None:
        sleep(30.0)
        raise ConnectionResetError

    objects = Objects("s3", system, clock=clock, sleep=sleep)
    if has_responded:
        objects.read("s3://x")
    system.cat_file.side_effect = fail
    with pytest.raises(TimeoutError, match="GET s3://x"):
        objects.read("s3://x")
    assert min_s < clock.now_s < max_s


@pytest.mark.parametrize(("kind", "answers"), data_of("batch_object_store")["answers"].items())
def test_s3_errors_become_os_errors(kind: str, answers: list[str]) -> None:
    exceptions, errors = pytest.importorskip("botocore.exceptions"), pytest.importorskip("s3fs.errors")
    for status, code in map(str.split, answers):
        answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": int(status)}}
        error = errors.translate_boto_error(exceptions.ClientError(answer, "PutObject"))
        assert is_transient(error) == (kind == "TimeoutError")
        assert type(os_error_of(error, "PUT s3://bucket/name")).__name__ == kind


PAGES = [png(40 + number, 30, shade=number) for number in range(6)]


@pytest.fixture
def client(server: int) -> Iterator[Any]:
    """An S3 client that bypasses the proxy."""
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server}", region_name="us-east-1", **KEYS)
    yield client
    client.close()


def put(client: Any, **objects: bytes) -> None:
    """Write objects; in the names, `__` means a slash and `_png` the suffix .png."""
    for name, data in objects.items():
        client.put_object(Bucket=BUCKET, Key=name.replace("__", "/").replace("_png", ".png"), Body=data)


def test_a_prefix_is_read_with_few_requests(client: Any, proxy: FaultyS3, tmp_path: Path) -> None:
    put(client, scans__b_png=PAGES[0], scans__a__2_png=PAGES[1], scans__a__1_png=PAGES[2], scans_more_png=PAGES[3])
    client.put_object(Bucket=BUCKET, Key="scans/.trash/x.png", Body=PAGES[0])
    assert run(["batch", f"s3://{BUCKET}/scans", "--out", str(tmp_path / "out"), "--no-report"]) == 0
    names = [record["source"] for record in output(tmp_path / "out")]
    assert names == [f"s3://{BUCKET}/scans/{name}" for name in ("a/1.png", "a/2.png", "b.png")]
    assert proxy.requests["GET"] == 3
    assert proxy.requests.total() <= 14


def test_patterns_and_archives_are_read_from_objects(client: Any, proxy: FaultyS3, tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {f"{number}.png": page for number, page in enumerate(PAGES)})
    with zipfile.ZipFile(tmp_path / "1.zip", "w") as archive:
        archive.writestr("a.png", PAGES[0])
    for name in ("0.tar", "1.zip"):
        client.put_object(Bucket=BUCKET, Key=f"shards/{name}", Body=(tmp_path / name).read_bytes())
    put(client, shards__1_png=PAGES[0], shards__sub__2_png=PAGES[1])
    sources = [f"s3://{BUCKET}/shards/*.png", f"s3://{BUCKET}/shards/0.tar"]
    assert run(["batch", *sources, "--out", str(tmp_path / "out"), "--no-report"]) == 0
    tar_names = [f"s3://{BUCKET}/shards/0.tar/{number}.png" for number in range(6)]
    found = [record["source"] for record in output(tmp_path / "out")]
    assert found == [f"s3://{BUCKET}/shards/1.png", *tar_names]
    assert proxy.requests["GET"] <= 5
    assert run(["batch", f"s3://{BUCKET}/shards/1.zip", "--out", str(tmp_path / "zip"), "--no-report"]) == 0
    assert [record["source"] for record in output(tmp_path / "zip")] == [f"s3://{BUCKET}/shards/1.zip/a.png"]


def test_an_object_changed_after_planning_fails(client: Any, tmp_path: Path) -> None:
    put(client, changing__1_png=PAGES[0], changing__2_png=PAGES[1])
    command = ["batch", f"s3://{BUCKET}/changing/", "--out", str(tmp_path / "out")]
    assert run([*command, "--limit", "1"]) == 75
    put(client, changing__2_png=PAGES[2])
    assert run(command) == 1
    read, failed = output(tmp_path / "out")
    assert read["error"] is None
    assert failed["error"]["code"] == "source_gone"
    assert "changed" in failed["error"]["detail"]


@pytest.mark.parametrize(("source", "code", "said"), data_of("batch_object_store")["sources"])
def test_invalid_sources_are_refused_without_showing_the_password(
    source: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["batch", source, "--out", str(tmp_path / "out")]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "pass-word" not in shown
    assert not any(b"pass-word" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_files_are_read_over_http_and_missing_ranges_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(QuietHandler, http.server.SimpleHTTPRequestHandler):
        def send_head(self) -> Any:
            """Cut the connections of the first four requests."""
            if len(broken) == 4:
                return super().send_head()
            broken.append(self.command)
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)

    broken: list[str] = []
    (folder := tmp_path / "web").mkdir()
    (folder / "a.png").write_bytes(PAGES[0])
    (folder / "large.tar").write_bytes(bytes(300_000))
    with http_server(functools.partial(Handler, directory=str(folder))) as url:
        assert run(["batch", f"{url}/a.png", "--out", str(tmp_path / "out")]) == 0
        assert [record["source"] for record in output(tmp_path / "out")] == [f"{url}/a.png"]
        with pytest.raises(OSError, match="whole files only"):
            open_objects(url).read(f"{url}/large.tar", 100_000, 100_010)
        assert run(["batch", f"{url}/none.png", "--out", str(tmp_path / "other")]) == 66
    assert "none.png cannot be read" in capsys.readouterr().err
