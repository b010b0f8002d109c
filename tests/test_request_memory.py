"""The memory budget covers what a request holds beside its body: pixels, pages, drawn images, and the answer."""

from __future__ import annotations

import io
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import pytest
from documents import GRAY, pdf
from flask import Flask
from image_support import encoded, noise, saved
from PIL import Image as PillowImage
from web_support import KnownEngine, as_base64, json_of, running_reader

from ocrsvc.app import create_app
from ocrsvc.errors import BodyTooLarge, QueueFull
from ocrsvc.http.admission import memory_of_requests
from ocrsvc.imaging.codecs.decode import PixelLimits, decode_pixels, open_encoded_image
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Box, Line, Page, Reading, ReadOptions, ReadTask
from ocrsvc.serving.memory_budget import Budget, Callers, Share, SharedLimits
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.group import Percentage
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

MEGAPIXEL = 1000 * 1000
BOX: Box = ((10.0, 10.0), (90.0, 10.0), (90.0, 30.0), (10.0, 30.0))


class Talkative(KnownEngine):
    """Finds so many lines."""

    def __init__(self, lines: int) -> None:
        self.lines = lines

    def read(self, tasks: Sequence[ReadTask]) -> list[Any]:
        return [Page(task.image.width, task.image.height, 0, (Line("x", 0.9, BOX),) * self.lines) for task in tasks]


@contextmanager
def app_with(
    memory: Budget,
    engine: KnownEngine | None = None,
    on_reading: Callable[[Reading, RequestContext], object] = lambda _reading, _context: None,
    **settings: Any,
) -> Iterator[Flask]:
    chosen = Settings(**settings)
    reader = Reader(chosen, ThreadPlan(1, 4, 2), engine_opener=lambda: engine or KnownEngine(), on_reading=on_reading)
    reader.start()
    try:
        yield create_app(chosen, reader, limits=SharedLimits(memory, Callers(0)))
    finally:
        reader.stop(5.0)


# A picture of it in an answer is nearly as large as its pixels.
NOISE = encoded(noise(500, 500, 500, 3))
TWO_PAGES = pdf(GRAY, GRAY)
PICTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "TrWebOCR": ("/api/tr-run/", {"data": NOISE, "content_type": "image/png"}, {}),
    "chineseocr_lite": ("/api/tr-run/", {"data": NOISE, "content_type": "image/png"}, {"trwebocr_boxes": "poly"}),
    "PaddleX": ("/ocr", {"json": {"file": as_base64(NOISE), "useDocOrientationClassify": True}}, {}),
    "PaddleX, a PDF": ("/ocr", {"json": {"file": as_base64(TWO_PAGES), "fileType": 0}}, {}),
    "a PDF as searchable PDF": ("/v1/ocr?format=text", {"data": TWO_PAGES, "content_type": "application/pdf"}, {}),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_any_memory_limit_gives_a_whole_response_or_a_refusal(kind: str) -> None:
    path, sent, settings = PICTURES[kind]
    statuses = []
    for size_bytes in (100_000, 1_200_000, 3_200_000, 30_000_000):
        memory = Budget(size_bytes)
        with app_with(memory, **settings) as app:
            answer = app.test_client().post(path, **sent)
        statuses.append(answer.status_code)
        assert memory.held_bytes == 0
        assert answer.status_code == 200 or "OCRSVC_REQUEST_MEMORY_BYTES" in answer.text
    assert (statuses[-1], statuses[0], set(statuses)) == (200, 413, {200, 413})


@pytest.mark.parametrize(
    ("path", "place"), [("/v1/ocr", "detail"), ("/ocr", "errorMsg"), ("/api/tr-run/?is_draw=0", "msg")]
)
def test_oversized_response_becomes_the_adapters_refusal(path: str, place: str) -> None:
    memory = Budget(8_000_000)

    def take_the_rest(_reading: Reading, _context: RequestContext) -> None:
        assert memory.take(memory.total_bytes - memory.held_bytes)

    with app_with(memory, Talkative(1000), take_the_rest, adapters=("paddlex", "trwebocr")) as app:
        picture = {"data": NOISE, "content_type": "image/png"}
        file = {"json": {"file": as_base64(NOISE), "visualize": False}}
        sent: dict[str, Any] = file if path == "/ocr" else picture
        answer = app.test_client().post(path, **sent)
    assert answer.status_code == 503
    assert "OCRSVC_REQUEST_MEMORY_BYTES" in json_of(answer)[place]
    assert int(answer.headers["Retry-After"]) >= 1


def turned() -> PillowImage.Exif:
    exif = PillowImage.Exif()
    exif[274] = 7
    return exif


