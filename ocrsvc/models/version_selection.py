"""Selects a request's version: by model, version or label; by tier and language; by shares of the traffic.

A request that names no model gets the default model. One without a version gets the first of these that exists: the
label that a share of the traffic selects, the label `stable`, the newest version loaded by this worker, the newest.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

from ocrsvc.engines.model.description import AUTO, with_language
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import UnknownModel
from ocrsvc.models.catalogue import Catalogue, Model
from ocrsvc.models.model_control import ModelControl
from ocrsvc.models.model_name import ACCEPTED, WantedModel, parse_wanted_model
from ocrsvc.models.policy import STABLE
from ocrsvc.results import ReadOptions

_MAX_SHOWN: Final = 60


class VersionSelector:
    """Selects the version for each request; thread-safe without a lock.

    `draw` returns a random number in [0, 1), which selects a label by the labels' shares of the traffic.
    """

    def __init__(
        self,
        control: ModelControl,
        default: WantedModel,
        is_loaded: Callable[[ModelVersion], bool] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._control, self.default = control, default
        self._is_loaded, self._draw = is_loaded or control.is_loaded, draw

    def select(self, options: ReadOptions) -> ModelVersion:
        """The version that reads a request. Raises UnknownModel, which lists the alternatives."""
        version = self._find(self._control.catalogue(), options)
        # Before refusing a request, look for the version in the latest state, which other workers may have changed.
        return version or self._find(latest := self._control.latest(), options) or _refuse(self, latest, options)

    def serving(self, wanted: WantedModel) -> ModelVersion | None:
        """The version that serves a model name now, ignoring traffic shares; None if no version serves."""
        version = self.find_available(self._control.catalogue(), wanted, draws=False)
        return version or self.find_available(self._control.latest(), wanted, draws=False)

    def find_available(self, catalogue: Catalogue, wanted: WantedModel, *, draws: bool = True) -> ModelVersion | None:
        """The available version for a model name, or None; with `draws`, traffic shares may select it at random."""
        model = catalogue.models.get(wanted.name)
        if model is None:
            return None
        if wanted.number is not None:
            return model.find(wanted.number)
        if wanted.label is not None:
            return model.labelled(wanted.label)
        return (self._shared(model) if draws else None) or self._current(model)

    def each_model(self, catalogue: Catalogue) -> Iterator[ModelVersion]:
        """The version that serves each model, the default model first, then by name."""
        names = [self.default, *(WantedModel(name) for name in sorted(catalogue.models) if name != self.default.name)]
        return (version for name in names if (version := self.find_available(catalogue, name)) is not None)

    def _find(self, catalogue: Catalogue, options: ReadOptions) -> ModelVersion | None:
        if options.model is not None:
            version = self.find_available(catalogue, _parse(options.model))
            return next(iter(_suiting([version], options)), None) if version is not None else None
        if options.tier is None and options.lang in (None, AUTO):
            return self.find_available(catalogue, self.default)
        return next(iter(_suiting(self.each_model(catalogue), options)), None)

    def _shared(self, model: Model) -> ModelVersion | None:
        """Draw a label by the labels' shares of the traffic; returns its version, None if no label is drawn."""
        if model.policy is None or not model.policy.shares:
            return None
        number = self._draw()
        for label, share in model.policy.shares.items():
            if number < share:
                return model.labelled(label)
            number -= share
        return None

    def _current(self, model: Model) -> ModelVersion | None:
        """The stable version, else the newest loaded one, which may be a replaced version, else the newest."""
        stable = model.labelled(STABLE)
        if stable is not None or not model.available:
            return stable
        replaced = [version for version in model.accepted if version not in model.available]
        loaded = (version for version in (*model.available, *replaced) if self._is_loaded(version))
        return next(loaded, model.available[0])


def _suiting(versions: Iterable[ModelVersion], options: ReadOptions) -> list[ModelVersion]:
    """Versions of the request's tier and language; a model without languages suits no language."""
    of_tier = [version for version in versions if options.tier in (None, version.description.tier)]
    if options.lang is None or options.lang == AUTO:
        return of_tier
    languages = [version.description.languages for version in of_tier]
    return [of_tier[index] for index in with_language(options.lang, languages)]


def _parse(text: str) -> WantedModel:
    try:
        return parse_wanted_model(text)
    except ValueError as error:
        raise UnknownModel(f"{text[:100]!r} is not a model name.", f"Send {ACCEPTED}.") from error


def _refuse(selector: VersionSelector, catalogue: Catalogue, options: ReadOptions) -> NoReturn:
    """Raises UnknownModel, which lists the alternatives."""
    if catalogue.scan.is_unnamed:
        description = catalogue.scan.versions[0].description
        tags = f" Its languages are {_listed(description.languages)}." if description.languages else ""
        raise UnknownModel(
            f"The engine {description.engine} has its own model: model, tier and language cannot be chosen.",
            f"Leave out model, tier and lang.{tags}",
        )
    versions, subject = list(selector.each_model(catalogue)), "No model suits"
    if options.model is not None:
        wanted = _parse(options.model)
        version = selector.find_available(catalogue, wanted)
        if version is None:
            raise UnknownModel(_why_not(catalogue, wanted), _list_versions(catalogue, wanted.name))
        versions, subject = [version], f"The model {version} does not suit"
    elif options.tier is None and options.lang in (None, AUTO):
        raise UnknownModel(f"The default model {selector.default} is not available.", list_models(catalogue))
    words = ", ".join(f"{name} {value}" for name, value in (("tier", options.tier), ("lang", options.lang)) if value)
    descriptions = [version.description for version in versions]
    tiers = sorted({description.tier for description in descriptions if description.tier})
    languages = dict.fromkeys(tag for description in descriptions for tag in description.languages)
    remedy = f"Tiers: {_listed(tiers)}. Languages: {_listed(languages)}, {AUTO}. `ocrsvc models add` adds models."
    raise UnknownModel(f"{subject} {words[:100]}.", remedy)


def _list_versions(catalogue: Catalogue, name: str) -> str:
    model = catalogue.models.get(name)
    if model is None or not model.available:
        return list_models(catalogue)
    labels = [label for label in model.labels if model.labelled(label) is not None]
    numbers = _listed(str(version.number) for version in model.available)
    return f"Versions of {name}: {numbers}. Labels: {_listed(labels)}."


def _why_not(catalogue: Catalogue, wanted: WantedModel) -> str:
    """Why a model name selects nothing: it does not exist, or does not serve. For clients, so without details."""
    model = catalogue.models.get(wanted.name)
    number = model.labels.get(wanted.label) if model is not None and wanted.label is not None else wanted.number
    of_name = (version for version in catalogue.scan.versions if version.name == wanted.name)
    versions = [version for version in of_name if number in (None, version.number)]
    if model is None or not versions or (wanted.label is not None and number is None):
        return f"There is no model {str(wanted)[:140]}."
    # Give the reason for one version: the newest whose proof is pending, or else the newest.
    version = min(versions, key=lambda version: (version not in model.candidates, -version.number))
    return f"The model {str(wanted)[:140]} does not serve: {catalogue.why_not(version)}."


def list_models(catalogue: Catalogue) -> str:
    """A sentence with the models that serve, for the error to a client that named another model."""
    return f"Models: {_listed(sorted(name for name, model in catalogue.models.items() if model.available))}."


def _listed(names: Iterable[str]) -> str:
    """The first _MAX_SHOWN names, separated by commas."""
    every = list(names)
    return (", ".join(every[:_MAX_SHOWN]) or "none") + (", …" if len(every) > _MAX_SHOWN else "")
