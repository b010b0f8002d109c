"""Decode jobs are decoded once, by whoever comes first, and a damaged image fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
from image_support import encoded, noise

from ocrsvc.engines.contract import EngineTraits, Handle
from ocrsvc.errors import BrokenImage, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, open_encoded_image
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline.decode_job import DecodeJob, make_read_request, read_with
from ocrsvc.results import Page, ReadOptions, ReadTask


def seeing(seen: list[ReadTask] | None = None) -> Handle:
    """A handle that answers with the size of what it is shown."""

    def read(tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        (seen if seen is not None else []).extend(tasks)
        return [Page(task.image.width, task.image.height, 0, ()) for task in tasks]

    handle: Handle = create_autospec(Handle, instance=True)
    handle.read = read  # type: ignore[method-assign]
    return handle


def jpeg(width: int, height: int) -> bytes:
    return encoded(noise(width, height, width, 3), ".jpg")


def job(data: bytes, options: ReadOptions | None = None) -> DecodeJob:
    request = replace(make_read_request(options or ReadOptions(), 1.0), lease=create_autospec(Lease, instance=True))
    made = DecodeJob(request, EngineTraits())
    made.open(open_encoded_image(data, PixelLimits(10**6)))
    return made


def test_a_job_decoded_ahead_is_not_decoded_again() -> None:
    ahead = job(jpeg(60, 40))
    task = ahead.prepare()
    seen: list[ReadTask] = []
    read_with(seeing(seen), [ahead])
    assert seen == [task]


def test_the_engine_gets_the_turned_and_shrunk_image_whichever_thread_decodes_it() -> None:
    late = job(jpeg(60, 40), ReadOptions(rotate="90", max_side=30))
    (page,) = read_with(seeing(), [late])
    assert page == Page(20, 30, 0, ())
    assert late.restore(page)[0] == Page(60, 40, 90, ())
    assert late.decode_s > 0


def test_a_damaged_image_fails_alone() -> None:
    data = jpeg(50, 50)
    jobs = [job(jpeg(60, 40)), job(data[: len(data) // 2]), job(jpeg(20, 10))]
    first, damaged, last = read_with(seeing(), jobs)
    assert (first, last) == (Page(60, 40, 0, ()), Page(20, 10, 0, ()))
    assert isinstance(damaged, BrokenImage)


def test_too_few_answers_from_an_engine_are_an_error() -> None:
    silent = create_autospec(Handle, instance=True)
    silent.read.return_value = []
    with pytest.raises(ValueError, match="zip"):
        read_with(silent, [job(jpeg(60, 40))])
