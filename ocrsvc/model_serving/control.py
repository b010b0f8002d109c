"""Controls which versions serve: loads and unloads, labels, policies; and says how every version is.

The protocols' calls (Triton, TensorFlow Serving) and the command line come together here. What is decided goes into the
state file, which all workers follow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from ocrsvc.errors import BadOption, OcrsvcError, OperatorError, SettingsError, UnknownModel
from ocrsvc.model_repository.model_key import ModelKey
from ocrsvc.model_repository.repository import ModelRepository, Scan
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_repository.wanted_model import LABEL
from ocrsvc.model_serving.catalogue import Catalogue, Model, make_catalogue, with_loaded
from ocrsvc.model_serving.model_status import State, VersionStatus
from ocrsvc.model_serving.policy import Policies, read_policies
from ocrsvc.model_serving.state import Generation, ModelState, StateStore

LOGGER: Final = logging.getLogger("ocrsvc.models")

CHECK_S: Final = 0.1
"""Seconds after which a worker looks at the state file again, when a request or somebody else asks."""

SCAN_S: Final = 0.5
"""Seconds after which the repository is looked at again for a list: nobody makes it be read without end."""


class ModelControl:
    """The models of a repository as this process knows them; for any thread. Made cheaply.

    Args:
        repository: Where the models are.
        store: Where what is decided is kept.
        is_loaded: Whether this worker has a version loaded; the command line has none.
        clock: Monotonic seconds.

    Attributes:
        loaded_versions: What this worker has loaded: it serves on when it is removed from the disk, until something
            has taken its place.
        is_watched: A watcher looks at the repository, so that requests need not wait for its disk.
    """

    def __init__(
        self,
        repository: ModelRepository,
        store: StateStore,
        is_loaded: Callable[[ModelVersion], bool] = lambda _version: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository, self.store = repository, store
        self.is_loaded, self._clock = is_loaded, clock
        self.loaded_versions: Callable[[], Sequence[ModelVersion]] = tuple
        self.is_watched = False
        self._lock = Lock()
        self._policies = self._read_policies()
        # Of the state, when the repository was scanned, and when it was read without that.
        self._generation: Generation = store.generation()
        self._followed = self._generation
        self._catalogue = make_catalogue(repository.scan(), self._policies, store.read())
        self._checked_s = self._scanned_s = clock()

    @property
    def folder(self) -> Path | None:
        """The repository's; None where there is only the built-in model."""
        return self._repository.folder

    @property
    def policies(self) -> Policies:
        """Those of the repository's own file."""
        return self._policies

    def catalogue(self) -> Catalogue:
        """What there is, looking at the state file where that was last done a while ago.

        What has changed there counts at once. At the repository a watcher looks, where there is one: no request waits
        for its disk then.
        """
        if self._clock() - self._checked_s < CHECK_S:
            return self._catalogue
        return self._follow() if self.is_watched else self.latest()

    def _follow(self) -> Catalogue:
        """The repository as it was seen last, with the state as it is now."""
        now_s, generation = self._clock(), self.store.generation()
        if generation not in (self._generation, self._followed):
            with self._lock:
                state, self._followed = self.store.read(), generation
                self._catalogue = make_catalogue(self._catalogue.scan, self._policies, state)
        self._checked_s = now_s
        return self._catalogue

    def latest(self) -> Catalogue:
        """What there is, looking at the state file now; at the repository only where that has changed."""
        now_s, generation = self._clock(), self.store.generation()
        if generation != self._generation:
            loaded = self.loaded_versions()
            with self._lock:
                if generation != self._generation:
                    return self._renew(self._scan_or_keep(), loaded)
        self._checked_s = now_s
        return self._catalogue

    def rescan(self) -> Catalogue:
        """What there is now, on disk and in the state file. Raises BadModel: the repository cannot be listed."""
        # Before the lock: who asks for the catalogue may hold the one of what is loaded.
        loaded = self.loaded_versions()
        with self._lock:
            return self._renew(self._repository.scan(), loaded)

    def _scan_or_keep(self) -> Scan:
        try:
            return self._repository.scan()
        except OcrsvcError as error:
            LOGGER.error("what is in the repository stays as it was: %s", error)
            return self._catalogue.scan

    def _renew(self, scan: Scan, loaded: Sequence[ModelVersion]) -> Catalogue:
        """Put a scan, what is loaded and the state together; under the lock."""
        now_s, generation = self._clock(), self.store.generation()
        state = self.store.read()
        scan = with_loaded(scan, loaded, state)
        self._catalogue = make_catalogue(scan, self._policies, state)
        self._generation, self._checked_s, self._scanned_s = generation, now_s, now_s
        return self._catalogue

    def reread_policies(self) -> None:
        """Read the repository's file again. A bad one is logged, and what it said before stays."""
        try:
            self._policies = self._read_policies()
        except OcrsvcError as error:
            LOGGER.error("the policies of the models stay as they were: %s", error)
            return
        self.rescan()

    def status(self, name: str | None = None) -> list[VersionStatus]:
        """Every version of one model, or of all, ascending by name and number; the disk as of a moment ago.

        Raises:
            UnknownModel: There is no such model.
            BadModel: The repository cannot be listed.
        """
        is_old = self._clock() - self._scanned_s >= SCAN_S
        catalogue = self.rescan() if is_old else self.latest()
        proving = self.store.proved_now()
        found = [_status_of(catalogue, version, self.is_loaded, proving) for version in catalogue.scan.versions]
        found += [VersionStatus(bad.name, bad.number, "END", bad.reason, failed=True) for bad in catalogue.scan.bad]
        chosen = [one for one in found if name in (None, one.name)]
        if name is not None and not chosen:
            raise UnknownModel(f"There is no model {name[:100]}.")
        return sorted(chosen, key=lambda one: (one.name, one.number))

    def load(self, name: str, number: int | None = None) -> None:
        """Have a model, or one version of it, wanted whatever the policy says. Raises UnknownModel, OperatorError."""
        key = self._checked(name, number)
        self._change(
            lambda state: _updated(
                state, loads=state.loads | {key}, unloads=state.unloads - ({name, key} if number else {key})
            )
        )

    def unload(self, name: str, number: int | None = None) -> None:
        """Have a model, or one version of it, serve no more. Raises UnknownModel, OperatorError."""
        key = self._checked(name, number)
        self._change(
            lambda state: _updated(
                state, loads=frozenset(_others(state.loads, name, number)), unloads=state.unloads | {key}
            )
        )

    def set_labels(self, name: str, labels: Mapping[str, int | None]) -> None:
        """Set labels of a model, or take those away whose number is None.

        Raises:
            UnknownModel: There is no such model, or a version that could not serve.
            BadOption: A label is no label.
            OperatorError: The state cannot be written.
        """
        catalogue = self.rescan()
        for label, number in labels.items():
            if not LABEL.fullmatch(label):
                raise BadOption(f"{label[:80]!r} is no label.", "Use letters, digits, dots, dashes and underscores.")
            if number is not None:
                self._check_accepted(catalogue, name, number)
        self._checked(name, None)
        set_now = {label: number or 0 for label, number in labels.items()}
        self._change(
            lambda state: _updated(state, labels={**state.labels, name: {**state.labels.get(name, {}), **set_now}})
        )

    def apply_config(self, policies: Policies | None) -> None:
        """Put policies in place of the repository's file, with its labels; None goes back to the file.

        Explicit loads and unloads, and labels that were set before, are forgotten. Raises OperatorError.
        """
        self._change(
            lambda state: _updated(state, policies=policies, loads=frozenset(), unloads=frozenset(), labels={})
        )

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
        raise UnknownModel(
            f"There is no model {name[:100]}{'' if number is None else f'/{number}'} in the repository.",
            _damage(scan, name),
        )

    def _check_accepted(self, catalogue: Catalogue, name: str, number: int) -> None:
        """Raises UnknownModel where a version is not there, or has not proved itself."""
        model = catalogue.models.get(name)
        if model is None or all(version.number != number for version in model.accepted):
            raise UnknownModel(
                f"The version {name[:100]}/{number} is not there, or was not accepted.", "See `ocrsvc models list`."
            )

    def _read_policies(self) -> Policies:
        """What the file says; what it said before, where it is wrong now: no worker fails to start for it.

        Raises:
            SettingsError: It is wrong, and was never right.
        """
        if self._repository.folder is None:
            return Policies()
        last = self.store.read().last_policies
        try:
            policies = read_policies(self._repository.folder)
        except SettingsError as error:
            if last is None:
                raise
            LOGGER.error("the policies of the models stay as they were: %s", error)
            return last
        if policies != (last or Policies()):
            self._remember(policies)
        return policies

    def _remember(self, policies: Policies) -> None:
        try:
            self.store.change(lambda state: _updated(state, last_policies=policies))
        except OperatorError as error:
            LOGGER.warning("the policies of the models are not kept for when their file is wrong: %s", error)


