"""The command line: reading files, settings and their sources, `check`, one-line errors, exit codes."""

import json
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import cv2
import numpy as np
import pytest
from models_support import make_several
from support import data_of, ocrsvc, run_program

from ocrsvc.cli.check import check_runtimes
from ocrsvc.cli.main import ocrsvc as ocrsvc_commands
from ocrsvc.cli.main import run
from ocrsvc.cli.options import Command
from ocrsvc.errors import OperatorError

CONTEXT = click.Context(ocrsvc_commands)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.png"
    assert cv2.imwrite(str(file), np.full((40, 120), 255, np.uint8))
    return file


def test_read_takes_the_model_the_tier_and_the_language(page: Path, tmp_path: Path) -> None:
    env = make_several(tmp_path)
    assert "north/1" in ocrsvc("read", "--model", "north", "--tier", "tiny", "--lang", "ru", str(page), **env).stdout
    refused = ocrsvc("read", "--lang", "ko", str(page), **env)
    assert (refused.returncode, refused.stdout) == (65, "")
    assert "Languages: " in refused.stderr


def test_a_page_can_come_from_standard_input(page: Path) -> None:
    with page.open("rb") as file:
        assert json.loads(run_program("-m", "ocrsvc", "read", "--json", "-", stdin=file).stdout)["file"] == "-"


@pytest.mark.parametrize(
    ("engine", "code", "said"),
    [("tr", 69, "OCRSVC_TR_HOME"), ("magic", 78, "ocrsvc: OCRSVC_ENGINE is 'magic': accepted is one of ppocr, tr, ")],
)
def test_an_engine_that_cannot_be_opened_is_reported(page: Path, engine: str, code: int, said: str) -> None:
    done = ocrsvc("read", "--engine", engine, str(page))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_are_printed_with_their_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text("max_body_bytes = '1MiB'\n", encoding="utf-8")
    monkeypatch.setenv("OCRSVC_QUEUE_SIZE", "5")
    assert run(["settings", "--file", str(tmp_path / "a.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "OCRSVC_QUEUE_SIZE = 5 images  (environment)" in lines
    assert "OCRSVC_MAX_BODY_BYTES = 1048576 bytes  (file)" in lines
    assert "OCRSVC_ENGINE = ppocr  (default)" in lines
    assert any(line.startswith("OCRSVC_WORKERS = ") and line.endswith(" processes  (planned)") for line in lines)


@pytest.mark.parametrize("args", [["settings"], ["settings", "--markdown"], ["read", "PAGE", "PAGE"]])
def test_closed_output_pipe_is_no_error(args: list[str], page: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run_program("-m", "ocrsvc", *[arg.replace("PAGE", str(page)) for arg in args], stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_check_lists_packages_and_engines_and_fails_if_the_configured_one_does_not_open() -> None:
    done = ocrsvc("check", OCRSVC_ENGINE="tr", OCRSVC_PROVIDER="cpu")
    assert "onnxruntime " in done.stdout
    assert ("openvino " in done.stdout) is (find_spec("openvino") is not None)
    for said in ("plan: workers=", "  fake: opens (", "  ppocr: opens (", "  tr: does not open: "):
        assert said in done.stdout
    assert (done.returncode, done.stderr[:22]) == (69, "ocrsvc: The configured")


def test_two_builds_of_onnx_runtime_are_an_error() -> None:
    for cpu, gpu in ((True, False), (False, True), (False, False)):
        check_runtimes(cpu=cpu, gpu=gpu)
    with pytest.raises(OperatorError, match="onnxruntime and onnxruntime-gpu are both installed"):
        check_runtimes(cpu=True, gpu=True)


@pytest.mark.parametrize(("bind", "args", "listens", "flags"), data_of("serve_options"))
def test_serve_has_options_for_the_address(
    monkeypatch: pytest.MonkeyPatch, bind: str, args: list[str], listens: str, flags: list[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, command: started.append(command))
    monkeypatch.setenv("OCRSVC_BIND", bind)
    assert (run(["serve", *args]), os.environ["OCRSVC_BIND"]) == (0, listens)
    assert sorted(started[0][5:-1]) == sorted(flags)


@pytest.mark.parametrize(("args", "said"), data_of("serve_refused"))
def test_serve_refuses_unknown_options(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *args]) == 2
    assert said in capsys.readouterr().err
    assert (run(["serve", "-h"]), capsys.readouterr().out[:20]) == (0, "Usage: ocrsvc serve ")


@pytest.mark.parametrize("args", [[], ["read"], ["fly"], ["settings", "--nope"]])
def test_a_wrong_command_line_ends_with_the_usage(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert capsys.readouterr().err.startswith("Usage: ocrsvc")


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in ocrsvc_commands.list_commands(CONTEXT):
        command = ocrsvc_commands.get_command(CONTEXT, name)
        assert command is not None
        below = command.commands if isinstance(command, click.Group) else {}
        yield from ((name, command), *((f"{name} {each}", below[each]) for each in below))


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_commands_have_examples_and_help(name: str, command: click.Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: ocrsvc {name} ")
    parameters = [each for each in command.params if isinstance(each, click.Option | click.Argument)]
    assert [each.name for each in parameters if not each.help] == []
    assert command.help
    assert isinstance(command, Command)
    assert all("ocrsvc" in example or "OCRSVC" in example for example in command.examples)
    assert command.examples


def test_shells_complete_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_OCRSVC_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("COMP_WORDS", "ocrsvc read --rot")
    assert run([]) == 0
    assert capsys.readouterr().out.split() == ["plain,--rotate"]


def test_importing_the_command_line_loads_no_numeric_library() -> None:
    code = "import sys, ocrsvc.cli.main; print({'numpy', 'cv2', 'onnxruntime'} & set(sys.modules))"
    assert run_program("-c", code).stdout == "set()\n"
