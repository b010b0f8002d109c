"""The wheel contains every file of the package and serves with its declared dependencies only.

The environment links the packages that `pip install '.[cpu]'` would install from the environment of the tests.
benchmarks/image.py tests the installation from a package index.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import requests
from packaging.requirements import Requirement
from support import ROOT, build_wheel, clean_environment, start_server

_BUILD_S = 60.0
_ANSWER_S = 60.0
SOURCES = ("pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of this checkout, which keeps build files out of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "ocrsvc", folder / "ocrsvc", ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    return build_wheel(folder)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel and the dependencies of its extra cpu."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], timeout=_BUILD_S, check=True)
    [packages] = folder.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in needed("ocrsvc", {"cpu"}, packages):
        link(metadata.distribution(name), packages)
    return folder / "bin" / "python"


def needed(name: str, extras: set[str], packages: Path) -> set[str]:
    """Return the names of all distributions that one depends on with these extras, directly or indirectly."""
    found: set[str] = set()
    waiting = list(requirements(next(iter(metadata.distributions(name=name, path=[str(packages)]))), extras))
    while waiting:
        requirement = waiting.pop()
        if requirement.name not in found:
            found.add(requirement.name)
            waiting += requirements(metadata.distribution(requirement.name), requirement.extras)
    return found


def requirements(distribution: metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in distribution.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def link(distribution: metadata.Distribution, packages: Path) -> None:
    for file in distribution.files or ():
        if ".." in file.parts:
            continue
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(os.fspath(file.locate()))


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    wanted = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "ocrsvc").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    held = set(zipfile.ZipFile(wheel).namelist())
    assert wanted - held == set()
    folders = {name.split("/")[0] for name in held}
    assert folders == {"ocrsvc", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}


def test_an_installed_wheel_serves_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    # Fix the runtime; measuring the fastest would only take time.
    engine = {"OCRSVC_ENGINE": "ppocr", "OCRSVC_PRECISION": "fp32", "OCRSVC_PROVIDER": "cpu"}
    env = {**engine, "PYTHONPATH": "", "OCRSVC_WORKERS": "1", "OCRSVC_MODEL_CACHE": str(tmp_path / "models")}
    with start_server(env, command=("ocrsvc", "serve"), cwd=tmp_path, python=str(python)) as server:
        server.wait_for("READY in")
        page = (ROOT / "tests" / "pages" / "notice.png").read_bytes()
        answer = requests.post(f"{server.url}/v1/ocr", data=page, timeout=_ANSWER_S).json()
        page_of_the_web = requests.get(f"{server.url}/", timeout=_ANSWER_S)
        health = subprocess.run(
            [python, "-m", "ocrsvc", "health", server.url],
            env=clean_environment(env),
            cwd=tmp_path,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
        )
        assert server.stop() == 0, server.log
    assert answer["pages"][0]["lines"]
    assert page_of_the_web.status_code == 200
    assert health.returncode == 0, health.stderr
