"""Good and bad model versions for the swap benchmark, of the fake engine or of real models."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ocrsvc.engines.model.files import MANIFEST, write_manifest

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"
BAD = {4: "truncated", 8: "wrong digest", 11: "wrong dictionary", 15: "slower than allowed", 18: "reads garbage"}
"""The bad ones among twenty versions, each with its fault."""


@dataclass(frozen=True, slots=True)
class SwapVersion:
    """A version to copy into the repository.

    Attributes:
        number: Version number.
        fault: Its fault; "" for a good version.
        folder: Its complete files, outside the repository.
    """

    number: int
    fault: str
    folder: Path


Maker = Callable[[Path, int, str], None]


def make_versions(folder: Path, count: int, make: Maker) -> list[SwapVersion]:
    """Make a good first version and `count` more."""
    found = []
    for number in range(1, count + 2):
        fault, own = BAD.get(number - 1, ""), folder / str(number)
        own.mkdir(parents=True)
        make(own, number, fault)
        found.append(SwapVersion(number, fault, own))
    return found


def copy_into(repository: Path, name: str, version: SwapVersion) -> None:
    """Copy a version into the repository, its manifest last."""
    target = repository / name / str(version.number)
    target.mkdir(parents=True)
    for file in sorted(version.folder.rglob("*")):
        if file.is_file() and file.name != MANIFEST:
            place = target / file.relative_to(version.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
    shutil.copy(version.folder / MANIFEST, target / f".{MANIFEST}")
    (target / f".{MANIFEST}").replace(target / MANIFEST)


def fake_maker(burn_s: float, latency_s: float, load_s: float = 0.0) -> Maker:
    """Makes versions of the fake engine, each with its own text; the arguments set the times per page and to load."""

    def make(folder: Path, number: int, fault: str) -> None:
        settings: dict[str, object] = {"fake_burn_s": burn_s, "fake_latency_s": latency_s, "fake_text": text(number)}
        settings["fake_warm_up_s"] = load_s
        if fault == "truncated":
            settings["fake_fault"] = "segfault"
        elif fault == "wrong dictionary":
            settings["fake_text"] = f"{WORDS[::-1]} version{number}"
        elif fault == "slower than allowed":
            settings["fake_burn_s"] = 4 * burn_s + 0.02
        elif fault == "reads garbage":
            settings["fake_text"] = "? ! #"
        rows = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (folder / "model.toml").write_text("\n".join(['engine = "fake"', "[settings]", *rows, ""]))
        (folder / "weights.bin").write_bytes(bytes([number]) * 4096)
        write_manifest(folder)
        if fault == "wrong digest":
            (folder / "weights.bin").write_bytes(b"other")

    return make


def text(number: int) -> str:
    """The text that a version of the fake engine reads."""
    return f"{WORDS} version{number}"


@dataclass(frozen=True, slots=True)
class RealParts:
    """The files of a real model.

    Attributes:
        detection, recognition: ONNX models.
        dictionary: One class per line.
    """

    detection: Path
    recognition: Path
    dictionary: Path


def parts_in(folder: Path) -> RealParts:
    """The parts in a PaddleOCR folder: det/det.onnx, rec/rec.onnx, and the dictionary in rec/inference.yml."""
    import yaml

    described: Mapping[str, object] = yaml.safe_load((folder / "rec" / "inference.yml").read_text("utf-8"))
    processing = described["PostProcess"]
    assert isinstance(processing, Mapping), "rec/inference.yml has no table PostProcess"
    dictionary = folder / "dictionary.txt"
    if not dictionary.exists():
        dictionary.write_text("".join(f"{one}\n" for one in processing["character_dict"]), "utf-8")
    return RealParts(folder / "det" / "det.onnx", folder / "rec" / "rec.onnx", dictionary)


def real_maker(parts: RealParts, slow: RealParts) -> Maker:
    """Makes versions of a real model that differ in an unused file; the slow version is made from `slow`."""

    def make(folder: Path, number: int, fault: str) -> None:
        chosen = slow if fault == "slower than allowed" else parts
        shutil.copy(chosen.detection, folder / "det.onnx")
        shutil.copy(chosen.recognition, folder / "rec.onnx")
        lines = chosen.dictionary.read_text("utf-8").splitlines()
        lines = lines[::-1] if fault == "wrong dictionary" else lines
        (folder / "dict.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        (folder / "number.txt").write_text(str(number))
        mean = "mean = [9.0, 9.0, 9.0]\n" if fault == "reads garbage" else ""
        (folder / "model.toml").write_text(_MODEL.format(mean=mean))
        tomllib.loads((folder / "model.toml").read_text())
        if fault == "truncated":
            content = (folder / "rec.onnx").read_bytes()
            (folder / "rec.onnx").write_bytes(content[: len(content) // 2])
        write_manifest(folder)
        if fault == "wrong digest":
            (folder / "number.txt").write_text("other")

    return make


_MODEL = """
engine = "ppocr"
[reference]
most_memory = 10.0
most_slower = 1.25
[detection]
file = "det.onnx"
[[recognition]]
file = "rec.onnx"
dictionary = "dict.txt"
languages = ["zh", "en"]
{mean}"""
