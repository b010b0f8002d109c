"""The engine tr over a double of libtr.so that checks every argument (doubles/libtr.c)."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from ppocr_support import read

from ocrsvc.adapters.trwebocr.http import to_rects
from ocrsvc.engines.tr.engine import MAX_LINES, MAX_SESSIONS, MAX_STEPS, TrEngine, TrHandle, to_box
from ocrsvc.errors import EngineFailed, EngineUnavailable
from ocrsvc.results import Image, Pixels, ReadOptions, ReadTask

BUILD = Path(__file__).parent / "doubles" / "tr_home.py"
SECOND_LINE = "你好AA世界"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc is not on PATH")


class Double:
    """The compiled double: its folder, and its library, which reports wrong calls."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.library = ctypes.CDLL(str(home / "libtr.so"))
        self.library.double_last_complaint.restype = ctypes.c_char_p


@pytest.fixture(scope="session")
def tr_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tr")
    subprocess.run([sys.executable, BUILD, home], check=True)
    return home


@pytest.fixture
def home(tr_home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tr_home, tmp_path / "home"))


@pytest.fixture
def double(tr_home: Path) -> Iterator[Double]:
    seen = Double(tr_home)
    seen.library.double_reset()
    yield seen
    assert seen.library.double_complaints() == 0, seen.library.double_last_complaint()
    assert seen.library.double_open_sessions() == 0


@pytest.fixture
def handle(double: Double) -> Iterator[TrHandle]:
    opened = TrEngine(double.home).open_handle()
    yield opened
    opened.close()


def noise(seed: int, height: int = 120, width: int = 200) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)


def task(pixels: Pixels, options: ReadOptions | None = None) -> ReadTask:
    return ReadTask(Image(pixels, "png"), options or ReadOptions())


def first_line(pixels: Pixels) -> str:
    """The first line that the double reads on an image, computed from its description."""
    return f"{pixels.shape[1]}x{pixels.shape[0]}:{zlib.adler32(np.ascontiguousarray(pixels).tobytes()[::17])}"


def test_blanks_and_repeats_are_removed_and_order_is_kept(handle: TrHandle) -> None:
    page = read(handle, noise(1))
    assert [line.text for line in page.lines] == [first_line(noise(1)), SECOND_LINE]
    # The mean confidence of the steps that are not blank.
    assert [line.confidence for line in page.lines] == pytest.approx([0.9, 0.8])
    assert (page.width, page.height, page.angle) == (200, 120, 0)


@pytest.mark.parametrize(
    "pixels",
    [
        pytest.param(np.dstack([noise(3), noise(4), noise(5)]), id="colour"),
        pytest.param(noise(6)[::2, 10:-10], id="not contiguous"),
    ],
)
def test_an_image_reaches_tr_unchanged(handle: TrHandle, pixels: Pixels) -> None:
    assert read(handle, pixels).lines[0].text == first_line(pixels)


@pytest.mark.parametrize(("upright", "angle"), [(True, 0.0), (False, 10.0)])
def test_upright_boxes_come_from_tr(handle: TrHandle, upright: bool, angle: float) -> None:
    box = read(handle, noise(7), ReadOptions(upright_boxes=upright)).lines[1].box
    assert to_rects(np.array([box]))[0] == pytest.approx([100, 90, 100, 15, angle])


@pytest.mark.parametrize("angle", [-90.0, -45.0, -3.0, 0.0, 12.5, 90.0])
def test_corners_are_those_of_opencv(angle: float) -> None:
    expected = cv2.boxPoints(((300.0, 200.0), (120.0, 30.0), angle))
    ours = np.array(to_box((300.0, 200.0, 120.0, 30.0, angle)))
    assert np.abs(ours[:, None] - expected[None]).max(axis=2).min(axis=1) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("angle", [-89.5, -45.0, -3.25, 0.0, 12.5, 90.0])
@pytest.mark.parametrize("size", [(120.0, 30.0), (30.0, 120.0), (7.5, 7.5)])
def test_corners_convert_back_to_trs_rectangle(size: tuple[float, float], angle: float) -> None:
    rect = (300.25, 200.5, *size, angle)
    assert to_rects(np.array([to_box(rect)]))[0] == pytest.approx(rect, abs=0.005)


