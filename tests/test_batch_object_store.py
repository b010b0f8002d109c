"""`ocrsvc batch` into an object store: whole objects, one creator, every page once in spite of faults."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faulty_s3 import BUCKET, FAULTS, FaultyS3, Plan, environment, fsspec_threads, s3_server
from support import ROOT, clean_environment

from ocrsvc.batch.destination import Destination, ObjectDestination, open_destination
from ocrsvc.batch.objects import Objects
from ocrsvc.errors import BadOption

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed; it comes with the extra dev")
pytest.importorskip("s3fs", reason="s3fs is not installed; it comes with the extra dev")
pytest.importorskip("moto", reason="moto is not installed; it comes with the extra dev")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[int]:
    """The port of an S3 server."""
    with s3_server() as port, fsspec_threads():
        yield port


@pytest.fixture
def proxy(server: int) -> Iterator[FaultyS3]:
    """Between clients and the server; without faults until a test wants some."""
    proxy = FaultyS3(server)
    yield proxy
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


def test_a_large_file_whose_upload_meets_a_fault_is_sent_again(proxy: FaultyS3) -> None:
    store = open_s3(proxy, f"{BUCKET}/large", timeout_s=30.0)
    data = random.Random(1).randbytes(1 << 20) * 20
    proxy.plan = Plan(match="PUT", next_faults=["busy"])
    with store.writing("large") as file:
        file.write(data)
    assert store.read("large") == data


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


def test_every_page_is_in_the_output_once_whatever_fails_and_dies(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "batch_object_store.py"),
        "--pages",
        "150",
        "--part-pages",
        "40",
    ]
    environ = clean_environment({"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    done = subprocess.run(
        [*command, "--kills", "1", "--rate", "0.06", "--read-timeout", "0.7"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
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
