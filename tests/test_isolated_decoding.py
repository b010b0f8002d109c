"""With OCRSVC_ISOLATION=process a child process decodes image files, and a decoder's crash fails only one image."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
from documents import pdf
from image_support import encoded, noise, saved
from isolation_support import a_task, crc, denylist_of, opened_handle, started, summary
from PIL import Image as Pillow
from support import ROOT, repeating, run_server
from web_support import running_reader

from ocrsvc.engines.isolated.child import Spawner
from ocrsvc.errors import BrokenImage, ImageCrashesEngine, ImageTooLarge, OcrsvcError, UnsupportedImage
from ocrsvc.imaging.page_ranges import ALL
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import FileTask, Reading, ReadOptions
from ocrsvc.settings.settings import Settings

CRASHING = Path(__file__).parent / "doubles" / "decoders"
MARK = b"crashes decoders"
ANSWER_S = 30.0


def jpeg(seed: int, comment: bytes = b"") -> bytes:
    return saved(Pillow.fromarray(noise(seed)), "JPEG", comment=comment)


def gif(seed: int, comment: bytes = b"") -> bytes:
    return saved(Pillow.fromarray(noise(seed)), "GIF", comment=comment)


def tiff_of_two_pages() -> bytes:
    first, second = (Pillow.fromarray(noise(seed)) for seed in (5, 6))
    return saved(first, "TIFF", save_all=True, append_images=[second])


def reader_for(isolation: str) -> Iterator[Reader]:
    settings = Settings.model_validate({"engine": "fake", "isolation": isolation, "max_pixels": 1_000_000})
    with running_reader(settings, opener=None) as reader:
        yield reader


@pytest.fixture(scope="module")
def isolated() -> Iterator[Reader]:
    yield from reader_for("process")


@pytest.fixture(scope="module")
def plain() -> Iterator[Reader]:
    yield from reader_for("thread")


@pytest.fixture(scope="module")
def crashing() -> Iterator[Spawner]:
    """A spawner of child processes whose decoders crash on files that contain MARK."""
    spawners = started()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{CRASHING}{os.pathsep}{ROOT}")
        spawner = next(spawners)
    yield spawner
    next(spawners, None)


@pytest.mark.parametrize(
    "options",
    [
        ReadOptions(),
        ReadOptions(rotate="90"),
        ReadOptions(rotate="270", max_side=17),
        ReadOptions(detect=False),
        ReadOptions(region=(3, 2, 9, 7)),
    ],
)
@pytest.mark.parametrize("file", [encoded(noise(1)), jpeg(2), gif(3)], ids=["png", "jpeg", "gif"])
def test_child_reads_like_the_engine_itself(isolated: Reader, plain: Reader, file: bytes, options: ReadOptions) -> None:
    reading = isolated.read(file, options, 10.0)
    assert reading.page == plain.read(file, options, 10.0).page
    assert 0 < reading.timing.decode_s < reading.timing.total_s


def test_child_reads_document_pages_like_the_engine_in_process(isolated: Reader, plain: Reader) -> None:
    def pages(read: list[FileRead]) -> list[list[object]]:
        return [[outcome.page for _, outcome in file.pages if isinstance(outcome, Reading)] for file in read]

    files = [tiff_of_two_pages(), pdf(b"0 0 9 9 re f", b"1 1 20 20 re f"), encoded(noise(1))]
    found = pages(isolated.read_files(files, ReadOptions(), 20.0, ranges=ALL))
    assert found == pages(plain.read_files(files, ReadOptions(), 20.0, ranges=ALL))
    assert [len(numbers) for numbers in found] == [2, 2, 1]


@pytest.mark.parametrize("number", [None, 1, 2])
def test_child_returns_the_decoded_image_for_drawing(isolated: Reader, plain: Reader, number: int | None) -> None:
    file = tiff_of_two_pages()
    with plain.decoded_image(file, number) as here, isolated.decoded_image(file, number) as there:
        assert there.format == here.format
        assert np.array_equal(there.pixels, here.pixels)


@pytest.mark.parametrize(
    ("file", "error"),
    [
        (b"", BrokenImage),
        (b"plain text", UnsupportedImage),
        (jpeg(1)[:200], BrokenImage),
        (gif(1)[:60], BrokenImage),
        (tiff_of_two_pages()[:300], BrokenImage),
        (saved(Pillow.new("L", (1200, 1200)), "GIF"), ImageTooLarge),
    ],
    ids=["empty", "text", "jpeg", "gif", "tiff", "large"],
)
def test_child_and_engine_refuse_alike(isolated: Reader, plain: Reader, file: bytes, error: type[OcrsvcError]) -> None:
    def refusal(reader: Reader) -> OcrsvcError:
        with pytest.raises(error) as caught:
            reader.read(file, ReadOptions(), 10.0)
        return caught.value

    assert str(refusal(isolated)) == str(refusal(plain))


@pytest.mark.parametrize("bad", [jpeg(1, MARK), gif(1, MARK)], ids=["pixels", "header"])
def test_file_that_crashes_the_decoder_twice_is_denylisted_alone(crashing: Spawner, bad: bytes) -> None:
    with opened_handle(spawner=crashing) as handle:
        answers = handle.read([FileTask(bad), FileTask(encoded(noise(1))), a_task(noise(2))])
        assert summary(answers) == [ImageCrashesEngine, crc(noise(1)), crc(noise(2))]
        images = handle.child.images
        assert summary(handle.read([FileTask(bad)])) == [ImageCrashesEngine]
        assert handle.child.images == images
        assert summary(handle.read([FileTask(bad + b" ")])) == [ImageCrashesEngine]
        assert [(entry.cause, entry.crashes) for entry in denylist_of(handle).entries()] == [("SIGSEGV", 2)] * 2


def test_decoder_crash_in_a_service_fails_only_its_file() -> None:
    env = {"OCRSVC_ISOLATION": "process", "OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": "2"}
    with run_server({**env, "PYTHONPATH": f"{CRASHING}{os.pathsep}{ROOT}"}) as server:
        [worker] = server.workers()
        statuses: list[int] = []

        def post(data: bytes) -> requests.Response:
            return requests.post(f"{server.url}/v1/ocr", data=data, timeout=ANSWER_S)

        with repeating(lambda: statuses.append(post(encoded(noise(1))).status_code)):
            for bad in (jpeg(1, MARK), gif(1, MARK)):
                answer = post(bad)
                assert (answer.status_code, answer.json()["code"]) == (422, "image_crashes_engine")
            drawn = requests.post(f"{server.url}/api/tr-run/", files={"file": encoded(noise(2))}, timeout=ANSWER_S)
        assert drawn.json()["code"] == 200
        assert set(statuses) == {200}
        assert server.workers() == [worker]