COLOUR = cv2.resize(noise(1, 30, 40, 3), (1600, 1200))
CLEAR = cv2.resize(noise(2, 30, 40, 4), (1600, 1200))
FILES: dict[str, Callable[[], bytes]] = {
    "JPEG": lambda: encoded(COLOUR, ".jpg"),
    "JPEG, turned and mirrored": lambda: saved(PillowImage.fromarray(COLOUR), "JPEG", exif=turned()),
    "PNG": lambda: encoded(COLOUR, ".png"),
    "PNG, transparent": lambda: encoded(CLEAR, ".png"),
    "PNG, white and transparent": lambda: encoded(np.dstack([np.full_like(COLOUR, 255), CLEAR[..., 3]]), ".png"),
    "PNG, 16 bits": lambda: encoded(COLOUR.astype(np.uint16) * 257, ".png"),
    "PNG, 16 bits, transparent": lambda: encoded(CLEAR.astype(np.uint16) * 257, ".png"),
    "PNG, gray and transparent": lambda: saved(PillowImage.fromarray(CLEAR[..., :2].copy()), "PNG"),
    "WebP": lambda: encoded(COLOUR, ".webp", (cv2.IMWRITE_WEBP_QUALITY, 80)),
    "WebP, lossless, transparent": lambda: encoded(CLEAR, ".webp", (cv2.IMWRITE_WEBP_QUALITY, 101)),
    "GIF": lambda: saved(PillowImage.fromarray(COLOUR[..., 0].copy()), "GIF"),
    "TIFF": lambda: saved(PillowImage.fromarray(COLOUR), "TIFF", compression="tiff_lzw"),
    "TIFF, turned": lambda: saved(PillowImage.fromarray(COLOUR), "TIFF", tiffinfo={274: 6}),
    "TIFF, transparent": lambda: saved(PillowImage.fromarray(CLEAR), "TIFF", compression="tiff_lzw"),
    "TIFF, floats": lambda: saved(PillowImage.fromarray(COLOUR[..., 0].astype(np.float32)), "TIFF"),
    "TIFF, 16 bits": lambda: saved(PillowImage.fromarray(COLOUR[..., 0].astype(np.uint16) * 257), "TIFF"),
    "BMP": lambda: encoded(COLOUR, ".bmp"),
    "PPM": lambda: b"P6 1600 1200 200 " + COLOUR.tobytes(),
    "PPM, 16 bits": lambda: b"P6 1600 1200 60000 " + COLOUR.astype(">u2").tobytes(),
}


@pytest.mark.parametrize("kind", FILES)
def test_decoding_holds_no_more_than_was_asked_for(kind: str) -> None:
    """Arrays of numpy and OpenCV are what is seen here; what decoders hold inside was measured as resident memory."""
    picture = open_encoded_image(FILES[kind](), PixelLimits(2 * MEGAPIXEL))
    for gray in (False, True):
        asked_bytes = picture.peak_bytes(gray=gray)
        tracemalloc.start()
        try:
            pixels = decode_pixels(picture, gray=gray).pixels
            held_bytes, max_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert pixels.nbytes == picture.flat_bytes(gray=gray) or picture.format == "gif" or pixels.ndim == 2
        # Beside it a band of the page, whose size does not grow.
        assert max_bytes < asked_bytes + 4 * MEGAPIXEL
        assert held_bytes < pixels.nbytes + 4 * MEGAPIXEL


def test_sixty_pages_of_many_pixels_stay_within_the_memory_of_requests() -> None:
    frames = [PillowImage.new("L", (1500, 1000), shade) for shade in range(100, 160)]
    file = io.BytesIO()
    frames[0].save(file, "TIFF", save_all=True, append_images=frames[1:], compression="tiff_lzw")
    memory = Budget(15_000_000)
    with running_reader(Settings(max_pages=60)) as reader, Share(memory) as share:
        (read,) = reader.read_files([file.getvalue()], ReadOptions(), 60.0, RequestContext(share=share))
    assert (len(read.readings), memory.held_bytes) == (60, 0)


def test_an_open_pdf_and_its_pages_are_in_the_account() -> None:
    page_bytes, canvas_bytes = 200 * 100 * 3, 200 * 100 * 4
    data, memory = pdf(GRAY, GRAY), Budget(10 * MEGAPIXEL)
    with running_reader(threads=1) as reader:
        with reader.decoded_image(data, 2, context=RequestContext(share=Share(memory))):
            assert memory.held_bytes == page_bytes
        small = Budget(len(data) + canvas_bytes + page_bytes - 1)
        with pytest.raises(BodyTooLarge), reader.decoded_image(data, 1, context=RequestContext(share=Share(small))):
            pytest.fail("drawn")
        (read,) = reader.read_files([data], ReadOptions(), 30.0, RequestContext(share=Share(small)))
    assert [type(error) for _, error in read.errors] == [BodyTooLarge] * 2
    assert memory.held_bytes == small.held_bytes == 0


def test_a_partial_share_counts_the_whole_and_outlives_it() -> None:
    memory = Budget(100)
    whole = Share(memory)
    whole.take(60)
    part = whole.part()
    with pytest.raises(BodyTooLarge):
        part.take(41)
    part.take(40)
    whole.release()
    assert memory.held_bytes == 40
    with part:
        assert part.held_bytes == 40
    assert memory.held_bytes == 0
    memory.take(70)
    with pytest.raises(QueueFull):
        part.take(31)


@pytest.mark.parametrize("boxes", ["rect", "poly"])
def test_a_drawing_that_takes_too_long_is_reported_at_the_deadline(boxes: str) -> None:
    pixels = encoded(np.full((2000, 2000), 200, np.uint8), ".jpg")
    with app_with(Budget(1 << 30), Talkative(150_000), trwebocr_boxes=boxes) as app:
        # Of its processor time most is for what comes before: 150,000 lines as JSON.
        began_s = time.thread_time()
        answer = app.test_client().post(
            "/api/tr-run/?compress=2000", data=pixels, content_type="image/jpeg", headers={"X-Request-Timeout": "0.25"}
        )
    assert answer.status_code == 504
    assert time.thread_time() - began_s < 10


@pytest.mark.parametrize(
    ("given", "workers", "whole_bytes", "found"),
    [
        # A quarter of the machine for all workers together.
        (None, 1, 2**30, 2**28),
        (None, 4, 2**32, 2**28),
        # Enough for the largest page and body, and no more.
        (None, 1, 2**40, 384 * 2**20),
        # A machine that does not say what it has.
        (None, 4, 0, 384 * 2**20),
        (5, 4, 2**30, 5),
        (Percentage(50), 4, 2**30, 2**29),
    ],
)
def test_request_memory_is_a_share(given: int | Percentage | None, workers: int, whole_bytes: int, found: int) -> None:
    assert memory_of_requests(given, workers, whole_bytes) == found
