"""Starts the real clients of each wire format; clients/rows.yaml has an entry for each row of docs/clients.md."""

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

# The first line that the fake engine reads is the image's size.
SIZE: Final = "64x32"
PIPELINE_RPC_PORT: Final = 18091
_LIMIT_S: Final = 60.0
_SCRIPTS: Final = ROOT / "tests" / "clients"


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses for HTTP, chineseocr_lite's variant and gRPC, a folder of pages, and the fixed ports served."""

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
    """A client. `key` names its recording and its test, `adapter` the adapter it uses, as in OCRSVC_ADAPTERS.

    `run` runs the fetched program against a target and returns its output, which must contain `said`. The answers to
    its recorded requests must contain `answered`, and `refused` of them are errors. `port` is hard-coded in the client.
    With `repeats` its requests do not depend on the answers, so a recording can replace it.
    """

    key: str
    adapter: str
    name: str
    source: Source
    run: Callable[[Target, Path], str]
    said: tuple[str, ...] = (SIZE,)
    answered: tuple[str, ...] = (SIZE,)
    refused: int = 0
    port: int | None = None
    also: Source | None = None
    repeats: bool = True

    @property
    def sources(self) -> tuple[Source, ...]:
        """The client, and what it needs to run."""
        return (self.source,) if self.also is None else (self.source, self.also)


def run(target: Target, command: Sequence[object], env: dict[str, str] | None = None) -> str:
    """Run a client in the target's folder; returns its output. An exit status other than 0 fails the test."""
    environment = {"PYTHONIOENCODING": "utf-8", "NO_PROXY": "*", "no_proxy": "*", "PYTHONPATH": "", **(env or {})}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=target.folder,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _page_as_base64(target: Target) -> str:
    return base64.b64encode((target.folder / "page.png").read_bytes()).decode()


def _trwebocr_readme(target: Target, readme: Path) -> str:
    snippets = re.findall(r"``` ?python\n(import requests.+?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 2
    here = [re.sub(r"http://[\d.]+:8089", target.url, snippet) for snippet in snippets]
    show = "\nprint(res.json()['data']['raw_out'])"
    return "".join(run(target, [sys.executable, "-W", "ignore", "-c", snippet + show]) for snippet in here)


def _perf_analyzer(*words: str) -> Callable[[Target, Path], str]:
    def with_target(target: Target, program: Path) -> str:
        sent = {"data": [{"image": {"b64": _page_as_base64(target)}}]}
        (target.folder / "input.json").write_text(json.dumps(sent))
        address = target.http if "http" in words else target.grpc
        few = ["--measurement-interval", "200", "--stability-percentage", "999", "--concurrency-range", "2"]
        what = ["-m", "ocr", "-u", address, *words, "--shape", "image:1", "--input-data", "input.json"]
        command, libraries = [program, *what, *few], SOURCES["PERF_ANALYZER"]
        assert isinstance(libraries, Environment)
        return run(target, command, {"LD_LIBRARY_PATH": libraries.libraries()})

    return with_target


def _umi_manual(target: Target, manual: Path) -> str:
    snippets = re.findall(r"```python\n(.+?)```", manual.read_text(encoding="utf-8"), re.DOTALL)
    asking = next(snippet for snippet in snippets if "get_options" in snippet)
    reading = next(snippet for snippet in snippets if '"base64"' in snippet)
    return "".join(run(target, [sys.executable, "-c", snippet]) for snippet in (asking, reading))


def _commands(lines: Sequence[str], env: dict[str, str], also: Source | None) -> Callable[[Target, Path], str]:
    """Make a function that runs these command lines; rows.yaml explains their placeholders."""

    def call(target: Target, at: Path) -> str:
        needed = target.folder if also is None else also.path()
        names = {"at": at, "also": needed, "beside": needed.parent, "python": sys.executable, "scripts": _SCRIPTS}
        names |= {"url": target.url, "http": target.http, "poly": target.poly, "grpc": target.grpc}
        names |= {"folder": target.folder, "page": _page_as_base64(target)}

        def filled(text: str) -> str:
            return Template(text).substitute(names)

        where = {name: filled(value) for name, value in env.items()}
        return "".join(run(target, [filled(word) for word in shlex.split(line)], where) for line in lines)

    return call


def _runner(named: str | list[str]) -> Callable[[Target, Path], str]:
    name, *arguments = [named] if isinstance(named, str) else named
    function = globals()[f"_{name}"]
    return cast("Callable[[Target, Path], str]", function(*arguments) if arguments else function)


def _client(row: dict[str, Any]) -> Client:
    sources: dict[str, Any] = {name: SOURCES[row[name]] for name in ("source", "also") if name in row}
    lists: dict[str, Any] = {name: tuple(row[name]) for name in ("said", "answered") if name in row}
    lines, env, named = (row.pop(name, None) for name in ("commands", "env", "run"))
    runs = _commands(lines, env or {}, sources.get("also")) if lines else _runner(named)
    return Client(**(row | sources | lists | {"run": runs}))


CLIENTS: Final = tuple(map(_client, yaml.safe_load((_SCRIPTS / "rows.yaml").read_text("utf-8"))))
