"""The documentation: links, the index, and the files, names and values in the code that it mentions."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "deploy" / "README.md", *sorted(DOCS.rglob("*.md"))]
# Pages that mention files of ocrsvc/.
CODE_PAGES = [DOCS / "architecture.md", DOCS / "extending.md", *sorted((DOCS / "design").glob("*.md"))]

LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`([\w/]+\.(?:py|js|html|proto|c|md))`")
NAME = re.compile(r"`([\w/]+\.py)`[ \n]+`([A-Za-z_]\w*)`")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in LINK.findall(text):
        if not target.startswith(("http:", "https:")):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def find(name: str) -> Path | None:
    """Find a file that a page names: by a path from the root, ocrsvc/, tests/ or docs/, or by file name alone."""
    places = [base / name for base in (ROOT, ROOT / "ocrsvc", ROOT / "tests", DOCS)]
    alone = sorted((ROOT / "ocrsvc").rglob(name)) if "/" not in name else []
    return next((place for place in [*places, *alone] if place.is_file()), None)


def names_of(file: Path) -> set[str]:
    """Names of the functions, classes, methods and variables that a module defines."""
    defined: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    return defined


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    wrong = [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert wrong == []


def test_the_index_links_to_every_page() -> None:
    found, todo = set[Path](), [DOCS / "README.md"]
    while todo:
        page = todo.pop()
        if page not in found and page.suffix == ".md" and DOCS in page.parents:
            found.add(page)
            todo += [target for target, _ in links(page)]
    assert found == set(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", CODE_PAGES, ids=lambda page: page.name)
def test_files_and_names_that_a_page_mentions_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [name for name in FILE.findall(text) if find(name) is None] == []
    assert [f"{file}: {name}" for file, name in NAME.findall(text) if name not in names_of(find(file) or page)] == []


def test_the_table_of_constants_has_the_values_of_the_code() -> None:
    page = (DOCS / "design" / "constants.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([\w/]+)\.py` \| ([^|]+?) \|", page, re.MULTILINE)
    assert len(rows) > 50
    for name, file, value in rows:
        module = importlib.import_module("ocrsvc." + file.replace("/", "."))
        assert getattr(module, name) == pytest.approx(ast.literal_eval(value), rel=1e-4), name


def test_the_table_of_layers_matches_the_layer_test() -> None:
    from test_layers import LAYERS

    rows = re.findall(r"^\| (\d+) \| (`.+?) \|", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: int(level) for level, cell in rows for name in re.findall(r"`(\w+)/?`", cell)}
    assert documented == {name: level for name, level in LAYERS.items() if name != "__main__"}
