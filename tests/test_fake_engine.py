"""The engine fake: the same answer for the same image, and faults exactly as set."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from image_support import noise
from isolation_support import crc

from ocrsvc.engines.fake import FakeEngine, FakeHandle, hash_text
from ocrsvc.errors import DeadlineExceeded, EngineFailed, OcrsvcError
from ocrsvc.results import Image, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.settings.engine import FakeEngineSettings

DEADLINE_S = 10.0


def task(pixels: Pixels, options: ReadOptions | None = None) -> ReadTask:
    return ReadTask(Image(pixels, "png"), options or ReadOptions())


def open_fake(**settings: object) -> FakeHandle:
    return FakeEngine(FakeEngineSettings.model_validate(settings)).open_handle()


def read(pixels: Pixels, **options: object) -> Page:
    [answer] = open_fake().read([task(pixels, ReadOptions(**options))])  # type: ignore[arg-type]
    assert isinstance(answer, Page)
    return answer


def kinds(answers: list[Page | OcrsvcError]) -> list[type]:
    return [type(answer) for answer in answers]


def test_fake_engine_reads_image_size_and_pixel_hash() -> None:
    pixels = noise(1)
    assert read(pixels).text == f"30x20\n{crc(pixels)}"
    assert read(pixels, min_confidence=0.6).text == "30x20"
    assert hash_text(pixels[:, 5:25]) == crc(np.ascontiguousarray(pixels[:, 5:25]))
    [line] = read(pixels, detect=False).lines
    assert (line.text, line.box) == (f"30x20 {crc(pixels)}", ((0, 0), (30, 0), (30, 20), (0, 20)))


def test_words_and_characters_share_their_line_evenly() -> None:
    (line,) = read(noise(3, 20, 28), detect=False, characters=True).lines
    assert line.words is not None
    assert "".join(word.text for word in line.words) == line.text.replace(" ", "")
    first, second = line.words
    assert (first.box, second.box) == (((0, 0), (10, 0), (10, 20), (0, 20)), ((12, 0), (28, 0), (28, 20), (12, 20)))
    assert [each.box[0] for each in first.characters] == [(0, 0), (2, 0), (4, 0), (6, 0), (8, 0)]


def test_latency_takes_no_cpu_time_and_burning_does() -> None:
    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    open_fake(fake_latency_s=0.2).read([task(noise(6))])
    assert time.monotonic() - began_s >= 0.2
    assert time.thread_time() - began_cpu_s < 0.1
    began_cpu_s = time.thread_time()
    open_fake(fake_burn_s=0.1).read([task(noise(7))])
    assert time.thread_time() - began_cpu_s >= 0.1


@pytest.mark.parametrize(
    ("chosen", "kind"), [((), [EngineFailed] * 3), ((crc(noise(13)),), [Page, EngineFailed, Page])]
)
def test_fault_affects_the_chosen_image_or_all(chosen: tuple[str, ...], kind: list[type]) -> None:
    handle = open_fake(fake_fault="fail", fake_fault_on=chosen)
    assert kinds(handle.read([task(noise(seed)) for seed in (12, 13, 14)])) == kind


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


@pytest.mark.parametrize("settings", [{"fake_latency_s": 60.0}, {"fake_burn_s": 60.0}])
def test_abandoned_read_stops_soon_and_the_next_image_is_read(settings: dict[str, float]) -> None:
    began_s = time.monotonic()

    def check() -> None:
        if time.monotonic() >= began_s + 0.2:
            raise DeadlineExceeded("Too late.")

    answers = open_fake(**settings).read([replace(task(noise(1)), check=check)] * 2)
    assert kinds(answers) == [DeadlineExceeded] * 2
    assert time.monotonic() - began_s < DEADLINE_S
