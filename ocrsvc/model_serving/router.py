"""Which version reads a request: by model, version or label; by tier and language; by shares of the traffic.

What names nothing is read by the default model. Of a model that is named without version, or by default, read in turn:
the label that a share of the traffic falls on; the label `stable`, where it is set; the newest version that this worker
has loaded; and the newest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

from ocrsvc.errors import UnknownModel
from ocrsvc.model_repository.language_tag import AUTO, with_language
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_repository.wanted_model import ACCEPTED, WantedModel, parse_wanted_model
from ocrsvc.model_serving.catalogue import Catalogue, Model
from ocrsvc.model_serving.policy import STABLE
from ocrsvc.records import ReadOptions

_MOST_SHOWN: Final = 60


class ModelRouter:
    """Finds the version for each request; for any thread, without a lock.

    Args:
        catalogue: What there is now.
        fresh: The same, with the latest of other workers and of the disk; asked before a request is refused.
        default: The model of requests that name none.
        is_loaded: Whether this worker has a version loaded.
        draw: A number from 0 up to 1, anew for each request that shares decide about: nothing in a request chooses.
    """

    def __init__(
        self,
        catalogue: Callable[[], Catalogue],
        fresh: Callable[[], Catalogue],
        default: WantedModel,
        is_loaded: Callable[[ModelVersion], bool] = lambda _version: False,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._catalogue, self._fresh = catalogue, fresh
        self.default = default
        self._is_loaded, self._draw = is_loaded, draw

    def resolve(self, options: ReadOptions) -> ModelVersion:
        """The version that reads a request. Raises UnknownModel, which names what there is."""
        found = self._find(self._catalogue(), options) or self._find(self._fresh(), options)
        return found if found is not None else self._refuse(self._fresh(), options)

    def serving(self, wanted: WantedModel) -> ModelVersion | None:
        """The version that a name stands for now, without shares; None where there is none."""
        found = self._named(self._catalogue(), wanted, draws=False)
        return found or self._named(self._fresh(), wanted, draws=False)

    def _find(self, catalogue: Catalogue, options: ReadOptions) -> ModelVersion | None:
        if options.model is not None:
            version = self._named(catalogue, _parse(options.model))
            return next(iter(_suiting([version], options)), None) if version is not None else None
        if options.tier is None and options.lang in (None, AUTO):
            return self._named(catalogue, self.default)
        return next(iter(_suiting(self._usual(catalogue), options)), None)

    def _named(self, catalogue: Catalogue, wanted: WantedModel, *, draws: bool = True) -> ModelVersion | None:
        model = catalogue.models.get(wanted.name)
        if model is None:
            return None
        if wanted.number is not None:
            return model.find(wanted.number)
        if wanted.label is not None:
            return model.labelled(wanted.label)
        return (self._shared(model) if draws else None) or self._current(model)

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
        """What reads the rest. A version that others have taken the place of goes on until one of them is loaded."""
        stable = model.labelled(STABLE)
        if stable is not None or not model.available:
            return stable
        rest = [version for version in model.accepted if version not in model.available]
        loaded = (version for version in (*model.available, *rest) if self._is_loaded(version))
        return next(loaded, model.available[0])

    def _usual(self, catalogue: Catalogue) -> Iterator[ModelVersion]:
        """What each model reads with, the default model first, then by name."""
        first = self._named(catalogue, self.default)
        if first is not None:
            yield first
        for name in sorted(catalogue.models):
            version = self._named(catalogue, WantedModel(name)) if name != self.default.name else None
            if version is not None:
                yield version

    def _refuse(self, catalogue: Catalogue, options: ReadOptions) -> NoReturn:
        usual = list(self._usual(catalogue))
        if options.model is not None:
            self._refuse_named(catalogue, _parse(options.model), options)
        if options.tier is None and options.lang in (None, AUTO):
            raise UnknownModel(f"The default model {self.default} is not available.", _there_is(catalogue))
        asked = ", ".join(
            f"{name} {value}" for name, value in (("tier", options.tier), ("lang", options.lang)) if value
        )
        tiers = sorted({version.description.tier for version in usual if version.description.tier})
        languages = sorted({tag for version in usual for tag in version.description.languages})
        raise UnknownModel(
            f"No model is there for {asked[:100]}.",
            f"Tiers: {_listed(tiers)}. Languages: {_listed(languages)}.",
        )

    def _refuse_named(self, catalogue: Catalogue, wanted: WantedModel, options: ReadOptions) -> NoReturn:
        version = self._named(catalogue, wanted)
        if version is not None and options.tier not in (None, version.description.tier):
            raise UnknownModel(
                f"The model {version} is not of the tier {options.tier}.",
                f"Its tier is {version.description.tier or 'not known'}.",
            )
        if version is not None:
            raise UnknownModel(
                f"The model {version} does not read {str(options.lang)[:40]}.",
                f"It reads {_listed(version.description.languages)}.",
            )
        model = catalogue.models.get(wanted.name)
        if model is None or not model.available:
            raise UnknownModel(f"There is no model {str(wanted)[:140]}.", _there_is(catalogue))
        there = [str(version.number) for version in model.available]
        labels = [label for label in model.labels if model.labelled(label) is not None]
        raise UnknownModel(
            f"There is no model {str(wanted)[:140]}.",
            f"Versions of {wanted.name}: {_listed(there)}. Labels: {_listed(labels)}.",
        )


def _suiting(versions: Iterable[ModelVersion], options: ReadOptions) -> list[ModelVersion]:
    """Those of the tier and the language that a request wants. What names no language reads none that is asked for."""
    found = [version for version in versions if options.tier in (None, version.description.tier)]
    if options.lang is None or options.lang == AUTO:
        return found
    return [found[place] for place in with_language(options.lang, [one.description.languages for one in found])]


def _parse(text: str) -> WantedModel:
    try:
        return parse_wanted_model(text)
    except ValueError as error:
        raise UnknownModel(f"{text[:100]!r} names no model.", f"Send {ACCEPTED}.") from error


def _there_is(catalogue: Catalogue) -> str:
    return f"There is: {_listed(sorted(name for name, model in catalogue.models.items() if model.available))}."


def _listed(names: Iterable[str]) -> str:
    """The first few, however many there are."""
    every = list(names)
    return (", ".join(every[:_MOST_SHOWN]) or "none") + (", …" if len(every) > _MOST_SHOWN else "")
