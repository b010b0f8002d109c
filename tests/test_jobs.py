"""Stored documents have a share for each caller, and a full disk loses none and leaves nothing behind."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from documents import GRAY, pdf
from support import wait_until
from web_support import KnownEngine, json_of

from ocrsvc.app import create_app
from ocrsvc.errors import QueueFull
from ocrsvc.jobs import runner as runner_module
from ocrsvc.jobs import store
from ocrsvc.jobs.begun_pages import OPENING, BegunPages
from ocrsvc.jobs.eviction import Bounds, Need, Stored, displaced
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.runner import Runner
from ocrsvc.jobs.store import JobStore, StorageFull, storing
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.limiter import Limiter
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

DOCUMENT = pdf(GRAY)

# Who makes room: documents as "caller + number", finished ones in capitals, the oldest first


def stored_of(names: str) -> list[Stored]:
    """Documents of 10 bytes each."""
    return [
        Stored(name, name[0].lower(), 10, came_s, is_done=name[0].isupper())
        for came_s, name in enumerate(names.split())
    ]


@pytest.mark.parametrize(
    ("names", "caller", "gone"),
    [
        ("a1 a2", "a", []),
        # Its own finished ones, the oldest first, before anybody else's.
        ("B1 A1 a2 A3", "a", ["A1"]),
        # One caller with everything makes room for each new one: finished ones first, else what came last.
        ("A1 a2 a3 a4", "b", ["A1"]),
        ("a1 a2 a3 a4", "b", ["a4"]),
        ("a1 a2 a3 b1", "b", ["a3"]),
        ("a1 a2 A3 b1", "c", ["A3"]),
        # Who has his share displaces nobody; nor does one who has more.
        ("a1 a2 b1 b2", "b", None),
        ("a1 a2 A3 b1", "a", ["A3"]),
        ("a1 a2 a3 B1", "a", None),
        # Everybody has his share: a new caller displaces what is finished, and nothing that is not.
        ("a1 B1 c1 D1", "e", ["B1"]),
        ("a1 b1 c1 d1", "e", None),
    ],
)
def test_room_is_made_by_who_has_most_and_by_what_is_finished(
    names: str, caller: str, gone: Sequence[str] | None
) -> None:
    found = displaced(stored_of(names), Need(caller, 10), Bounds(documents=4, size=10**6))
    assert (found if found is None else [document.id for document in found]) == gone


@pytest.mark.parametrize(
    ("size", "document", "gone"),
    [
        (10, "", ["A1"]),
        (20, "", ["A1", "a4"]),
        (25, "", None),
        (10, "b1", ["A1"]),
        # More than half of everything is more than one of two may have.
        (21, "b1", None),
        (41, "", None),
    ],
)
def test_bytes_have_shares_too(size: int, document: str, gone: Sequence[str] | None) -> None:
    names = "A1 a2 a3 a4" if not document else "A1 a2 a3 b1"
    found = displaced(stored_of(names), Need("b", size, document), Bounds(documents=100, size=40))
    assert (found if found is None else [entry.id for entry in found]) == gone


def test_the_document_that_files_are_made_of_does_not_make_room_for_them() -> None:
    assert displaced(stored_of("A1 A2"), Need("a", 10, document="A1"), Bounds(documents=9, size=20)) == [
        stored_of("A1 A2")[1]
    ]


class Clock:
    """Monotonic seconds that a test moves on, and a little by themselves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def small(tmp_path: Path, clock: Clock) -> JobStore:
    """Room for 100,000 bytes."""
    return JobStore(tmp_path, most_bytes=100_000, keep_s=100.0, clock=clock)


