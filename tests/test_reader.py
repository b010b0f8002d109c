"""The read pipeline with a real decoder, a real queue, and an engine that records its input."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from image_support import box, encoded
from support import wait_until
from web_support import KnownEngine, running_reader

from ocrsvc import errors
from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.fake import FakeEngine
from ocrsvc.imaging.codecs.decode import decode_pixels
from ocrsvc.imaging.codecs.encoded_image import EncodedImage
from ocrsvc.pipeline.decode_job import make_read_request
from ocrsvc.pipeline.page_decoder import _take
from ocrsvc.pipeline.read import Reader
from ocrsvc.pipeline.result_cache import MemoryCache, ResultCache
from ocrsvc.results import Check, Image, Line, Page, Reading, ReadOptions, ReadTask
from ocrsvc.serving.memory_budget import Budget, Share
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

WAIT_S = 30.0
LARGE_BYTES = 3000 * 2000 * 3
SQUARE_BYTES = 700 * 700 * 3


class SizeEngine(KnownEngine):
    """An engine that reads each image as one line: its size, with a box around the image."""

    def __init__(self, *, wants_gray: bool = False, gate: threading.Event | None = None) -> None:
        self.traits = EngineTraits(wants_gray=wants_gray)
        self.gate = gate
        self.seen: list[ReadTask] = []
        self.entered = threading.Event()
        self.closed = False

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | errors.OcrsvcError]:
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(WAIT_S)
        self.seen.extend(tasks)
        sizes = [(task.image.width, task.image.height) for task in tasks]
        return [Page(*size, 0, (Line("{}x{}".format(*size), 1.0, box(0.0, 0.0, *size)),)) for size in sizes]

    def close(self) -> None:
        self.closed = True


def colour_png(width: int, height: int) -> bytes:
    return encoded(np.full((height, width, 3), 200, np.uint8))


@contextmanager
def reading(engine: SizeEngine, *, engine_threads: int = 1, **settings: Any) -> Iterator[Reader]:
    with running_reader(Settings(**settings), lambda: engine, engine_threads) as reader:
        yield reader


def read(
    reader: Reader, data: bytes, limit_s: float = WAIT_S, *, share: Share | None = None, **options: Any
) -> Reading:
    context = RequestContext(share=share) if share is not None else RequestContext()
    return reader.read(data, ReadOptions(**options), limit_s, context)


@contextmanager
def asking(call: Callable[[], object], count: int, gate: threading.Event) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        gate.set()
        for thread in threads:
            thread.join(WAIT_S)


@pytest.mark.parametrize(("wants_gray", "dimensions"), [(True, 2), (False, 3)])
def test_reading_returns_page_engine_and_times_and_stop_closes_the_engine(wants_gray: bool, dimensions: int) -> None:
    engine = SizeEngine(wants_gray=wants_gray)
    with reading(engine) as reader:
        answer = read(reader, colour_png(40, 30))
        assert not engine.closed
    assert engine.seen[0].image.pixels.ndim == dimensions
    assert (answer.page.text, answer.engine.name) == ("40x30", "known")
    parts = answer.timing.decode_s + answer.timing.queue_s + answer.timing.engine_s
    assert 0 < parts <= answer.timing.total_s
    assert (engine.closed, reader.ready) == (True, False)


@pytest.mark.parametrize(
    ("options", "seen", "frame"),
    [
        (ReadOptions(), "400x300", (0, 0, 400, 300)),
        (ReadOptions(rotate="90"), "300x400", (0, 0, 400, 300)),
        (ReadOptions(rotate="180"), "400x300", (0, 0, 400, 300)),
        (ReadOptions(rotate="270"), "300x400", (0, 0, 400, 300)),
        (ReadOptions(max_side=100), "100x75", (0, 0, 400, 300)),
        (ReadOptions(region=(10, 20, 100, 50)), "100x50", (10, 20, 110, 70)),
        (ReadOptions(region=(390, 290, 100, 50)), "10x10", (390, 290, 400, 300)),
        (ReadOptions(region=(0, 0, 400, 300)), "400x300", (0, 0, 400, 300)),
        # The region is cut out before turning and shrinking.
        (ReadOptions(region=(100, 50, 200, 100), rotate="90", max_side=100), "50x100", (100, 50, 300, 150)),
    ],
)
def test_options_are_applied_and_undone(options: ReadOptions, seen: str, frame: tuple[int, int, int, int]) -> None:
    with reading(SizeEngine()) as reader:
        page = reader.read(colour_png(400, 300), options, WAIT_S).page
        with pytest.raises(errors.BadOption, match="400 x 300 pixels"):
            read(reader, colour_png(400, 300), region=(400, 0, 1, 1))
    left, top, right, bottom = frame
    assert page.text == seen
    assert (page.width, page.height, page.angle) == (400, 300, int(options.rotate) if options.rotate != "auto" else 0)
    assert sorted(page.lines[0].box) == [(left, top), (left, bottom), (right, top), (right, bottom)]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", errors.BrokenImage),
        (b"hello", errors.UnsupportedImage),
        (colour_png(40, 30)[:60], errors.BrokenImage),
        (colour_png(60, 60), errors.ImageTooLarge),
    ],
)
def test_unreadable_input_is_refused_and_releases_its_place(data: bytes, error: type[errors.OcrsvcError]) -> None:
    with reading(SizeEngine(), queue_size=1, max_pixels=2000) as reader:
        for _ in range(3):
            with pytest.raises(error):
                read(reader, data)
        assert read(reader, colour_png(40, 30)).page.text == "40x30"


def test_images_decoded_at_once_stay_within_the_memory_budget() -> None:
    gate, memory = threading.Event(), Budget(4 * SQUARE_BYTES)
    refused: list[str] = []

    def ask() -> None:
        try:
            read(reader, colour_png(700, 700), share=Share(memory))
        except errors.QueueFull as error:
            refused.append(error.detail)

    with reading(SizeEngine(gate=gate), queue_size=30) as reader, asking(ask, 30, gate) as asked:
        # Decoding an image takes twice the memory that its pixels hold afterwards.
        wait_until(lambda: memory.held_bytes == SQUARE_BYTES * sum(map(threading.Thread.is_alive, asked)) > 0)
        assert memory.held_bytes <= 3 * SQUARE_BYTES
    assert len(refused) >= 27
    assert "OCRSVC_REQUEST_MEMORY_BYTES" in refused[0]
    assert memory.held_bytes == 0


def test_an_image_larger_than_the_budget_is_refused_and_its_neighbours_are_read() -> None:
    memory = Budget(3 * SQUARE_BYTES)
    share = Share(memory)
    share.take(SQUARE_BYTES)
    files, context = [colour_png(1000, 1000), colour_png(30, 20)], RequestContext(share=share)
    with reading(SizeEngine()) as reader:
        answers = reader.read_many(files, ReadOptions(), WAIT_S, context)
    assert isinstance(answers[0], errors.BodyTooLarge)
    assert isinstance(answers[1], Reading)
    assert memory.held_bytes == SQUARE_BYTES


def test_a_request_with_many_large_pages_holds_few_in_memory() -> None:
    """Three engine threads could each hold a page, but three pages do not fit while they are decoded."""
    memory, held_bytes = Budget(4 * SQUARE_BYTES), list[int]()

    class Watching(SizeEngine):
        def read(self, tasks: Sequence[ReadTask]) -> list[Page | errors.OcrsvcError]:
            held_bytes.append(memory.held_bytes)
            return super().read(tasks)

    with reading(Watching(), engine_threads=3) as reader:
        options, context = ReadOptions(rotate="90"), RequestContext(share=Share(memory))
        answers = reader.read_many([colour_png(700, 700)] * 12, options, WAIT_S, context)
    assert [type(answer) for answer in answers] == [Reading] * 12
    assert (max(held_bytes), memory.held_bytes) == (SQUARE_BYTES, 0)


def test_pixels_of_a_timed_out_page_are_accounted_until_the_engine_ends() -> None:
    gate, memory = threading.Event(), Budget(3 * SQUARE_BYTES)
    share = Share(memory)
    with reading(SizeEngine(gate=gate)) as reader:
        with pytest.raises(errors.DeadlineExceeded):
            read(reader, colour_png(700, 700), 0.2, share=share)
        share.release()
        assert memory.held_bytes == SQUARE_BYTES
        gate.set()
        wait_until(lambda: memory.held_bytes == 0)


def test_dropped_and_undecodable_pages_release_their_memory() -> None:
    gate, memory = threading.Event(), Budget(3 * SQUARE_BYTES)
    engine = SizeEngine(gate=gate)
    with reading(engine) as reader, asking(lambda: read(reader, colour_png(30, 20)), 1, gate):
        assert engine.entered.wait(WAIT_S)
        with pytest.raises(errors.DeadlineExceeded):
            read(reader, colour_png(700, 700), 0.2, share=Share(memory))
        assert memory.held_bytes == 0
        for data in (colour_png(700, 700)[:-2000], b"GIF89a", colour_png(700, 700)[:40]):
            with pytest.raises(errors.BrokenImage):
                read(reader, data, share=Share(memory))
        assert memory.held_bytes == 0


def test_small_images_are_read_while_large_ones_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def slowly(source: EncodedImage, *, gray: bool, check: Check) -> Image:
        if source.width > 1000:
            begun.release()
            assert gate.wait(WAIT_S)
        return decode_pixels(source, gray=gray, check=check)

    monkeypatch.setattr("ocrsvc.pipeline.decode_job.decode_pixels", slowly)
    large = colour_png(3000, 2000)
    with reading(SizeEngine(), engine_threads=2) as reader, asking(lambda: read(reader, large), 4, gate):
        assert begun.acquire(timeout=WAIT_S)
        assert read(reader, colour_png(30, 20)).page.text == "30x20"
        with reader.decoded_image(colour_png(30, 20), limit_s=WAIT_S) as image:
            assert image.width == 30
        assert not begun.acquire(blocking=False), "large images are decoded one at a time"


def test_the_largest_pages_are_read_one_at_a_time_and_none_is_refused() -> None:
    gate, memory = threading.Event(), Budget(5 * LARGE_BYTES // 2)
    engine = SizeEngine(gate=gate)
    pages: list[Reading] = []

    def ask() -> None:
        pages.append(read(reader, colour_png(3000, 2000), share=Share(memory)))

    with reading(engine, engine_threads=2) as reader, asking(ask, 4, gate):
        assert engine.entered.wait(WAIT_S)
        wait_until(lambda: reader.waiting() == 3)
        assert memory.held_bytes == LARGE_BYTES
    assert (len(pages), memory.held_bytes) == (4, 0)


@pytest.mark.parametrize(("deadline_s", "expected"), [(0.3, errors.DeadlineExceeded), (WAIT_S, errors.ClientGone)])
def test_a_cancellation_soon_frees_the_engine_thread(deadline_s: float, expected: type[errors.OcrsvcError]) -> None:
    reader = Reader(Settings(), ThreadPlan(1, 4, 1), lambda: FakeEngine(Settings(fake_latency_s=60.0)))
    reader.start()
    began_s = time.monotonic()
    context = RequestContext(is_gone=lambda: expected is errors.ClientGone and time.monotonic() > began_s + 0.3)
    with pytest.raises(expected):
        reader.read(colour_png(30, 20), ReadOptions(), deadline_s, context)
    reader.stop(WAIT_S)
    assert time.monotonic() - began_s < WAIT_S / 3
    assert reader.stuck_threads() == 0


def test_cached_pages_are_read_once_per_bytes_and_options() -> None:
    engine = SizeEngine()
    with reading(engine, cache_bytes=1_000_000) as reader:
        first, again = (read(reader, colour_png(30, 20)) for _ in range(2))
        [once_more] = reader.read_many([colour_png(30, 20)], ReadOptions(), WAIT_S)
        assert len(engine.seen) == 1
        assert (first.from_cache, again.from_cache) == (False, True)
        assert isinstance(once_more, Reading)
        assert first.page == again.page == once_more.page
        # Different bytes or options are a cache miss.
        assert not read(reader, colour_png(31, 20)).from_cache
        assert not read(reader, colour_png(30, 20), rotate="90").from_cache
    with reading(engine, cache_bytes=0) as reader:
        assert [read(reader, colour_png(30, 20)).from_cache for _ in range(2)] == [False, False]
    assert len(engine.seen) == 5


def test_a_damaged_cache_value_is_a_miss() -> None:
    cache = MemoryCache(10_000, 60.0)
    cache.put(b"page", b'[1,2,0,1,[["text",null,0,0,0,0,0,0,0,0]]]')
    cache.put(b"noise", b"\x00")
    pages = ResultCache(cache)
    assert (pages.get(b"page"), pages.get(b"noise"), pages.get(b"none")) == (None, None, None)


def test_the_deadline_applies_while_an_image_waits_for_a_decoding_permit() -> None:
    with reading(SizeEngine()) as reader, ExitStack() as taken:
        for _ in range(2):  # one permit per engine thread, and one more
            _take(reader._decoder._permits, make_read_request(ReadOptions(), WAIT_S), taken)
        with pytest.raises(errors.DeadlineExceeded):
            read(reader, colour_png(30, 20), 0.05)
        with pytest.raises(errors.ClientGone):
            reader.read(colour_png(30, 20), ReadOptions(), WAIT_S, RequestContext(is_gone=lambda: True))
        assert reader.waiting() == 0
