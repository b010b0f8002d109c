"""The systems that benchmarks/peers.py compares: how to start and query each, with default and with best settings."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.environments import FOLDER, newer_python, programs_of, turboocr_models
from bench.machine import cores
from bench.processes import Processes
from bench.service import ROOT, end, form_with_file, free_port, started

SCRIPTS: Final = ROOT / "benchmarks" / "peers"
PAGE_LIMIT_S: Final = 600.0

Read = Callable[[bytes], str]


@dataclass(frozen=True)
class Peer:
    """A running system: its name, a function that reads one page, and its processes."""

    name: str
    read: Read
    processes: Processes


@dataclass(frozen=True)
class Server:
    """A system that runs as a server.

    Attributes:
        environment: Name of its virtual environment.
        command: Makes the command line from the environment's programs folder and a port.
        read: Reads an image through the server at a port; returns the text.
        env: Environment variables to add to this process's.
    """

    environment: str
    command: Callable[[Path, int], Sequence[str]]
    read: Callable[[int, bytes], str]
    env: Mapping[str, str] = field(default_factory=dict)


def post(port: int, path: str, body: bytes, content_type: str) -> Any:
    """Post to the peer and return its JSON answer. Raises RuntimeError for any status but 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PAGE_LIMIT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": content_type})
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {data[:200]!r}")
    return json.loads(data)


def form(data: bytes, name: str) -> tuple[bytes, str]:
    """A multipart form with the page in the field `name`."""
    body, content_type = form_with_file(data, "page", "application/octet-stream")
    return body.replace(b'name="file"', f'name="{name}"'.encode(), 1), content_type


def read_ocrsvc(port: int, data: bytes) -> str:
    """Read a page with this service."""
    answer = post(port, "/v1/ocr", *form(data, "file"))
    return "\n".join(line["text"] for page in answer["pages"] for line in page["lines"])


def read_rapidocr_api(port: int, data: bytes) -> str:
    """Read a page with rapidocr_api; the keys of its answer are line numbers."""
    answer = post(port, "/ocr", *form(data, "image_file"))
    return "\n".join(answer[key]["rec_txt"] for key in sorted(answer, key=int))


def read_rapidocr_api_unclassified(port: int, data: bytes) -> str:
    """Read a page with rapidocr_api without its orientation classifier, the only speed option of its requests."""
    body, content_type = form(data, "image_file")
    end_mark = body[: body.index(b"\r\n")] + b"--"
    part = end_mark[:-2] + b'\r\nContent-Disposition: form-data; name="use_cls"\r\n\r\nfalse\r\n'
    body = body.replace(end_mark, part + end_mark)
    answer = post(port, "/ocr", body, content_type)
    return "\n".join(answer[key]["rec_txt"] for key in sorted(answer, key=int))


def read_litserve(port: int, data: bytes) -> str:
    """Read a page with LitServe: base64 in JSON, as in its documentation."""
    body = json.dumps({"image": base64.b64encode(data).decode()}).encode()
    return str(post(port, "/predict", body, "application/json")["text"])


def read_bentoml(port: int, data: bytes) -> str:
    """Read a page with BentoML: a multipart file."""
    return str(post(port, "/read", *form(data, "image"))["text"])


def read_plain(port: int, data: bytes) -> str:
    """Read a page with serve_plain.py: the bytes as the body."""
    return str(post(port, "/", data, "application/octet-stream")["text"])


def plain(engine: str, settings: Callable[[], Mapping[str, Any]]) -> Callable[[Path, int], Sequence[str]]:
    """The command for serve_plain.py; `settings` is called when it starts."""
    return lambda programs, port: (
        *(f"{programs}/python", str(SCRIPTS / "serve_plain.py"), engine, str(port)),
        json.dumps(settings()),
    )


def litserve(workers: int, choice: str) -> Callable[[Path, int], Sequence[str]]:
    """The command for serve_litserve.py."""
    script = str(SCRIPTS / "serve_litserve.py")
    return lambda programs, port: (f"{programs}/python", script, str(port), str(workers), choice)


def rapidocr(engines: int, choice: str) -> Callable[[Path, int], Sequence[str]]:
    """The command for RapidOCR behind serve_plain.py."""
    return plain("rapidocr", lambda: {"engines": engines, "choice": choice})


def bentoml(programs: Path, port: int) -> Sequence[str]:
    """The command for BentoML's server."""
    command = (f"{programs}/bentoml", "serve", "serve_bentoml:Ocr", "--working-dir", str(SCRIPTS))
    return (*command, "--host", "127.0.0.1", "--port", str(port))


def rapidocr_api(*more: str) -> Callable[[Path, int], Sequence[str]]:
    """The command for rapidocr_api's server."""
    return lambda programs, port: (f"{programs}/rapidocr_api", "-ip", "127.0.0.1", "-p", str(port), *more)


def turboocr(**settings: Any) -> Callable[[Path, int], Sequence[str]]:
    """The command for TurboOCR with our models behind serve_plain.py."""
    return plain("turboocr", lambda: {"models_dir": str(turboocr_models()), **settings})


