"""Opens a model's engine, or the one that the settings name, in this process or in child processes.

The settings of a model are those of the service, with what its `model.toml` says of its engine in their place. Only the
engine that is opened is imported.
"""

from __future__ import annotations

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

_WRITTEN: Final = frozenset({"model_cache"})  # folders that the service writes to, and takes what is there for its own


def settings_of_model(settings: Settings, model: ModelVersion) -> Settings:
    """The settings with which a model is opened: its engine, and what its description sets.

    The files at the paths that it names are held against its manifest. Raises BadModel: there is no such engine, or it
    would run programs of the model, and OCRSVC_MODELS_CODE is off; a setting does not exist, is not the engine's own,
    or has a value that is not accepted; a file is not that of the manifest.
    """
    name = model.description.engine
    if name not in engines():
        raise BadModel(
            f"{model}: model.toml: engine is {name!r}, and there is no such engine.",
            f"Name one of {', '.join(engines())}, or install the plug-in that brings it.",
        )
    entry = engines()[name]
    if entry.runs_model_code and model.description.paths and not settings.models_code:
        raise BadModel(
            f"{model}: the engine {entry.name} runs programs that lie in the model's folder.",
            "Set OCRSVC_MODELS_CODE=true if all who may write into OCRSVC_MODELS may decide what the service runs.",
        )
    own = own_settings(entry)
    given: dict[str, object] = {"engine": entry.name}
    for name, value in model.description.settings.items():
        if name not in own:
            remedy = f"Its own are {', '.join(sorted(own))}." if own else f"The engine {entry.name} has none."
            raise _bad(model, name, f"is no setting of the engine {entry.name}", remedy)
        given[name] = _value_of(model, name, value)
    try:
        return type(settings).model_validate(vars(settings) | given)
    except ValidationError as error:
        raise _refusal(model, error) from error


def own_settings(entry: EngineEntry) -> frozenset[str]:
    """The names of the settings that are the engine's own, which a model of it may set."""
    groups = [resolve(group) for group in (entry.settings, *entry.base_groups) if group]
    return frozenset(name for group in groups for name in group.model_fields) - _WRITTEN


def _value_of(model: ModelVersion, name: str, value: Any) -> object:
    """As the file of settings has it: texts, so that `true` is no number here either; paths in the folder are whole."""
    if isinstance(value, dict | list):
        return value
    text = str(value)
    if not text.startswith(IN_FOLDER):
        annotation = settings_class().model_fields[name].annotation
        if Path in (annotation, *get_args(annotation)):
            raise _bad(model, name, f"is {text[:200]!r}, which is not in the model's folder", "Begin it with './'.")
        return text
    path = PurePosixPath(text)
    if ".." in path.parts:
        raise _bad(model, name, f"is {text!r}, which leaves the model's folder", "Name a path below it.")
    # An engine opens these files by itself, so they are read here first.
    for file in model.digests:
        if path in (PurePosixPath(file), *PurePosixPath(file).parents):
            model.read(file)
    return str(Path(model.folder / path))


def _refusal(model: ModelVersion, error: ValidationError) -> BadModel:
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0])
    if name not in model.description.settings:
        # What the service's own settings say does not go together with what the model says.
        return _bad(model, name, "cannot be set as the model wants it", problem["msg"])
    value = model.description.settings[name]
    return _bad(model, name, f"is {value!r}", f"Accepted is {accepted(name)}.")


def _bad(model: ModelVersion, name: str, fault: str, remedy: str) -> BadModel:
    return BadModel(f"{model}: model.toml: settings.{name} {fault}.", remedy)


def open_engine(
    settings: Settings, plan: ThreadPlan, denylist: CrashDenylist | None = None, model: ModelVersion | None = None
) -> Engine:
    """Open an engine where OCRSVC_ISOLATION says, with a model, or the one that OCRSVC_ENGINE names with its own.

    Call it after the fork. `denylist` is what all workers share, for isolated engines. Raises EngineUnavailable,
    BadModel.
    """
    if settings.isolation == "thread":
        return open_engine_in_process(settings, plan, model)
    from ocrsvc.engines.isolated.engine import IsolatedEngine

    if model is not None:
        settings = settings_of_model(settings, model)
    denylist = denylist or CrashDenylist(settings.quarantine_size, settings.quarantine_s)
    return IsolatedEngine(settings, plan, denylist, model)


def open_engine_in_process(settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> Engine:
    """Load an engine in this process, whatever OCRSVC_ISOLATION says. Raises EngineUnavailable, BadModel."""
    if model is not None:
        settings = settings_of_model(settings, model)
    entry = engines()[settings.engine]
    try:
        opener = resolve(entry.opener)
    except EntryError as error:
        raise EngineUnavailable(str(error)) from error
    return AnalysingEngine(opener(settings, plan, model) if entry.takes_model else opener(settings, plan), model)
