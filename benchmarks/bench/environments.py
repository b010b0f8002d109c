"""Virtual environments with the systems that this service is compared with; each is made once."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.service import ROOT

FOLDER: Final = ROOT / ".bench" / "peers"
_PYTHONS: Final = ("python3.12", "python3.13", "python3.14")


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages to install, and whether they need Python 3.12 or newer."""

    packages: Sequence[str]
    newer_python: bool = False


RAPIDOCR: Final = "rapidocr==3.10.0"
ENVIRONMENTS: Final[Mapping[str, Environment]] = {
    "rapidocr": Environment((RAPIDOCR, "onnxruntime", "openvino")),
    "rapidocr_api": Environment(("rapidocr_api==0.2.0", RAPIDOCR, "onnxruntime")),
    "litserve": Environment(("litserve", RAPIDOCR, "onnxruntime", "openvino")),
    "bentoml": Environment(("bentoml", RAPIDOCR, "onnxruntime", "openvino")),
    "turboocr": Environment(("turboocr-engine-cpu==4.0.0a8",), newer_python=True),
    "turboocr_openvino": Environment(("turboocr-engine-openvino==4.0.0a8",), newer_python=True),
}


def programs_of(name: str) -> Path:
    """The folder of an environment's programs; makes the environment on first use."""
    folder = FOLDER / name
    if not (folder / ".made").exists():
        print(f"creating the environment {name}", flush=True)
        wanted = ENVIRONMENTS[name]
        python = newer_python() if wanted.newer_python else sys.executable
        assert python is not None, name
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *wanted.packages], check=True)
        (folder / ".made").touch()
    return folder / "bin"


def newer_python() -> str | None:
    """A Python 3.12 or newer: this one, one in PATH, or one of pyenv's; None without any."""
    if sys.version_info >= (3, 12):
        return sys.executable
    found = [path for name in _PYTHONS if (path := shutil.which(name)) and runs(path)]
    by_pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[2-4].*/bin/python"))
    return next(iter([*found, *map(str, by_pyenv)]), None)


def runs(python: str) -> bool:
    """Whether the program is a working Python, and not a pyenv shim without a selected version."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def turboocr_models() -> Path:
    """A folder with this service's models under the names that TurboOCR expects; made once."""
    folder = FOLDER / "turboocr_models"
    if not (folder / "keys.txt").exists():
        import onnxruntime

        spec = importlib.util.find_spec("rapidocr")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        models = Path(spec.submodule_search_locations[0], "models")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(models / "PP-OCRv6_det_small.onnx", folder / "det_small.onnx")
        shutil.copy(models / "PP-OCRv6_rec_small.onnx", folder / "rec_small.onnx")
        session = onnxruntime.InferenceSession(folder / "rec_small.onnx", providers=["CPUExecutionProvider"])
        (folder / "keys.txt").write_text(session.get_modelmeta().custom_metadata_map["character"], "utf-8")
    return folder
