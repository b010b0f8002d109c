"""Proves a version: measures it and the serving version, each in its own process, and compares them.

Both read the same pages, one after the other. Text is compared by words in any order: a word is one CJK character, or a
run of other letters and digits, after NFKC and case folding; line breaks, spaces and punctuation are ignored.
"""

import contextlib
import os
import re
import signal
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from ocrsvc.engines.model.description import Reference
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.models.state import FailureKind, Judgement, Stopped
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.child_process import Program, describe_exit
from ocrsvc.system.memory import read_memory_bytes, read_private_bytes
from ocrsvc.system.sandbox import lower_priority
from ocrsvc.system.thread_plan import ThreadPlan, device_for, set_library_environment

_PROGRAM: Final = "ocrsvc.models.proof.measure"
_POLL_S: Final = 0.05
_END_S: Final = 0.005
_MAX_RESULT: Final = 16 << 20
_MIB: Final = 1 << 20
# The kernel's limit is higher by this than the limit of memory in use, because libraries and stacks reserve more
# memory than they use. Memory in use is polled; the kernel's limit stops growth between two polls.
_RESERVED_BYTES: Final = 1 << 30
_LATE_FACTOR: Final = 10  # multiple of the time limit, in wall time, after which the machine is blamed, not the version
_NICE: Final = 10
# Differences in seconds per page up to this are measurement noise.
_SLACK_S: Final = 0.005
_SLACK_BYTES: Final = 16 << 20
_CJK: Final = "㐀-鿿豈-﫿぀-ヿ가-힯"
_WORD: Final = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_])+")
# These signals are not the version's fault: a stopping service sends them, or the kernel when memory runs out.
_SENT_BY_OTHERS: Final[Mapping[int, FailureKind]] = {
    **dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), "unknown"),
    signal.SIGKILL: "killed",
}


@dataclass(frozen=True, slots=True)
class PageMeasurement:
    """What a version read on a reference page, and the shortest wall and CPU time of several tries (all threads).

    `expected` is None if the page has no reference text; `text` has one line per line of the page.
    """

    name: str
    expected: str | None
    text: str
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """A version's results for all pages on the device "cpu" or "cuda".

    `private_bytes` is the peak private memory of its process while it read, interpreter included.
    """

    version: str
    device: str
    private_bytes: int
    pages: tuple[PageMeasurement, ...]

    @property
    def page_s(self) -> float:
        """Mean time per page: CPU time, or on a GPU wall time."""
        times_s = [page.wall_s if self.device == "cuda" else page.cpu_s for page in self.pages]
        return sum(times_s) / max(1, len(times_s))


@dataclass(frozen=True, slots=True)
class Prover:
    """Proves model versions in child processes, which end with the thread that started them. Not thread-safe.

    Polls `is_stopping`, and stops a proof when it is true.
    """

    settings: Settings
    plan: ThreadPlan
    is_stopping: Callable[[], bool]

    def prove(self, candidate: ModelVersion, serving: ModelVersion | None) -> Judgement:
        """Judge whether a version may take traffic, compared with the serving one. Raises Stopped."""
        max_bytes = bytes_of(self.settings.models_proof_memory, read_memory_bytes()) or 0
        baseline = self._measure(serving, candidate, max_bytes) if serving is not None else None
        if isinstance(baseline, Judgement) and baseline.kind in ("reference", "unknown", "killed"):
            return Judgement("reference" if baseline.kind == "reference" else "unknown", baseline.reason)
        measured = self._measure(candidate, candidate, max_bytes)
        return judge(measured, baseline if isinstance(baseline, Measurement) else None, candidate.description.reference)

    def _measure(self, version: ModelVersion, pages_of: ModelVersion, max_bytes: int) -> Measurement | Judgement:
        """Measure a version, in its own process, on the reference pages of `pages_of`. Raises Stopped."""
        result = os.memfd_create("proof", os.MFD_CLOEXEC)
        environ = dict(os.environ)
        set_library_environment(environ)
        # With CUDA, set no limit in the kernel: CUDA reserves much more memory than it uses.
        limit_bytes = 0 if device_for(self.settings) == "cuda" else max_bytes + _RESERVED_BYTES
        try:
            program = Program(_PROGRAM, (os.getpid(), limit_bytes, result), (result,), environ=environ)
        except OSError as error:
            os.close(result)
            return Judgement("unknown", f"The trial process cannot be started: {error.strerror}.")
        try:
            lower_priority(program.process.pid, _NICE)
            program.wire.send(self._message(version, pages_of))
            failure = self._wait(program, max_bytes)
            return failure or _outcome(program.process.returncode, os.pread(result, _MAX_RESULT, 0))
        except OSError as error:
            return Judgement("unknown", f"The trial process does not work: {error.strerror}.")
        finally:
            program.end()
            os.close(result)

    def _message(self, version: ModelVersion, pages_of: ModelVersion) -> bytes:
        key = version.key or pages_of.key
        names = {"version": version.reference, "pages_of": pages_of.reference}
        fields = {"settings": self.settings.model_dump(mode="json"), "plan": asdict(self.plan), **names}
        return orjson.dumps({**fields, "model_key": None if key is None else key.expose()})

    def _wait(self, program: Program, max_bytes: int) -> Judgement | None:
        """Wait until the process ends; returns a refusal if it exceeds a limit. Raises Stopped."""
        pid, began_s, limit_s = program.process.pid, time.monotonic(), self.settings.models_proof_s
        while not _has_ended(program):
            if self.is_stopping():
                raise Stopped
            if read_private_bytes(Path(f"/proc/{pid}/statm")) > max_bytes:
                return Judgement("memory", f"It exceeds its memory limit of {max_bytes // _MIB} MiB.")
            took_s = time.monotonic() - began_s
            if took_s - _waited_for_cpu_s(pid) > limit_s:
                return Judgement("late", f"It did not open and read the reference pages within {limit_s:g} s.")
            if took_s > _LATE_FACTOR * limit_s:
                return Judgement("unknown", f"The machine was too busy to try it within {took_s:.0f} s.")
        return None


