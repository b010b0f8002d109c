"""The one model of a service without a model repository: what requests may ask for, and what they are told of it."""

from __future__ import annotations

from typing import Final

from ocrsvc.errors import UnknownModel
from ocrsvc.model_repository import builtin
from ocrsvc.model_repository.language_tag import AUTO, with_language
from ocrsvc.model_serving.model_status import ModelList, VersionStatus
from ocrsvc.records import ReadOptions

NO_MODELS: Final = ModelList(None, ())
"""Of an engine that reads with its own model, which has no name."""

_NAMES: Final = (builtin.NAME, f"{builtin.NAME}/{builtin.NUMBER}")


def check_only_model(options: ReadOptions, engine: str) -> None:
    """Whether the one model of a service without OCRSVC_MODELS is what a request wants; it decides nothing else.

    Args:
        options: Of the request. AUTO suits every engine: it leaves the choice to it.
        engine: The name of the engine.

    Raises:
        UnknownModel: It is not; the remedy says what there is.
    """
    if options.model is None and options.tier is None and options.lang in (None, AUTO):
        return
    if engine != builtin.DESCRIPTION.engine:
        raise UnknownModel(
            f"The engine {engine} reads with its own model: there is no model, tier or language to choose.",
            "Leave model, tier and lang out.",
        )
    described = builtin.DESCRIPTION
    if options.model is not None and options.model not in _NAMES:
        raise UnknownModel(f"There is no model {options.model}.", f"There is one, {_NAMES[1]}.")
    if options.tier not in {None, described.tier}:
        raise UnknownModel(f"There is no model of the tier {options.tier}.", f"There is one, {described.tier}.")
    if options.lang not in (None, AUTO) and not with_language(str(options.lang), [described.languages]):
        raise UnknownModel(
            f"No model here reads the language {options.lang}.", f"There are: {', '.join(described.languages)}, {AUTO}."
        )


def only_model(engine: str) -> ModelList:
    """The built-in model, where that is the engine's. Raises EngineUnavailable: its wheel is missing."""
    if engine != builtin.DESCRIPTION.engine:
        return NO_MODELS
    version = builtin.built_in_model()
    return ModelList(version.name, (VersionStatus(version.name, version.number, "AVAILABLE", "", version=version),))