def _updated(state: ModelState, **members: object) -> ModelState:
    return state.model_copy(update=members)


def _others(keys: frozenset[str], name: str, number: int | None) -> set[str]:
    """The keys but those of a model, or of one version."""
    if number is not None:
        return set(keys - {f"{name}/{number}"})
    return {key for key in keys if key.partition("/")[0] != name}


def _status_of(
    catalogue: Catalogue, version: ModelVersion, is_loaded: Callable[[ModelVersion], bool], proving: str
) -> VersionStatus:
    """How a version is; `proving` is the digest of the one that is being proved."""
    model, verdict = catalogue.models[version.name], catalogue.verdict(version)
    state, reason = _state_of(catalogue, model, version, is_loaded)
    if state == "START" and version.digest == proving:
        state, reason = "LOADING", "It is being proved."
    labels = tuple(sorted(label for label, number in model.labels.items() if number == version.number))
    refused = verdict is not None and not verdict.accepted
    figures = verdict.figures if verdict is not None else None
    return VersionStatus(version.name, version.number, state, reason, labels, version, figures, refused)


def _state_of(
    catalogue: Catalogue, model: Model, version: ModelVersion, is_loaded: Callable[[ModelVersion], bool]
) -> tuple[State, str]:
    verdict = catalogue.verdict(version)
    if version in model.available:
        return "AVAILABLE", ""
    if version in model.candidates:
        return "START", "It has not proved itself yet."
    if is_loaded(version):
        return "UNLOADING", ""
    if verdict is not None and not verdict.accepted:
        return "END", verdict.reason
    if catalogue.is_unloaded(version):
        return "END", "It was unloaded."
    return "END", "It is not wanted."


def _damage(scan: Scan, name: str) -> str:
    return next((f"{bad.name}/{bad.number}: {bad.reason}" for bad in scan.bad if bad.name == name), "")


def open_control(folder: Path, state: Path, key: ModelKey | None = None) -> ModelControl:
    """The control of the repository in a folder, with its state in another; `key` decrypts its models.

    Raises:
        BadModel, SettingsError: The folder cannot be read, or what it says of policies is wrong.
    """
    return ModelControl(ModelRepository(folder, key), StateStore(state))
