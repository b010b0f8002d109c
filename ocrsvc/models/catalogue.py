"""The catalogue: which versions there are, are wanted, and may serve, from a scan, the policies and the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.models.policy import STABLE, ModelPolicy, Policies
from ocrsvc.models.repository import Scan
from ocrsvc.models.state import ModelState, Verdict


@dataclass(frozen=True, slots=True)
class Model:
    """One model with what may be done with its versions; each tuple has the newest version first.

    `available` may serve: on disk, wanted, and accepted; `accepted` are also those that newer ones have replaced, or
    will; `candidates` are wanted, and have no verdict yet. Labels may name versions that are not there.
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
    """All models at one moment, by name, and what they were made from."""

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
        """Whether it must not serve, even where nothing replaces it: an operator has unloaded it."""
        return bool({version.name, str(version)} & self.state.unloads)

    def verdict(self, version: ModelVersion) -> Verdict | None:
        """The verdict on a version; None for what is not proved yet. A built-in model needs no proof."""
        return Verdict(accepted=True) if version.is_built_in else self.state.verdicts.get(version.digest)

    def is_refused(self, version: ModelVersion) -> bool:
        """Whether its verdict is against it."""
        verdict = self.verdict(version)
        return verdict is not None and not verdict.accepted

    def why_not(self, version: ModelVersion) -> str:
        """Why a version that is there does not serve, as the end of a sentence."""
        if version in self.models[version.name].candidates:
            return "it has not proved itself yet"
        if self.is_refused(version):
            return "it was refused"
        return "it was unloaded" if self.is_unloaded(version) else "it is not wanted"

    def heir_of(self, version: ModelVersion) -> ModelVersion | None:
        """What would serve if a version were refused; None where nothing would."""
        verdicts = {**self.state.verdicts, version.digest: Verdict(accepted=False)}
        without = make_catalogue(self.scan, self.policies, self.state.updated(verdicts=verdicts))
        model = without.models.get(version.name)
        return model.target if model is not None else None


def make_catalogue(scan: Scan, policies: Policies, state: ModelState) -> Catalogue:
    """The catalogue of what is there; a client's policies come before those of the file."""
    policies = state.policies or policies
    catalogue = Catalogue(scan, policies, state, {})
    names = dict.fromkeys(version.name for version in scan.versions)
    return replace(catalogue, models={name: _model(catalogue, name) for name in names})


def with_loaded(scan: Scan, loaded: Iterable[ModelVersion], state: ModelState) -> Scan:
    """The scan with the versions that are loaded and not on the disk any more, unless others are in their place.

    A version with the number of a loaded one, and other files, replaces it when it is accepted.
    """
    catalogue = Catalogue(scan, Policies(), state, {})
    there = {version.digest for version in scan.versions}
    accepted = [one for one in scan.versions if (verdict := catalogue.verdict(one)) and verdict.accepted]
    placed = {(one.name, one.number) for one in accepted}
    gone = [one for one in loaded if one.digest not in there and (one.name, one.number) not in placed]
    if not gone:
        return scan
    return replace(scan, versions=tuple(sorted((*gone, *scan.versions), key=lambda one: (one.name, one.number))))


def _model(catalogue: Catalogue, name: str) -> Model:
    policy, state = catalogue.policies.of(name), catalogue.state
    if name in state.loads and policy is None:
        policy = ModelPolicy()
    labels = {**(policy.labels if policy is not None else {}), **state.labels.get(name, {})}
    labels = {label: number for label, number in labels.items() if number}
    if policy is not None:
        policy = policy.model_copy(update={"labels": labels})
    allowed = [one for one in reversed(catalogue.scan.versions) if one.name == name and not catalogue.is_unloaded(one)]
    usable = [one for one in allowed if not catalogue.is_refused(one)]
    accepted = [one for one in usable if catalogue.verdict(one) is not None]
    candidates = [one for one in _wanted(policy, usable, state) if one not in accepted]
    available = _wanted(policy, accepted, state)
    return Model(name, policy, tuple(available), tuple(accepted), tuple(candidates), labels)


def _wanted(policy: ModelPolicy | None, versions: list[ModelVersion], state: ModelState) -> list[ModelVersion]:
    """The versions, the newest first, that are wanted by the policy or an explicit load."""
    newest = versions[: policy.newest] if policy is not None else []

    def is_wanted(version: ModelVersion) -> bool:
        by_policy = policy is not None and policy.wants(version.number)
        return version in newest or by_policy or str(version) in state.loads

    return [version for version in versions if is_wanted(version)]
