"""The memory budget covers a request's body, pixels, pages, drawn images, and answer."""

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


class ManyLinesEngine(KnownEngine):
    """Returns `lines` lines for every page."""

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


# Noise barely compresses, so a picture of it in an answer is nearly as large as its pixels.
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

    with app_with(memory, ManyLinesEngine(1000), take_the_rest, adapters=("paddlex", "trwebocr")) as app:
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
def test_decoding_holds_at_most_the_reserved_memory(kind: str) -> None:
    """This sees arrays of numpy and OpenCV only; memory inside decoders was measured as resident memory."""
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
        # Decoding also holds a band of the page, whose size is constant.
        assert max_bytes < asked_bytes + 4 * MEGAPIXEL
        assert held_bytes < pixels.nbytes + 4 * MEGAPIXEL


def test_sixty_large_pages_stay_within_the_request_memory() -> None:
    frames = [PillowImage.new("L", (1500, 1000), shade) for shade in range(100, 160)]
    file = io.BytesIO()
    frames[0].save(file, "TIFF", save_all=True, append_images=frames[1:], compression="tiff_lzw")
    memory = Budget(15_000_000)
    with running_reader(Settings(max_pages=60)) as reader, Share(memory) as share:
        (read,) = reader.read_files([file.getvalue()], ReadOptions(), 60.0, RequestContext(share=share))
    assert (len(read.readings), memory.held_bytes) == (60, 0)


def test_an_open_pdf_and_its_pages_count_in_the_budget() -> None:
    page_bytes, canvas_bytes = 200 * 100 * 3, 200 * 100 * 4
    data, memory = pdf(GRAY, GRAY), Budget(10 * MEGAPIXEL)
    with running_reader(threads=1) as reader:
        with reader.decoded_image(data, 2, context=RequestContext(share=Share(memory))):
            assert memory.held_bytes == page_bytes
        small = Budget(len(data) + canvas_bytes + page_bytes - 1)
        with pytest.raises(BodyTooLarge), reader.decoded_image(data, 1, context=RequestContext(share=Share(small))):
            pytest.fail("The page was drawn without memory for it.")
        (read,) = reader.read_files([data], ReadOptions(), 30.0, RequestContext(share=Share(small)))
    assert [type(error) for _, error in read.errors] == [BodyTooLarge] * 2
    assert memory.held_bytes == small.held_bytes == 0


def test_a_partial_share_counts_in_the_whole_and_outlives_it() -> None:
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
def test_a_slow_drawing_is_stopped_at_the_deadline(boxes: str) -> None:
    pixels = encoded(np.full((2000, 2000), 200, np.uint8), ".jpg")
    with app_with(Budget(1 << 30), ManyLinesEngine(150_000), trwebocr_boxes=boxes) as app:
        # Most of the processor time is spent before the drawing, on 150,000 lines as JSON.
        began_s = time.thread_time()
        answer = app.test_client().post(
            "/api/tr-run/?compress=2000", data=pixels, content_type="image/jpeg", headers={"X-Request-Timeout": "0.25"}
        )
    assert answer.status_code == 504
    assert time.thread_time() - began_s < 10


@pytest.mark.parametrize(
    ("setting", "workers", "machine_bytes", "expected"),
    [
        # A quarter of the machine's memory for all workers together.
        (None, 1, 2**30, 2**28),
        (None, 4, 2**32, 2**28),
        # At most enough for the largest page and body.
        (None, 1, 2**40, 384 * 2**20),
        # A machine whose memory size is unknown.
        (None, 4, 0, 384 * 2**20),
        (5, 4, 2**30, 5),
        (Percentage(50), 4, 2**30, 2**29),
    ],
)
def test_request_memory_size(setting: int | Percentage | None, workers: int, machine_bytes: int, expected: int) -> None:
    assert memory_of_requests(setting, workers, machine_bytes) == expected
