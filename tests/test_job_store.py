"""The job store: shares for each caller, a full disk, a damaged database, restarts and reboots."""

import errno
import io
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest
from documents import GRAY, pdf
from jobs_support import done_job, put_result_file, receiver, send_due, sender_of
from support import Clock, data_of
from web_support import json_of

from ocrsvc.adapters.mistral.uploaded_files import UploadedFiles
from ocrsvc.app import create_app
from ocrsvc.errors import QueueFull, SettingsError
from ocrsvc.jobs.job import INDEX, LINES, Job, Record, job_status
from ocrsvc.jobs.job_database import NAME, JobDatabase, StorageFull, storing
from ocrsvc.jobs.job_folder import LASTING, open_folder, open_jobs
from ocrsvc.jobs.job_result import unpack_options
from ocrsvc.jobs.job_store import JobStore, displaced, read_usage
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import ReadOptions
from ocrsvc.serving.limiter import Limiter
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry import metrics

DOCUMENT = pdf(GRAY)


@pytest.mark.parametrize(("names", "caller", "asked", "gone"), data_of("job_store")["displaced"])
def test_callers_with_most_and_finished_documents_make_room(
    names: str, caller: str, asked: Mapping[str, object], gone: Sequence[str] | None
) -> None:
    """Documents have 10 bytes, are named by caller and number, oldest first; finished ones are in capitals."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE job (id, caller, bytes, is_done, came_s)")
        rows = [(name, name[0].lower(), 10, name[0].isupper(), came_s) for came_s, name in enumerate(names.split())]
        connection.executemany("INSERT INTO job VALUES (?, ?, ?, ?, ?)", rows)
        need = {"caller": caller, "size": 10, "document": "", "max_jobs": 100, "max_bytes": 10**6}
        assert displaced(connection, {**need, **asked}) == gone


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def small(tmp_path: Path, clock: Clock) -> JobStore:
    """A store for 100,000 bytes and four jobs."""
    return JobStore(tmp_path, 100_000, 100.0, clock, wall=clock, max_jobs=4)


def test_result_files_count_towards_the_byte_limit(small: JobStore) -> None:
    old, made = small.add(bytes(30_000), Record("a")), small.add(bytes(30_000), Record("a"))
    with pytest.raises(QueueFull):
        small.add(bytes(60_000), Record("a"))
    old.finish()
    made.finish()
    put_result_file(small, made, "a.txt", bytes(50_000))
    assert (old.is_there(), (made.folder / "out" / "a.txt").read_bytes()) == (False, bytes(50_000))
    with pytest.raises(QueueFull):
        put_result_file(small, made, "b.txt", bytes(50_000))


@pytest.mark.parametrize(
    "change",
    [
        lambda _, job: job.finish(),
        lambda other, job: [put_result_file(other, job, "a.txt", b"made" * size) for size in (1, 2)],
        lambda other, job: other.clear(job),
        lambda other, _: other.add(b"another", Record("c")),
        lambda _, job: [job.append_page({"number": 1}), job.note_progress()],
    ],
)
def test_the_store_sees_changes_of_another_process(small: JobStore, change: Callable[[JobStore, Job], object]) -> None:
    small.add(b"waits", Record("a"))
    small.add(b"is done", Record("b")).finish()
    other = JobStore(small.folder, 10**6, 100.0)
    for job in other.all():
        change(other, job)
    found = dict(read_usage(small))
    jobs = [path for path in small.folder.glob("*-*") if path.is_dir()]
    sizes = [path.stat().st_size for job in jobs for path in job.rglob("*") if path.is_file()]
    waiting = [job for job in jobs if not (job / "done.json").exists()]
    seen = (found[metrics.JOBS_KEPT], found[metrics.JOBS_WAITING], found[metrics.JOBS_BYTES])
    assert seen == (len(jobs), len(waiting), sum(sizes))


def test_a_locked_database_delays_no_request(small: JobStore) -> None:
    small.database.wait_s = 0.05
    kept = small.add(b"1", Record("", name="a.pdf", numbers=[1], count=1))
    with ThreadPoolExecutor(1) as pool, small.database.transaction():
        assert pool.submit(job_status, kept).result(30.0)["state"] == "waiting"
    with closing(sqlite3.connect(small.folder / NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        small.database.close()
        for store in (lambda: small.add(b"2", Record("")), lambda: put_result_file(small, kept, "a", b"3")):
            with pytest.raises(QueueFull, match="takes long"):
                store()
    assert (small.all(), files_of(small.folder) & {f"{kept.id}/out/a"}) == ([kept], set())


def test_unfinished_uploads_of_dead_processes_are_removed(small: JobStore) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead, living, cleared = f".{child.pid}-{'a' * 32}", f".{os.getppid()}-{'b' * 32}", f".999999999-{'c' * 32}"
    for name in (dead, living, cleared):
        (small.folder / name).mkdir()
        (small.folder / name / "file").write_bytes(bytes(90_000))
    job = small.add(bytes(60_000), Record(""))
    small.sweep()
    assert {path.name for path in small.folder.iterdir() if path.is_dir()} == {living, job.id}


def test_missing_rows_are_restored_and_rows_without_a_folder_removed(small: JobStore) -> None:
    record = Record("a", source="api", repeat="r", content="c")
    job = small.add(b"1", record)
    small.database.rows("DELETE FROM job")
    # The same Idempotency-Key finds the job again.
    assert small.add(b"1", record) == job
    small.database.rows("DELETE FROM job")
    small.sweep()
    assert small.all("NOT is_done") == [job]
    job.folder.rename(small.folder / f".{'c' * 32}")
    assert (small.all(), small.all("NOT is_done")) == ([], [])
    assert small.add(bytes(60_000), record).is_there()
    small.sweep()
    assert small.database.rows("SELECT count(*) FROM job") == [(1,)]


def damage(path: Path, how: str) -> None:
    """Damage a file as a failing disk would."""
    if how == "removed":
        path.unlink()
    elif how == "cut in half":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.write_bytes(b"\0" * 100 if how == "zeroed" else path.read_bytes()[:5000] + b"x" * 9000)


def test_the_database_is_a_durable_write_ahead_log(tmp_path: Path) -> None:
    database = JobDatabase(tmp_path, is_durable=True)
    modes = [database.rows(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
    database.close()
    assert modes == [[("wal",)], [(2,)]]


@pytest.mark.parametrize(
    ("how", "is_running"),
    [(how, is_running) for how in ("cut in half", "zeroed", "overwritten") for is_running in (True, False)]
    + [("removed", False)],
)
def test_a_damaged_database_is_rebuilt_from_the_job_files(tmp_path: Path, how: str, is_running: bool) -> None:
    jobs = JobStore(tmp_path, 10**8, 3600.0)
    records = [Record(f"caller {number}", source="api", repeat=str(number)) for number in range(9)]
    waiting = [jobs.add(record.repeat.encode(), record) for record in records]
    delivered, pending = done_job(jobs, "callbacks.example"), done_job(jobs, "pending.example")
    sent, post = receiver()
    sender_of(jobs, post).send_next()
    file = UploadedFiles(jobs.uploads).add(b"x", "a.pdf", "one", None)
    other = JobStore(tmp_path, 10**8, 3600.0)
    for store in (jobs, other):
        assert store.all()
        # Move all data from the write-ahead log into the database file.
        store.database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    after = jobs
    if not is_running:
        jobs.database.close()
        other.database.close()
        after = JobStore(tmp_path, 10**8, 3600.0)
    damage(tmp_path / NAME, how)
    after.sweep(*([] if is_running else ["boot"]))
    assert (tmp_path / f"damaged-{NAME}").exists() == (how != "removed")
    for store in (after, other):
        assert {job.id for job in store.all()} == {job.id for job in (*waiting, delivered, pending)}
        assert {job.id for job in store.all("NOT is_done")} == {job.id for job in waiting}
        assert UploadedFiles(store.uploads).all() == [file]
    # The delivered callback is not sent again.
    send_due(sender_of(after, post))
    assert len(sent) == 2


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make Path.write_bytes write half of the data and then fail with ENOSPC."""
    write_bytes = Path.write_bytes

    def write_half(path: Path, data: bytes) -> NoReturn:
        write_bytes(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", write_half)
        yield


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if ".sqlite" not in path.name}


