"""`ocrsvc batch` into an object store: whole objects, one creator, every page once in spite of faults."""

from __future__ import annotations

import functools
import http.server
import io
import json
import random
import socket
import tarfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from batch_support import output
from faulty_s3 import BUCKET, FAULTS, KEYS, FaultyS3, Plan, environment, fsspec_threads, s3_server
from image_support import png
from support import ROOT, http_server, run_program

from ocrsvc.batch import objects
from ocrsvc.batch.destination import Destination, ObjectDestination, open_destination
from ocrsvc.batch.objects import Objects, is_transient, open_objects, os_error_of
from ocrsvc.batch.sources.source_files import read_fully
from ocrsvc.cli.main import run
from ocrsvc.errors import BadOption

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed; it comes with the extra dev")
pytest.importorskip("s3fs", reason="s3fs is not installed; it comes with the extra dev")
pytest.importorskip("moto", reason="moto is not installed; it comes with the extra dev")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[int]:
    """The port of an S3 server."""
    with s3_server() as port, fsspec_threads():
        yield port


@pytest.fixture(autouse=True)
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """What commands find as S3; it counts requests."""
    proxy = FaultyS3(server)
    for name, value in (*environment(proxy.url).items(), ("OCRSVC_ENGINE", "fake"), ("OCRSVC_ISOLATION", "thread")):
        monkeypatch.setenv(name, value)
    objects._objects_of.cache_clear()
    yield proxy
    objects._objects_of.cache_clear()
    proxy.close()


@pytest.fixture
def store(proxy: FaultyS3, request: pytest.FixtureRequest) -> ObjectDestination:
    """A store of this test's own below the bucket."""
    return open_s3(proxy, f"{BUCKET}/{request.node.name}")


def open_s3(proxy: FaultyS3, root: str, retry_s: float = 300.0, timeout_s: float = 0.5) -> ObjectDestination:
    """A store whose clients give up a request after so many seconds."""
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
    """A store of each kind, which all keep one contract."""
    if request.param == "s3":
        found: Destination = request.getfixturevalue("store")
        return found
    return Destination(tmp_path) if request.param == "local" else open_destination(f"memory://bucket/{tmp_path.name}")


def test_a_file_appears_whole_or_not_at_all(any_store: Destination) -> None:
    with any_store.writing("some/file") as file:
        file.write(b"0123456789")
    with suppress(ZeroDivisionError), any_store.writing("some/other") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert any_store.names("some") == ["file"]
    assert any_store.read("some/file") == b"0123456789"
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


def test_one_of_several_creates_a_file(any_store: Destination) -> None:
    won: list[str] = []
    # The server of the tests looks and writes in two steps: its clients come one after another.
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
def test_a_request_that_meets_a_fault_is_sent_again(store: ObjectDestination, proxy: FaultyS3, fault: str) -> None:
    proxy.plan = Plan(silent_s=0.8, slow_s=0.1, next_faults=[fault])
    assert store.create("once", b"content")
    assert not store.create("once", b"other")
    proxy.plan.next_faults = [fault]
    assert store.read("once") == b"content"
    assert proxy.faults[fault] == 2


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://name:pass-word@bucket/out", "holds a user or password"),
        ("s3://bucket/out?token=pass-word", "is signed"),
        ("https://host/out?X-Amz-Signature=pass-word", "accepted are folders"),
        ("hf://datasets/me/out", "accepted are folders"),
        ("s3://", "names no bucket"),
        ("gs://bucket/out", "pip install 'gcsfs'"),
    ],
)
def test_a_destination_that_cannot_be_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(BadOption) as refused:
        open_destination(url)
    assert said in str(refused.value)
    assert "pass-word" not in str(refused.value)


def test_every_page_is_in_the_output_once_whatever_fails_and_dies() -> None:
    benchmark, options = ROOT / "benchmarks/batch_object_store.py", ["--pages", "150", "--part-pages", "40"]
    done = run_program(benchmark, *options, "--kills", "1", "--rate", "0.06", "--read-timeout", "0.7")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert sum(result["faults"].values()) >= 3
    assert result["once"] == result["lines"] == 150
    assert result["in_order"]
    # Objects are few, as each has its price.
    assert sum(result["requests"].values()) < 150


