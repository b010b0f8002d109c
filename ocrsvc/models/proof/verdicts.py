"""Verdicts on versions, shared by all workers: from proofs, and from loads that crashed workers.

Accepted versions stay accepted, so models keep serving after an upgrade of the service. Refused versions are proved
again when the CPU, the programs, the version's files or the reference pages change. Versions that cannot be opened, for
example without their key, have no verdict.

The worker that holds a lock proves a version; the kernel releases the lock if that worker dies.

Each load has a mark file in the state folder, locked by the loading process, which removes it at the end. An unlocked
mark belongs to a process that died, and counts only while the arbiter is the same: a crash of the whole service says
nothing about a model.
"""

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
from ocrsvc.errors import EngineUnavailable, OperatorError
from ocrsvc.models.catalogue import Catalogue
from ocrsvc.models.model_control import PROOF_LOCK, ModelControl
from ocrsvc.models.proof.reference_pages import reference_folders
from ocrsvc.models.state import Judgement, StateStore, Stopped, Verdict, is_unlocked
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_PROOF_SECONDS, MODEL_REFUSALS

LOGGER: Final = logging.getLogger("ocrsvc.models")
MAX_REASON: Final = 1000  # length limit of a reason, in characters, as it may contain long file names
_PROGRAMS: Final = ("onnxruntime", "onnxruntime-gpu", "openvino", "numpy", "opencv-python-headless", "rapidocr")
RETRY_S: Final = 60.0  # time until a version is proved again, after a fault of the machine prevented a verdict
Prove = Callable[[ModelVersion, ModelVersion | None], Judgement]  # the signature of Prover.prove
MAX_CRASHES: Final = 3  # crashed loads until a refusal; fewer may have other causes, such as the OOM killer
LOADS_FOLDER: Final = "loading"
# Outcomes of a proof that give no verdict, because they say nothing about the version.
UNDECIDED: Final = ("gone", "unknown", "killed")


class Verdicts:
    """Stores the proofs' verdicts on versions for all workers of a machine; safe for any thread and process."""

    def __init__(self, settings: Settings, store: StateStore, metrics: WorkerMetrics | None = None) -> None:
        self._repository, self._machine = settings.models, machine_cache_key(settings)
        self._store, self._metrics = store, metrics

    def cache_key_of(self, version: ModelVersion) -> str:
        """Key that changes with all that a verdict depends on: a refusal with another key is outdated.

        Call this before the proof reads the files: if they change meanwhile, the verdict must be outdated.
        """
        files = [version.folder / file for file in version.digests]
        for folder in reference_folders(self._repository, version):
            files += [folder, *folder.glob("*")]
        return f"{self._machine}-{max(map(_changed_ns, files), default=0)}"

    def keep(self, version: ModelVersion, judgement: Judgement, basis: str) -> None:
        """Store, log and count a proof's outcome; `cache_key_of` returned `basis` before it. Raises OperatorError."""
        reason = judgement.reason
        reason = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"
        figures, kind, accepted = dict(judgement.figures), judgement.kind or "", judgement.kind is None
        verdict = Verdict(accepted=accepted, reason=reason, figures=figures, at=time.time(), kind=kind, basis=basis)
        self._store.record_verdict(version.digest, verdict)
        if accepted:
            LOGGER.info("ACCEPTED %s: %s", version, reason)
            return
        LOGGER.error("REFUSED %s (%s): %s", version, kind, reason)
        if self._metrics is not None:
            self._metrics.count(MODEL_REFUSALS, kind)

    def forget_outdated(self, catalogue: Catalogue) -> None:
        """Remove refusals whose proof is outdated, so that the versions are proved again. Raises OperatorError."""
        refused = [version for version in catalogue.scan.versions if catalogue.is_refused(version)]
        verdicts = catalogue.state.verdicts
        changed = [version for version in refused if verdicts[version.digest].basis != self.cache_key_of(version)]
        if changed:
            names = ", ".join(map(str, changed))
            LOGGER.info("%s: proved again, for files, reference pages, machine or programs have changed", names)
            self._store.change(lambda state: state.without_verdicts(version.digest for version in changed))


class CandidateProver:
    """Proves, in one worker, versions that have no verdict yet; used by one thread at a time."""

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
        """Whether a version of the model `name`, or of any model, lacks a verdict and may be proved now."""
        return self._next(catalogue, name) is not None

    def run(self, name: str | None = None) -> None:
        """Prove versions without a verdict, of one model or all; return if another worker does. Raises OcrsvcError."""
        is_ours, catalogue = True, self._control.rescan()
        while is_ours and (candidate := self._next(catalogue, name)) is not None:
            with self._control.store.locked(PROOF_LOCK, candidate.digest) as is_ours:
                # Scan again: another worker may have held the lock until now, and stored verdicts.
                catalogue = self._control.rescan()
                if is_ours and candidate in catalogue.candidates:
                    with contextlib.suppress(Stopped):
                        self._prove_one(candidate, catalogue)
                    catalogue = self._control.rescan()

    def _next(self, catalogue: Catalogue, name: str | None) -> ModelVersion | None:
        now_s = self._clock()
        wanted = (version for version in catalogue.candidates if name in (None, version.name))
        return next((version for version in wanted if self._not_before_s.get(version.digest, now_s) <= now_s), None)

    def _prove_one(self, candidate: ModelVersion, catalogue: Catalogue) -> None:
        """Prove a candidate, and keep the verdict. Raises Stopped, OcrsvcError."""
        began_s, basis, digest = self._clock(), self._verdicts.cache_key_of(candidate), candidate.digest
        model = catalogue.models[candidate.name]
        serving = model.target or next(iter(model.accepted), None)
        # If the verdict cannot be stored, this worker waits before it tries again.
        self._not_before_s[digest] = began_s + RETRY_S
        LOGGER.info("PROVING %s, beside %s", candidate, serving or "no other version")
        judgement = self._prove(candidate, serving)
        if judgement.kind == "killed" and digest in self._killed:
            # After a second kill, blame the version; a first kill may have another cause.
            judgement = replace(judgement, kind="crash")
        if judgement.kind in UNDECIDED:
            self._killed |= {digest} if judgement.kind == "killed" else set()
            self._not_before_s[digest] = self._clock() + RETRY_S
            LOGGER.warning("UNPROVED %s, and tried again later: %s", candidate, judgement.reason)
            return
        self._metrics.record((), [(MODEL_PROOF_SECONDS.of(), self._clock() - began_s)])
        self._verdicts.keep(candidate, judgement, basis)
        # The verdict is stored: if it becomes outdated, the version may be proved again immediately.
        del self._not_before_s[digest]