_CORES: Final = cores()
_ONE_THREAD: Final = {"ORT_NUM_THREADS": "1"}
SERVERS: Final[Mapping[str, Server]] = {
    "rapidocr": Server("rapidocr", rapidocr(1, "defaults"), read_plain),
    "rapidocr_best": Server("rapidocr", rapidocr(_CORES, "best"), read_plain),
    "rapidocr_quick": Server("rapidocr", rapidocr(_CORES, "quick"), read_plain),
    "rapidocr_api": Server("rapidocr_api", rapidocr_api(), read_rapidocr_api),
    "rapidocr_api_best": Server("rapidocr_api", rapidocr_api("-workers", str(_CORES)), read_rapidocr_api_unclassified),
    "litserve": Server("litserve", litserve(1, "defaults"), read_litserve),
    "litserve_best": Server("litserve", litserve(_CORES, "best"), read_litserve),
    "bentoml": Server("bentoml", bentoml, read_bentoml),
    "bentoml_best": Server("bentoml", bentoml, read_bentoml, {"OCR_WORKERS": str(_CORES), "OCR_SETTINGS": "best"}),
    "turboocr": Server("turboocr", turboocr(), read_plain),
    "turboocr_best": Server("turboocr", turboocr(replicas=_CORES), read_plain, _ONE_THREAD),
    "turboocr_openvino": Server("turboocr_openvino", turboocr(backend="intel", device="CPU"), read_plain),
}
OURS: Final[Mapping[str, Mapping[str, str]]] = {
    "ocrsvc": {},
    "ocrsvc_fp32": {"OCRSVC_PROVIDER": "cpu", "OCRSVC_PRECISION": "fp32"},
}
BEST_OF_OURS: Final = "ocrsvc_best"
TESSERACT: Final[Mapping[str, Mapping[str, str]]] = {"tesseract": {}, "tesseract_best": {"OMP_THREAD_LIMIT": "1"}}
NAMES: Final = (*OURS, BEST_OF_OURS, *SERVERS, *TESSERACT)


class TesseractProcesses(Processes):
    """The Tesseract processes, one per page."""

    def __init__(self) -> None:
        super().__init__(os.getpid())

    def cpu_s(self) -> float:
        """Processor time of ended child processes."""
        times = os.times()
        return times.children_user + times.children_system

    def rss_mb(self) -> float:
        """Resident memory of the running Tesseract processes."""
        return sum(Processes(pid).rss_mb() for pid in self.workers() if self._is_tesseract(pid))

    def _is_tesseract(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text() == "tesseract\n"
        return False


def tesseract(env: Mapping[str, str]) -> Read:
    """A function that reads each page in a new Tesseract process."""
    chosen = {**os.environ, **env}

    def read(data: bytes) -> str:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            command = ["tesseract", file.name, "-", "-l", "eng+chi_sim"]
            done = subprocess.run(command, capture_output=True, env=chosen, check=True)
        return done.stdout.decode("utf-8", "replace")

    return read


@contextlib.contextmanager
def serving_ours(name: str, settings: Mapping[str, str]) -> Iterator[Peer]:
    """This service with its own model cache; a new cache is filled by an extra start, which measures the machine."""
    models = FOLDER / "models" / name
    is_new = not models.exists()
    models.mkdir(parents=True, exist_ok=True)
    env = {"OCRSVC_MODEL_CACHE": str(models), **settings}
    if is_new:
        with started(env):
            pass
    with started(env) as service:
        yield Peer(name, lambda data: read_ocrsvc(service.port, data), service.processes)


@contextlib.contextmanager
def serving_other(name: str) -> Iterator[Peer]:
    """Start a system of SERVERS, without waiting until it is ready."""
    server, port = SERVERS[name], free_port()
    command = server.command(programs_of(server.environment), port)
    env = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent), **server.env}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True) as process,
    ):
        try:
            yield Peer(name, lambda data: server.read(port, data), Processes(process.pid))
        finally:
            end(process)
            # LitServe's child processes outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(name: str, best: Mapping[str, str]) -> Iterator[Peer]:
    """Start any of the systems; `best` are the settings of ocrsvc_best."""
    if name in TESSERACT:
        yield Peer(name, tesseract(TESSERACT[name]), TesseractProcesses())
        return
    ours = {**OURS, BEST_OF_OURS: best}
    with serving_ours(name, ours[name]) if name in ours else serving_other(name) as peer:
        yield peer


def prepare(name: str) -> None:
    """Create the environment and models that a system needs."""
    if name in SERVERS:
        programs_of(SERVERS[name].environment)
    if name.startswith("turboocr"):
        turboocr_models()


def missing(name: str, best: Mapping[str, str]) -> str:
    """The reason why a system cannot run here; empty if it can."""
    if name in TESSERACT and not shutil.which("tesseract"):
        return "tesseract is not installed"
    if name == BEST_OF_OURS and not best:
        return "no --best setting is given"
    if name.startswith("turboocr") and newer_python() is None:
        return "no Python 3.12 or newer was found"
    return ""
