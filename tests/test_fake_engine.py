"""The engine fake: the same answer for the same image, and faults exactly as set."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ocrsvc.engines.fake import FakeEngine, FakeHandle, hash_text
from ocrsvc.errors import DeadlineExceeded, EngineFailed, OcrsvcError
from ocrsvc.records import Image, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.settings.engine import FakeEngineSettings
from ocrsvc.system.allocator import give_back

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 10.0


def noise(seed: int, height: int = 20, width: int = 30) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def task(pixels: Pixels, options: ReadOptions | None = None) -> ReadTask:
    return ReadTask(Image(pixels, "png"), options or ReadOptions())


def crc(pixels: Pixels) -> str:
    """The hash text, worked out here from its description."""
    return format(zlib.crc32(pixels.tobytes()), "08x")


def open_fake(settings: FakeEngineSettings) -> FakeHandle:
    return FakeEngine(settings).open_handle()


def read(handle: FakeHandle, pixels: Pixels, options: ReadOptions | None = None) -> Page:
    [answer] = handle.read([task(pixels, options)])
    assert isinstance(answer, Page)
    return answer


def kinds(answers: list[Page | OcrsvcError]) -> list[type]:
    return [type(answer) for answer in answers]


def test_it_reads_the_size_and_the_hash_of_the_pixels() -> None:
    pixels = noise(1)
    assert read(open_fake(FakeEngineSettings()), pixels).text == f"30x20\n{crc(pixels)}"


def test_gaps_between_rows_do_not_change_the_hash() -> None:
    pixels = noise(2)
    assert hash_text(pixels[:, 5:25]) == crc(np.ascontiguousarray(pixels[:, 5:25]))


def test_without_detection_it_reads_one_line_that_covers_the_image() -> None:
    pixels = noise(3)
    [line] = read(open_fake(FakeEngineSettings()), pixels, ReadOptions(detect=False)).lines
    assert line.text == f"30x20 {crc(pixels)}"
    assert line.box == ((0, 0), (30, 0), (30, 20), (0, 20))


def test_every_box_lies_inside_its_image() -> None:
    page = read(open_fake(FakeEngineSettings()), noise(4, 1, 1))
    corners = [corner for line in page.lines for corner in line.box]
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in corners)


def test_words_and_characters_share_their_line_evenly() -> None:
    options = ReadOptions(detect=False, characters=True)
    (line,) = read(open_fake(FakeEngineSettings()), noise(3, 20, 28), options).lines
    assert line.words is not None
    assert "".join(word.text for word in line.words) == line.text.replace(" ", "")
    first, second = line.words
    assert (first.box, second.box) == (
        ((0, 0), (10, 0), (10, 20), (0, 20)),
        ((12, 0), (28, 0), (28, 20), (12, 20)),
    )
    assert [each.box[0] for each in first.characters] == [(0, 0), (2, 0), (4, 0), (6, 0), (8, 0)]


def test_lines_below_the_least_confidence_are_left_out() -> None:
    page = read(open_fake(FakeEngineSettings()), noise(5), ReadOptions(min_confidence=0.6))
    assert page.text == "30x20"


def test_many_threads_read_what_each_would_alone() -> None:
    engine = FakeEngine(FakeEngineSettings(fake_burn_s=0.001))
    pages = [noise(seed) for seed in range(80)]

    def read_some(first: int) -> list[str]:
        handle = engine.open_handle()
        return [read(handle, pixels).lines[1].text for pixels in pages[first : first + 10]]

    with ThreadPoolExecutor(8) as pool:
        answers = [text for texts in pool.map(read_some, range(0, 80, 10)) for text in texts]
    assert answers == [crc(pixels) for pixels in pages]


def test_latency_passes_without_costing_cpu_time() -> None:
    handle = open_fake(FakeEngineSettings(fake_latency_s=0.2))
    started, cpu = time.monotonic(), time.thread_time()
    read(handle, noise(6))
    assert time.monotonic() - started >= 0.2
    assert time.thread_time() - cpu < 0.1


def test_burning_costs_the_reading_thread_cpu_time() -> None:
    handle = open_fake(FakeEngineSettings(fake_burn_s=0.1))
    cpu = time.thread_time()
    read(handle, noise(7))
    assert time.thread_time() - cpu >= 0.1


def test_warming_up_takes_the_time_it_is_told_to() -> None:
    started = time.monotonic()
    open_fake(FakeEngineSettings(fake_warm_up_s=0.1)).warm_up()
    assert time.monotonic() - started >= 0.1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_leaked_memory_is_resident_until_the_engine_closes() -> None:
    engine = FakeEngine(FakeEngineSettings(fake_leak_bytes=32 << 20))
    give_back()  # what earlier tests left free would be used again
    before = resident_bytes()
    engine.open_handle().read([task(noise(8)), task(noise(9))])
    leaked = resident_bytes() - before
    engine.close()
    give_back()
    assert leaked >= 60 << 20
    assert resident_bytes() - before < 16 << 20


def test_it_fails_on_every_image_when_none_is_chosen() -> None:
    answers = open_fake(FakeEngineSettings(fake_fault="fail")).read([task(noise(10)), task(noise(11))])
    assert kinds(answers) == [EngineFailed, EngineFailed]


def test_it_fails_on_the_chosen_image_and_reads_its_neighbours() -> None:
    handle = open_fake(FakeEngineSettings(fake_fault="fail", fake_fault_on=(crc(noise(13)),)))
    assert kinds(handle.read([task(noise(seed)) for seed in (12, 13, 14)])) == [Page, EngineFailed, Page]


def test_a_hanging_read_ends_when_the_engine_closes() -> None:
    engine = FakeEngine(FakeEngineSettings(fake_fault="hang"))
    answers: list[Page | OcrsvcError] = []
    thread = threading.Thread(target=lambda: answers.extend(engine.open_handle().read([task(noise(15))])))
    thread.start()
    thread.join(0.2)
    still_hanging = thread.is_alive()
    engine.close()
    thread.join(DEADLINE_S)
    assert still_hanging
    assert kinds(answers) == [EngineFailed]


@pytest.mark.parametrize("settings", [FakeEngineSettings(fake_latency_s=60.0), FakeEngineSettings(fake_burn_s=60.0)])
def test_it_stops_soon_when_nobody_waits_any_more_and_reads_the_next_image(settings: FakeEngineSettings) -> None:
    began_s = time.monotonic()

    def check() -> None:
        if time.monotonic() >= began_s + 0.2:
            raise DeadlineExceeded("Too late.")

    answers = open_fake(settings).read([replace(task(noise(1)), check=check)] * 2)
    assert kinds(answers) == [DeadlineExceeded] * 2
    assert time.monotonic() - began_s < DEADLINE_S


CRASH = """
import numpy as np
from ocrsvc.engines.fake import FakeEngine
from ocrsvc.settings.engine import FakeEngineSettings
from ocrsvc.records import Image, ReadTask

handle = FakeEngine(FakeEngineSettings(fake_fault="crash", fake_fault_on=("HASH",))).open_handle()
for value in (0, 1):
    handle.read([ReadTask(Image(np.full((2, 2), value, np.uint8), "png"))])
    print("read", value, flush=True)
"""


def test_a_crash_kills_the_process_at_the_chosen_image() -> None:
    code = CRASH.replace("HASH", format(zlib.crc32(b"\1\1\1\1"), "08x"))
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (-9, "read 0\n")