def test_a_page_may_fill_every_line_and_every_step(handle: TrHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBTR_DOUBLE_FILL", "1")
    lines = read(handle, noise(11)).lines
    assert {line.text for line in lines} == {"AB" * (MAX_STEPS // 2)}
    assert len(lines) == MAX_LINES


@pytest.mark.parametrize(
    ("kind", "detect"),
    [
        *((kind, True) for kind in ("negative", "huge", "steps", "nan", "unicode", "surrogate")),
        *((kind, False) for kind in ("negative", "huge")),
    ],
)
def test_invalid_result_of_tr_fails_only_its_page(
    handle: TrHandle, monkeypatch: pytest.MonkeyPatch, kind: str, detect: bool
) -> None:
    monkeypatch.setenv("LIBTR_DOUBLE_NONSENSE", kind)
    [error] = handle.read([task(noise(12), ReadOptions(detect=detect))])
    assert isinstance(error, EngineFailed)
    assert "200 x 120" in error.detail
    monkeypatch.delenv("LIBTR_DOUBLE_NONSENSE")
    assert read(handle, noise(14)).lines[0].text == first_line(noise(14))


@pytest.mark.parametrize(("shared", "threads"), [(False, 8), (True, 4)], ids=["separate sessions", "shared sessions"])
def test_threads_read_as_if_alone(double: Double, monkeypatch: pytest.MonkeyPatch, shared: bool, threads: int) -> None:
    monkeypatch.setenv("LIBTR_DOUBLE_SLEEP_MS", "2")
    if shared:
        monkeypatch.setenv("LIBTR_DOUBLE_SHARED", "1")
    engine = TrEngine(double.home, shared_sessions=shared)
    answers = read_in_threads(engine, threads, pages=20)
    assert double.library.double_open_sessions() == (2 if shared else 0)
    engine.close()
    assert answers == [
        [f"{first_line(noise(100 * thread + page))}\n{SECOND_LINE}" for page in range(20)] for thread in range(threads)
    ]


def read_in_threads(engine: TrEngine, threads: int, pages: int) -> list[list[str]]:
    together = threading.Barrier(threads, timeout=30)

    def live(thread: int) -> list[str]:
        handle = engine.open_handle()
        together.wait()
        texts = [read(handle, noise(100 * thread + page)).text for page in range(pages)]
        handle.close()
        return texts

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(live, range(threads)))


def test_more_sessions_than_tr_has_are_refused(double: Double) -> None:
    engine = TrEngine(double.home)
    handles = [engine.open_handle() for _ in range(MAX_SESSIONS // 2)]
    with pytest.raises(EngineUnavailable, match="OCRSVC_TR_SHARED_SESSIONS"):
        engine.open_handle()
    for handle in handles:
        handle.close()


def test_a_relative_home_keeps_the_working_directory(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(double.home.parent)
    handle = TrEngine(Path(double.home.name)).open_handle()
    assert read(handle, noise(15)).lines[0].text == first_line(noise(15))
    assert Path.cwd() == double.home.parent
    handle.close()


def test_a_failed_warm_up_makes_the_engine_unavailable(
    handle: TrHandle, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle.warm_up()
    assert double.library.double_complaints() == 0
    monkeypatch.setenv("LIBTR_DOUBLE_NONSENSE", "negative")
    with pytest.raises(EngineUnavailable, match="-1 lines"):
        handle.warm_up()


@pytest.mark.parametrize("name", ["libtr.so", "ctpn.bin", "crnn.bin"])
@pytest.mark.parametrize("fault", ["missing", "empty"])
def test_error_names_a_file_missing_from_home(home: Path, name: str, fault: str) -> None:
    (home / name).unlink()
    if fault == "empty":
        (home / name).touch()
    with pytest.raises(EngineUnavailable, match=name):
        TrEngine(home)


def with_byte(library: Path, offset: int, value: int) -> None:
    content = bytearray(library.read_bytes())
    content[offset] = value
    library.write_bytes(content)


def compile_library(path: Path, code: str, *more: str) -> None:
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-", "-x", "none", *more], input=code, text=True, check=True
    )


def without_a_companion(home: Path) -> None:
    compile_library(home.parent / "libcompanion.so", "int companion(void) { return 1; }")
    code = "int companion(void); int tr_init(void) { return companion(); }"
    compile_library(home / "libtr.so", code, f"-L{home.parent}", "-Wl,--no-as-needed", "-lcompanion")


OTHER_MACHINE = "built for this machine's system and processor"


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        pytest.param(lambda home: with_byte(home / "libtr.so", 0, 0), OTHER_MACHINE, id="no ELF file"),
        pytest.param(lambda home: with_byte(home / "libtr.so", 4, 1), OTHER_MACHINE, id="32 bits"),
        pytest.param(
            lambda home: with_byte(home / "libtr.so", 18, 0xB7 if os.uname().machine == "x86_64" else 0x3E),
            OTHER_MACHINE,
            id="another processor",
        ),
        pytest.param(lambda home: (home / "libonnxruntime.so").touch(), "cannot be loaded", id="an empty companion"),
        pytest.param(
            lambda home: compile_library(home / "libtr.so", "void tr_init(void) {} void tr_release(void) {}"),
            r"not Tr 2\.3.*tr_run",
            id="no tr_run",
        ),
        pytest.param(without_a_companion, r"libcompanion\.so: .*beside libtr\.so", id="no companion"),
    ],
)
def test_an_unloadable_library_is_refused_with_a_reason(home: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(home)
    with pytest.raises(EngineUnavailable, match=message):
        TrEngine(home)


def test_an_onnx_runtime_beside_the_library_is_found(home: Path) -> None:
    runtime = home / "libonnxruntime.so.9.9"
    compile_library(runtime, "int companion(void) { return 1; }", f"-Wl,-soname,{runtime.name}")
    code = "int companion(void); int tr_init(void) { return companion(); } int tr_release, tr_run, tr_recognize;"
    compile_library(home / "libtr.so", code, str(runtime))
    assert TrEngine(home).describe().provider == "libtr"


def test_only_the_device_of_the_librarys_build_is_accepted(tr_home: Path, home: Path) -> None:
    compile_library(home / "libonnxruntime.so.9.9", 'const char *needs = "libcudart.so.10.1";')
    assert TrEngine(home).describe().device == "cuda"
    assert TrEngine(tr_home).describe().device == "cpu"
    with pytest.raises(EngineUnavailable, match="OCRSVC_DEVICE=cuda"):
        TrEngine(tr_home, device="cuda")
