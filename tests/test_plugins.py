"""An installed package, docs/examples/plugin, adds an engine and two formats to a real gunicorn service."""

import ast
import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import pytest
import requests
from image_support import encoded
from support import ROOT, Server, build_wheel, data_of, ocrsvc, start_server

from ocrsvc.cli.check_reading import check_reading
from ocrsvc.errors import OcrsvcError, SettingsError
from ocrsvc.plugins import AdapterEntry, EngineEntry, EntryError, with_plugins
from ocrsvc.results import Line, Page, Pixels, ReadTask
from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.settings import settings_class

PLUGIN = ROOT / "docs" / "examples" / "plugin"
PACKAGE = "ocrsvc-example 1.0"
_ANSWER_S = 20.0

CHECKS = (
    "page as it is",
    *(f"page turned by {each}" for each in (90, 180, 270)),
    "blank page",
    "page of 1x1 pixel",
    "deadline",
)

# Targets of the tests' entry points.
GOOD = EngineEntry("good", "nowhere:open_good")
TAKEN = EngineEntry("fake", "nowhere:open_fake")
RESERVED = EngineEntry("none", "nowhere:open_none")
LOUD = EngineEntry("Loud engine", "nowhere:open_loud")


class Workers(SettingsGroup, title="Engine good"):
    """Settings with a name that the service already uses."""

    workers: int = setting(1, "Workers.")


class Untitled(SettingsGroup):
    """A settings group without a heading."""

    good_size: int = setting(1, "Size.")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plugin")
    home = folder / "env"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "here.pth").write_text("\n".join(path for path in sys.path if path), encoding="utf-8")
    shutil.copytree(PLUGIN, folder / "source")
    wheel = build_wheel(folder / "source")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python))
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, timeout=60)
    return str(python)


def page() -> bytes:
    """A page with a large QR code (8 px per module) above a small one (4 px)."""
    pixels = np.full((600, 900), 255, np.uint8)
    for text, scale, x, y in (("a large one", 8, 50, 40), ("a small one", 4, 600, 350)):
        square = cast(Pixels, cv2.QRCodeEncoder.create().encode(text)).repeat(scale, axis=0).repeat(scale, axis=1)
        pixels[y : y + len(square), x : x + len(square)] = square
    return encoded(pixels)


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request: pytest.FixtureRequest, python: str) -> Iterator[Server]:
    env = {
        "OCRSVC_ENGINE": "qr",
        "OCRSVC_ADAPTERS": "trwebocr,csv",
        "OCRSVC_ISOLATION": request.param,
        "OCRSVC_WORKERS": "1",
        "OCRSVC_QR_MIN_SIDE_PX": "100",
        "OCRSVC_CSV_SEPARATOR": "semicolon",
        # A percentage must also reach an engine's child process.
        "OCRSVC_RSS_SOFT_BYTES": "80%",
    }
    with start_server(env, python=python) as server:
        server.wait_for("READY in .* engine=qr")
        yield server
        assert server.stop() == 0, server.log


def test_a_packaged_line_recognizer_reads_with_a_configured_model(python: str) -> None:
    model = ROOT / "ocrsvc" / "engines" / "ppocr" / "weights" / "PP-OCRv6_rec_tiny.onnx"
    env = {"OCRSVC_ENGINE": "ctc", "OCRSVC_CTC_MODEL": str(model)}
    done = ocrsvc("read", ROOT / "tests" / "pages" / "notice.png", "--json", python=python, **env)
    [page] = json.loads(done.stdout)["pages"]
    assert [line["text"] for line in page["lines"]][1:3] == [
        "图书馆今天下午三点关门。",
        "The library closes at 15:00 today.",
    ]


def test_the_engine_reads_a_page_over_the_native_api(server: Server) -> None:
    answer = requests.post(f"{server.url}/v1/ocr", data=page(), timeout=_ANSWER_S).json()
    assert answer["engine"]["name"] == "qr"
    [line] = answer["pages"][0]["lines"]
    assert (line["text"], line["confidence"]) == ("a large one", 1.0)
    # Modules of 8 px: two of margin, 21 a side.
    assert np.allclose(line["box"], [(66, 56), (233, 56), (233, 223), (66, 223)], atol=1)


def test_a_page_is_read_over_the_new_wire_format(server: Server) -> None:
    answer = requests.post(f"{server.url}/csv", data=page(), timeout=_ANSWER_S)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert answer.text.splitlines() == ["text;confidence;x;y", "a large one;1.0;66.0;56.0"]
    failed = requests.post(f"{server.url}/csv", data="no image", timeout=_ANSWER_S)
    assert (failed.status_code, failed.headers["Content-Type"]) == (415, "text/plain; charset=utf-8")