def prove_by_command(version: ModelVersion, control: ModelControl, prove: Prove, verdicts: Verdicts) -> Judgement:
    """Prove a version against the serving one, as a worker does; store the verdict unless there already is one."""
    catalogue, basis = control.catalogue(), verdicts.cache_key_of(version)
    model, before = catalogue.models[version.name], catalogue.verdict(version)
    if before is not None and before.accepted:
        return prove(version, None)
    judged = prove(version, model.target or next(iter(model.accepted), None))
    if before is not None and judged.kind is None:
        remark = f"It stays refused until `ocrsvc models forget {version}`."
        return replace(judged, reason=f"{judged.reason} {remark}")
    if before is None and judged.kind not in UNDECIDED:
        try:
            verdicts.keep(version, judged, basis)
        except OperatorError as error:
            # For example, this user may not write to the state folder of the service.
            return replace(judged, reason=f"{judged.reason} The verdict is not kept: {error}")
    return judged


class CrashGuard:
    """Refuses an accepted version that crashes workers while they load it, so that not every new worker crashes."""

    def __init__(self, state: Path, verdicts: Verdicts) -> None:
        self._folder, self._verdicts = state / LOADS_FOLDER, verdicts

    @contextlib.contextmanager
    def loading(self, version: ModelVersion) -> Iterator[None]:
        """Count a crash of the version if the process dies in the block. Raises EngineUnavailable after MAX_CRASHES."""
        if version.is_built_in:
            yield
            return
        crashed = self._crashed_loads(version)
        if len(crashed) >= MAX_CRASHES:
            reason = f"{len(crashed)} workers ended while they loaded it."
            self._verdicts.keep(version, Judgement("crash", reason), self._verdicts.cache_key_of(version))
            # Remove the files that count crashes, so that the count starts at 0 if an operator removes the verdict.
            _remove(crashed)
            raise EngineUnavailable(f"The model {version} is refused: {reason}", "See `ocrsvc models list`.")
        with contextlib.ExitStack() as stack:
            # If the folder is not writable, loads are not marked, and crashes not counted.
            with contextlib.suppress(OSError):
                self._mark(version, stack)
            yield
        # The load ended without a crash, so start the count of crashed loads at 0 again.
        _remove(crashed)

    def _mark(self, version: ModelVersion, stack: contextlib.ExitStack) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark = self._folder / f"{version.digest}.{_arbiter()}.{secrets.token_hex(8)}"
        opened = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, opened)
        stack.callback(_remove, [mark])
        fcntl.flock(opened, fcntl.LOCK_EX)
        # A worker that exits normally during a load removes its mark file, so that the exit does not count as a crash.
        remove = atexit.register(partial(_remove, [mark]))
        stack.callback(atexit.unregister, remove)

    def _crashed_loads(self, version: ModelVersion) -> list[Path]:
        """Mark files of loads that crashed workers of this arbiter; deletes those left by workers of other arbiters."""
        with contextlib.suppress(OSError):
            left = [mark for mark in self._folder.glob(f"{version.digest}.*") if is_unlocked(mark)]
            ours = [mark for mark in left if mark.name.split(".")[1] == _arbiter()]
            _remove([mark for mark in left if mark not in ours])
            return ours
        return []


def machine_cache_key(settings: Settings, processors: Path = Path("/proc/cpuinfo")) -> str:
    """Key that changes with the CPU, the versions of ocrsvc and its libraries, and the settings that affect models."""
    parts = [__version__, platform.machine(), _processor(processors)]
    parts += [settings.device, settings.provider, settings.precision, str(settings.models_code)]
    parts += [f"{name} {version}" for name in _PROGRAMS if (version := _version_of(name))]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _changed_ns(file: Path) -> int:
    """Time of the last change (ctime), which detects copies that preserve mtime; 0 if the file is missing."""
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
    """Process id and start time of the parent, gunicorn's arbiter."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        return f"{parent}-{Path(f'/proc/{parent}/stat').read_text().rpartition(')')[2].split()[19]}"
    return str(parent)


def _remove(marks: list[Path]) -> None:
    for mark in marks:
        with contextlib.suppress(OSError):
            mark.unlink()
