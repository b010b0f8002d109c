"""Controls which versions serve (loads, unloads, labels, policies), and reports the status of every version.

The model protocols (Triton, TensorFlow Serving) and the command line use it. Decisions are written to the state file,
which all workers follow.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal, get_args

from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadOption, OcrsvcError, OperatorError, SettingsError, UnknownModel
from ocrsvc.models.catalogue import Catalogue, make_catalogue, with_loaded
from ocrsvc.models.model_name import LABEL
from ocrsvc.models.policy import Policies, read_policies
from ocrsvc.models.repository import ModelRepository, Scan
from ocrsvc.models.state import Generation, ModelState, StateStore

LOGGER: Final = logging.getLogger("ocrsvc.models")
PROOF_LOCK: Final = "proof.lock"  # held by the process that proves a version; it contains the version's digest
CHECK_S: Final = 0.1  # shortest interval between checks of the state file
SCAN_S: Final = 0.5  # shortest interval between scans of the repository for clients that list models
# States as in TensorFlow Serving: not yet tested; being tested; may serve; closing; unwanted, refused or damaged.
State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The status of a version, and a sentence that says why it does not serve.

    `failed`: the version is refused or damaged; if damaged, `version` is None. `figures` are its proof's measurements.
    """

    name: str
    number: int
    state: State
    reason: str
    labels: tuple[str, ...] = ()
    version: ModelVersion | None = None
    figures: Mapping[str, float] | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ModelList:
    """All versions by name and number, and the name of the default model; None if requests cannot name models."""

    default: str | None
    versions: tuple[VersionStatus, ...]

    @property
    def available(self) -> tuple[ModelVersion, ...]:
        """The versions that requests may name."""
        available = (status.version for status in self.versions if status.state == "AVAILABLE")
        return tuple(version for version in available if version is not None)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that requests may name, each once."""
        return tuple(dict.fromkeys(tag for version in self.available for tag in version.description.languages))


class ModelControl:
    """This process's view of the models in a repository. Thread-safe.

    Without a repository, `store` raises OperatorError. Versions in `loaded_versions` keep serving after their removal
    from disk, until another version replaces them. With `ignores_bad_policies`, a policy file that is invalid and was
    never valid before counts as empty. Workers set it, because the service has checked the file at its start.
    """

    def __init__(
        self,
        repository: ModelRepository,
        store: StateStore | None,
        is_loaded: Callable[[ModelVersion], bool] = lambda _version: False,
        clock: Callable[[], float] = time.monotonic,
        *,
        ignores_bad_policies: bool = False,
    ) -> None:
        self.repository, self._store, self._ignores_bad_policies = repository, store, ignores_bad_policies
        self.is_loaded, self._clock = is_loaded, clock
        self.loaded_versions: Callable[[], Sequence[ModelVersion]] = tuple
        # `_scan_lock` is held while the disk is read; requests need only `_lock`, so they never wait for the disk.
        self._scan_lock, self._lock = Lock(), Lock()
        self._last_error, self._last_read = "", store.read().last_policies if store is not None else None
        self._policies = self._read_policies()
        # `_generation` is the state file's generation at the last scan of the repository, `_followed` at its last read.
        self._generation, state = self._read_state()
        self._followed = self._generation
        self._catalogue = make_catalogue(repository.scan(), self._policies, state)
        self._checked_s = self._scanned_s = clock()

    @property
    def store(self) -> StateStore:
        """The state file with labels, loads, unloads and verdicts. Raises OperatorError without a repository."""
        if self._store is None:
            raise OperatorError("OCRSVC_MODELS is not set, so the engine's model serves.", "Set OCRSVC_MODELS.")
        return self._store

    def catalogue(self) -> Catalogue:
        """The models as of the last scan of the repository, with labels and loads as of at most CHECK_S ago."""
        now_s = self._clock()
        if self._store is None or now_s - self._checked_s < CHECK_S:
            return self._catalogue
        if self._store.generation() not in (self._generation, self._followed):
            with self._lock:
                self._followed, state = self._store.read_with_generation()
                self._catalogue = make_catalogue(self._catalogue.scan, self._policies, state)
        self._checked_s = now_s
        return self._catalogue

    def latest(self) -> Catalogue:
        """The current catalogue; the repository is scanned again if the state file has changed."""
        if self._store is None:
            return self._catalogue
        now_s, generation = self._clock(), self._store.generation()
        if generation != self._generation:
            loaded = self.loaded_versions()
            with self._scan_lock:
                if generation != self._generation:
                    return self._renew(self._scan_or_keep(), loaded)
        self._checked_s = now_s
        return self._catalogue

    def rescan(self) -> Catalogue:
        """Scan the repository and read the state file. Raises BadModel: the repository cannot be listed."""
        # `loaded_versions` takes the lock of the loaded models: call it without `_scan_lock`, to avoid a deadlock.
        loaded = self.loaded_versions()
        with self._scan_lock:
            return self._renew(self.repository.scan(), loaded)

    def _scan_or_keep(self) -> Scan:
        try:
            return self.repository.scan()
        except OcrsvcError as error:
            LOGGER.error("the repository cannot be scanned, so the last scan stays in use: %s", error)
            return self._catalogue.scan

    def _renew(self, scan: Scan, loaded: Sequence[ModelVersion]) -> Catalogue:
        now_s = self._clock()
        with self._lock:
            self._generation, state = self._read_state()
            self._catalogue = make_catalogue(with_loaded(scan, loaded, state), self._policies, state)
            self._checked_s = self._scanned_s = now_s
            return self._catalogue

    def _read_state(self) -> tuple[Generation, ModelState]:
        return ((0, 0, 0), ModelState()) if self._store is None else self._store.read_with_generation()

    def reread(self) -> Catalogue:
        """Read the policies again, then scan as `rescan` does; if the file is invalid, the old policies stay."""
        self._policies = self._read_policies()
        return self.rescan()

    def status(self, name: str | None = None) -> list[VersionStatus]:
        """Status of every version of one model, or of all models, by name and number. Raises UnknownModel, BadModel."""
        is_old = self._clock() - self._scanned_s >= SCAN_S
        catalogue = self.rescan() if is_old else self.latest()
        proving = "" if self._store is None else self._store.note_of(PROOF_LOCK)
        versions = [self._status_of(catalogue, version, proving) for version in catalogue.scan.versions]
        versions += [VersionStatus(bad.name, bad.number, "END", bad.reason, failed=True) for bad in catalogue.scan.bad]
        chosen = [status for status in versions if name in (None, status.name)]
        if name is not None and not chosen:
            raise UnknownModel(f"There is no model {name[:100]}.")
        return sorted(chosen, key=lambda status: (status.name, status.number))

    def load(self, name: str, number: int | None = None) -> None:
        """Load a model or a version, even if the policy does not want it. Raises UnknownModel, OperatorError."""
        key = self._checked(name, number)
        self._change(lambda state: state.updated(loads=state.loads | {key}, unloads=state.unloads - {name, key}))

    def unload(self, name: str, number: int | None = None) -> None:
        """Stop a model or a version from serving. Raises UnknownModel, OperatorError."""
        key = self._checked(name, number)

        def edit(state: ModelState) -> ModelState:
            others = (load for load in state.loads if number is not None or load.partition("/")[0] != name)
            return state.updated(loads=frozenset(others) - {key}, unloads=state.unloads | {key})

        self._change(edit)

    def set_labels(self, name: str, labels: Mapping[str, int | None]) -> None:
        """Set labels of a model, or remove those whose number is None. Raises UnknownModel, BadOption."""
        model = self.rescan().models.get(name)
        accepted = {version.number for version in model.accepted} if model is not None else set()
        for label, number in labels.items():
            if not LABEL.fullmatch(label):
                raise BadOption(f"Invalid label {label[:80]!r}.", "Use letters, digits, dots, dashes and underscores.")
            if number is not None and number not in accepted:
                raise UnknownModel(
                    f"The version {name[:100]}/{number} does not exist or was not accepted.",
                    "See `ocrsvc models list`.",
                )
        self._checked(name, None)
        new = {label: number or 0 for label, number in labels.items()}
        self._change(lambda state: state.updated(labels={**state.labels, name: {**state.labels.get(name, {}), **new}}))

    def apply_config(self, policies: Policies | None) -> None:
        """Override the policy file, or follow it again (None). All loads, unloads and labels set before are deleted."""
        self._change(lambda state: state.updated(policies=policies, loads=frozenset(), unloads=frozenset(), labels={}))

    def _change(self, edit: Callable[[ModelState], ModelState]) -> None:
        self.store.change(edit)
        self.rescan()

    def _checked(self, name: str, number: int | None) -> str:
        """A model's or version's name as the state file stores it. Raises UnknownModel if it is not on disk."""
        scan = self.rescan().scan
        if number is None and scan.numbers(name):
            return name
        if number is not None and scan.find(name, number) is not None:
            return f"{name}/{number}"
        damage = next((f"{bad.name}/{bad.number}: {bad.reason}" for bad in scan.bad if bad.name == name), "")
        label = f"{name[:100]}{'' if number is None else f'/{number}'}"
        raise UnknownModel(f"There is no model {label} in the repository.", damage)

    def _read_policies(self) -> Policies:
        """Read the policy file. If it is invalid, return the last valid policies; without any, raise SettingsError."""
        if self._store is None or self.repository.folder is None:
            return Policies()
        last = self._last_read
        try:
            policies = read_policies(self.repository.folder)
        except SettingsError as error:
            if last is None and not self._ignores_bad_policies:
                raise
            # Log the same error only once.
            if str(error) != self._last_error:
                LOGGER.error("the last valid policies of the models stay in use: %s", error)
            self._last_error = str(error)
            return last or Policies()
        self._last_read, self._last_error = policies, ""
        if policies != (last or Policies()):
            try:
                self._store.change(lambda state: state.updated(last_policies=policies))
            except OperatorError as error:
                LOGGER.warning("the policies of the models cannot be saved as a fallback: %s", error)
        return policies

    def _status_of(self, catalogue: Catalogue, version: ModelVersion, proving: str) -> VersionStatus:
        """The status of a version; `proving` is the digest of the version that a worker is testing now."""
        model, verdict = catalogue.models[version.name], catalogue.verdict(version)
        state, reason = self._state_of(catalogue, version)
        if state == "START" and version.digest == proving:
            state, reason = "LOADING", "It is being proved."
        labels = tuple(sorted(label for label, number in model.labels.items() if number == version.number))
        figures, failed = (verdict.figures if verdict is not None else None), catalogue.is_refused(version)
        return VersionStatus(version.name, version.number, state, reason, labels, version, figures, failed)

    def _state_of(self, catalogue: Catalogue, version: ModelVersion) -> tuple[State, str]:
        model, verdict = catalogue.models[version.name], catalogue.verdict(version)
        if version in model.available:
            return "AVAILABLE", ""
        if version not in model.candidates and self.is_loaded(version):
            return "UNLOADING", ""
        if verdict is not None and not verdict.accepted:
            return "END", verdict.reason
        reason = f"{catalogue.why_not(version).capitalize()}."
        return ("START" if version in model.candidates else "END"), reason


def open_control(folder: Path, state: Path, key: ModelKey | None = None) -> ModelControl:
    """Control the repository in `folder`, with the state file in folder `state`. Raises BadModel, SettingsError."""
    return ModelControl(ModelRepository(folder, key), StateStore(state))