def test_no_secret_is_in_messages_of_failures(store: ObjectDestination, proxy: FaultyS3) -> None:
    hasty = open_s3(proxy, store.address.removeprefix("s3://"), 0.0)
    proxy.plan.next_faults = ["busy"]
    with pytest.raises(OSError, match="Service Unavailable") as refused:
        hasty.read("anything")
    assert "notsecret" not in "".join(traceback.format_exception(refused.value))


# Requests that are sent again, without a server


class SlowSystem:
    """fsspec's contract: every request takes thirty seconds, and fails once it `is_lost`."""

    def __init__(self) -> None:
        self.now, self.is_lost = 0.0, False
        self.waits: list[float] = []

    def _strip_protocol(self, url: str) -> str:
        return url

    def cat_file(self, _path: str, **_: object) -> bytes:
        if not self.is_lost:
            return b""
        self.now += 30.0
        raise ConnectionResetError

    def sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now += wait_s


@pytest.mark.parametrize(("is_heard", "least_s", "most_s"), [(True, 290, 350), (False, 0, 61)])
def test_waits_grow_and_end(is_heard: bool, least_s: float, most_s: float) -> None:
    system = SlowSystem()
    objects = Objects("s3", system, clock=lambda: system.now, sleep=system.sleep)
    if is_heard:
        objects.read("s3://x")
    system.is_lost = True
    with pytest.raises(TimeoutError, match="GET s3://x"):
        objects.read("s3://x")
    assert least_s < system.now < most_s
    mosts = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert all(0.5 * most <= wait_s <= most for wait_s, most in zip(system.waits, mosts, strict=False))


def s3_error(status: int, code: str) -> OSError:
    """What s3fs raises for an answer of S3."""
    errors = pytest.importorskip("s3fs.errors", reason="s3fs is not installed; it comes with the extra dev")
    exceptions = pytest.importorskip("botocore.exceptions")
    answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found: OSError = errors.translate_boto_error(exceptions.ClientError(answer, "PutObject"))
    return found


ANSWERS = {
    TimeoutError: (
        *("500 InternalError", "503 SlowDown", "503 ServiceUnavailable", "429 TooManyRequests"),
        *("400 RequestTimeout", "409 ConditionalRequestConflict"),
    ),
    FileNotFoundError: ("404 NoSuchKey",),
    PermissionError: ("403 AccessDenied", "400 ExpiredToken"),
    FileExistsError: ("412 PreconditionFailed",),
    OSError: ("400 InvalidBucketName",),
}


@pytest.mark.parametrize(("kind", "answer"), [(kind, answer) for kind in ANSWERS for answer in ANSWERS[kind]])
def test_answers_of_s3_are_told_apart(kind: type[OSError], answer: str) -> None:
    status, code = answer.split()
    error = s3_error(int(status), code)
    assert is_transient(error) == (kind is TimeoutError)
    assert type(os_error_of(error, "PUT s3://bucket/name")) is kind


boto3 = pytest.importorskip("boto3", reason="boto3 is not installed; it comes with the extra dev")
pytest.importorskip("s3fs", reason="s3fs is not installed; it comes with the extra dev")
pytest.importorskip("moto", reason="moto is not installed; it comes with the extra dev")

PAGES = [png(40 + number, 30, shade=number) for number in range(6)]


@pytest.fixture
def client(server: int) -> Iterator[Any]:
    """Writes objects."""
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server}", region_name="us-east-1", **KEYS)
    yield client
    client.close()


def put(client: Any, **objects: bytes) -> None:
    """Write objects whose names have __ for a slash."""
    for name, data in objects.items():
        client.put_object(Bucket=BUCKET, Key=name.replace("__", "/").replace("_png", ".png"), Body=data)


