"""A file imports only from floors below; neighbours on a floor do not know each other (docs/design.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "ocrsvc"

# A room is a file, or a folder whose files belong together; the longest name that fits a module decides.
FLOORS = {
    "ocrsvc": 0,
    "ocrsvc.errors": 0,
    "ocrsvc.records": 0,
    "ocrsvc.doors": 0,
    "ocrsvc.allocator": 1,
    "ocrsvc.cards": 0,
    "ocrsvc.sandbox": 0,
    "ocrsvc.settings": 1,
    "ocrsvc.imaging": 1,
    "ocrsvc.formats": 1,
    "ocrsvc.calling": 1,
    "ocrsvc.client": 2,
    "ocrsvc.engines.lines": 1,
    "ocrsvc.engines.ppocr.crew": 1,
    "ocrsvc.engines.ppocr.store": 1,
    "ocrsvc.engines.ppocr.surgery": 1,
    "ocrsvc.engines.ppocr.layout": 1,
    "ocrsvc.engines.ppocr.quantise": 1,
    "ocrsvc.engines.ppocr.halves": 1,
    "ocrsvc.engines.ppocr.providers": 2,
    "ocrsvc.engines.ppocr.bound": 2,
    "ocrsvc.worker.retire": 1,
    "ocrsvc.worker.memory": 1,
    "ocrsvc.worker.scoreboard": 2,
    "ocrsvc.logs": 2,
    "ocrsvc.metrics": 2,
    "ocrsvc.plan": 2,
    "ocrsvc.gpu": 2,
    "ocrsvc.kept": 3,
    "ocrsvc.orders": 3,
    "ocrsvc.tuning.candidates": 0,
    "ocrsvc.tuning.frontier": 1,
    "ocrsvc.tuning.trial": 2,
    "ocrsvc.serving": 2,
    "ocrsvc.engines.base": 2,
    "ocrsvc.engines.tr.binding": 2,
    "ocrsvc.engines.ppocr.models": 2,
    "ocrsvc.engines.ppocr": 3,
    "ocrsvc.worker.config": 3,
    "ocrsvc.worker.succession": 3,
    "ocrsvc.worker.receiving": 3,
    "ocrsvc.worker.pool": 3,
    "ocrsvc.worker.sending": 3,
    "ocrsvc.worker.connection": 4,
    "ocrsvc.worker.loop": 5,
    "ocrsvc.worker.threads": 6,
    "ocrsvc.worker.rota": 4,
    "ocrsvc.worker.recycling": 7,
    "ocrsvc.worker.pidfile": 4,
    "ocrsvc.worker.logger": 4,
    "ocrsvc.worker.arbiter": 5,
    "ocrsvc.engines.fake": 4,
    "ocrsvc.engines.ppocr.engine": 4,
    "ocrsvc.engines.ppocr.optimise": 4,
    "ocrsvc.engines.tr": 4,
    "ocrsvc.engines.tr_crnn": 4,
    "ocrsvc.engines.isolated.quarantine": 1,
    "ocrsvc.engines.isolated": 3,
    "ocrsvc.engines.choose": 5,
    "ocrsvc.engines.isolated.decoding": 4,
    "ocrsvc.engines.isolated.upbringing": 6,
    "ocrsvc.engines.isolated.zygote": 7,
    "ocrsvc.reader": 6,
    "ocrsvc.tasks.shares": 0,
    "ocrsvc.tasks.store": 1,
    "ocrsvc.tasks.runner": 7,
    "ocrsvc.web": 7,
    "ocrsvc.web.api": 8,
    "ocrsvc.web.ops": 8,
    "ocrsvc.web.page": 8,
    "ocrsvc.web.dialects.trwebocr": 8,
    "ocrsvc.web.dialects.trwebocr_cpp": 8,
    "ocrsvc.web.dialects.kserve_v1": 8,
    "ocrsvc.web.dialects.kserve_v2": 8,
    "ocrsvc.web.dialects.tfserving": 8,
    "ocrsvc.rpc": 7,
    "ocrsvc.rpc.kserve_v2": 8,
    "ocrsvc.rpc.tfserving": 8,
    "ocrsvc.rpc.paddle_serving": 8,
    "ocrsvc.rpc.health": 8,
    "ocrsvc.rpc.services": 9,
    "ocrsvc.web.dialects.rapidocr_api": 8,
    "ocrsvc.web.dialects.paddlex": 8,
    "ocrsvc.web.dialects.paddlehub": 8,
    "ocrsvc.web.dialects.paddle_serving": 8,
    "ocrsvc.web.dialects.umi_ocr": 8,
    "ocrsvc.web.dialects.ocr_space": 8,
    "ocrsvc.web.dialects.turboocr": 8,
    "ocrsvc.app": 9,
    "ocrsvc.worker": 10,
    "ocrsvc.cli": 10,
    "ocrsvc.__main__": 11,
}


def room_of(module: str) -> str | None:
    """The room that a module belongs to; None when the table does not know it."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    room = next((name for name in names if name in FLOORS), None if len(parts) > 1 else module)
    # A dialect is a door of its own, and never falls back to the shared floor of the doors.
    return None if room == "ocrsvc.web" and parts[2:3] == ["dialects"] and len(parts) > 3 else room


