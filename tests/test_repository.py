"""The whole repository: no machine-specific paths, current generated docs, and consistent versions."""

import re
import subprocess
import tomllib

import pytest
from support import ROOT

from ocrsvc import __version__
from ocrsvc.cli.settings import reference

# Split, so that this file does not match them.
FORBIDDEN = {
    "a package index": re.compile(
        "|".join((r"pypi\.(org|python)", r"python" + r"hosted", r"index-" + r"url", r"find-" + r"links"))
    ),
    "a folder of one machine": re.compile(r"(?<![\w.])/" + r"(work|root|home/\w+|tmp/lab|opt/wheels|opt/pypi)\b"),
}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        pytest.skip("not a git checkout: the tracked files are unknown")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_committed_file_contains(kind: str) -> None:
    found = []
    for name in tracked():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}: {match[0]}" for match in FORBIDDEN[kind].finditer(text)]
    assert found == []


def test_docs_settings_md_matches_the_declarations() -> None:
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == reference(), (
        "run: ocrsvc settings --markdown > docs/settings.md"
    )


def constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    assert [line for line in constraints() if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


# Packages only for CUDA or for Python versions older than that of the tests.
NOT_TESTED = re.compile(r"(nvidia|cupy|cuda)-.*|onnxruntime-gpu==.*|(async-timeout|colorama)==.*")


@pytest.mark.parametrize("name", ["requirements", "requirements-cuda12", "requirements-cuda13"])
def test_production_requirements_have_tested_versions_and_hashes(name: str) -> None:
    text = (ROOT / "deploy" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    pins = {re.split(r"[ ;]", entry)[0].lower() for entry in entries}
    assert len(pins) > 20
    untested = pins - {line.lower().replace("_", "-") for line in constraints()}
    assert [pin for pin in untested if not NOT_TESTED.fullmatch(pin)] == []
    assert [entry for entry in entries if not re.fullmatch(r"\S+==\S+( ; .+?)?(\s+--hash=sha256:\w{64})+", entry)] == []
    wanted = {re.split(r"[\[<>=;~! ]", line)[0].lower().replace("_", "-") for line in PROJECT["dependencies"]}
    assert wanted - {pin.partition("==")[0] for pin in pins} == set()


def test_packages_added_to_the_image_have_the_tested_versions() -> None:
    pins = re.findall(r"'([\w-]+==[\w.]+)'", (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8"))
    assert pins
    assert set(pins) <= set(constraints())


def test_all_requirements_are_constrained_and_no_extra_has_both_onnx_runtimes() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = [*PROJECT["dependencies"], *extras["cpu"], *extras["tr"], *extras["dev"], *extras["validators"]]
    names = {re.split(r"[\[<>=;~! ]", line)[0].lower() for line in declared}
    assert names - {line.split("==")[0].lower() for line in constraints()} == set()
    for lines in ([], *extras.values()):
        names = {re.split(r"[\[<>=;~! ]", line)[0] for line in [*PROJECT["dependencies"], *lines]}
        assert not {"onnxruntime", "onnxruntime-gpu"} <= names


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == __version__
