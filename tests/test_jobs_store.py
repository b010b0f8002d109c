"""The job store lasts: over services, boots, and losses of power; and what is asked of a job travels whole."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ocrsvc.errors import SettingsError
from ocrsvc.jobs.folder import LASTING, open_folder
from ocrsvc.jobs.job_result import make_result
from ocrsvc.jobs.opening import open_store
from ocrsvc.jobs.packed_options import pack_options, unpack_options
from ocrsvc.jobs.page_log import INDEX, LINES, PageLog
from ocrsvc.jobs.store import JobStore
from ocrsvc.records import ReadOptions
from ocrsvc.settings.settings import Settings

HOLDING = """
import sys
from pathlib import Path
from ocrsvc.jobs.job_result import make_result
from ocrsvc.jobs.opening import open_store
from ocrsvc.settings.settings import Settings

store = open_store(Settings(tasks_dir=Path(sys.argv[1])))
print(store.add(b"a document", {"source": "api"}).id, flush=True)
sys.stdin.read()
"""


def test_a_store_is_gone_on_with_by_the_next_service_and_by_one_at_a_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        task_id = first.stdout.readline().strip()
        with pytest.raises(SettingsError, match="Another service"):
            open_folder(tmp_path, wait_s=0.0)
        first.kill()
    (tmp_path / LASTING / f".{os.getppid()}-{'a' * 32}").mkdir()
    second = open_store(Settings(tasks_dir=tmp_path))
    assert [(kept.id, kept.data()) for kept in second.all()] == [(task_id, b"a document")]
    assert {path.name for path in second.folder.iterdir()} == {".alive", ".lock", ".format", task_id}
    assert second.folder.stat().st_mode & 0o777 == 0o700


def test_a_store_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / LASTING).mkdir()
    (tmp_path / LASTING / ".format").write_text("2")
    with pytest.raises(SettingsError, match="another version"):
        open_folder(tmp_path, wait_s=0.0)


def test_ages_are_kept_over_a_boot_by_the_clock_on_the_wall_and_from_then_on_by_no_clock_that_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [5000.0]
    jobs = JobStore(tmp_path, 10**6, keep_s=100.0, clock=lambda: now_s[0])
    old, new = jobs.add(b"1", {}), jobs.add(b"2", {})
    wall_s = old.came_at_s()
    old.put("taken.json", {**old.get("taken.json"), "came_at_s": wall_s - 90})
    monkeypatch.setattr("ocrsvc.jobs.store.boot_id", lambda: "another")
    # The monotonic clock begins anew, and 20 s have passed on the wall.
    now_s[0] = 7.0
    jobs.begin_again(wall=lambda: wall_s + 20)
    assert (round(old.came_s()), round(new.came_s())) == (7 - 110, 7 - 20)
    jobs.begin_again(wall=lambda: wall_s + 10**9)
    jobs.sweep()
    assert jobs.all() == [new]


def test_a_log_that_lost_its_end_is_put_right(tmp_path: Path) -> None:
    log = PageLog(tmp_path)
    for number in range(1, 4):
        log.append({"number": number, "error": "x"} if number == 2 else {"number": number})
    assert ([row["number"] for row in log.read(1, 1)], log.failed(), log.count()) == ([2], [1], 3)
    whole = (tmp_path / LINES).read_bytes()
    for damage in (b'{"number": 4', b"\0" * 40, b"\0" * 39 + b"\n"):
        (tmp_path / LINES).write_bytes(whole + damage)
        (tmp_path / INDEX).write_bytes((tmp_path / INDEX).read_bytes()[:-3])
        log.repair()
        assert ((tmp_path / LINES).read_bytes(), log.count(), log.failed()) == (whole, 3, [1])
    (tmp_path / INDEX).unlink()
    log.repair()
    assert [row["number"] for row in log.read(2)] == [3]


def test_every_option_of_reading_travels() -> None:
    changed = ReadOptions(
        rotate="90",
        detect=False,
        max_side=512,
        region=(1, 2, 3, 4),
        mask=("phone",),
        words=True,
        model="a/1",
        lang="de",
    )
    assert unpack_options(json.loads(json.dumps(pack_options(changed)))) == changed
    for field in fields(ReadOptions):
        value = getattr(changed, field.name)
        assert pack_options(replace(ReadOptions(), **{field.name: value})).get(field.name, value) == value


@pytest.mark.parametrize("left", [b"", b"[]"])
def test_what_a_loss_of_power_or_a_kill_left_keeps_no_service_from_starting(left: bytes, tmp_path: Path) -> None:
    jobs = JobStore(tmp_path, 10**6, 100.0)
    damaged, whole = jobs.add(b"1", {}), jobs.add(b"2", {})
    (damaged.folder / "taken.json").write_bytes(left)
    whole.put_result_file("a.txt", b"made")
    (whole.folder / f".{os.getpid()}-0").touch()
    (whole.folder / "out" / ".0").touch()
    kept, lost = (jobs.uploads.add(b"3", "a.pdf", "", None) for _ in range(2))
    (lost.folder / "about.json").write_bytes(b"")
    jobs.uploads.secret()
    uploads = tmp_path / "uploads"
    (uploads / ".signing").write_bytes(b"")
    # Its process has ended, and another one has its number.
    (uploads / f".{os.getpid()}-{'a' * 32}").mkdir()
    after = JobStore(tmp_path, 10**6, 100.0)
    after.begin_again()
    after.sweep()
    assert (after.all(), after.uploads.all(), len(after.uploads.secret())) == ([whole], [kept], 32)
    assert (tmp_path / f"damaged-{damaged.id}" / "file").read_bytes() == b"1"
    assert {path.name for path in whole.folder.rglob("*")} == {"file", "task.json", "taken.json", "out", "a.txt"}
    assert {path.name for path in uploads.iterdir()} == {".lock", ".signing", kept.id, lost.id}


def test_what_died_while_it_made_a_file_leaves_nothing_that_the_next_one_does_not_remove(tmp_path: Path) -> None:
    job = JobStore(tmp_path, 10**6, 100.0).add(b"1", {"options": {}, "numbers": [], "count": 0, "asked": {}})
    job.finish("success")
    left, others = job.folder / ".999999999-0", job.folder / f".{os.getpid()}-0"
    left.touch()
    others.touch()
    assert make_result(JobStore(tmp_path, 10**6, 100.0), job, "ndjson", bool).read_bytes() == b""
    assert (left.exists(), others.exists()) == (False, True)


def test_a_job_of_which_the_disk_does_not_tell_is_left_by_engines_and_not_denied_to_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JobStore(tmp_path, 10**6, 3600.0)
    job, stat = store.add(b"a document", {}), os.stat

    def failing(path: object, **options: bool) -> os.stat_result:
        if str(path) == str(job.folder):
            raise OSError(errno.EIO, "Input/output error")
        return stat(str(path), **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", failing)
        assert not job.is_there()
        with pytest.raises(OSError, match="Input/output"):
            store.find(job.id)
    assert store.find(job.id) == job