def test_one_caller_cannot_keep_others_out(small: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_JOBS", 4)
    first, *_, last = [small.add(b"%d" % number, {}, "hog") for number in range(4)]
    with pytest.raises(QueueFull):
        small.add(b"5", {}, "hog")
    other = small.add(b"6", {}, "other")
    assert (first.is_there(), last.is_there(), other.data()) == (True, False, b"6")
    first.finish("success")
    small.add(b"7", {}, "hog")
    assert not first.is_there()


def test_files_that_are_made_displace_others_of_the_same_caller(small: JobStore) -> None:
    old, made = small.add(bytes(30_000), {}, "a"), small.add(bytes(30_000), {}, "a")
    old.finish("success")
    made.finish("success")
    small.put_result_file(made, "a.txt", bytes(50_000))
    assert (old.is_there(), made.result_file("a.txt")) == (False, bytes(50_000))
    with pytest.raises(QueueFull):
        small.put_result_file(made, "b.txt", bytes(50_000))


def test_what_is_too_old_makes_room(small: JobStore, clock: Clock) -> None:
    small.add(bytes(60_000), {})
    clock.now_s += 101
    new = small.add(bytes(60_000), {})
    assert small.all() == [new]


def test_a_clock_on_the_wall_that_jumps_clears_nothing(small: JobStore) -> None:
    job = small.add(bytes(60_000), {})
    for moved_s in (0, 2**33):
        os.utime(job.folder / "file", (moved_s, moved_s))
        small.sweep()
    assert small.waiting() == [job]


def test_who_holds_the_store_for_too_long_keeps_nobody_waiting(
    small: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocrsvc.jobs.files._LOCK_WAIT_S", 0.05)
    kept = small.add(b"1", {})
    with ThreadPoolExecutor(1) as pool, small._locked():
        waiting = pool.submit(small.add, b"2", {}), pool.submit(small.put_result_file, kept, "a", b"3")
        errors = [future.exception(timeout=10.0) for future in waiting]
    assert [type(error) for error in errors] == [QueueFull, QueueFull]
    assert small.all() == [kept]
    assert {path.name for path in small.folder.iterdir()} == {".lock", kept.id}


def test_a_document_is_written_before_the_store_is_held(small: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[set[str]] = []
    alone = small._locked

    def look() -> Any:
        written.append({path.name for path in small.folder.rglob("*")})
        return alone()

    monkeypatch.setattr(small, "_locked", look)
    small.add(b"1", {})
    assert "file" in written[0]


def test_what_a_dead_process_was_adding_is_removed_and_what_a_living_one_adds_is_not(small: JobStore) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead, living, cleared = f".{child.pid}-{'a' * 32}", f".{os.getppid()}-{'b' * 32}", f".{'c' * 32}"
    for name in (dead, living, cleared):
        (small.folder / name).mkdir()
    job = small.add(b"1", {})
    assert {path.name for path in small.folder.iterdir()} == {".lock", living, job.id}


# A disk without room


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of every file that is written whole, half is written, and then there is no room."""
    write_bytes = Path.write_bytes

    def write_half(path: Path, data: bytes) -> NoReturn:
        write_bytes(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", write_half)
        yield


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.usefixtures("full_disk")
def test_a_document_for_which_the_disk_has_no_room_leaves_nothing(small: JobStore) -> None:
    with pytest.raises(StorageFull), storing():
        small.add(bytes(60_000), {})
    assert files_of(small.folder) == set()


def test_a_result_for_which_the_disk_has_no_room_leaves_nothing(small: JobStore, request: Any) -> None:
    job = small.add(b"a document", {})
    before = files_of(small.folder)
    request.getfixturevalue("full_disk")
    for write in (
        lambda: job.finish("success"),
        lambda: BegunPages(job).begin(1),
        lambda: small.put_result_file(job, "a", b"1234"),
    ):
        with pytest.raises(OSError, match="No space"):
            write()
    assert files_of(small.folder) - {f"{job.id}/out"} == before


def test_a_page_for_which_the_disk_has_no_room_is_not_written_in_part(small: JobStore) -> None:
    job = small.add(b"a document", {})
    job.add_page({"number": 1})
    (job.folder / "pages.jsonl").rename(job.folder / "kept")
    (job.folder / "pages.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        job.add_page({"number": 2})
    (job.folder / "kept").rename(job.folder / "pages.jsonl")
    job.add_page({"number": 3})
    assert ([page["number"] for page in job.pages()], job.count_pages()) == ([1, 3], 2)


def test_other_errors_are_not_taken_for_a_full_disk() -> None:
    with pytest.raises(FileNotFoundError), storing():
        Path("/nowhere/at/all").read_bytes()


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader(Settings(), ThreadPlan(1, 4, 2), engine_opener=KnownEngine)
    made.start()
    yield made
    made.stop(5.0)


def test_who_fills_the_store_over_http_keeps_nobody_else_out(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_JOBS", 3)
    settings = Settings(caller_header="X-Real-IP")
    client = create_app(settings, reader, jobs=JobStore(tmp_path, 10**6, 100.0)).test_client()

    def upload(caller: str) -> int:
        form = {"file": (io.BytesIO(DOCUMENT), "a.pdf")}
        return client.post("/api/doc/upload", data=form, headers={"X-Real-IP": caller}).status_code

    assert [upload(caller) for caller in ("hog", "hog", "hog", "hog", "other", "other")] == [200] * 3 + [503, 200, 503]


def test_requests_whose_documents_wait_to_be_stored_are_few_and_the_next_is_told_to_come_back(
    reader: Reader, tmp_path: Path
) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    client = create_app(Settings(), reader, jobs=jobs).test_client()
    jobs.adding = Limiter(1, 0)
    with jobs.adding.take(bool):
        answer = client.post("/v1/jobs", data=DOCUMENT, content_type="application/pdf")
        assert (answer.status_code, answer.headers["Retry-After"], jobs.all()) == (503, "2", [])
    assert client.post("/v1/jobs", data=DOCUMENT, content_type="application/pdf").status_code == 202


def test_what_others_have_stored_is_not_read_again_for_each_document_that_comes(
    small: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    get = Job.get

    def note(job: Job, name: str) -> Any:
        read.append(job.id)
        return get(job, name)

    monkeypatch.setattr(Job, "get", note)
    others = [small.add(b"1", {"source": "api"}, f"caller {number % 5}") for number in range(20)]
    read.clear()
    small.add(b"1", {"source": "api"}, "one more")
    # The last one, by whom nothing was added yet.
    assert read == [others[-1].id]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_a_503_at_the_door(reader: Reader, tmp_path: Path) -> None:
    app = create_app(Settings(), reader, jobs=JobStore(tmp_path, 10**6, 100.0))
    answer = app.test_client().post("/api/doc/upload", data={"file": (io.BytesIO(DOCUMENT), "a.pdf")})
    assert (answer.status_code, answer.headers["Retry-After"], json_of(answer)["code"]) == (503, "30", 903)
    assert files_of(tmp_path) == set()


def test_a_full_disk_is_reported_once_and_tried_again_ever_later(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    jobs = JobStore(tmp_path, 10**6, 100.0)
    job = jobs.add(DOCUMENT, {"numbers": [1], "options": {}})
    runner = Runner(jobs, reader, 10.0, lambda: len(pauses) >= 9)
    monkeypatch.setattr(runner._stopped, "wait", pauses.append)
    monkeypatch.setattr(runner_module, "_POLL_S", 0.001)
    real = Job.add_page

    def add_page(job: Job, page: Mapping[str, object]) -> None:
        if len(pauses) < 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(job, page)
        pauses.append(0.0)

    monkeypatch.setattr(Job, "add_page", add_page)
    with caplog.at_level(logging.ERROR, logger="ocrsvc.jobs"):
        runner.start()
        wait_until(lambda: len(pauses) >= 9, "nine tries", within_s=90.0)
        runner.stop(5.0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 0.0]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "documents cannot be read; tried again later"
    ]
    assert [page["number"] for page in job.pages() if "page" in page] == [1]
    assert job.state() == ("success", "")


@pytest.mark.parametrize("numbers", [[1], []])
def test_a_document_whose_end_cannot_be_written_is_laid_down(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[int]
) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    job = jobs.add(DOCUMENT, {"numbers": numbers, "options": {}})
    (job.folder / "begun.json").write_bytes(b'{"1": 1}')

    def finish(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Job, "finish", finish)
    if not numbers:
        monkeypatch.setattr(Reader, "open_document", lambda *_: 1 / 0)
    with pytest.raises(StorageFull):
        Runner(jobs, reader, 10.0, lambda: False)._read(job)
    assert job.state() == ("waiting", "")


def begun(job: Job, number: int, times: int) -> None:
    """So often processes began this, and did not come back."""
    (job.folder / "begun.json").write_bytes(b'{"%d": %d}' % (number, times))


def test_a_file_whose_making_ends_every_process_is_left_out_in_the_end(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    about = {"numbers": [1], "options": {}, "formats": ["pdf", "text"], "count": 1}
    job, made = jobs.add(DOCUMENT, about), []
    runner = Runner(jobs, reader, 10.0, lambda: False)

    def killed(_jobs: JobStore, _job: Job, name: str, _check: object) -> None:
        made.append(name)
        if name == "pdf":
            raise KeyboardInterrupt

    monkeypatch.setattr(runner_module, "make_result", killed)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            runner._read(job)
    runner._read(job)
    assert (made, job.state()[0]) == (["pdf", "pdf", "pdf", "text"], "success")


def test_a_document_whose_opening_ends_every_process_fails_in_the_end(reader: Reader, tmp_path: Path) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    runner = Runner(jobs, reader, 10.0, lambda: False)
    hard, easy = (jobs.add(DOCUMENT, {"numbers": [1], "options": {}}) for _ in range(2))
    begun(hard, OPENING, 3)
    begun(easy, OPENING, 2)
    runner._read_all()
    assert (hard.state()[0], easy.state()[0], hard.count_pages(), easy.count_pages()) == ("failure", "success", 0, 1)


def test_a_loss_of_power_that_leaves_a_note_empty_or_a_page_damaged_costs_no_job(
    reader: Reader, tmp_path: Path
) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    job = jobs.add(DOCUMENT, {"numbers": [1], "options": {}})
    (job.folder / "begun.json").write_bytes(b"")
    (job.folder / "pages.jsonl").write_bytes(b'{"number": 1, "pa\x01": }\n')
    Runner(jobs, reader, 10.0, lambda: False)._read_all()
    assert (job.state()[0], job.count_pages()) == ("success", 1)
