"""Controls which versions serve: loads and unloads, labels, policies; and says how every version is.

The protocols' calls (Triton, TensorFlow Serving) and the command line come together here. What is decided goes into the
state file, which all workers follow.
"""

from __future__ import annotations

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
# Held by the process that proves a version, with its digest as the note.
PROOF_LOCK: Final = "proof.lock"
# Seconds after which a worker looks at the state file again, when a request or the watcher asks.
CHECK_S: Final = 0.1
# Seconds after which the repository is read again for a list: no client makes it be read without end.
SCAN_S: Final = 0.5
# TensorFlow Serving's: waits for its proof; is proved; may serve; leaves; is not wanted, refused, or damaged.
State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """How one version is, and why it does not serve, in a sentence; `failed` where something is wrong with it.

    `version` is None where it is damaged; the figures are those of its proof.
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
    """Every version, ascending by name and number; `default` is None where no model can be named."""

    default: str | None
    versions: tuple[VersionStatus, ...]

    @property
    def available(self) -> tuple[ModelVersion, ...]:
        """Those that requests may name."""
        return tuple(one.version for one in self.versions if one.state == "AVAILABLE" and one.version is not None)

    @property
    def languages(self) -> tuple[str, ...]:
        """Those that requests may name, each once."""
        return tuple(dict.fromkeys(tag for version in self.available for tag in version.description.languages))


class ModelControl:
    """The models of a repository as this process knows them; for any thread.

    Without a repository there is no store. What is in `loaded_versions` of this worker serves on when it is removed
    from the disk, until something replaces it. With `goes_on` wrong policies that were never right count as none: the
    start of the service has looked at them before.
    """

    def __init__(
        self,
        repository: ModelRepository,
        store: StateStore | None,
        is_loaded: Callable[[ModelVersion], bool] = lambda _version: False,
        clock: Callable[[], float] = time.monotonic,
        *,
        goes_on: bool = False,
    ) -> None:
        self.repository, self._store, self._goes_on = repository, store, goes_on
        self.is_loaded, self._clock = is_loaded, clock
        self.loaded_versions: Callable[[], Sequence[ModelVersion]] = tuple
        # The first is held while the disk is read, for which no request waits that needs the second.
        self._scan_lock, self._lock = Lock(), Lock()
        self._complaint, self._last_read = "", store.read().last_policies if store is not None else None
        self._policies = self._read_policies()
        # The state's generation when the repository was scanned, and when the state was last read.
        self._generation, state = self._read_state()
        self._followed = self._generation
        self._catalogue = make_catalogue(repository.scan(), self._policies, state)
        self._checked_s = self._scanned_s = clock()

    @property
    def store(self) -> StateStore:
        """Where decisions are kept. Raises OperatorError without a repository."""
        if self._store is None:
            raise OperatorError("Without OCRSVC_MODELS there is one model, which serves.", "Set OCRSVC_MODELS.")
        return self._store

    def catalogue(self) -> Catalogue:
        """The repository as last read, for which no request waits, with the state of at most CHECK_S ago."""
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
        """The models now, looking at the state file; the repository is read again where that has changed."""
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
        """The models now, on disk and in the state file. Raises BadModel: the repository cannot be listed."""
        # Before the lock: a caller may hold the one of what is loaded.
        loaded = self.loaded_versions()
        with self._scan_lock:
            return self._renew(self.repository.scan(), loaded)

    def _scan_or_keep(self) -> Scan:
        try:
            return self.repository.scan()
        except OcrsvcError as error:
            LOGGER.error("what is in the repository stays as it was: %s", error)
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
        """The models now, the repository's file of policies read again; where it is wrong, the old ones stay."""
        self._policies = self._read_policies()
        return self.rescan()

    def status(self, name: str | None = None) -> list[VersionStatus]:
        """Every version of one model, or of all, ascending by name and number. Raises UnknownModel, BadModel."""
        is_old = self._clock() - self._scanned_s >= SCAN_S
        catalogue = self.rescan() if is_old else self.latest()
        proving = "" if self._store is None else self._store.note_of(PROOF_LOCK)
        found = [self._status_of(catalogue, version, proving) for version in catalogue.scan.versions]
        found += [VersionStatus(bad.name, bad.number, "END", bad.reason, failed=True) for bad in catalogue.scan.bad]
        chosen = [one for one in found if name in (None, one.name)]
        if name is not None and not chosen:
            raise UnknownModel(f"There is no model {name[:100]}.")
        return sorted(chosen, key=lambda one: (one.name, one.number))

    def load(self, name: str, number: int | None = None) -> None:
        """Have a model, or one version of it, wanted whatever the policy says. Raises UnknownModel, OperatorError."""
        key = self._checked(name, number)
        gone = {name, key}
        self._change(lambda state: state.updated(loads=state.loads | {key}, unloads=state.unloads - gone))

    def unload(self, name: str, number: int | None = None) -> None:
        """Have a model, or one version of it, serve no more. Raises UnknownModel, OperatorError."""
        key = self._checked(name, number)

        def is_other(load: str) -> bool:
            return load != key and (number is not None or load.partition("/")[0] != name)

        self._change(
            lambda state: state.updated(loads=frozenset(filter(is_other, state.loads)), unloads=state.unloads | {key})
        )

    def set_labels(self, name: str, labels: Mapping[str, int | None]) -> None:
        """Set labels of a model, or take those away whose number is None. Raises UnknownModel, BadOption."""
        model = self.rescan().models.get(name)
        accepted = {version.number for version in model.accepted} if model is not None else set()
        for label, number in labels.items():
            if not LABEL.fullmatch(label):
                raise BadOption(f"{label[:80]!r} is no label.", "Use letters, digits, dots, dashes and underscores.")
            if number is not None and number not in accepted:
                raise UnknownModel(
                    f"The version {name[:100]}/{number} is not there, or was not accepted.", "See `ocrsvc models list`."
                )
        self._checked(name, None)
        new = {label: number or 0 for label, number in labels.items()}
        self._change(lambda state: state.updated(labels={**state.labels, name: {**state.labels.get(name, {}), **new}}))

    def apply_config(self, policies: Policies | None) -> None:
        """Put policies in place of the repository's file and of what was set before; None goes back to the file."""
        self._change(lambda state: state.updated(policies=policies, loads=frozenset(), unloads=frozenset(), labels={}))

    def _change(self, edit: Callable[[ModelState], ModelState]) -> None:
        self.store.change(edit)
        self.rescan()

    def _checked(self, name: str, number: int | None) -> str:
        """The key of a model or a version in the state. Raises UnknownModel where nothing of it is on disk."""
        scan = self.rescan().scan
        if number is None and scan.numbers(name):
            return name
        if number is not None and scan.find(name, number) is not None:
            return f"{name}/{number}"
        damage = next((f"{bad.name}/{bad.number}: {bad.reason}" for bad in scan.bad if bad.name == name), "")
        wanted = f"{name[:100]}{'' if number is None else f'/{number}'}"
        raise UnknownModel(f"There is no model {wanted} in the repository.", damage)

    def _read_policies(self) -> Policies:
        """The file's policies; where it is wrong, those from before. Raises SettingsError where it was never right."""
        if self._store is None or self.repository.folder is None:
            return Policies()
        last = self._last_read
        try:
            policies = read_policies(self.repository.folder)
        except SettingsError as error:
            if last is None and not self._goes_on:
                raise
            # The same complaint is logged once.
            if str(error) != self._complaint:
                LOGGER.error("the policies of the models stay as they were: %s", error)
            self._complaint = str(error)
            return last or Policies()
        self._last_read, self._complaint = policies, ""
        if policies != (last or Policies()):
            try:
                self._store.change(lambda state: state.updated(last_policies=policies))
            except OperatorError as error:
                LOGGER.warning("the policies of the models are not kept for when their file is wrong: %s", error)
        return policies

    def _status_of(self, catalogue: Catalogue, version: ModelVersion, proving: str) -> VersionStatus:
        """`proving` is the digest of the version that is being proved."""
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
    """The control of the repository in a folder, with its state in another. Raises BadModel, SettingsError."""
    return ModelControl(ModelRepository(folder, key), StateStore(state))
