"""The engine fake: the same answer for the same image, and faults exactly as set."""

import numpy as np
import pytest
from image_support import noise
from isolation_support import crc

from ocrsvc.engines.fake import FakeEngine, FakeHandle, hash_text
from ocrsvc.errors import EngineFailed
from ocrsvc.results import Image, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.settings.engine import FakeEngineSettings


def task(pixels: Pixels, options: ReadOptions | None = None) -> ReadTask:
    return ReadTask(Image(pixels, "png"), options or ReadOptions())


def open_fake(**settings: object) -> FakeHandle:
    return FakeEngine(FakeEngineSettings.model_validate(settings)).open_handle()


def read(pixels: Pixels, **options: object) -> Page:
    [answer] = open_fake().read([task(pixels, ReadOptions(**options))])  # type: ignore[arg-type]
    assert isinstance(answer, Page)
    return answer


def test_fake_engine_reads_image_size_and_pixel_hash() -> None:
    pixels = noise(1)
    assert read(pixels).text == f"30x20\n{crc(pixels)}"
    assert read(pixels, min_confidence=0.6).text == "30x20"
    assert hash_text(pixels[:, 5:25]) == crc(np.ascontiguousarray(pixels[:, 5:25]))
    [line] = read(pixels, detect=False).lines
    assert (line.text, line.box) == (f"30x20 {crc(pixels)}", ((0, 0), (30, 0), (30, 20), (0, 20)))


@pytest.mark.parametrize(
    ("chosen", "kind"), [((), [EngineFailed] * 3), ((crc(noise(13)),), [Page, EngineFailed, Page])]
)
def test_fault_affects_the_chosen_image_or_all(chosen: tuple[str, ...], kind: list[type]) -> None:
    handle = open_fake(fake_fault="fail", fake_fault_on=chosen)
    answers = handle.read([task(noise(seed)) for seed in (12, 13, 14)])
    assert [type(answer) for answer in answers] == kind
