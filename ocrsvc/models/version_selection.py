"""Selects the version that reads a request: by model, version or label; by tier and language; by shares of the traffic.

A request that names nothing is read by the default model. Of a model that is named without version, or by default, read
in turn: the label that a share of the traffic falls on; the label `stable`, where it is set; the newest version that
this worker has loaded; and the newest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

from ocrsvc.engines.model.languages import AUTO, with_language
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import UnknownModel
from ocrsvc.models.catalogue import Catalogue, Model
from ocrsvc.models.model_control import ModelControl
from ocrsvc.models.model_name import ACCEPTED, WantedModel, parse_wanted_model
from ocrsvc.models.policy import STABLE
from ocrsvc.results import ReadOptions

_MOST_SHOWN: Final = 60


class VersionSelector:
    """Finds the version for each request; for any thread, without a lock.

    `draw` gives a number from 0 up to 1 for each request that shares decide about: nothing in a request chooses.
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
        """The version that reads a request. Raises UnknownModel, which names what there is."""
        found = self._find(self._control.catalogue(), options)
        # What other workers have decided meanwhile counts before a request is refused.
        return found or self._find(latest := self._control.latest(), options) or _refuse(self, latest, options)

    def serving(self, wanted: WantedModel) -> ModelVersion | None:
        """The version that a name stands for now, without shares; None where there is none."""
        found = self.named(self._control.catalogue(), wanted, draws=False)
        return found or self.named(self._control.latest(), wanted, draws=False)

    def named(self, catalogue: Catalogue, wanted: WantedModel, *, draws: bool = True) -> ModelVersion | None:
        """The available version that a name stands for; None where there is none."""
        model = catalogue.models.get(wanted.name)
        if model is None:
            return None
        if wanted.number is not None:
            return model.find(wanted.number)
        if wanted.label is not None:
            return model.labelled(wanted.label)
        return (self._shared(model) if draws else None) or self._current(model)

    def each_model(self, catalogue: Catalogue) -> Iterator[ModelVersion]:
        """What each model reads with, the default model first, then by name."""
        names = [self.default, *(WantedModel(name) for name in sorted(catalogue.models) if name != self.default.name)]
        return (version for name in names if (version := self.named(catalogue, name)) is not None)

    def _find(self, catalogue: Catalogue, options: ReadOptions) -> ModelVersion | None:
        if options.model is not None:
            version = self.named(catalogue, _parse(options.model))
            return next(iter(_suiting([version], options)), None) if version is not None else None
        if options.tier is None and options.lang in (None, AUTO):
            return self.named(catalogue, self.default)
        return next(iter(_suiting(self.each_model(catalogue), options)), None)

    def _shared(self, model: Model) -> ModelVersion | None:
        """The version of the label that this request's share falls on."""
        if model.policy is None or not model.policy.shares:
            return None
        at = self._draw()
        for label, share in model.policy.shares.items():
            if at < share:
                return model.labelled(label)
            at -= share
        return None

    def _current(self, model: Model) -> ModelVersion | None:
        """A version that newer ones have replaced goes on until one of them is loaded."""
        stable = model.labelled(STABLE)
        if stable is not None or not model.available:
            return stable
        replaced = [version for version in model.accepted if version not in model.available]
        loaded = (version for version in (*model.available, *replaced) if self._is_loaded(version))
        return next(loaded, model.available[0])


def _suiting(versions: Iterable[ModelVersion], options: ReadOptions) -> list[ModelVersion]:
    """Those of the tier and the language that a request wants; a model without languages suits no language."""
    found = [version for version in versions if options.tier in (None, version.description.tier)]
    if options.lang is None or options.lang == AUTO:
        return found
    return [found[place] for place in with_language(options.lang, [one.description.languages for one in found])]


def _parse(text: str) -> WantedModel:
    try:
        return parse_wanted_model(text)
    except ValueError as error:
        raise UnknownModel(f"{text[:100]!r} names no model.", f"Send {ACCEPTED}.") from error


def _refuse(selector: VersionSelector, catalogue: Catalogue, options: ReadOptions) -> NoReturn:
    """Raises UnknownModel, with what there is in place of what was asked for."""
    if catalogue.scan.is_unnamed:
        raise UnknownModel(
            f"The engine {catalogue.scan.versions[0].description.engine} reads with its own model: there is no model, "
            "tier or language to choose.",
            "Leave model, tier and lang out.",
        )
    versions, what = list(selector.each_model(catalogue)), "No model suits"
    if options.model is not None:
        wanted = _parse(options.model)
        version = selector.named(catalogue, wanted)
        if version is None:
            raise UnknownModel(_why_not(catalogue, wanted), _what_is(catalogue, wanted.name))
        versions, what = [version], f"The model {version} does not suit"
    elif options.tier is None and options.lang in (None, AUTO):
        raise UnknownModel(f"The default model {selector.default} is not available.", there_is(catalogue))
    options_asked = (("tier", options.tier), ("lang", options.lang))
    words = ", ".join(f"{name} {value}" for name, value in options_asked if value)
    tiers = sorted({one.description.tier for one in versions if one.description.tier})
    languages = dict.fromkeys(tag for one in versions for tag in one.description.languages)
    raise UnknownModel(
        f"{what} {words[:100]}.",
        f"Tiers: {_listed(tiers)}. Languages: {_listed(languages)}, {AUTO}.",
    )


def _what_is(catalogue: Catalogue, name: str) -> str:
    model = catalogue.models.get(name)
    if model is None or not model.available:
        return there_is(catalogue)
    labels = [label for label in model.labels if model.labelled(label) is not None]
    return f"Versions of {name}: {_listed(str(one.number) for one in model.available)}. Labels: {_listed(labels)}."


def _why_not(catalogue: Catalogue, wanted: WantedModel) -> str:
    """Why a name stands for nothing: it is not there at all, or does not serve; for clients, so without the reason."""
    model = catalogue.models.get(wanted.name)
    number = model.labels.get(wanted.label) if model is not None and wanted.label is not None else wanted.number
    there = [one for one in catalogue.scan.versions if one.name == wanted.name and number in (None, one.number)]
    if model is None or not there or (wanted.label is not None and number is None):
        return f"There is no model {str(wanted)[:140]}."
    # What is still to be proved comes before what is known of others.
    newest = min(there, key=lambda one: (one not in model.candidates, -one.number))
    return f"The model {str(wanted)[:140]} does not serve: {catalogue.why_not(newest)}."


def there_is(catalogue: Catalogue) -> str:
    """The models that serve, for a client that asked for another."""
    return f"There is: {_listed(sorted(name for name, model in catalogue.models.items() if model.available))}."


def _listed(names: Iterable[str]) -> str:
    """The first few, however many there are."""
    every = list(names)
    return (", ".join(every[:_MOST_SHOWN]) or "none") + (", …" if len(every) > _MOST_SHOWN else "")
