"""`ocrsvc batch` from object stores and web servers: what is found, with how many requests, and what has changed."""

from __future__ import annotations

import functools
import http.server
import io
import json
import random
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from faulty_s3 import BUCKET, KEYS, FaultyS3, environment, fsspec_threads, s3_server
from web_support import picture

from ocrsvc.batch import objects
from ocrsvc.batch.destination import open_destination
from ocrsvc.batch.objects import open_objects
from ocrsvc.cli.main import run

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed; it comes with the extra dev")
pytest.importorskip("s3fs", reason="s3fs is not installed; it comes with the extra dev")
pytest.importorskip("moto", reason="moto is not installed; it comes with the extra dev")

PAGES = [picture(40 + number, 30, shade=number) for number in range(6)]


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
def client(server: int) -> Iterator[Any]:
    """Writes objects."""
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server}", region_name="us-east-1", **KEYS)
    yield client
    client.close()


def records(out: Path) -> list[dict[str, Any]]:
    """All lines of the output."""
    return [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_bytes().splitlines()]


def put(client: Any, **objects: bytes) -> None:
    """Write objects whose names have __ for a slash."""
    for name, data in objects.items():
        client.put_object(Bucket=BUCKET, Key=name.replace("__", "/").replace("_png", ".png"), Body=data)


def test_a_prefix_is_read_with_two_requests_a_page(client: Any, proxy: FaultyS3, tmp_path: Path) -> None:
    put(client, scans__b_png=PAGES[0], scans__a__2_png=PAGES[1], scans__a__1_png=PAGES[2], scans_more_png=PAGES[3])
    client.put_object(Bucket=BUCKET, Key="scans/.trash/x.png", Body=PAGES[0])
    assert run(["batch", f"s3://{BUCKET}/scans", "--out", str(tmp_path / "out"), "--no-report"]) == 0
    names = [record["source"] for record in records(tmp_path / "out")]
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
    found = [record["source"] for record in records(tmp_path / "out")]
    assert found == [f"s3://{BUCKET}/shards/1.png", *tar_names]
    assert proxy.requests["GET"] <= 5


def test_an_object_that_has_changed_since_it_was_planned_fails(client: Any, tmp_path: Path) -> None:
    put(client, changing__1_png=PAGES[0], changing__2_png=PAGES[1])
    command = ["batch", f"s3://{BUCKET}/changing/", "--out", str(tmp_path / "out")]
    assert run([*command, "--limit", "1"]) == 75
    put(client, changing__2_png=PAGES[2])
    assert run(command) == 1
    read, failed = records(tmp_path / "out")
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
            if len(broken) < 4:
                broken.append(self.command)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return None
            return super().send_head()

    broken: list[str] = []
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "a.png").write_bytes(PAGES[0])
    (folder / "large.tar").write_bytes(bytes(300_000))
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        url = f"http://127.0.0.1:{web.server_address[1]}"
        assert run(["batch", f"{url}/a.png", "--out", str(tmp_path / "out")]) == 0
        assert [record["source"] for record in records(tmp_path / "out")] == [f"{url}/a.png"]
        # fsspec asks by HEAD and then by GET how large the file is, and aiohttp each twice.
        assert broken == ["HEAD", "HEAD", "GET", "GET"]
        with pytest.raises(OSError, match="whole files only"):
            open_objects(url).read_range(f"{url}/large.tar", 100_000, 100_010)
        assert run(["batch", f"{url}/none.png", "--out", str(tmp_path / "other")]) == 66
    finally:
        web.shutdown()
        web.server_close()
        thread.join()
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
            assert read_at(file, at, size) == data[at : at + size]
        file.seek(500_000)
        assert file.read() == data[500_000:]
        assert file.read(1) == b""
    assert (proxy.requests - before)["HEAD"] == 1


def read_at(file: BinaryIO, at: int, size: int) -> bytes:
    """So many bytes from there: one read may give fewer."""
    file.seek(at)
    pieces: list[bytes] = []
    while (missing := size - sum(map(len, pieces))) and (piece := file.read(missing)):
        pieces.append(piece)
    return b"".join(pieces)