@pytest.mark.parametrize("for_what", ["the document", "its row"])
def test_a_document_that_does_not_fit_the_disk_leaves_no_files(small: JobStore, for_what: str, request: Any) -> None:
    ((pages,),) = small.database.rows("PRAGMA page_count")
    if for_what == "its row":
        small.database.rows(f"PRAGMA max_page_count = {pages}")
    else:
        request.getfixturevalue("full_disk")
    with pytest.raises(StorageFull), storing():
        small.add(bytes(60_000), Record("", repeat="r" * 10_000))
    assert files_of(small.folder) == set()


def test_a_result_that_does_not_fit_the_disk_leaves_no_files(small: JobStore, request: Any) -> None:
    job = small.add(b"a document", Record(""))
    before = files_of(small.folder)
    request.getfixturevalue("full_disk")
    with pytest.raises(FileNotFoundError), storing():
        Path("/nowhere/at/all").read_bytes()
    with pytest.raises(OSError, match="No space"):
        job.finish()
    with pytest.raises(OSError, match="No space"):
        small.make_file(job, "a", lambda output: Path(output.name).write_bytes(b"1234"))
    assert files_of(small.folder) == before


def test_a_full_store_answers_503_with_retry_after(reader: Reader, tmp_path: Path, request: Any) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    client = create_app(Settings(), reader, jobs=jobs).test_client()
    jobs.adding = Limiter(1, 0)
    with jobs.adding.take(bool):
        answer = client.post("/v1/jobs", data=DOCUMENT, content_type="application/pdf")
        assert (answer.status_code, answer.headers["Retry-After"], jobs.all()) == (503, "2", [])
    request.getfixturevalue("full_disk")
    answer = client.post("/api/doc/upload", data={"file": (io.BytesIO(DOCUMENT), "a.pdf")})
    assert (answer.status_code, answer.headers["Retry-After"], json_of(answer)["code"]) == (503, "30", 903)
    assert files_of(tmp_path) == set()


