"""The catalogue: which versions exist, are wanted and may serve, computed from repository, policies and state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.models.policy import STABLE, ModelPolicy, Policies
from ocrsvc.models.repository import Scan
from ocrsvc.models.state import ModelState, Verdict


@dataclass(frozen=True, slots=True)
class Model:
    """One model and its versions by status; tuples have the newest version first.

    `available` versions may serve: they are on disk, wanted and accepted. `accepted` also contains replaced versions.
    `candidates` are wanted but not tested (proved) yet. Labels may name versions that do not exist.
    """

    name: str
    policy: ModelPolicy | None
    available: tuple[ModelVersion, ...]
    accepted: tuple[ModelVersion, ...]
    candidates: tuple[ModelVersion, ...]
    labels: Mapping[str, int]

    def find(self, number: int) -> ModelVersion | None:
        """The available version with this number, or None."""
        return next((version for version in self.available if version.number == number), None)

    def labelled(self, label: str) -> ModelVersion | None:
        """The available version with this label, or None."""
        number = self.labels.get(label)
        return self.find(number) if number is not None else None

    @property
    def target(self) -> ModelVersion | None:
        """The version that serves requests that name no version, once it is loaded; None if no version may serve."""
        return self.labelled(STABLE) or next(iter(self.available), None)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models by name at one moment, with the scan, policies and state from which they were computed."""

    scan: Scan
    policies: Policies
    state: ModelState
    models: Mapping[str, Model]

    @property
    def available(self) -> tuple[ModelVersion, ...]:
        """All versions that may serve."""
        return tuple(version for model in self.models.values() for version in model.available)

    @property
    def candidates(self) -> tuple[ModelVersion, ...]:
        """All versions to be loaded, by policy or explicit request, that are neither accepted nor refused yet."""
        return tuple(version for model in self.models.values() for version in model.candidates)

    def is_pinned(self, version: ModelVersion) -> bool:
        """Whether the policy keeps a version loaded while it may serve."""
        model = self.models.get(version.name)
        return model is not None and model.policy is not None and model.policy.pinned

    def is_unloaded(self, version: ModelVersion) -> bool:
        """Whether an operator has unloaded a version: then it must not serve, even if no other version can."""
        return bool({version.name, str(version)} & self.state.unloads)

    def verdict(self, version: ModelVersion) -> Verdict | None:
        """Whether a version may serve, and why; None before its test on reference pages. Built-in models always may."""
        return Verdict(accepted=True) if version.is_built_in else self.state.verdicts.get(version.digest)

    def is_refused(self, version: ModelVersion) -> bool:
        """Whether a version failed its test or its loading, and so may not serve."""
        verdict = self.verdict(version)
        return verdict is not None and not verdict.accepted

    def why_not(self, version: ModelVersion) -> str:
        """Why an existing version does not serve, such as "it was refused"; a message ends with this text."""
        if version in self.models[version.name].candidates:
            return "it is not proved yet"
        if self.is_refused(version):
            return "it was refused"
        return "it was unloaded" if self.is_unloaded(version) else "it is not wanted"

    def successor_of(self, version: ModelVersion) -> ModelVersion | None:
        """The version that would serve if the given version were refused; None if there is no other."""
        verdicts = {**self.state.verdicts, version.digest: Verdict(accepted=False)}
        without = make_catalogue(self.scan, self.policies, self.state.updated(verdicts=verdicts))
        model = without.models.get(version.name)
        return model.target if model is not None else None


def make_catalogue(scan: Scan, policies: Policies, state: ModelState) -> Catalogue:
    """Compute the catalogue. Policies that a client has set (`state.policies`) replace those of `models.toml`."""
    policies = state.policies or policies
    catalogue = Catalogue(scan, policies, state, {})
    names = dict.fromkeys(version.name for version in scan.versions)
    return replace(catalogue, models={name: _model(catalogue, name) for name in names})


def with_loaded(scan: Scan, loaded: Iterable[ModelVersion], state: ModelState) -> Scan:
    """Add loaded versions that are no longer on disk to a scan.

    A version on disk with the same number but other files replaces a loaded one only when it is accepted.
    """
    catalogue = Catalogue(scan, Policies(), state, {})
    on_disk = {version.digest for version in scan.versions}
    replaced = {
        (version.name, version.number)
        for version in scan.versions
        if (verdict := catalogue.verdict(version)) and verdict.accepted
    }
    removed = [
        version
        for version in loaded
        if version.digest not in on_disk and (version.name, version.number) not in replaced
    ]
    if not removed:
        return scan
    versions = sorted((*removed, *scan.versions), key=lambda version: (version.name, version.number))
    return replace(scan, versions=tuple(versions))


def _model(catalogue: Catalogue, name: str) -> Model:
    policy, state = catalogue.policies.of(name), catalogue.state
    if name in state.loads and policy is None:
        policy = ModelPolicy()
    labels = {**(policy.labels if policy is not None else {}), **state.labels.get(name, {})}
    labels = {label: number for label, number in labels.items() if number}
    if policy is not None:
        policy = policy.model_copy(update={"labels": labels})
    newest_first = (version for version in reversed(catalogue.scan.versions) if version.name == name)
    usable = [
        version for version in newest_first if not catalogue.is_unloaded(version) and not catalogue.is_refused(version)
    ]
    accepted = [version for version in usable if catalogue.verdict(version) is not None]
    candidates = [version for version in _wanted(policy, usable, state) if version not in accepted]
    available = _wanted(policy, accepted, state)
    return Model(name, policy, tuple(available), tuple(accepted), tuple(candidates), labels)


def _wanted(policy: ModelPolicy | None, versions: list[ModelVersion], state: ModelState) -> list[ModelVersion]:
    """Versions to be loaded, newest first: those that the policy selects or an explicit load request names."""
    newest = versions[: policy.newest] if policy is not None else []

    def is_wanted(version: ModelVersion) -> bool:
        by_policy = policy is not None and policy.wants(version.number)
        return version in newest or by_policy or str(version) in state.loads

    return [version for version in versions if is_wanted(version)]
