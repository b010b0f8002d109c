"""Proves a version: has it and the one that serves measured, each in a process of its own, and compares them.

Both read the same pages, one after the other. Text is compared by words, in any order: a word is one CJK character, or
a run of other letters and digits, after Unicode's NFKC and case folding; line breaks, spaces and punctuation do not
count.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from ocrsvc.engines.model.description import Reference
from ocrsvc.engines.model.version import ModelVersion, VersionName
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.child_process import Program
from ocrsvc.system.memory import read_memory_bytes, read_private_bytes
from ocrsvc.system.sandbox import lower_priority
from ocrsvc.system.thread_plan import ThreadPlan, device_for, set_library_environment

_PROGRAM: Final = "ocrsvc.models.proof.measure"
_POLL_S: Final = 0.05
_END_S: Final = 0.005
_MOST_RESULT: Final = 16 << 20
_MIB: Final = 1 << 20
# Libraries reserve more than they use, threads their stacks: the kernel's limit is for what comes too fast to be seen,
# ours is for what was taken.
_RESERVED_BYTES: Final = 1 << 30
# A machine that gives a process less than a part of this says nothing of a version that is late.
_LATE_FACTOR: Final = 10
_NICE: Final = 10
# Less than this a page is what measuring itself costs.
_SLACK_S: Final = 0.005
_SLACK_BYTES: Final = 16 << 20
_CJK: Final = "㐀-鿿豈-﫿぀-ヿ가-힯"
_WORD: Final = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_])+")
# Why a version is refused: its files are not those of its manifest; a reference page is missing or unreadable; it does
# not open; it fails on a page; it answers what no page can be; it reads too little; it is too slow; it takes too much
# memory; its process crashed; it did not end in time.
RefusalKind = Literal["files", "reference", "open", "failed", "nonsense", "text", "slow", "memory", "crash", "late"]
# Also: the version is not on the disk any more, or is another one by now; the machine did not let it be measured; its
# process was killed. These say nothing of the version, unless it is killed again.
FailureKind = RefusalKind | Literal["gone", "unknown", "killed"]
# A service that is stopped sends them to all its processes, also to one that does not ignore them yet; and the kernel
# kills when memory runs out, for which others may be to blame.
_SENT_BY_OTHERS: Final[Mapping[int, FailureKind]] = {
    **dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), "unknown"),
    signal.SIGKILL: "killed",
}


@dataclass(frozen=True, slots=True)
class PageMeasurement:
    """One reference page as a version read it, and the quickest of several readings, all threads together.

    `wanted` is None where no text is given for the page; `text` has a line of the page in a line.
    """

    name: str
    wanted: str | None
    text: str
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """All pages as a version read them on "cpu" or "cuda".

    `private_bytes` is the most memory of its own that its process had while it read, the interpreter's included.
    """

    version: str
    device: str
    private_bytes: int
    pages: tuple[PageMeasurement, ...]

    @property
    def page_s(self) -> float:
        """Seconds a page: of the processor, or on a GPU those that passed."""
        times_s = [page.wall_s if self.device == "cuda" else page.cpu_s for page in self.pages]
        return sum(times_s) / max(1, len(times_s))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a proof has found; `kind` is None for a version that may take traffic, figures have units in their names."""

    kind: FailureKind | None
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


class Stopped(Exception):
    """The worker is to go; nothing was found out."""


@dataclass(frozen=True, slots=True)
class Prover:
    """Makes proofs, asking `is_stopping` meanwhile. For one thread, which must be there until the proof is made.

    The processes end with that thread.
    """

    settings: Settings
    plan: ThreadPlan
    is_stopping: Callable[[], bool]

    def prove(self, candidate: ModelVersion, serving: ModelVersion | None) -> Judgement:
        """Whether a version may take traffic beside the one that serves now. Raises Stopped."""
        most_bytes = bytes_of(self.settings.models_proof_memory, read_memory_bytes()) or 0
        beside = self._measure(serving, candidate, most_bytes) if serving is not None else None
        if isinstance(beside, Judgement) and beside.kind in ("reference", "unknown", "killed"):
            return Judgement("reference" if beside.kind == "reference" else "unknown", beside.reason)
        measured = self._measure(candidate, candidate, most_bytes)
        return judge(measured, beside if isinstance(beside, Measurement) else None, candidate.description.reference)

    def _measure(self, version: ModelVersion, pages_of: ModelVersion, most_bytes: int) -> Measurement | Judgement:
        """Raises Stopped."""
        result = os.memfd_create("proof", os.MFD_CLOEXEC)
        environ = dict(os.environ)
        set_library_environment(environ)
        # What CUDA maps for itself is no measure of a model.
        limit_bytes = 0 if device_for(self.settings) == "cuda" else most_bytes + _RESERVED_BYTES
        try:
            program = Program(_PROGRAM, (os.getpid(), limit_bytes, result), (result,), environ=environ)
        except OSError as error:
            os.close(result)
            return Judgement("unknown", f"There is no process to try it in: {error.strerror}.")
        try:
            lower_priority(program.process.pid, _NICE)
            program.wire.send(self._message(version, pages_of))
            failure = self._wait(program, most_bytes)
            return failure or _outcome(program.process.returncode, os.pread(result, _MOST_RESULT, 0))
        except OSError as error:
            return Judgement("unknown", f"The process to try it in does not work: {error.strerror}.")
        finally:
            program.end()
            os.close(result)

    def _message(self, version: ModelVersion, pages_of: ModelVersion) -> bytes:
        key = version.key or pages_of.key
        fields: Mapping[str, object] = {
            "settings": self.settings.model_dump(mode="json"),
            "plan": asdict(self.plan),
            "version": asdict(VersionName.of(version)),
            "pages_of": asdict(VersionName.of(pages_of)),
            "model_key": None if key is None else key.expose(),
        }
        return orjson.dumps(fields)

    def _wait(self, program: Program, most_bytes: int) -> Judgement | None:
        """Until the process ends by itself, or has to be ended. Raises Stopped."""
        pid, began_s, limit_s = program.process.pid, time.monotonic(), self.settings.models_proof_s
        while not _has_ended(program):
            if self.is_stopping():
                raise Stopped
            if read_private_bytes(Path(f"/proc/{pid}/statm")) > most_bytes:
                return Judgement("memory", f"It takes more than {most_bytes // _MIB} MiB, which is what it was given.")
            took_s = time.monotonic() - began_s
            if took_s - _waited_for_processor_s(pid) > limit_s:
                return Judgement("late", f"It has not opened and read the reference pages within {limit_s:g} s.")
            if took_s > _LATE_FACTOR * limit_s:
                return Judgement("unknown", f"The machine has had no time to try it within {took_s:.0f} s.")
        return None