HOLDING = data_of("programs")["holding"]


def test_only_one_service_at_a_time_uses_a_store_and_the_next_one_continues_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        job_id = first.stdout.readline().strip()
        with pytest.raises(SettingsError, match="Another service"):
            open_folder(tmp_path / LASTING, wait_s=0.0)
        first.kill()
    (tmp_path / LASTING / f".{os.getppid()}-{'a' * 32}").mkdir()
    second = open_jobs(Settings(jobs_dir=tmp_path))
    assert [(kept.id, kept.data()) for kept in second.all()] == [(job_id, b"a document")]
    assert files_of(second.folder) >= {".alive", ".format", job_id}
    assert len([path for path in second.folder.iterdir() if ".sqlite" not in path.name]) == 3
    assert second.folder.stat().st_mode & 0o777 == 0o700


def test_a_service_starts_on_a_full_disk_and_serves_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    job_id = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout.strip()
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "_match_rows", Mock(side_effect=error))
        jobs = open_jobs(Settings(jobs_dir=tmp_path))
    job = jobs.find(job_id)
    assert job is not None
    assert job.data() == b"a document"
    assert "cleaning up jobs of an earlier service later" in caplog.text


@pytest.mark.parametrize("version", ["2", "4"])
def test_a_store_of_another_version_is_refused_with_a_remedy(tmp_path: Path, version: str) -> None:
    (tmp_path / LASTING).mkdir()
    (tmp_path / LASTING / ".format").write_text(version)
    with pytest.raises(SettingsError, match="Another version") as refused:
        open_folder(tmp_path / LASTING, wait_s=0.0)
    assert "rename the folder" in str(refused.value.remedy)
    assert [path.name for path in (tmp_path / LASTING).iterdir() if path.name != ".alive"] == [".format"]


