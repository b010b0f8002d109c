"""Proves a version: has it and the one that serves measured, each in a process of its own, one after the other.

Both read the same pages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

from ocrsvc.engines.model.version import ModelVersion, VersionName
from ocrsvc.models.proof.judgement import FailureKind, Judgement, Measurement, Stopped, judge, unpack
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
# A service that is stopped sends them to all its processes, also to one that does not ignore them yet; and the kernel
# kills when memory runs out, for which others may be to blame.
_SENT_BY_OTHERS: Final[Mapping[int, FailureKind]] = {
    **dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), "unknown"),
    signal.SIGKILL: "killed",
}


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