def _has_ended(program: Program) -> bool:
    """Whether the process is gone; waits for that for a moment."""
    program.wire.settimeout(_POLL_S)
    with contextlib.suppress(TimeoutError, OSError):
        if not program.wire.recv(1):
            time.sleep(_END_S)
    return program.process.poll() is not None


def _waited_for_processor_s(pid: int) -> float:
    """How long the process would have run, had a processor been free; 0 where the kernel does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _outcome(code: int, message: bytes) -> Measurement | Judgement:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return Judgement(_SENT_BY_OTHERS.get(-code, "crash"), f"The process that tried it was ended by {name}.")
    try:
        return unpack(message)
    except (ValueError, TypeError, KeyError):
        return Judgement("crash", f"The process that tried it ended with code {code}, and no answer.")


def pack(outcome: Measurement | Judgement) -> bytes:
    """As a message from the process."""
    return orjson.dumps(outcome)


def unpack(message: bytes) -> Measurement | Judgement:
    """The outcome of a message. Raises ValueError, TypeError or KeyError for what is none."""
    fields: dict[str, Any] = orjson.loads(message)
    if "pages" not in fields:
        return Judgement(**fields)
    pages = tuple(PageMeasurement(**page) for page in fields.pop("pages"))
    return Measurement(**fields, pages=pages)


def judge(candidate: Measurement | Judgement, serving: Measurement | None, bounds: Reference) -> Judgement:
    """Compare a version with the bounds of its description, and with the version that serves, if there is one."""
    if isinstance(candidate, Judgement):
        return candidate
    f1, source = agreement(candidate, serving)
    figures = {"page_s": candidate.page_s, "private_bytes": float(candidate.private_bytes)}
    figures |= {} if f1 is None else {"words_f1": f1}
    if serving is not None:
        figures |= {"serving_page_s": serving.page_s, "serving_private_bytes": float(serving.private_bytes)}
    if f1 is not None and f1 < bounds.least_f1:
        what = f"It reads {_floor(f1)} of the words of {source} (F1 on reference pages); at least {bounds.least_f1:g}"
        return Judgement("text", f"{what} is wanted.", figures)
    if serving is not None and candidate.page_s > bounds.most_slower * serving.page_s + _SLACK_S:
        times = candidate.page_s / max(serving.page_s, 1e-9)
        what = f"It takes {candidate.page_s:.3f} s a reference page, {times:.1f} times the {serving.page_s:.3f} s of "
        return Judgement("slow", f"{what}{serving.version}; at most {bounds.most_slower:g} times is wanted.", figures)
    if serving is not None and candidate.private_bytes > bounds.most_memory * serving.private_bytes + _SLACK_BYTES:
        theirs = f"{serving.version} {serving.private_bytes // _MIB} MiB"
        what = f"It takes {candidate.private_bytes // _MIB} MiB, and {theirs}; at most {bounds.most_memory:g} times as"
        return Judgement("memory", f"{what} much is wanted.", figures)
    read = "there is no text to compare with" if f1 is None else f"{_floor(f1)} of the words of {source}"
    beside = f"; {serving.version}: {_cost(serving)}" if serving is not None else ""
    summary = f"Reference pages: {len(candidate.pages)}; {read}; {_cost(candidate)}{beside}."
    return Judgement(None, summary, figures)


def agreement(candidate: Measurement, serving: Measurement | None) -> tuple[float | None, str]:
    """The F1 of the words read, and whose words; None where there is no text to compare with."""
    wanted = [page.wanted for page in candidate.pages]
    source = "the reference texts" if any(text is not None for text in wanted) else ""
    if serving is not None:
        others = [page.text for page in serving.pages]
        source = source if None not in wanted else f"{source} and {serving.version}" if source else serving.version
        wanted = [own if own is not None else other for own, other in zip(wanted, others, strict=True)]
    pairs = zip(wanted, candidate.pages, strict=True)
    return words_f1((want, page.text) for want, page in pairs if want is not None), source


def words_f1(pairs: Iterable[tuple[str, str]]) -> float | None:
    """Of the words of all pages, each the text wanted and the one read; None where no word is wanted."""
    common = wanted_count = read_count = 0
    for wanted_text, read_text in pairs:
        wanted, read = _words_of(wanted_text), _words_of(read_text)
        common += (wanted & read).total()
        wanted_count += wanted.total()
        read_count += read.total()
    return 2 * common / (wanted_count + read_count) if wanted_count else None


def _words_of(text: str) -> Counter[str]:
    return Counter(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _cost(one: Measurement) -> str:
    return f"{one.page_s:.3f} s a page, {one.private_bytes // _MIB} MiB"


def _floor(f1: float) -> str:
    """Two digits, never rounded up to a bound that was missed."""
    return f"{int(100 * f1) / 100:.2f}"
