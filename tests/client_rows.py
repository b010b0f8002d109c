"""How the real clients of each wire format are started; clients/rows.yaml has one for each row of docs/clients.md."""

import base64
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final, cast

import yaml
from fetch_clients import SOURCES, Environment, Source
from support import ROOT, clean_environment

# The fake engine's first line is the size of the image.
SIZE: Final = "64x32"
PIPELINE_RPC_PORT: Final = 18091
_LIMIT_S: Final = 60.0
_SCRIPTS: Final = ROOT / "tests" / "clients"


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses for HTTP, chineseocr_lite's variant and gRPC, a folder with pages, and the hard-wired free ports."""

    http: str
    poly: str
    grpc: str
    folder: Path
    ports: frozenset[int]

    @property
    def url(self) -> str:
        return f"http://{self.http}"


@dataclass(frozen=True, slots=True)
class Client:
    """One client, by the `adapter` that it speaks to as OCRSVC_ADAPTERS names it; `key` names its recording and test.

    `run`, given the place and what was fetched, runs it, which must end well, and gives what it printed: `said` must be
    in that, and `answered` in the answers to its recorded requests, of which so many are `refused`. The `port` is one
    that it has hard-wired. What it sends `repeats` where it does not depend on the answers: a recording can stand in.
    """

    key: str
    adapter: str
    name: str
    source: Source
    run: Callable[[Place, Path], str]
    said: tuple[str, ...] = (SIZE,)
    answered: tuple[str, ...] = (SIZE,)
    refused: int = 0
    port: int | None = None
    also: Source | None = None
    repeats: bool = True

    @property
    def sources(self) -> tuple[Source, ...]:
        """What is run, and what that needs."""
        return (self.source,) if self.also is None else (self.source, self.also)


def run(place: Place, command: Sequence[object], env: dict[str, str] | None = None) -> str:
    """Run a client in the folder; it must end well. What it printed."""
    environment = {"PYTHONIOENCODING": "utf-8", "NO_PROXY": "*", "no_proxy": "*", "PYTHONPATH": "", **(env or {})}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=place.folder,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _page_as_base64(place: Place) -> str:
    return base64.b64encode((place.folder / "page.png").read_bytes()).decode()


def _trwebocr_readme(place: Place, readme: Path) -> str:
    snippets = re.findall(r"``` ?python\n(import requests.+?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 2
    here = [re.sub(r"http://[\d.]+:8089", place.url, snippet) for snippet in snippets]
    tell = "\nprint(res.json()['data']['raw_out'])"
    return "".join(run(place, [sys.executable, "-W", "ignore", "-c", snippet + tell]) for snippet in here)


def _perf_analyzer(*words: str) -> Callable[[Place, Path], str]:
    def with_place(place: Place, program: Path) -> str:
        sent = {"data": [{"image": {"b64": _page_as_base64(place)}}]}
        (place.folder / "input.json").write_text(json.dumps(sent))
        address = place.http if "http" in words else place.grpc
        few = ["--measurement-interval", "200", "--stability-percentage", "999", "--concurrency-range", "2"]
        what = ["-m", "ocr", "-u", address, *words, "--shape", "image:1", "--input-data", "input.json"]
        command, libraries = [program, *what, *few], SOURCES["PERF_ANALYZER"]
        assert isinstance(libraries, Environment)
        return run(place, command, {"LD_LIBRARY_PATH": libraries.libraries()})

    return with_place


def _umi_manual(place: Place, manual: Path) -> str:
    snippets = re.findall(r"```python\n(.+?)```", manual.read_text(encoding="utf-8"), re.DOTALL)
    asking = next(snippet for snippet in snippets if "get_options" in snippet)
    reading = next(snippet for snippet in snippets if '"base64"' in snippet)
    return "".join(run(place, [sys.executable, "-c", snippet]) for snippet in (asking, reading))


def _commands(lines: Sequence[str], env: dict[str, str], also: Source | None) -> Callable[[Place, Path], str]:
    """What runs some command lines, whose placeholders rows.yaml explains."""

    def call(place: Place, at: Path) -> str:
        needed = place.folder if also is None else also.place()
        names = {"at": at, "also": needed, "beside": needed.parent, "python": sys.executable, "scripts": _SCRIPTS}
        names |= {"url": place.url, "http": place.http, "poly": place.poly, "grpc": place.grpc}
        names |= {"folder": place.folder, "page": _page_as_base64(place)}

        def filled(text: str) -> str:
            return Template(text).substitute(names)

        where = {name: filled(value) for name, value in env.items()}
        return "".join(run(place, [filled(word) for word in shlex.split(line)], where) for line in lines)

    return call


def _runner(named: str | list[str]) -> Callable[[Place, Path], str]:
    name, *arguments = [named] if isinstance(named, str) else named
    function = globals()[f"_{name}"]
    return cast("Callable[[Place, Path], str]", function(*arguments) if arguments else function)


def _client(row: dict[str, Any]) -> Client:
    sources: dict[str, Any] = {name: SOURCES[row[name]] for name in ("source", "also") if name in row}
    lists: dict[str, Any] = {name: tuple(row[name]) for name in ("said", "answered") if name in row}
    lines, env, named = (row.pop(name, None) for name in ("commands", "env", "run"))
    runs = _commands(lines, env or {}, sources.get("also")) if lines else _runner(named)
    return Client(**(row | sources | lists | {"run": runs}))


CLIENTS: Final = tuple(map(_client, yaml.safe_load((_SCRIPTS / "rows.yaml").read_text("utf-8"))))