def test_a_prefix_is_read_with_two_requests_a_page(client: Any, proxy: FaultyS3, tmp_path: Path) -> None:
    put(client, scans__b_png=PAGES[0], scans__a__2_png=PAGES[1], scans__a__1_png=PAGES[2], scans_more_png=PAGES[3])
    client.put_object(Bucket=BUCKET, Key="scans/.trash/x.png", Body=PAGES[0])
    assert run(["batch", f"s3://{BUCKET}/scans", "--out", str(tmp_path / "out"), "--no-report"]) == 0
    names = [record["source"] for record in output(tmp_path / "out")]
    assert names == [f"s3://{BUCKET}/scans/{name}" for name in ("a/1.png", "a/2.png", "b.png")]
    # Whether the prefix is an object itself, the listings of two folders, and the pages, whose versions are compared.
    assert proxy.requests["GET"] == 3
    assert proxy.requests.total() <= 14


def test_patterns_and_archives_are_read_from_objects(client: Any, proxy: FaultyS3, tmp_path: Path) -> None:
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for number, page in enumerate(PAGES):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(page)
            tar.addfile(member, io.BytesIO(page))
    client.put_object(Bucket=BUCKET, Key="shards/0.tar", Body=shard.getvalue())
    put(client, shards__1_png=PAGES[0], shards__sub__2_png=PAGES[1])
    sources = [f"s3://{BUCKET}/shards/*.png", f"s3://{BUCKET}/shards/0.tar"]
    assert run(["batch", *sources, "--out", str(tmp_path / "out"), "--no-report"]) == 0
    tar_names = [f"s3://{BUCKET}/shards/0.tar/{number}.png" for number in range(6)]
    found = [record["source"] for record in output(tmp_path / "out")]
    assert found == [f"s3://{BUCKET}/shards/1.png", *tar_names]
    assert proxy.requests["GET"] <= 5


def test_an_object_that_has_changed_since_it_was_planned_fails(client: Any, tmp_path: Path) -> None:
    put(client, changing__1_png=PAGES[0], changing__2_png=PAGES[1])
    command = ["batch", f"s3://{BUCKET}/changing/", "--out", str(tmp_path / "out")]
    assert run([*command, "--limit", "1"]) == 75
    put(client, changing__2_png=PAGES[2])
    assert run(command) == 1
    read, failed = output(tmp_path / "out")
    assert read["error"] is None
    assert failed["error"]["code"] == "source_gone"
    assert "changed" in failed["error"]["detail"]


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (f"s3://{BUCKET}/nothing", 66, "has no objects"),
        (f"s3://{BUCKET}/nothing/*.png", 66, "has no objects"),
        ("https://me:pass-word@host.invalid/a.png", 65, "holds a user or password"),
        ("https://host.invalid/a.png?X-Amz-Signature=pass-word", 65, "is signed"),
        ("ftp://host.invalid/a.png", 65, "ftp:// is not known"),
    ],
)
def test_what_cannot_be_a_source_is_told(
    source: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["batch", source, "--out", str(tmp_path / "out")]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "pass-word" not in shown
    assert not any(b"pass-word" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_a_web_server_gives_files_and_says_when_it_gives_no_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def send_head(self) -> Any:
            """Break the connections of the first requests."""
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
        # fsspec asks by HEAD and then by GET how large the file is, and aiohttp each twice.
        assert broken == ["HEAD", "HEAD", "GET", "GET"]
        with pytest.raises(OSError, match="whole files only"):
            open_objects(url).read(f"{url}/large.tar", 100_000, 100_010)
        assert run(["batch", f"{url}/none.png", "--out", str(tmp_path / "other")]) == 66
    assert "none.png cannot be read" in capsys.readouterr().err


def test_an_object_is_a_file_that_is_read_at_any_place(proxy: FaultyS3) -> None:
    data = random.Random(1).randbytes(3_000_000)
    objects = open_objects(f"s3://{BUCKET}/")
    open_destination(f"s3://{BUCKET}/at").note("random", data)
    before = proxy.requests.copy()
    with objects.open(f"s3://{BUCKET}/at/random") as file:
        assert file.read(64) == data[:64]
        assert file.seek(0, 2) == len(data)
        draw = random.Random(2)
        for _ in range(200):
            at, size = draw.randrange(1_000_000), draw.randrange(2000)
            file.seek(at)
            assert read_fully(file, size) == data[at : at + size]
        file.seek(500_000)
        assert file.read() == data[500_000:]
        assert file.read(1) == b""
    assert (proxy.requests - before)["HEAD"] == 1