def modules() -> list[str]:
    """Every module of the package that has content of its own."""
    files = sorted(file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py")
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


def imports_of(source: str) -> Iterator[str]:
    """The modules of this package that a source imports, wherever the import stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "ocrsvc")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides its floor"
            if node.module and node.module.split(".")[0] == "ocrsvc":
                yield from (_owner(node.module, name.name) for name in node.names)


def _owner(module: str, name: str) -> str:
    """`from module import name` names a submodule, or something that the module owns."""
    path = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else module


def climbing(module: str, source: str) -> list[str]:
    """The imports of a module that do not go to a lower floor or stay in its own room."""
    room = room_of(module)
    assert room is not None, f"{module} has no floor: add it to the table"
    wrong = []
    for target in imports_of(source):
        below = room_of(target)
        if below is None or (below != room and FLOORS[below] >= FLOORS[room]):
            wrong.append(f"{module} -> {target}")
    return wrong


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_floors_below(module: str) -> None:
    source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    assert climbing(module, source) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ocrsvc.plan", "from ocrsvc.reader import Reader"),
        ("ocrsvc.plan", "def f():\n    import ocrsvc.reader"),
        ("ocrsvc.plan", "if TYPE_CHECKING:\n    from ocrsvc.worker import lifecycle"),
        ("ocrsvc.engines.fake", "from ocrsvc.engines.ppocr.engine import PpocrEngine"),
        ("ocrsvc.imaging.decode", "from ocrsvc import settings"),
        ("ocrsvc.records", "import ocrsvc.nowhere"),
        ("ocrsvc.web.api", "from ocrsvc.web.dialects.trwebocr import make_trwebocr"),
        ("ocrsvc.web.incoming", "from ocrsvc.web.api import make_api"),
        ("ocrsvc.app", "from ocrsvc.web.dialects.unlisted import door"),
    ],
)
def test_an_arrow_that_climbs_is_found(module: str, source: str) -> None:
    assert len(climbing(module, source)) == 1


def test_an_arrow_that_descends_is_fine() -> None:
    assert climbing("ocrsvc.reader", "from ocrsvc import errors\nimport ocrsvc.plan\nimport numpy") == []


def test_every_floor_of_the_table_exists() -> None:
    missing = [
        name
        for name in FLOORS
        if not (path := ROOT.joinpath(*name.split("."))).is_dir() and not path.with_suffix(".py").is_file()
    ]
    assert missing == []


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("__init__.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_an_init_file_is_empty_but_for_the_version(file: Path) -> None:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    names = [ast.unparse(node).split(" = ")[0] for node in body if not isinstance(node, ast.Expr)]
    assert names == (["__version__"] if file.parent == PACKAGE else [])


def test_a_module_begins_with_its_one_question() -> None:
    silent = [
        module
        for module in modules()
        if not ast.get_docstring(ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")))
    ]
    assert silent == []
