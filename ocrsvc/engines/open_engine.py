"""Opens the engine of a model or of OCRSVC_ENGINE, in this process or in child processes.

A model's `model.toml` overrides the service's settings for its engine. Only the engine that is opened is imported.
"""

import os
from pathlib import Path, PurePosixPath
from typing import Any, Final, get_args

from pydantic import ValidationError

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.model.description import IN_FOLDER
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.page_analysis import AnalysingEngine
from ocrsvc.errors import BadModel, EngineUnavailable
from ocrsvc.plugins import EngineEntry, EntryError, engines, resolve
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.describe import accepted
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.thread_plan import ThreadPlan

_WRITTEN: Final = frozenset({"model_cache"})  # folders that the service writes to and trusts; no model may set them


def settings_of_model(settings: Settings, model: ModelVersion) -> Settings:
    """The service's settings, changed for a model's engine; files named in the model's settings are verified.

    Raises BadModel: the engine is unknown; it would run programs from the model, which OCRSVC_MODELS_CODE does not
    allow; a setting is invalid or not the engine's own; or a file does not match the manifest.
    """
    name = model.description.engine
    if name not in engines():
        raise BadModel(
            f"{model}: model.toml: unknown engine {name!r}.",
            f"Name one of {', '.join(engines())}, or install the plug-in that provides it.",
        )
    entry = engines()[name]
    if entry.runs_model_code and model.description.paths and not settings.models_code:
        raise BadModel(
            f"{model}: the engine {entry.name} runs programs from the model's folder.",
            "Set OCRSVC_MODELS_CODE=true if you trust everyone who can write to OCRSVC_MODELS to run code here.",
        )
    own = own_settings(entry)
    given: dict[str, object] = {"engine": entry.name}
    for name, value in model.description.settings.items():
        if name not in own:
            remedy = f"Its settings are {', '.join(sorted(own))}." if own else f"The engine {entry.name} has none."
            raise _bad(model, name, f"is not a setting of the engine {entry.name}", remedy)
        given[name] = _value_of(model, name, value)
    try:
        return type(settings).model_validate(vars(settings) | given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        if name not in model.description.settings:
            raise _bad(model, name, "conflicts with the service's settings", problem["msg"]) from error
        value = model.description.settings[name]
        raise _bad(model, name, f"is {value!r}", f"Accepted is {accepted(name)}.") from error


def own_settings(entry: EngineEntry) -> frozenset[str]:
    """Names of the engine's own settings, which a model may set."""
    groups = [resolve(group) for group in (entry.settings, *entry.base_groups) if group]
    return frozenset(name for group in groups for name in group.model_fields) - _WRITTEN


def _value_of(model: ModelVersion, name: str, value: Any) -> object:
    """Convert a TOML value for the settings: scalars to text, so that True is not 1; `./` paths to absolute ones."""
    if isinstance(value, dict | list):
        return value
    text = str(value)
    if not text.startswith(IN_FOLDER):
        annotation = settings_class().model_fields[name].annotation
        if Path in (annotation, *get_args(annotation)):
            raise _bad(model, name, f"is {text[:200]!r}, outside the model's folder", "Begin it with './'.")
        return text
    path = PurePosixPath(text)
    if ".." in path.parts:
        raise _bad(model, name, f"is {text!r}, which leaves the model's folder", "Name a path below it.")
    # The engine opens these files itself, so check their digests now: `read` does that.
    for file in model.digests:
        if path in (PurePosixPath(file), *PurePosixPath(file).parents):
            model.read(file)
    return str(Path(model.folder / path))


def _bad(model: ModelVersion, name: str, fault: str, remedy: str) -> BadModel:
    return BadModel(f"{model}: model.toml: settings.{name} {fault}.", remedy)


def open_engine(
    settings: Settings, plan: ThreadPlan, denylist: CrashDenylist | None = None, model: ModelVersion | None = None
) -> Engine:
    """Open a model's engine, or that of OCRSVC_ENGINE, after the fork. Raises EngineUnavailable, BadModel."""
    if not runs_isolated(settings, settings.engine if model is None else model.description.engine):
        return open_engine_in_process(settings, plan, model)
    from ocrsvc.engines.isolated.engine import IsolatedEngine

    if model is not None:
        settings = settings_of_model(settings, model)
    denylist = denylist or CrashDenylist(settings.crash_denylist_size, settings.crash_denylist_s)
    return IsolatedEngine(settings, plan, denylist, model)


def runs_isolated(settings: Settings, engine: str) -> bool:
    """Whether an engine runs in child processes; with OCRSVC_ISOLATION=auto, if a deadline cannot interrupt it."""
    if settings.isolation != "auto":
        return settings.isolation == "process"
    if engine not in engines() or engines()[engine].is_interruptible or not hasattr(os, "memfd_create"):
        return False
    in_process = engines()[engine].in_process_setting
    return not (in_process and getattr(settings, in_process))


def open_engine_in_process(settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> Engine:
    """Open an engine in this process, regardless of OCRSVC_ISOLATION. Raises EngineUnavailable, BadModel."""
    if model is not None:
        settings = settings_of_model(settings, model)
    entry = engines()[settings.engine]
    try:
        opener = resolve(entry.opener)
    except EntryError as error:
        is_missing = isinstance(error.__cause__, ModuleNotFoundError) and entry.extra and not entry.package
        remedy = f"Install the extra: pip install '.[{entry.extra}]'." if is_missing else ""
        raise EngineUnavailable(str(error), remedy) from error
    return AnalysingEngine(opener(settings, plan, model) if entry.takes_model else opener(settings, plan), model)
