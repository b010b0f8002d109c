"""Verdicts on versions, kept where all workers see them: by proof, and by loads that have ended workers.

What was accepted stays accepted: after an upgrade of the service, models that have served go on serving. What was
refused is tried again when what that depends on has changed: the machine's processor, the programs, its files, or the
reference pages. What cannot be listed, for its description or its key, has no verdict.

One worker proves a version, the one that gets the lock, which the kernel gives to another should this one die.

Each load of a version has a file in the state folder while it lasts, locked by the process that loads. A process that
ends in order removes it; one that is left without a lock is of a process that died, and counts while the arbiter is the
same: what ends the whole service says nothing of a model.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final

from ocrsvc import __version__
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import EngineUnavailable
from ocrsvc.models.catalogue import Catalogue
from ocrsvc.models.model_control import PROOF_LOCK, ModelControl
from ocrsvc.models.proof.prover import Judgement, Stopped
from ocrsvc.models.proof.reference_pages import reference_folders
from ocrsvc.models.state import StateStore, Verdict
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_PROOF_SECONDS, MODEL_REFUSALS

LOGGER: Final = logging.getLogger("ocrsvc.models")
# Characters: names in a model's files can be long.
MOST_REASON: Final = 1000
_PROGRAMS: Final = ("onnxruntime", "onnxruntime-gpu", "openvino", "numpy", "opencv-python-headless", "rapidocr")
# After which a version is tried again that the machine did not let be tried.
RETRY_S: Final = 60.0
# Proves a version beside the one that serves; see `prover.py`.
Prove = Callable[[ModelVersion, ModelVersion | None], Judgement]
# One may be chance: a worker that the kernel chose when memory ran out.
MOST_CRASHES: Final = 3
LOADS_FOLDER: Final = "loading"


class Verdicts:
    """The verdicts of a machine; for any thread and process. What raises OperatorError cannot write the state."""

    def __init__(self, settings: Settings, store: StateStore, metrics: WorkerMetrics | None = None) -> None:
        self._repository, self._machine = settings.models, machine_basis(settings)
        self._store, self._metrics = store, metrics

    def basis_of(self, version: ModelVersion) -> str:
        """What a refusal of a version depends on; to be taken before it is tried: it may be copied again meanwhile."""
        files = [version.folder / file for file in version.digests]
        for folder in reference_folders(self._repository, version):
            files += [folder, *folder.glob("*")]
        return f"{self._machine}-{max(map(_changed_ns, files), default=0)}"

    def keep(self, version: ModelVersion, found: Judgement, basis: str) -> None:
        """Keep, log and count what was found of a version. Raises OperatorError."""
        reason = found.reason if len(found.reason) <= MOST_REASON else f"{found.reason[:MOST_REASON]}…"
        figures, kind, is_good = dict(found.figures), found.kind or "", found.kind is None
        verdict = Verdict(accepted=is_good, reason=reason, figures=figures, at=time.time(), kind=kind, basis=basis)
        self._store.record_verdict(version.digest, verdict)
        if is_good:
            LOGGER.info("ACCEPTED %s: %s", version, reason)
            return
        LOGGER.error("REFUSED %s (%s): %s", version, kind, reason)
        if self._metrics is not None:
            self._metrics.count(MODEL_REFUSALS, kind)

    def forget_outdated(self, catalogue: Catalogue) -> None:
        """Have versions proved again whose refusals do not hold any more. Raises OperatorError."""
        refused = [version for version in catalogue.scan.versions if catalogue.is_refused(version)]
        verdicts = catalogue.state.verdicts
        changed = [one for one in refused if verdicts[one.digest].basis != self.basis_of(one)]
        if changed:
            names = ", ".join(map(str, changed))
            LOGGER.info("%s: refused, and tried again: files, reference pages, machine or programs changed", names)
            self._store.change(lambda state: state.without_verdicts(version.digest for version in changed))


class CandidateProver:
    """Belongs to one worker; for one thread at a time."""

    def __init__(
        self,
        control: ModelControl,
        prove: Prove,
        verdicts: Verdicts,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._prove, self._verdicts = control, prove, verdicts
        self._metrics, self._clock = metrics, clock
        self._not_before_s: dict[str, float] = {}
        self._killed: set[str] = set()

    def is_wanted(self, catalogue: Catalogue, name: str | None = None) -> bool:
        """Whether there is anything to prove now, of one model or of all."""
        return self._next(catalogue, name) is not None

    def run(self, name: str | None = None) -> None:
        """Prove what there is of one model or of all, unless another worker does. Raises OcrsvcError."""
        is_ours, catalogue = True, self._control.rescan()
        while is_ours and (candidate := self._next(catalogue, name)) is not None:
            with self._control.store.locked(PROOF_LOCK, candidate.digest) as is_ours:
                # Another worker may have had the lock until now.
                catalogue = self._control.rescan()
                if is_ours and candidate in catalogue.candidates:
                    with contextlib.suppress(Stopped):
                        self._prove_one(candidate, catalogue)
                    catalogue = self._control.rescan()

    def _next(self, catalogue: Catalogue, name: str | None) -> ModelVersion | None:
        now_s = self._clock()
        wanted = (one for one in catalogue.candidates if name in (None, one.name))
        return next((one for one in wanted if self._not_before_s.get(one.digest, now_s) <= now_s), None)

    def _prove_one(self, candidate: ModelVersion, catalogue: Catalogue) -> None:
        """Raises Stopped, OcrsvcError."""
        began_s, basis, digest = self._clock(), self._verdicts.basis_of(candidate), candidate.digest
        model = catalogue.models[candidate.name]
        serving = model.target or next(iter(model.accepted), None)
        # Should the verdict not be kept, this worker does not begin again at once.
        self._not_before_s[digest] = began_s + RETRY_S
        LOGGER.info("PROVING %s, beside %s", candidate, serving or "no other version")
        found = self._prove(candidate, serving)
        if found.kind == "killed" and digest in self._killed:
            # Once may be bad luck.
            found = replace(found, kind="crash")
        if found.kind in ("gone", "unknown", "killed"):
            self._killed |= {digest} if found.kind == "killed" else set()
            self._not_before_s[digest] = self._clock() + RETRY_S
            LOGGER.warning("UNPROVED %s, and tried again later: %s", candidate, found.reason)
            return
        self._metrics.record((), [(MODEL_PROOF_SECONDS.of(), self._clock() - began_s)])
        self._verdicts.keep(candidate, found, basis)
        # A refusal that holds no more is not waited for.
        del self._not_before_s[digest]


class CrashGuard:
    """Refuses a version that ends workers while they load it, though it has proved itself: no worker would live."""

    def __init__(self, state: Path, verdicts: Verdicts) -> None:
        self._folder, self._verdicts = state / LOADS_FOLDER, verdicts

    @contextlib.contextmanager
    def loading(self, version: ModelVersion) -> Iterator[None]:
        """A version is loaded within the block. Raises EngineUnavailable where it is refused: others died of that."""
        if version.is_built_in:
            yield
            return
        died = self._died(version)
        if len(died) >= MOST_CRASHES:
            reason = f"{len(died)} workers ended while they loaded it."
            found = Judgement("crash", reason)
            self._verdicts.keep(version, found, self._verdicts.basis_of(version))
            # Should an operator have it forgotten, it begins anew.
            _remove(died)
            raise EngineUnavailable(f"The model {version} is refused: {reason}", "See `ocrsvc models list`.")
        with contextlib.ExitStack() as stack:
            # Where nothing can be written there is no verdict either.
            with contextlib.suppress(OSError):
                self._mark(version, stack)
            yield
        # It was loaded, or said why not.
        _remove(died)

    def _mark(self, version: ModelVersion, stack: contextlib.ExitStack) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark = self._folder / f"{version.digest}.{_arbiter()}.{secrets.token_hex(8)}"
        opened = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, opened)
        stack.callback(_remove, [mark])
        fcntl.flock(opened, fcntl.LOCK_EX)
        # The thread that loads does not keep a process that is to end.
        remove = atexit.register(partial(_remove, [mark]))
        stack.callback(atexit.unregister, remove)

    def _died(self, version: ModelVersion) -> list[Path]:
        """Marks of processes of this arbiter that died while they loaded a version; others are removed."""
        with contextlib.suppress(OSError):
            left = [mark for mark in self._folder.glob(f"{version.digest}.*") if _is_left(mark)]
            ours = [mark for mark in left if mark.name.split(".")[1] == _arbiter()]
            _remove([mark for mark in left if mark not in ours])
            return ours
        return []


def machine_basis(settings: Settings, processors: Path = Path("/proc/cpuinfo")) -> str:
    """Names the processor, the programs, and the settings that models are computed with."""
    parts = [__version__, platform.machine(), _processor(processors)]
    parts += [settings.device, settings.provider, settings.precision, str(settings.models_code)]
    parts += [f"{name} {version}" for name in _PROGRAMS if (version := _version_of(name))]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _changed_ns(file: Path) -> int:
    """A copy that keeps the original's time of change counts as well."""
    try:
        return file.stat().st_ctime_ns
    except OSError:
        return 0


def _processor(processors: Path) -> str:
    try:
        lines = processors.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _arbiter() -> str:
    """The process that this one was forked from, and when that began."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        return f"{parent}-{Path(f'/proc/{parent}/stat').read_text().rpartition(')')[2].split()[19]}"
    return str(parent)


def _is_left(mark: Path) -> bool:
    try:
        with mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(marks: list[Path]) -> None:
    for mark in marks:
        with contextlib.suppress(OSError):
            mark.unlink()
