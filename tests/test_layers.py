"""Every package is a layer and imports only packages of lower layers (docs/architecture.md)."""

import ast
from collections.abc import Iterator

from support import ROOT

PACKAGE = ROOT / "ocrsvc"

# Packages and top-level modules, lowest level first.
LEVELS = (
    "errors results plugins",
    "settings",
    "system",
    "imaging masking telemetry",
    "formats monitoring connections serving access",
    "client",
    "engines",
    "models",
    "pipeline",
    "jobs http grpc_server",
    "job_requests",
    "adapters api",
    "grpc_services url_routes",
    "app",
    "batch integrations worker",
    "cli",
    "ocrmypdf_plugin __main__",
)
LAYERS = {name: level for level, names in enumerate(LEVELS) for name in names.split()}


def modules() -> list[str]:
    files = sorted(file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py")
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imports_of(source: str) -> Iterator[str]:
    """Yield the ocrsvc modules that a source imports, at any nesting level."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "ocrsvc")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides its layer"
            if node.module and node.module.split(".")[0] == "ocrsvc":
                yield from (_owner(node.module, name.name) for name in node.names)


def _owner(module: str, name: str) -> str:
    """Return the submodule that `from module import name` imports, or the module if `name` is defined in it."""
    path = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else module


def forbidden_imports(module: str, source: str) -> list[str]:
    """Return the imports of a module from a higher layer or another package of its level."""
    own = layer_of(module)
    assert own in LAYERS, f"{module} has no layer: add its package to the table"
    wrong = []
    for target in imports_of(source):
        layer = layer_of(target)
        if layer not in (None, own) and LAYERS.get(layer, LAYERS[own]) >= LAYERS[own]:
            wrong.append(f"{module} -> {target}")
    return wrong


def source_of(module: str) -> str:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def test_modules_import_only_from_layers_below() -> None:
    assert [wrong for module in modules() for wrong in forbidden_imports(module, source_of(module))] == []


# Packages that several adapters share.
COMMON = {"context", "model_protocols"}
# PaddleX clients send its JSON in a KServe v2 tensor.
SHARED = {"kserve": {"paddlex"}}


def test_an_adapter_imports_no_other_adapter() -> None:
    for module in (module for module in modules() if module.startswith("ocrsvc.adapters.")):
        product = module.split(".")[2]
        imports = (target for target in imports_of(source_of(module)) if target.startswith("ocrsvc.adapters."))
        others = {target.split(".")[2] for target in imports} - {product, *COMMON}
        assert others <= SHARED.get(product, set()), module


def test_init_files_are_empty_except_for_the_version_and_the_client() -> None:
    expected = {PACKAGE: ["__version__"], PACKAGE / "client": ["__all__"]}
    for file in PACKAGE.rglob("__init__.py"):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        names = [ast.unparse(node).split(" = ")[0] for node in body if isinstance(node, ast.Assign)]
        assert names == expected.get(file.parent, []), file
        assert all(isinstance(node, ast.Assign | ast.Expr) for node in body) or file.parent == PACKAGE / "client"


def _cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    while leaves := {module for module, targets in graph.items() if not targets & graph.keys()}:
        graph = {module: targets for module, targets in graph.items() if module not in leaves}
    return [{module} | (targets & graph.keys()) for module, targets in graph.items()]


def test_no_modules_import_each_other() -> None:
    sources = {module: source_of(module) for module in modules()}
    assert _cycles({module: set(imports_of(source)) - {module} for module, source in sources.items()}) == []
