"""`ocrsvc batch` into an object store: whole objects, one creator, few objects, every page once in spite of faults."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faulty_s3 import BUCKET, FAULTS, FaultyS3, Plan, environment, fsspec_threads, s3_server
from support import ROOT, clean_environment

from ocrsvc.batch.objects.fsspec_objects import FsspecObjects
from ocrsvc.batch.objects.retry import Retries, RetryLimits
from ocrsvc.batch.objects.s3_objects import S3Objects
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.store.local_store import LocalStore
from ocrsvc.batch.store.object_store import ObjectStore
from ocrsvc.batch.store.opening import open_store
from ocrsvc.errors import BadOption

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed; it comes with the extra dev")
pytest.importorskip("s3fs", reason="s3fs is not installed; it comes with the extra dev")
pytest.importorskip("moto", reason="moto is not installed; it comes with the extra dev")

PART_BYTES = 5 << 20
LOG = "_ocrsvc/ledger/one"


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
def store(proxy: FaultyS3, request: pytest.FixtureRequest) -> ObjectStore:
    """A store of this test's own below the bucket."""
    return open_s3(proxy, f"{BUCKET}/{request.node.name}")


def open_s3(proxy: FaultyS3, root: str, limits: RetryLimits | None = None) -> ObjectStore:
    """A store whose clients give up a request after a second."""
    import s3fs

    values = environment(proxy.url)
    system = s3fs.S3FileSystem(
        key=values["AWS_ACCESS_KEY_ID"],
        secret=values["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=proxy.url,
        config_kwargs={"read_timeout": 0.5, "retries": {"total_max_attempts": 1}},
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    system.retries = 1
    return ObjectStore(S3Objects("s3", system, Retries(limits), PART_BYTES), root, f"s3://{root}")


@pytest.fixture(params=["local", "s3", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each kind, which all keep one contract."""
    if request.param == "s3":
        found: Store = request.getfixturevalue("store")
        return found
    return LocalStore(tmp_path) if request.param == "local" else open_store(f"memory://bucket/{tmp_path.name}")


def test_a_file_appears_whole_or_not_at_all(any_store: Store) -> None:
    with any_store.writing("some/file") as file:
        file.write(b"0123456789")
    with suppress(ZeroDivisionError), any_store.writing("some/other") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert [(found.name, found.size) for found in any_store.files("some/")] == [("some/file", 10)]
    assert any_store.read("some/file") == b"0123456789"
    assert any_store.read("some/file", 3, 4) == b"3456"
    assert any_store.read("some/file", 20, 4) == b""
    any_store.delete("some/file")
    any_store.delete("some/file")
    with pytest.raises(FileNotFoundError):
        any_store.read("some/file")


def test_one_of_several_creates_a_file(any_store: Store) -> None:
    won: list[str] = []
    barrier = threading.Barrier(4)

    def create(name: str) -> None:
        barrier.wait(10)
        if any_store.create("run.json", name.encode()):
            won.append(name)

    threads = [threading.Thread(target=create, args=(f"owner {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [name.encode() for name in won] == [any_store.read("run.json")]


def test_a_log_is_read_back_as_it_was_committed(any_store: Store) -> None:
    log = any_store.open_log(LOG)
    offsets = [log.append(b"%05d" % number) for number in range(3)]
    log.commit()
    offsets.append(log.append(b"more"))
    log.commit()
    assert any_store.log_names("_ocrsvc/") == [LOG]
    assert any_store.log_size(LOG) == 19
    assert any_store.read_log(LOG, 0, 100) == b"000000000100002more"
    assert [any_store.read_log(LOG, offset, 4) for offset in offsets] == [b"0000", b"0000", b"0000", b"more"]
    with pytest.raises(FileExistsError):
        any_store.open_log(LOG)
    log.close()
    any_store.delete_log(LOG)
    assert any_store.log_names("_ocrsvc/") == []
    assert any_store.log_size(LOG) == 0


class CountingRetries(Retries):
    """Counts requests by their verb."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def send(self, what: str, request: Callable[[], Any], total_s: float | None = None) -> Any:
        self.requests[what.partition(" ")[0]] += 1
        return super().send(what, request, total_s)


def in_memory(tmp_path: Path) -> tuple[ObjectStore, CountingRetries]:
    """A store in memory, and what counts its requests; each call has its own view of the same objects."""
    retries = CountingRetries()
    objects = FsspecObjects("memory", fsspec.filesystem("memory"), retries)
    return ObjectStore(objects, f"bucket{tmp_path}", "memory"), retries


def test_a_log_of_many_commits_has_few_objects_and_is_followed_with_few_requests(tmp_path: Path) -> None:
    (store, writes), (other, reads) = in_memory(tmp_path), in_memory(tmp_path)
    log, written, read = store.open_log(LOG), b"", b""
    for number in range(2000):
        entry = b"%08d" % number * 20
        log.append(entry)
        log.commit()
        written += entry
        if number % 50 == 7:
            other.log_names("_ocrsvc/ledger/")
            while more := other.read_log(LOG, len(read), 1 << 20):
                read += more
            assert read == written
    assert len(list(store.files(LOG))) < 40
    assert writes.requests["PUT"] < 2000 * 1.08
    assert writes.requests["GET"] == 0
    assert writes.requests["LIST"] < 5
    # Follows of 50 commits each: one listing, and what is new since.
    assert reads.requests["LIST"] < 60
    other.log_names("_ocrsvc/ledger/")
    before = reads.requests["GET"]
    assert other.read_log(LOG, len(written), 1 << 20) == b""
    assert reads.requests["GET"] - before == 0
    log.close()
    # 320,000 bytes of small entries are one object.
    assert [found.size for found in store.files(LOG)] == [len(written)]
    assert in_memory(tmp_path)[0].read_log(LOG, 0, 1 << 20) == written


def test_what_several_owners_have_written_is_read_with_the_listing(tmp_path: Path) -> None:
    (store, _), (other, reads) = in_memory(tmp_path), in_memory(tmp_path)
    logs = {f"_ocrsvc/ledger/{number}": store.open_log(f"_ocrsvc/ledger/{number}") for number in range(5)}
    for turn in range(3):
        for log in logs.values():
            log.append(b"one")
            log.commit()
        assert other.log_names("_ocrsvc/ledger/") == list(logs)
        before = reads.requests["GET"]
        assert {other.read_log(name, 3 * turn, 100) for name in logs} == {b"one"}
        assert {other.read_log(name, 3 * turn + 3, 100) for name in logs} == {b""}
        # All at once with the listing, from when it is known that they are followed.
        assert reads.requests["GET"] - before == (0 if turn else 5)


def test_what_dead_owners_left_is_merged_at_the_start(tmp_path: Path) -> None:
    store, _ = in_memory(tmp_path)
    for owner in range(30):
        log = store.open_log(f"_ocrsvc/ledger/{owner:02d}")
        for number in range(11):
            log.append(b"%d" % number)
            log.commit()
    late, _ = in_memory(tmp_path)
    assert len(late.log_names("_ocrsvc/ledger/")) == 30
    assert len(list(late.files("_ocrsvc/ledger/"))) == 30
    # Who read it before reads on, though what it knew is gone.
    store._logs._cache.clear()
    assert store.read_log("_ocrsvc/ledger/07", 0, 100) == b"012345678910"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_meets_a_fault_is_sent_again(store: ObjectStore, proxy: FaultyS3, fault: str) -> None:
    proxy.plan = Plan(silent_s=0.8, slow_s=0.1, next_faults=[fault])
    assert store.create("once", b"content")
    assert not store.create("once", b"content")
    proxy.plan.next_faults = [fault]
    assert store.read("once") == b"content"
    assert proxy.faults[fault] == 2


def test_a_large_file_goes_in_pieces_and_a_failed_upload_is_removed(store: ObjectStore, proxy: FaultyS3) -> None:
    data = random.Random(1).randbytes(1 << 20) * 12
    proxy.plan = Plan(match="partNumber", next_faults=["busy", "torn", "lost"])
    with store.writing("large") as file:
        file.write(data)
    assert store.read("large") == data
    # A piece that is refused ends the upload; nothing of it stays, and what was there stands.
    hasty = open_s3(proxy, store._root, RetryLimits(total_s=0.0))
    proxy.plan = Plan(match="partNumber=2", next_faults=["busy"])
    with pytest.raises(TimeoutError, match=f"PUT s3://{BUCKET}"), hasty.writing("large") as file:
        file.write(b"other" + data)
    assert store.read("large") == data
    assert store._objects._call("list_multipart_uploads", Bucket=BUCKET).get("Uploads", []) == []  # type: ignore[attr-defined]


def test_an_upload_whose_completion_was_not_answered_counts_as_complete(store: ObjectStore, proxy: FaultyS3) -> None:
    proxy.plan = Plan(match="POST", next_faults=["", "lost", "lost"])
    with store.writing("large") as file:
        file.write(b"x" * (6 << 20))
    assert proxy.faults["lost"] == 2
    assert store.read("large") == b"x" * (6 << 20)


def test_a_log_whose_commit_failed_takes_no_more(store: ObjectStore, proxy: FaultyS3) -> None:
    hasty = open_s3(proxy, store._root, RetryLimits(total_s=0.0))
    log = hasty.open_log(LOG)
    log.append(b"one")
    proxy.plan.next_faults = ["busy"]
    with pytest.raises(TimeoutError):
        log.commit()
    log.append(b"two")
    with pytest.raises(OSError, match="earlier commit"):
        log.commit()
    assert store.log_size(LOG) == 0


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
        open_store(url)
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


def test_no_secret_is_in_messages_of_failures(store: ObjectStore, proxy: FaultyS3) -> None:
    hasty = open_s3(proxy, store._root, RetryLimits(total_s=0.0))
    proxy.plan.next_faults = ["busy"]
    with pytest.raises(OSError, match="reduce your request rate") as refused:
        hasty.read("anything")
    assert "notsecret" not in "".join(traceback.format_exception(refused.value))
    assert store.address == f"s3://{store._root}"