def test_a_page_is_written_in_the_new_output_format(server: Server) -> None:
    answer = requests.post(f"{server.url}/v1/ocr?format=annotations", data=page(), timeout=_ANSWER_S)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/x-ppocrlabel; charset=utf-8")
    name, _, lines = answer.text.partition("\t")
    assert (name, [line["transcription"] for line in json.loads(lines)]) == ("page-1.png", ["a large one"])
    header = {"Accept": "text/x-ppocrlabel"}
    accepted = requests.post(f"{server.url}/v1/ocr", data=page(), headers=header, timeout=_ANSWER_S)
    assert accepted.text == answer.text
    for path in ("openapi.json", "index.html"):
        assert '"annotations"' in requests.get(f"{server.url}/{path}", timeout=_ANSWER_S).text


def test_version_and_metrics_contain_the_plug_ins_names(server: Server) -> None:
    requests.post(f"{server.url}/csv", data=page(), timeout=_ANSWER_S)
    assert requests.get(f"{server.url}/version", timeout=_ANSWER_S).json()["engine"]["name"] == "qr"
    metrics = requests.get(f"{server.url}/metrics", timeout=_ANSWER_S).text
    assert 'ocrsvc_requests_total{adapter="csv",code="ok",status="200"}' in metrics
    assert "numpy" not in Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")
    assert 'name="qr"' in next(line for line in metrics.splitlines() if line.startswith("ocrsvc_engine_info{"))


def test_plug_in_settings_are_listed_and_described(python: str) -> None:
    done = ocrsvc("settings", python=python, OCRSVC_QR_MIN_SIDE_PX="12")
    assert (done.returncode, done.stderr) == (0, "")
    assert "OCRSVC_QR_MIN_SIDE_PX = 12 pixels  (environment)" in done.stdout.splitlines()
    assert "OCRSVC_CSV_SEPARATOR = comma  (default)" in done.stdout.splitlines()
    [adapters] = [line for line in done.stdout.splitlines() if line.startswith("OCRSVC_ADAPTERS = ")]
    assert adapters.endswith(", csv  (default)")
    reference = ocrsvc("settings", "--markdown", python=python).stdout
    assert "one of ppocr, tr, remote, fake, tr_crnn, tesseract, ctc, qr |" in reference
    *_, qr, csv = reference.split("\n## ")
    assert (qr.startswith("Engine qr\n"), csv.startswith("Adapter csv\n")) == (True, True)


def test_plug_in_settings_are_read_from_the_file_and_checked(python: str, tmp_path: Path) -> None:
    file = tmp_path / "ocrsvc.toml"
    file.write_text('qr_min_side_px = 7\ncsv_separator = "colon"\n', encoding="utf-8")
    done = ocrsvc("settings", python=python, OCRSVC_CONFIG=str(file), OCRSVC_QR_MIN_SIDE="1")
    assert (done.returncode, sorted(done.stderr.removeprefix("ocrsvc: ").splitlines())) == (
        78,
        [
            "OCRSVC_QR_MIN_SIDE is '1': unknown setting; did you mean OCRSVC_QR_MIN_SIDE_PX?",
            "csv_separator (in ocrsvc.toml) is 'colon': accepted is one of comma, semicolon, tab.",
        ],
    )


def test_check_opens_the_engine_and_lists_plug_ins_with_their_package(python: str) -> None:
    done = ocrsvc("check", python=python, OCRSVC_ENGINE="qr", OCRSVC_PROVIDER="cpu")
    assert done.returncode == 0, done.stderr
    names = ("engine ctc", "engine qr", "adapter csv", "format annotations")
    assert f"plug-ins: {', '.join(f'{name} ({PACKAGE})' for name in names)}" in done.stdout.splitlines()
    assert "  qr: opens (opencv " in done.stdout


def test_the_example_engine_passes_check_read(python: str, tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(page())
    done = ocrsvc("check", "--engine", "qr", "--read", tmp_path / "page.png", python=python)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.sub(r"opencv .+\n|[:;,].*", "", done.stdout).splitlines() == [f"ok      {name}" for name in CHECKS]


def broken(folder: Path, group: str, entry: str) -> dict[str, str]:
    """Write a package whose entry point is this expression; returns the PYTHONPATH that installs it."""
    about = folder / "broken-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[{group}]\nbent = broken:ENTRY\n", encoding="utf-8")
    source = f"from ocrsvc.plugins import AdapterEntry, EngineEntry, OutputFormat\nENTRY = {entry}\n"
    (folder / "broken.py").write_text(source, encoding="utf-8")
    return {"PYTHONPATH": f"{ROOT}:{folder}"}