def _has_ended(program: Program) -> bool:
    """Wait a moment for the process to end; returns whether it has."""
    program.wire.settimeout(_POLL_S)
    with contextlib.suppress(TimeoutError, OSError):
        if not program.wire.recv(1):
            time.sleep(_END_S)
    return program.process.poll() is not None


def _waited_for_cpu_s(pid: int) -> float:
    """How long the process has waited for a free CPU; 0 if the kernel does not report it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _outcome(code: int, message: bytes) -> Measurement | Judgement:
    if code >= 0:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return unpack(message)
    return Judgement(_SENT_BY_OTHERS.get(-code, "crash"), f"The trial process ended with {describe_exit(code)}.")


def unpack(message: bytes) -> Measurement | Judgement:
    """Unpack the JSON of an outcome. Raises ValueError, TypeError or KeyError if it is invalid."""
    fields: dict[str, Any] = orjson.loads(message)
    if "pages" not in fields:
        return Judgement(**fields)
    pages = tuple(PageMeasurement(**page) for page in fields.pop("pages"))
    return Measurement(**fields, pages=pages)


def judge(candidate: Measurement | Judgement, serving: Measurement | None, bounds: Reference) -> Judgement:
    """Compare a version's results with the serving version's, within the bounds of its description."""
    if isinstance(candidate, Judgement):
        return candidate
    f1, source = agreement(candidate, serving)
    figures = {"page_s": candidate.page_s, "private_bytes": float(candidate.private_bytes)}
    figures |= {} if f1 is None else {"words_f1": f1}
    if serving is not None:
        figures |= {"serving_page_s": serving.page_s, "serving_private_bytes": float(serving.private_bytes)}
    if f1 is not None and f1 < bounds.least_f1:
        reason = f"It reads {_floor(f1)} of the words of {source} (F1 on reference pages)"
        return Judgement("text", f"{reason}; required is at least {bounds.least_f1:g}.", figures)
    if serving is not None and candidate.page_s > bounds.most_slower * serving.page_s + _SLACK_S:
        ratio = candidate.page_s / max(serving.page_s, 1e-9)
        reason = f"It takes {candidate.page_s:.3f} s per reference page, {ratio:.1f} times the {serving.page_s:.3f} s"
        limit = f"at most {bounds.most_slower:g} times is allowed"
        return Judgement("slow", f"{reason} of {serving.version}; {limit}.", figures)
    if serving is not None and candidate.private_bytes > bounds.most_memory * serving.private_bytes + _SLACK_BYTES:
        serving_memory = f"{serving.version} {serving.private_bytes // _MIB} MiB"
        reason = f"It takes {candidate.private_bytes // _MIB} MiB, and {serving_memory}"
        return Judgement("memory", f"{reason}; at most {bounds.most_memory:g} times that is allowed.", figures)
    words = "there is no text to compare with" if f1 is None else f"{_floor(f1)} of the words of {source}"
    comparison = f"; {serving.version}: {_cost(serving)}" if serving is not None else ""
    summary = f"Reference pages: {len(candidate.pages)}; {words}; {_cost(candidate)}{comparison}."
    return Judgement(None, summary, figures)


def agreement(candidate: Measurement, serving: Measurement | None) -> tuple[float | None, str]:
    """Word F1 of the candidate's text, and where the expected text comes from; the F1 is None without expected text."""
    expected = [page.expected for page in candidate.pages]
    source = "the reference texts" if any(text is not None for text in expected) else ""
    if serving is not None:
        others = [page.text for page in serving.pages]
        source = source if None not in expected else f"{source} and {serving.version}" if source else serving.version
        expected = [own if own is not None else other for own, other in zip(expected, others, strict=True)]
    pairs = zip(expected, candidate.pages, strict=True)
    return words_f1((text, page.text) for text, page in pairs if text is not None), source


def words_f1(pairs: Iterable[tuple[str, str]]) -> float | None:
    """F1 of the words of all pages; `pairs` are expected and read text. None without expected words."""
    common = expected_count = read_count = 0
    for expected_text, read_text in pairs:
        expected, read = _words_of(expected_text), _words_of(read_text)
        common += (expected & read).total()
        expected_count += expected.total()
        read_count += read.total()
    return 2 * common / (expected_count + read_count) if expected_count else None


def _words_of(text: str) -> Counter[str]:
    return Counter(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _cost(measured: Measurement) -> str:
    return f"{measured.page_s:.3f} s per page, {measured.private_bytes // _MIB} MiB"


def _floor(f1: float) -> str:
    """Format an F1 value with two digits, rounded down, so that a value below a bound does not look equal to it."""
    return f"{int(100 * f1) / 100:.2f}"
