"""An engine in child processes fulfils the engine contract whatever happens to the children (real processes)."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from image_support import noise
from isolation_support import (
    PLAN,
    a_task,
    children_of,
    crc,
    denylist_of,
    fork_server_of,
    open_files,
    opened_handle,
    pid_of,
    signalled,
    started,
    summary,
)
from support import process_state, wait_until

from ocrsvc import errors
from ocrsvc.engines.isolated.child import Spawner
from ocrsvc.engines.isolated.messages import SharedArea, unpack_answers
from ocrsvc.engines.open_engine import open_engine, open_engine_in_process
from ocrsvc.formats.page_serialization import InvalidData, pack_page
from ocrsvc.results import DecodedPage, FileTask, Image, Line, Page, ReadOptions, ReadTask
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings

BUILD = Path(__file__).parent / "doubles" / "tr_home.py"
SOON_S = 60.0


@pytest.fixture(scope="module")
def plain() -> Iterator[Spawner]:
    yield from started()


@pytest.fixture(scope="module")
def slow() -> Iterator[Spawner]:
    """A spawner of an engine that takes 1.5 s per image."""
    yield from started(fake_latency_s=1.5)


def test_child_reads_like_the_engine_in_process(plain: Spawner) -> None:
    tasks = [a_task(noise(seed, 10 + seed, 20 + seed)) for seed in range(3)]
    tasks.append(a_task(noise(1)[:, 5:25]))
    options = ReadOptions(detect=False, min_confidence=0.1, decoder="beam")
    tasks.append(ReadTask(Image(noise(9)[:, :, 0].copy(), "png"), options))
    own = open_engine_in_process(Settings(engine="fake"), PLAN)
    with opened_handle(spawner=plain) as handle:
        assert handle.read(tasks) == own.open_handle().read(tasks)


def test_isolated_engine_has_the_engines_description_and_traits_and_leaks_nothing() -> None:
    settings, before = Settings(engine="fake"), open_files()
    own = open_engine_in_process(settings, PLAN)
    engine = open_engine(settings.model_copy(update={"isolation": "process"}), PLAN)
    assert (engine.describe(), engine.traits) == (own.describe(), replace(own.traits, decodes=True))
    handles = [engine.open_handle() for _ in range(2)]
    for handle in handles:
        handle.warm_up()
        handle.close()
    engine.close()
    assert open_files() == before


def test_shared_area_grows_for_a_large_page_and_shrinks_after_it(plain: Spawner) -> None:
    small, large = noise(1), np.full((4000, 3000, 3), 7, np.uint8)
    with opened_handle(spawner=plain) as handle:
        assert summary(handle.read([a_task(large), a_task(small)])) == [crc(large), crc(small)]
        assert summary(handle.read([a_task(small)])) == [crc(small)]
        area = handle.child._area
        assert os.fstat(area.fd).st_size >= large.nbytes
        assert os.fstat(area.fd).st_blocks * 512 <= 32 << 20


def test_shared_memory_has_no_name_and_cannot_be_shrunk(plain: Spawner) -> None:
    with opened_handle(spawner=plain) as handle:
        fd = handle.child._area.fd
        assert "(deleted)" in str(Path(f"/proc/self/fd/{fd}").readlink())
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        for pid in (os.getpid(), fork_server_of(handle), pid_of(handle)):
            assert "/dev/shm/" not in Path(f"/proc/{pid}/maps").read_text()
            assert not [link for link in Path(f"/proc/{pid}/fd").iterdir() if "/dev/shm/" in str(link.resolve())]


@pytest.mark.parametrize(
    ("fault", "cause"), [("crash", "SIGKILL"), ("abort", "SIGABRT"), ("segfault", "SIGSEGV"), ("nonsense", "nonsense")]
)
def test_image_that_crashes_two_children_is_refused_alone(fault: str, cause: str) -> None:
    denylist = CrashDenylist(8, 60.0)
    bad, good = noise(1), noise(2)
    with opened_handle(denylist=denylist, fake_fault=fault, fake_fault_on=(crc(bad),)) as handle:
        pids = [pid_of(handle)]
        assert summary(handle.read([a_task(bad)])) == [errors.ImageCrashesEngine]
        assert summary(handle.read([a_task(good)])) == [crc(good)]
        pids.append(pid_of(handle))
        assert summary(handle.read([a_task(bad)])) == [errors.ImageCrashesEngine]
        assert pid_of(handle) == pids[1] != pids[0]
        denylist_of(handle).forget()
        batch = handle.read([a_task(pixels) for pixels in (good, bad, noise(3))])
        assert summary(batch) == [crc(good), errors.ImageCrashesEngine, crc(noise(3))]
    assert [(entry.cause, entry.crashes) for entry in denylist.entries()] == [(cause, 2)]


def test_image_is_retried_after_its_child_was_killed(slow: Spawner) -> None:
    pixels = noise(1)
    with opened_handle(spawner=slow) as handle:
        first = pid_of(handle)
        with signalled(first, signal.SIGKILL, 0.2):
            assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]
        assert pid_of(handle) != first
        assert denylist_of(handle).is_empty()


def test_death_of_an_idle_child_blames_no_image_and_leaves_no_zombie(plain: Spawner) -> None:
    pixels = noise(1)
    with opened_handle(spawner=plain) as handle:
        for _ in range(3):
            os.kill(pid_of(handle), signal.SIGKILL)
            assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]
        assert denylist_of(handle).is_empty()
        fork_server = fork_server_of(handle)
        wait_until(lambda: children_of(fork_server) == [pid_of(handle)], "dead children are reaped")


def test_hanging_child_is_killed_and_a_second_hang_is_refused() -> None:
    limits = {"deadline_s": 0.2, "grace_s": 0.1}
    bad, good = noise(1), noise(2)
    with opened_handle(limits, fake_fault="hang", fake_fault_on=(crc(bad),)) as handle:
        began_s = time.monotonic()
        assert summary(handle.read([a_task(bad, 0.2)])) == [errors.DeadlineExceeded]
        assert time.monotonic() - began_s < 25.0
        assert [entry.crashes for entry in denylist_of(handle).entries()] == [1]
        assert summary(handle.read([a_task(good)])) == [crc(good)]
        assert summary(handle.read([a_task(bad, 0.2)])) == [errors.ImageCrashesEngine]
        began_s = time.monotonic()
        assert summary(handle.read([a_task(bad, 60.0)])) == [errors.ImageCrashesEngine]
        assert time.monotonic() - began_s < 25.0


def test_short_deadline_does_not_blame_the_image(slow: Spawner) -> None:
    pixels = noise(1)
    with opened_handle({"grace_s": 0.05}, spawner=slow) as handle:
        assert summary(handle.read([a_task(pixels, 0.05)])) == [errors.DeadlineExceeded]
        assert denylist_of(handle).is_empty()
        assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]


def test_successful_read_clears_a_recorded_crash(slow: Spawner) -> None:
    pixels = noise(1)
    with opened_handle({"deadline_s": 0.3, "grace_s": 0.1}, spawner=slow) as handle:
        with signalled(pid_of(handle), signal.SIGSTOP, 0.4):
            assert summary(handle.read([a_task(pixels, 1.2)])) == [errors.DeadlineExceeded]
        assert [entry.crashes for entry in denylist_of(handle).entries()] == [1]
        assert summary(handle.read([a_task(pixels, 0.1)])) == [errors.DeadlineExceeded]
        assert [entry.crashes for entry in denylist_of(handle).entries()] == [1]
        assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]
        assert denylist_of(handle).entries() == []


def test_child_at_its_image_limit_is_replaced_by_a_ready_successor() -> None:
    pixels = noise(1)
    with opened_handle({"child_max_images": 3}, fake_warm_up_s=2.0) as handle:
        first, seen, slowest_s = pid_of(handle), set[int](), 0.0
        end_s = time.monotonic() + SOON_S
        while len(seen - {first}) < 2 and time.monotonic() < end_s:
            began_s = time.monotonic()
            assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            seen.add(pid_of(handle))
        assert len(seen) == 3
        # A read that waited for the successor would take the whole warm-up of 2 s.
        assert slowest_s < 1.8
        wait_until(lambda: not process_state(first), "the old child ends")


def test_child_at_its_memory_limit_is_replaced() -> None:
    pixels = noise(1)
    with opened_handle({"child_memory_bytes": 120_000_000}, fake_leak_bytes=20_000_000) as handle:
        first, end_s = pid_of(handle), time.monotonic() + SOON_S
        while pid_of(handle) == first and time.monotonic() < end_s:
            assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]
        assert pid_of(handle) != first
        assert handle.child.private_bytes < 120_000_000


def test_memory_limit_below_the_footprint_is_only_logged(plain: Spawner, caplog: pytest.LogCaptureFixture) -> None:
    with opened_handle({"child_memory_bytes": 1_000_000}, spawner=plain) as handle:
        first = pid_of(handle)
        for _ in range(3):
            handle.read([a_task(noise(1))])
        assert pid_of(handle) == first
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "this limit is ignored" in caplog.text


def test_killed_fork_server_is_replaced_without_blaming_an_image() -> None:
    pixels = noise(1)
    with opened_handle(fake_latency_s=0.5) as handle:
        first = pid_of(handle)
        with signalled(fork_server_of(handle), signal.SIGKILL, 0.2):
            assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]
        wait_until(lambda: not process_state(first), "the child ends with its fork server")
        assert denylist_of(handle).is_empty()


def test_children_ignore_service_signals_and_have_a_higher_oom_score(plain: Spawner) -> None:
    pixels = noise(1)
    with opened_handle(spawner=plain) as handle:
        first, fork_server = pid_of(handle), fork_server_of(handle)
        for pid in (fork_server, first):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                os.kill(pid, number)
        assert summary(handle.read([a_task(pixels)])) == [crc(pixels)]
        assert pid_of(handle) == first
        assert os.getpgid(first) != os.getpgid(0)
        assert len(list(Path(f"/proc/{fork_server}/task").iterdir())) == 1
        # When memory runs out, the kernel kills a child before the worker.
        assert Path(f"/proc/{first}/oom_score_adj").read_text().strip() == "500"


def test_error_of_an_engine_that_cannot_open_in_a_child_is_reported() -> None:
    with pytest.raises(errors.EngineUnavailable, match="OCRSVC_TR_HOME"):
        open_engine(Settings(engine="tr", isolation="process"), PLAN)


def test_engine_that_dies_while_opening_is_unavailable(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc is not on PATH")
    source = tmp_path / "dies.c"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }\n")
    home = tmp_path / "tr"
    subprocess.run([sys.executable, BUILD, home], check=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", home / "libtr.so", source], check=True)
    with pytest.raises(errors.EngineUnavailable, match="SIGABRT"):
        open_engine(Settings(engine="tr", isolation="process", tr_home=home), PLAN)


def test_images_fail_at_once_during_back_off_and_children_recover(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc is not on PATH")
    home, away = tmp_path / "tr", tmp_path / "away"
    subprocess.run([sys.executable, BUILD, home], check=True)
    page = a_task(np.full((60, 80), 255, np.uint8))
    with opened_handle(engine="tr", tr_home=home) as handle:
        assert isinstance(handle.read([page])[0], Page)
        home.rename(away)
        os.kill(pid_of(handle), signal.SIGKILL)
        began_s = time.monotonic()
        answers = [handle.read([page])[0] for _ in range(20)]
        assert {type(answer) for answer in answers} == {errors.EngineFailed}
        assert time.monotonic() - began_s < 3.0
        away.rename(home)
        wait_until(lambda: isinstance(handle.read([page])[0], Page), "a new child reads the image")


LINE = Line("正品", 0.5, ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)))


PAGE = Page(3, 4, 0, (LINE,))
GOOD: dict[str, object] = {"page": pack_page(PAGE), "times": None}
GOOD_FILE: dict[str, object] = {**GOOD, "decode_s": 0.1, "image": None}


NO_ROWS: list[object] = [[], [None], [GOOD, GOOD], [{"code": "x"}], [[3, 4, 0, 1, []]]]
READ, FILE = a_task(noise(1)), FileTask(b"file", ReadOptions())


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        *((READ, found) for found in (None, {}, *NO_ROWS)),
        *(
            (READ, [GOOD | {"page": page}])
            for page in (None, {}, pack_page(Page(0, 4, 0, ())), pack_page(Page(3, 4, 45, ())))
        ),
        *((READ, [GOOD | {"times": times}]) for times in ("soon", [1.0, 2.0], [1.0, 3.0, 2.0], [-1.0, 2.0, 3.0])),
        *(
            (FILE, [GOOD_FILE | wrong])
            for wrong in ({"page": [1, 1, 0, 1, []]}, {"decode_s": -1.0}, {"decode_s": None})
        ),
        *(
            (FILE, [GOOD_FILE | {"image": ["png", *place]}])
            for place in ([0], [0, 0, 5], [0, 5, 5, 4], [-1, 5, 5], [0, 99999, 99999, 3])
        ),
        (FileTask(b"file", None), [GOOD_FILE]),
    ],
)
def test_invalid_answer_is_refused(task: ReadTask | FileTask, rows: object) -> None:
    area = SharedArea()
    for data in (orjson.dumps(rows), b"", b"\xff"):
        area.put(0, data)
        with pytest.raises(InvalidData):
            unpack_answers([0, len(data)], [task], area)
    for right, row, page in ((READ, GOOD, PAGE), (FILE, GOOD_FILE, DecodedPage.of(PAGE, 0.1))):
        area.put(0, data := orjson.dumps([row]))
        assert unpack_answers([0, len(data)], [right], area) == [page]
    area.close()


@pytest.mark.parametrize("place", [None, 7, [], [0], [-1, 4], [0, -4], [0, 1 << 40], [1 << 40, 4], ["0", 4]])
def test_answer_outside_the_shared_area_is_refused(place: object) -> None:
    area = SharedArea()
    with pytest.raises(InvalidData):
        unpack_answers(place, [a_task(noise(1))], area)
    area.close()