@pytest.mark.parametrize(("group", "entry", "sentence"), data_of("plugins")["unusable"])
def test_an_unusable_installed_plug_in_stops_the_start(tmp_path: Path, group: str, entry: str, sentence: str) -> None:
    with start_server(broken(tmp_path, f"ocrsvc.{group}", entry)) as server:
        assert server.wait_for_exit() == 78
    message = rf"The plug-in bent = broken:ENTRY \(entry point ocrsvc.{group} of broken 0.1\) {sentence}"
    assert server.wait_for(message)
    assert "Traceback" not in server.log


@pytest.mark.parametrize(("group", "entry"), data_of("plugins")["missing"])
def test_an_entry_with_a_missing_target_stops_the_start(tmp_path: Path, group: str, entry: str) -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_ENGINE": "bent" if group == "engines" else "fake"}
    with start_server(env | broken(tmp_path, f"ocrsvc.{group}", entry)) as server:
        assert server.wait_for_exit() == 3
    assert server.wait_for("broken:open_bent cannot be loaded: AttributeError: module 'broken' has no attribute")


def test_an_unusable_entry_is_refused() -> None:
    for names in (["TAKEN"], ["RESERVED"], ["LOUD"], ["PACKAGE"], ["MISSING"], ["GOOD", "GOOD"]):
        points = [EntryPoint(name, f"test_plugins:{name}", "ocrsvc.engines") for name in names]
        with pytest.raises(EntryError, match=rf"The plug-in {names[0]} = test_plugins:{names[0]} \(entry point ocrsvc"):
            with_plugins((EngineEntry("fake", ""),), points, EngineEntry)


@pytest.mark.parametrize(("group", "sentence"), data_of("plugins")["settings"])
def test_unusable_plug_in_settings_are_refused(monkeypatch: pytest.MonkeyPatch, group: str, sentence: str) -> None:
    entry = AdapterEntry("good", None, "", settings=group)
    monkeypatch.setattr("ocrsvc.settings.settings.adapters", lambda: {"good": entry})
    with pytest.raises(SettingsError, match=sentence):
        settings_class.__wrapped__()


def test_stable_names_exist_and_suffice_for_the_example() -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(ocrsvc[\w.]*)` \| (`.+`) \|$", text, re.MULTILINE)
    stable = {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(stable) > 30
    assert [(module, name) for module, name in stable if not hasattr(import_module(module), name)] == []
    nodes = (node for file in PLUGIN.rglob("*.py") for node in ast.parse(file.read_text(encoding="utf-8")).body)
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    used = {(str(node.module), name.name) for node in imports for name in node.names if "ocrsvc." in f"{node.module}"}
    assert used - stable == set()
    assert (ROOT / "ocrsvc" / "py.typed").is_file()


def correct_reading(pixels: Pixels) -> Page:
    """The reading of a correct engine: one line around all dark pixels."""
    (height, width), dark = pixels.shape[:2], np.argwhere(pixels.reshape(*pixels.shape[:2], -1)[:, :, 0] < 128)
    if not len(dark):
        return Page(width, height, 0, ())
    (top, left), (bottom, right) = dark.min(axis=0).tolist(), dark.max(axis=0).tolist()
    return Page(width, height, 0, (Line("mark", 1.0, ((left, top), (right, top), (right, bottom), (left, bottom))),))


class FaultyHandle:
    """A handle with a fault: replaced values in each page or its lines, or a named misbehaviour."""

    def __init__(self, fault: str, page: dict[str, Any], line: dict[str, Any]) -> None:
        self._fault, self._page, self._line = fault, page, line

    def warm_up(self) -> None: ...

    def close(self) -> None: ...

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        if self._fault == "raises":
            raise ValueError("no good")
        return [self._answer(task) for task in tasks if self._fault != "returns nothing"]

    def _answer(self, task: ReadTask) -> Page | OcrsvcError:
        try:
            task.check()
        except OcrsvcError as error:
            if self._fault != "ignores check":
                return error
        page = correct_reading(np.zeros_like(task.image.pixels) if self._fault == "hallucinates" else task.image.pixels)
        return replace(page, lines=tuple(replace(line, **self._line) for line in page.lines), **self._page)


@pytest.mark.parametrize(("fault", "page", "line", "failed", "said"), data_of("faulty_engines"))
def test_check_read_names_an_engines_fault(
    fault: str, page: dict[str, Any], line: dict[str, Any], failed: list[str], said: str
) -> None:
    pixels = np.full((60, 100, 3), 255, np.uint8)
    pixels[10:20, 20:70] = 0
    faults = {name: named for name, _, named in check_reading(FaultyHandle(fault, page, line), pixels) if named}
    assert list(faults) == failed
    assert said in "".join(faults.values())
