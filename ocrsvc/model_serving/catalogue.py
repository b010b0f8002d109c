"""What is there, what is wanted, and what may serve: a scan, the policies and the state, put together once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ocrsvc.model_repository.repository import Scan
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.policy import STABLE, ModelPolicy, Policies
from ocrsvc.model_serving.state import ModelState, Verdict


@dataclass(frozen=True, slots=True)
class Model:
    """One model with what may be done with its versions; each tuple has the newest version first.

    Attributes:
        name: Of the model.
        policy: What is wanted of it; None where nothing is.
        available: May serve: on disk, wanted, and accepted.
        accepted: Those, and the accepted ones that newer ones have taken the place of, or will.
        candidates: Wanted, and no verdict yet.
        labels: The number of each label's version, whether it is there or not.
    """

    name: str
    policy: ModelPolicy | None
    available: tuple[ModelVersion, ...]
    accepted: tuple[ModelVersion, ...]
    candidates: tuple[ModelVersion, ...]
    labels: Mapping[str, int]

    def find(self, number: int) -> ModelVersion | None:
        """An available version; None where there is none of this number."""
        return next((version for version in self.available if version.number == number), None)

    def labelled(self, label: str) -> ModelVersion | None:
        """The available version of a label; None where there is none."""
        number = self.labels.get(label)
        return self.find(number) if number is not None else None

    @property
    def target(self) -> ModelVersion | None:
        """What reads requests that name no version, once it is loaded; None where nothing may."""
        return self.labelled(STABLE) or next(iter(self.available), None)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models at one moment.

    Attributes:
        scan: What is on disk.
        policies: What is wanted.
        state: What was decided meanwhile.
        models: By name, those of the scan.
    """

    scan: Scan
    policies: Policies
    state: ModelState
    models: Mapping[str, Model]

    @property
    def available(self) -> tuple[ModelVersion, ...]:
        """Every version that may serve."""
        return tuple(version for model in self.models.values() for version in model.available)

    @property
    def candidates(self) -> tuple[ModelVersion, ...]:
        """Every version that is wanted and has no verdict yet."""
        return tuple(version for model in self.models.values() for version in model.candidates)

    def is_pinned(self, version: ModelVersion) -> bool:
        """Whether it stays loaded while it may serve."""
        model = self.models.get(version.name)
        return model is not None and model.policy is not None and model.policy.pinned

    def is_unloaded(self, version: ModelVersion) -> bool:
        """Whether it must not serve, even where nothing takes its place: somebody has unloaded it."""
        return bool({version.name, str(version)} & self.state.unloads)

    def verdict(self, version: ModelVersion) -> Verdict | None:
        """What was found of it; None for what is not proved yet. The built-in model needs no proof."""
        return Verdict(accepted=True) if version.is_built_in else self.state.verdicts.get(version.digest)


def make_catalogue(scan: Scan, policies: Policies, state: ModelState) -> Catalogue:
    """What follows from what is there; a client's policies come before those of the file."""
    policies = state.policies or policies
    names = dict.fromkeys(version.name for version in scan.versions)
    catalogue = Catalogue(scan, policies, state, {})
    return Catalogue(scan, policies, state, {name: _model(catalogue, name) for name in names})


def with_loaded(scan: Scan, loaded: Iterable[ModelVersion], state: ModelState) -> Scan:
    """The scan with the versions that are loaded and not on the disk any more, unless others are there in their place.

    What has the number of one that is loaded, and other files, takes its place when it is accepted.
    """
    there = {version.digest for version in scan.versions}
    placed = {
        (version.name, version.number)
        for version in scan.versions
        if version.is_built_in or ((verdict := state.verdicts.get(version.digest)) and verdict.accepted)
    }
    gone = [one for one in loaded if one.digest not in there and (one.name, one.number) not in placed]
    if not gone:
        return scan
    return replace(scan, versions=tuple(sorted((*gone, *scan.versions), key=lambda one: (one.name, one.number))))


def _model(catalogue: Catalogue, name: str) -> Model:
    policy, state = catalogue.policies.of(name), catalogue.state
    if name in state.loads and policy is None:
        policy = ModelPolicy()
    changes = state.labels.get(name, {})
    labels = {**(policy.labels if policy is not None else {}), **changes}
    labels = {label: number for label, number in labels.items() if number}
    if policy is not None:
        policy = policy.model_copy(update={"labels": labels})
    allowed = [version for version in reversed(catalogue.scan.versions) if version.name == name]
    allowed = [version for version in allowed if not catalogue.is_unloaded(version)]
    verdicts = {version.digest: catalogue.verdict(version) for version in allowed}
    accepted = [version for version in allowed if (found := verdicts[version.digest]) and found.accepted]
    unproved = [version for version in allowed if verdicts[version.digest] is None]
    usable = [version for version in allowed if version in accepted or version in unproved]
    available = _wanted(policy, accepted, state)
    candidates = [version for version in _wanted(policy, usable, state) if version in unproved]
    return Model(name, policy, tuple(available), tuple(accepted), tuple(candidates), labels)


def _wanted(policy: ModelPolicy | None, versions: list[ModelVersion], state: ModelState) -> list[ModelVersion]:
    """Those of the versions, the newest first, that are wanted: so many of the newest, by number, label, or a load."""
    newest = versions[: policy.newest or 0] if policy is not None else []

    def is_wanted(version: ModelVersion) -> bool:
        by_policy = policy is not None and policy.wants(version.number)
        return version in newest or by_policy or str(version) in state.loads

    return [version for version in versions if is_wanted(version)]
