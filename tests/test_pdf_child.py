"""The child process that opens PDFs: misbehaviour fails only its document, and a failed start is retryable."""

import errno
import fcntl
import gc
import json
import logging
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from documents import GRAY, drawn, open_pdf, pdf, with_text
from support import clean_environment, process_state, wait_until
from test_umi_documents import READ
from web_support import json_of, running_app, running_reader

from ocrsvc.errors import BrokenImage, DeadlineExceeded, ImageTooLarge, OcrsvcError, ResourcesExhausted
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import open_document
from ocrsvc.imaging.pdf import open_pdf as pdf_module
from ocrsvc.results import ReadOptions
from ocrsvc.system import child_process
from ocrsvc.system.child_program import MESSAGE_BYTES
from ocrsvc.system.shared_memory import open_memory

MEGAPIXEL = 1_000_000
SOON_S = 0.3


@pytest.fixture(autouse=True, scope="module")
def _collect_garbage() -> None:
    """Close what other tests left to the garbage collector, such as sockets, before files are counted."""
    gc.collect()


@pytest.fixture(autouse=True)
def _no_files_or_processes_leak(started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before
    assert [process.returncode for process in started if process.returncode is None] == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    known: list[subprocess.Popen[bytes]] = []
    spawn = child_process._spawn

    def noting(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        known.append(spawn(command, **how))
        return known[-1]

    monkeypatch.setattr(child_process, "_spawn", noting)
    return known


@pytest.fixture
def _fake_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render documents in a fake child with a generous time limit."""
    monkeypatch.setattr(pdf_module, "_PROGRAM", "doubles.pdf_program")
    monkeypatch.setattr(pdf_module, "PAGE_LIMIT_S", 30.0)
    monkeypatch.setattr(child_process, "_POLL_S", 0.05)


def open_files() -> list[str]:
    return sorted(file.name for file in Path("/proc/self/fd").iterdir())


def file_that(**replies: str) -> bytes:
    return b"%PDF-" + json.dumps(replies).encode()


WRONG = {
    "ends": "!exit",
    "crashes": "!crash",
    "is silent": "!silent",
    "is stopped": "!stop",
    "floods": "!flood",
    "sends 10,000 bytes": "x" * 10_000,
    "sends an empty message": "",
    "sends an unexpected reply": "drawn",
    "sends no number": "pages",
    "sends too many numbers": "pages 1 2",
    "sends nan": "pages nan",
    "sends infinity": "pages -inf",
    "sends 1e300": "pages 1e300",
    "sends 250 digits": "pages " + "9" * 250,
    "sends letters": "pages many",
    "sends invalid text": "pages \xff",
    "sends nested brackets": "[" * MESSAGE_BYTES,
}


@pytest.mark.usefixtures("_fake_child")
@pytest.mark.parametrize("how", WRONG)
def test_a_misbehaving_process_fails_only_its_document(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_module, "PAGE_LIMIT_S", SOON_S)
    with pytest.raises(BrokenImage), open_pdf(file_that(open=WRONG[how])) as document:
        # A child that floods has answered the first request.
        drawn(document)


@pytest.mark.usefixtures("_fake_child")
@pytest.mark.parametrize(
    ("word", "how"),
    [("size", "points nan 1"), ("size", "!exit"), *(("draw", how) for how in ("!stop", "!exit", "!flood", "x" * 300))],
)
def test_the_next_page_gets_a_new_process_after_a_fault(word: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_pdf(file_that(**{word: how})) as document:
        monkeypatch.setattr(pdf_module, "PAGE_LIMIT_S", SOON_S)
        for _ in range(2):
            with pytest.raises(BrokenImage):
                drawn(document)


UNREASONABLE = [
    ({"open": "pages -1"}, BrokenImage),
    ({"size": "points -1 10"}, BrokenImage),
    ({"size": "points 1e14 1e14"}, ImageTooLarge),
    ({"draw": "large_image 1e14 -1e14"}, ImageTooLarge),
    ({"draw": "damaged_page 1e14"}, BrokenImage),
]


@pytest.mark.usefixtures("_fake_child")
@pytest.mark.parametrize(("replies", "error"), UNREASONABLE)
def test_implausible_numbers_of_the_child_are_checked(replies: dict[str, str], error: type[OcrsvcError]) -> None:
    with pytest.raises(error), open_pdf(file_that(**replies)) as document:
        drawn(document)
    # The page count is capped.
    with open_pdf(file_that(open="pages 1e14")) as document:
        assert document.count < 10_000_000


@pytest.mark.usefixtures("_fake_child")
def test_a_stopped_process_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_module, "PAGE_LIMIT_S", 60.0)
    # One engine thread opens two documents at once.
    with running_reader(threads=1) as reader:
        for _ in range(3):
            with pytest.raises(DeadlineExceeded):
                reader.read_files([file_that(draw="!stop")], ReadOptions(), SOON_S)
        assert reader.read_files([file_that()], ReadOptions(), 30.0)[0].readings


@pytest.mark.usefixtures("_fake_child")
@pytest.mark.parametrize("ready", ["!exit", "!silent", "", "ready", "ready 1", "pages 1", "ready nan nan", "x" * 1000])
def test_a_process_that_fails_to_start_is_a_503(
    ready: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child_process._log_once.cache_clear()
    monkeypatch.setattr(child_process, "START_LIMIT_S", SOON_S if ready == "!silent" else 30.0)
    for _ in range(2):
        with pytest.raises(ResourcesExhausted, match="could not start") as refusal, open_pdf(file_that(ready=ready)):
            pass
    assert refusal.value.retryable
    messages = [record.message for record in caplog.records if "did not start" in record.message]
    # The two messages may differ in the exit code.
    assert 1 <= len(messages) <= 2


def failing(code: int, calls: int, real: Callable[..., Any]) -> Callable[..., Any]:
    left = iter(range(calls))

    def call(*args: Any, **how: Any) -> Any:
        if next(left, None) is None:
            raise OSError(code, os.strerror(code))
        return real(*args, **how)

    return call


REFUSALS = [
    *[((os, "memfd_create"), calls, errno.EMFILE) for calls in (0, 1)],
    *[((subprocess, "Popen"), 0, code) for code in (errno.EAGAIN, errno.ENOMEM)],
    *[((os, "write"), 0, errno.ENOSPC), ((os, "ftruncate"), 0, errno.ENOMEM), ((mmap, "mmap"), 0, errno.ENOMEM)],
    *[((fcntl, "fcntl"), 1, errno.EPERM), ((socket, "socketpair"), 0, errno.ENFILE)],
]


@pytest.mark.parametrize(("where", "calls", "code"), REFUSALS)
def test_refusals_of_the_system_are_reported_without_leaks(
    where: tuple[Any, str], calls: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*where, failing(code, calls, getattr(*where)))
    with pytest.raises(ResourcesExhausted, match=os.strerror(code)), open_pdf(pdf(GRAY)) as document:
        drawn(document)


def open_and_close() -> None:
    with open_pdf(pdf(GRAY)):
        pass


def draw_text() -> bytes:
    return with_text(pdf(GRAY, GRAY), [READ])


@pytest.mark.parametrize("read", [open_and_close, draw_text])
def test_missing_file_descriptors_are_reported_as_exhausted(read: Callable[[], object]) -> None:
    before, (soft, hard) = open_files(), resource.getrlimit(resource.RLIMIT_NOFILE)
    refused, free = 0, os.dup(0)
    os.close(free)
    try:
        for most in range(free, soft):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            try:
                read()
            except (ResourcesExhausted, OSError):
                refused += 1
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert open_files() == before, "leaked files"
            else:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # Descriptors are needed for files, the socket pair and the start of the process.
    assert refused >= 5


def test_exhausted_resources_are_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "_spawn", failing(errno.EAGAIN, 0, child_process._spawn))
    with running_app() as app:
        answer = app.test_client().post("/v1/ocr", data=pdf(GRAY), content_type="application/pdf")
    problem = json_of(answer)
    assert (answer.status_code, problem["code"], answer.headers["Retry-After"]) == (503, "resources_exhausted", "2")


@contextmanager
def program(*arguments: int, name: str = "ocrsvc.imaging.pdf.child") -> Iterator[tuple[Any, socket.socket]]:
    file, canvas = (open_memory("test", data) for data in (pdf(GRAY), b""))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", name, *map(str, [*arguments, file, canvas])]
    with ours:
        process = subprocess.Popen(
            command, stdin=theirs.fileno(), stderr=subprocess.DEVNULL, pass_fds=(file, canvas), env=clean_environment()
        )
        theirs.close()
        os.close(file)
        os.close(canvas)
        ours.settimeout(30)
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()


NONSENSE = [b"1 " + b"9" * MESSAGE_BYTES, b"1 unknown", b"open", b"\xff", b"1 size", b"1 size 1 2 3", b"x open"]


@pytest.mark.parametrize("request_", [*NONSENSE, None])
def test_the_child_ends_on_invalid_requests_or_a_closed_connection(request_: bytes | None) -> None:
    with program(os.getpid(), 1 << 30, 0) as (process, ours):
        assert ours.recv(MESSAGE_BYTES).startswith(b"ready ")
        if request_ is None:
            ours.close()
        else:
            ours.send(request_)
        assert (process.wait(30) == 0) or request_ is not None


def test_the_child_enforces_its_deadline_itself() -> None:
    endless = (
        "import os, signal, sys; from ocrsvc.system import child_program; child_program._GRACE_S = 0; "
        "child_program.apply_limits(); child_program.serve({'wait': signal.pause}, ())"
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", endless, str(os.getpid()), str(1 << 30), "0"],
            stdin=theirs.fileno(),
            env=clean_environment(),
        )
        ours.settimeout(30)
        assert ours.recv(MESSAGE_BYTES).startswith(b"ready ")
        ours.send(b"1 wait")
        assert process.wait(30) == -signal.SIGALRM


def test_the_child_ends_when_its_parent_is_killed() -> None:
    source = (
        "import signal, sys; from ocrsvc.imaging.pdf import open_pdf as pdf; pdf._PROGRAM = 'doubles.pdf_program'; "
        f"document = pdf.Pdf({file_that()!r}, pdf.DrawingLimits(72, 1000, 1000), bool); "
        "print(document._child._program.process.pid, flush=True); "
        "signal.pause()"
    )
    environment = clean_environment() | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, env=environment)
    with parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: process_state(process) in {"", "Z"}, "the child ends")


def test_the_child_is_sandboxed_and_runs_at_low_priority(started: list[subprocess.Popen[bytes]]) -> None:
    with open_pdf(pdf(GRAY)):
        lines = Path(f"/proc/{started[0].pid}/status").read_text("ascii").splitlines()
        assert os.getpriority(os.PRIO_PROCESS, started[0].pid) > os.getpriority(os.PRIO_PROCESS, 0)
    held = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if "Seccomp" not in held:
        pytest.skip("this kernel has no seccomp")
    assert (held["Seccomp"], held["NoNewPrivs"], held["Threads"]) == ("2", "1", "1")


def test_the_child_cannot_change_the_file() -> None:
    with open_pdf(pdf(GRAY)) as document, pytest.raises(PermissionError):
        os.pwrite(document._file, b"x", 0)


@pytest.mark.parametrize(
    ("landlock", "seccomp", "expected"), [(0, True, ["no Landlock"]), (3, False, ["no seccomp"]), (3, True, [])]
)
def test_missing_kernel_features_are_reported_once(
    landlock: int, seccomp: bool, expected: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    child_process._log_once.cache_clear()
    for _ in range(2):
        child_process._check_ready("ready", [landlock, seccomp])
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(expected)
    assert all(one in whole for one, whole in zip(expected, warnings, strict=True))


@pytest.mark.parametrize("gray", [True, False])
def test_a_page_is_measured_without_drawing_it(gray: bool) -> None:
    taken: list[int] = []
    with closing(open_document(pdf(GRAY), PixelLimits(MEGAPIXEL), 200, bool, bool)) as document:
        drawn = document.open(1, gray=gray, check=bool, take=taken.append)
    assert sum(taken) == getattr(drawn, "pixels").nbytes  # noqa: B009  the type does not include images


def test_the_text_layer_child_is_held_to_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([0.0] + [100.0] * 1000)
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))
    monkeypatch.setattr(child_process, "_POLL_S", 0.01)
    with pytest.raises(DeadlineExceeded):
        draw_text()
