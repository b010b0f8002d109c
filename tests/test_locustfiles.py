"""The load scripts, really run by locust: right answers pass, a wrong one fails the run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import ROOT, QuietHandler, Server, http_server, run_program


def run_locust(name: str, host: str, run_s: int = 3) -> subprocess.CompletedProcess[str]:
    load = ("--headless", "-u", "4", "-r", "4", "-t", f"{run_s}s", "--only-summary", "--host", host)
    # What changes no answer.
    env = {"LOAD_QUERY": "lang=auto"}
    return run_program("-m", "locust", "-f", ROOT / "locustfiles" / f"{name}.py", *load, env=env)


@contextmanager
def answering(version: bytes, reading: bytes) -> Iterator[str]:
    """A server that gives the same two answers to whatever it is sent; its URL."""

    class Parrot(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(body=version, headers={"Content-Type": "application/json"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(body=reading, headers={"Content-Type": "application/json"})

    with http_server(Parrot) as url:
        yield url


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["steady", "staircase", "mixed"])
def test_right_answers_pass(name: str, server: Server) -> None:
    # On a busy machine its own start may take all of a short run.
    for run_s in (3, 15, 30):
        done = run_locust(name, server.url, run_s)
        if "No page was read" not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_answer_fails_the_run() -> None:
    wrong = b'{"pages": [{"text": "640x300\\n00000000", "lines": []}]}'
    with answering(b'{"engine": {"name": "fake"}}', wrong) as url:
        done = run_locust("steady", url, 10)
    assert done.returncode == 1
    assert "native multipart" in done.stderr + done.stdout
