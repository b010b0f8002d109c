"""docs/design/constants.md names every number of the engine ppocr's pipeline and the reading order as it is."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "ocrsvc"
ROW = re.compile(r"^\| `(\w+)` \| `([\w/]+\.py)` \| ([^|]+?) \|", re.MULTILINE)
ASSIGNED, NAME = re.compile(r"^([A-Z_][A-Z0-9_, ]+)[:=]", re.MULTILINE), re.compile(r"\b[A-Z][A-Z0-9_]+")
ROWS = ROW.findall((ROOT / "docs" / "design" / "constants.md").read_text(encoding="utf-8"))
PIPELINE = sorted((PACKAGE / "engines" / "ppocr" / "pipeline").glob("*.py"))
READING_ORDER = sorted((PACKAGE / "imaging" / "reading_order").glob("*.py"))


def value_of(name: str, file: str) -> object:
    return getattr(importlib.import_module("ocrsvc." + file.removesuffix(".py").replace("/", ".")), name)


def numbers_of(file: Path) -> set[str]:
    names = {name for line in ASSIGNED.findall(file.read_text(encoding="utf-8")) for name in NAME.findall(line)}
    return {name for name in names if isinstance(value_of(name, str(file.relative_to(PACKAGE))), int | float)}


@pytest.mark.parametrize(("name", "file", "value"), ROWS, ids=lambda cell: cell)
def test_a_constant_has_the_value_in_the_table(name: str, file: str, value: str) -> None:
    assert value_of(name, file) == pytest.approx(ast.literal_eval(value), rel=1e-4)


@pytest.mark.parametrize("file", [*PIPELINE, *READING_ORDER], ids=lambda file: file.name)
def test_every_number_has_a_row(file: Path) -> None:
    named = {name for name, place, _ in ROWS if PACKAGE / place == file}
    assert numbers_of(file) == named