def test_job_ages_survive_a_reboot_and_clock_jumps(tmp_path: Path) -> None:
    clock, wall = Clock(5000.0), Clock()
    jobs = JobStore(tmp_path, 10**6, 100.0, clock, wall=wall)
    jobs.sweep("first boot")
    jobs.add(b"1", Record(""))
    wall.now_s += 70
    clock.now_s += 70
    new = jobs.add(b"2", Record(""))
    # After a reboot the monotonic clock restarts, and the wall clock is 40 s later.
    clock.now_s, wall.now_s = 7.0, wall.now_s + 40
    jobs.sweep("second boot")
    wall.now_s += 10**9
    jobs.sweep("second boot")
    jobs.sweep()
    assert jobs.all() == [new]
    clock.now_s += 61
    jobs.sweep()
    assert jobs.all() == []


@pytest.mark.parametrize("left", [b"", b"[]", b"{}"])
def test_damaged_job_files_do_not_stop_the_start(left: bytes, tmp_path: Path) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    damaged, whole = jobs.add(b"1", Record("")), jobs.add(b"2", Record(""))
    (damaged.folder / "job.json").write_bytes(left)
    put_result_file(jobs, whole, "a.txt", b"made")
    before = UploadedFiles(jobs.uploads)
    kept, lost = (before.add(b"3", "a.pdf", "", None) for _ in range(2))
    (lost.job.folder / "job.json").write_bytes(left)
    secret = before.secret()
    uploads = tmp_path / "uploads"
    # An upload of a dead process whose PID was reused.
    (uploads / f".{os.getpid()}-{'a' * 32}").mkdir()
    after = JobStore(tmp_path, 10**6, 100.0)
    after.sweep("boot")
    after.sweep()
    files = UploadedFiles(after.uploads)
    assert (after.all(), files.all(), files.secret()) == ([whole], [kept], secret)
    assert (tmp_path / f"damaged-{damaged.id}" / "file").read_bytes() == b"1"
    assert {path.name for path in whole.folder.rglob("*")} == {"file", "job.json", "out", "a.txt"}
    assert {path.name for path in uploads.iterdir() if path.is_dir()} == {kept.job.id, f"damaged-{lost.job.id}"}


def test_truncated_pages_are_repaired_and_read_again_once(small: JobStore) -> None:
    rows: list[dict[str, object]] = [{"number": 1}, {"number": 2, "error": "x"}, {"number": 3}]
    job = small.add(b"1", Record(""))
    lines, index = job.folder / LINES, job.folder / INDEX
    for row in rows:
        job.append_page(row)
    assert (list(job.pages(1, 1)), job.failed_pages(), job.page_count()) == (rows[1:2], [1], 3)
    # A full disk loses a page; a power failure replaces the last bytes.
    lines.rename(job.folder / "kept")
    lines.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        job.append_page({"number": 4})
    (job.folder / "kept").rename(lines)
    whole, last_bytes = lines.read_bytes(), len(b'{"number":3}\n')
    added = [whole + damage for damage in (b'{"number": 4', b"\0" * 40, b"\0" * 39 + b"\n")]
    for left in (*added, *(whole[:-lost] for lost in range(1, last_bytes + 1)), whole):
        lines.write_bytes(left)
        index.write_bytes(index.read_bytes()[:-3])
        with job.claim():
            if (count := job.page_count()) == 2:
                job.append_page(rows[2])
        assert count == (3 if left.startswith(whole) else 2)
        assert (list(job.pages()), job.page_count(), job.failed_pages()) == (rows, 3, [1])
    index.unlink()
    with job.claim():
        assert list(job.pages(2)) == rows[2:]


def test_read_options_survive_serialization() -> None:
    changed = ReadOptions(rotate="90", detect=False, max_side=512, region=(1, 2, 3, 4), mask=("phone",), words=True)
    changed = replace(changed, model="a/1", lang="de")
    assert unpack_options(json.loads(json.dumps(asdict(changed)))) == changed


def test_a_disk_error_is_not_taken_for_a_missing_job(small: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    job, stat = small.add(b"a document", Record("")), os.stat

    def failing(path: object, **options: bool) -> os.stat_result:
        if str(path) == str(job.folder):
            raise OSError(errno.EIO, "Input/output error")
        return stat(str(path), **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", failing)
        assert not job.is_there()
        with pytest.raises(OSError, match="Input/output"):
            small.find(job.id)
    assert small.find(job.id) == job
