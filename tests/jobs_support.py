"""Support for job tests: an in-process application with a job store, and a service that can be killed and restarted."""

import base64
import hashlib
import hmac
import io
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import requests
from documents import pdf
from flask.testing import FlaskClient
from support import ROOT, SERVE, Server, wait_until
from web_support import running_reader
from werkzeug.test import TestResponse

from ocrsvc.access.gate import AccessGate
from ocrsvc.app import create_app
from ocrsvc.jobs.callbacks import CallbackSender
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_runner import JobRunner
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings

WAIT_S = 60.0
_BITS = 12


def numbered_pdf(pages: int, size: tuple[float, float] = (72, 36)) -> bytes:
    """Return a PDF whose pages show their number as black squares; `size` is in points."""
    side = min(size[0] / _BITS, size[1])
    contents = []
    for number in range(1, pages + 1):
        bits = [bit for bit in range(_BITS) if number >> bit & 1]
        squares = b" ".join(b"%.1f 0 %.1f %.1f re" % (bit * side, side, side) for bit in bits)
        contents.append(b"0 g " + squares + b" f")
    return pdf(*contents, size=size)


def post_document(
    client: FlaskClient,
    path: str,
    data: bytes,
    name: str = "a.pdf",
    headers: Mapping[str, str] | None = None,
    **fields: object,
) -> TestResponse:
    """Post a form with a document and these fields."""
    form = {"file": (io.BytesIO(data), name), **fields}
    return client.post(path, data=form, headers=dict(headers or {}))


def put_result_file(jobs: JobStore, job: Job, name: str, data: bytes) -> Path:
    """Write a file of a job's result and return its path."""
    return jobs.make_file(job, name, lambda output: output.write(data))


@contextmanager
def reading_jobs(
    jobs: JobStore, reader: Reader, page_s: float = 30.0, gate: AccessGate | None = None
) -> Iterator[None]:
    """Run a job runner during the block."""
    runner = JobRunner(jobs, reader, page_s, bool, gate)
    runner.thread.start()
    try:
        yield
    finally:
        runner.thread.stop(30.0)


@dataclass
class JobsApp:
    """The application in this process with its job store and reader; adapter tests add their requests."""

    client: FlaskClient
    jobs: JobStore
    reader: Reader
    settings: Settings

    @classmethod
    @contextmanager
    def running(cls, folder: Path, settings: Settings | None = None, **limits: Any) -> Iterator[Self]:
        """Run the application with `KnownEngine` and a store in `folder`; jobs are read only within `working`."""
        settings = settings or Settings()
        jobs = JobStore(folder, 10**8, 3600.0, **limits)
        with running_reader(settings) as reader:
            yield cls(create_app(settings, reader, jobs=jobs).test_client(), jobs, reader, settings)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Read jobs during the block."""
        with reading_jobs(self.jobs, self.reader):
            yield

    def work_until(self, condition: Callable[[], object]) -> None:
        """Read jobs until the condition holds."""
        with self.working():
            wait_until(condition)


class JobService:
    """A service that can be killed and restarted on one folder of jobs."""

    def __init__(self, folder: Path, env: Mapping[str, str], workers: int = 1) -> None:
        self.folder = folder
        self._env = {"OCRSVC_ENGINE": "fake", "OCRSVC_JOBS_DIR": str(folder), **env}
        self._flags = ("-b", "127.0.0.1:0", "-w", str(workers))
        self.server = self._start()

    def restart(self, how: signal.Signals = signal.SIGKILL, before_start: Callable[[], object] = bool) -> float:
        """Kill all processes of the service and restart it; return the seconds until a worker is ready."""
        with suppress(ProcessLookupError):
            os.killpg(self.server.pid, how)
        self.server.kill()
        before_start()
        began_s = time.monotonic()
        self.server = self._start()
        return time.monotonic() - began_s

    def submit(self, data: bytes, **fields: str) -> str:
        """Submit a document and return the job's ID."""
        sent = requests.post(f"{self.server.url}/v1/jobs", files={"file": ("a.pdf", data)}, data=fields, timeout=60)
        assert sent.status_code == 202, sent.text
        return str(sent.json()["id"])

    def ask(self, path: str) -> Any:
        """Return the JSON at a path below /v1/jobs."""
        answer = requests.get(f"{self.server.url}/v1/jobs/{path}", timeout=30)
        answer.raise_for_status()
        return answer.json()

    def delete(self, job_id: str) -> None:
        assert requests.delete(f"{self.server.url}/v1/jobs/{job_id}", timeout=30).status_code == 204

    def wait(self, job_id: str, condition: Callable[[Any], bool]) -> Any:
        """Wait until the job's status meets the condition, and return the status."""
        expected = f"job {job_id} meets the condition"
        return wait_until(lambda: job if condition(job := self.ask(job_id)) else None, expected, WAIT_S)

    def pages(self, job_id: str) -> Iterator[Any]:
        """Yield every page of a job, fetched 100 at a time."""
        after = 0
        while pages := self.ask(f"{job_id}/pages?after={after}&limit=100")["pages"]:
            yield from pages
            after += len(pages)

    def peak_bytes(self) -> int:
        """Return the highest peak memory of any worker."""
        return max((_status(pid, "VmHWM") for pid in self.server.workers()), default=0)

    def _start(self) -> Server:
        server = Server([*SERVE, *self._flags], self._env, ROOT)
        server.wait_for("READY in")
        return server


def _status(pid: int, name: str) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


@contextmanager
def job_service(folder: Path, env: Mapping[str, str], workers: int = 1) -> Iterator[JobService]:
    """Start a service and kill it when the block ends."""
    service = JobService(folder, env, workers)
    try:
        yield service
    finally:
        service.server.kill()


def count_page_errors(pages: list[Any], count: int) -> tuple[int, int, bool]:
    """Count missing and repeated pages, and say whether they are in order with distinct texts."""
    numbers = [page["page"] for page in pages]
    texts = {page.get("text") for page in pages}
    missing = count - len(set(numbers))
    return missing, len(numbers) - len(set(numbers)), numbers == sorted(numbers) and len(texts) == len(pages)


# Callbacks of finished jobs, and a receiver that records them

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes, so").decode()


def done_job(jobs: JobStore, host: str = "callbacks.example", caller: str = "", key: str | None = None) -> Job:
    """Add a finished job of one page whose callback is not sent yet; with an API key it has no secret."""
    record = Record(caller, key, name="a.pdf", numbers=[1], count=1, callback=f"https://{host}/x")
    job = jobs.add(b"a document", record, "" if key else SECRET)
    job.append_page({"number": 1, "error": "no"})
    job.finish()
    return job


def sender_of(jobs: JobStore, post: Callable[..., int], tries: int = 3, **settings: Any) -> CallbackSender:
    """Return a sender of the callbacks of these jobs that uses their clock."""
    return CallbackSender(jobs.database, Settings(callback_tries=tries, **settings), post=post, clock=jobs.wall)


def send_due(sender: CallbackSender) -> None:
    """Try to send each callback that is due."""
    while sender.send_next():
        pass


def receiver(status: int = 204) -> tuple[list[tuple[bytes, Mapping[str, str]]], Any]:
    """Return the list of received callbacks and the function that receives them with `status`."""
    sent: list[tuple[bytes, Mapping[str, str]]] = []

    def post(_url: str, body: bytes, headers: Mapping[str, str], *_: object) -> int:
        sent.append((body, headers))
        return status

    return sent, post


def verified(body: bytes, headers: Mapping[str, str], secret: str = SECRET) -> bool:
    """Check a callback's signature as docs/jobs.md shows."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{wanted}")
