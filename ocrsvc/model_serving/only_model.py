"""Checks the model, tier and language of a request where there is no model repository, but one model."""

from __future__ import annotations

from typing import Final

from ocrsvc.errors import UnknownModel
from ocrsvc.model_repository import builtin
from ocrsvc.model_repository.language_tag import AUTO
from ocrsvc.records import ReadOptions

_NAMES: Final = (builtin.NAME, f"{builtin.NAME}/{builtin.NUMBER}")


def check_only_model(options: ReadOptions, engine: str) -> None:
    """Whether the one model of a service without OCRSVC_MODELS is what a request wants; it decides nothing else.

    Args:
        options: Of the request. AUTO suits every engine: it leaves the choice to it.
        engine: The name of the engine.

    Raises:
        UnknownModel: It is not; the remedy says what there is.
    """
    if options.model is None and options.tier is None and (options.lang is None or options.lang == AUTO):
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
    if options.lang not in {None, AUTO, *described.languages}:
        raise UnknownModel(
            f"No model here reads the language {options.lang}.", f"There are: {', '.join(described.languages)}, {AUTO}."
        )
