"""Loads settings from environment variables and the TOML file in `OCRSVC_CONFIG`; reports all errors together.

Environment variables take precedence. An empty variable counts as not set.
"""

import difflib
import logging
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from ocrsvc.errors import SettingsError
from ocrsvc.settings.describe import PREFIX, accepted, is_secret, variable_of, without_passwords
from ocrsvc.settings.settings import Settings, settings_class

LOGGER: Final = logging.getLogger("ocrsvc.settings")

CONFIG_VARIABLE: Final = "OCRSVC_CONFIG"
# Variables that are no settings of the service; the second one is the client's API key.
_NO_SETTINGS: Final = frozenset({CONFIG_VARIABLE, "OCRSVC_API_KEY"})

REPLACED: Final = dict.fromkeys(("body_bytes", "queue_bytes"), "request_memory_bytes")
"""Removed settings, and the setting that replaces each."""

RENAMED: Final = {
    "dialects": "adapters",
    "tasks_dir": "jobs_dir",
    "tasks_bytes": "jobs_bytes",
    "tasks_s": "jobs_s",
    "quarantine_size": "crash_denylist_size",
    "quarantine_s": "crash_denylist_s",
}
"""Old names that are accepted until the next version, each with the new one."""

_ONE_ACCOUNT: Final = "It limits everything that requests hold: bodies and waiting images."

Source = Literal["default", "file", "environment"]


@dataclass(frozen=True, slots=True)
class RawValue:
    """An unchecked value of a setting, with the setting's name, its label in messages, and the value's source."""

    name: str
    label: str
    value: object
    source: Source


def read_settings(environ: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """Read and check the settings, by default from this process's environment. Raises SettingsError."""
    return check_settings(gather(environ, file))


def check_settings(given: Mapping[str, RawValue]) -> Settings:
    """Check raw values. Raises SettingsError with one line per error: name, value, and accepted values."""
    fields = settings_class().model_fields
    complaints = [_unknown(item) for item in given.values() if item.name not in fields]
    values = {name: item.value for name, item in given.items() if name in fields}
    try:
        settings = settings_class().model_validate(values)
    except ValidationError as error:
        bad = dict.fromkeys(str(problem["loc"][0]) for problem in error.errors())
        complaints += [_refusal(given[name]) for name in bad]
        raise SettingsError("\n".join(complaints)) from error
    if complaints:
        raise SettingsError("\n".join(complaints))
    return settings


def gather(environ: Mapping[str, str] | None = None, file: Path | None = None) -> dict[str, RawValue]:
    """Read unchecked values, by setting name. Raises SettingsError if the file cannot be read or is not TOML."""
    environ = os.environ if environ is None else environ
    named = environ.get(CONFIG_VARIABLE)
    file = Path(named) if file is None and named else file
    given = {item.name: item for item in _from_file(file)} if file else {}
    return _with_new_names(given | {item.name: item for item in _from_environment(environ)})


def _with_new_names(given: Mapping[str, RawValue]) -> dict[str, RawValue]:
    """Rename settings with old names, and log a warning for each. Raises SettingsError if old and new are both set."""
    values = {name: item for name, item in given.items() if name not in RENAMED}
    for old, item in given.items():
        if old not in RENAMED:
            continue
        new = RENAMED[old]
        written = variable_of(new) if item.source == "environment" else new
        if new in values:
            raise SettingsError(f"{item.label} is the old name of {written}, which is set as well: remove the old one.")
        LOGGER.warning("%s is now called %s; the next version will not accept the old name.", item.label, written)
        values[new] = replace(item, name=new)
    return values


def _from_environment(environ: Mapping[str, str]) -> Iterator[RawValue]:
    for variable, value in environ.items():
        if variable.startswith(PREFIX) and variable not in _NO_SETTINGS and value != "":
            name = variable.removeprefix(PREFIX)
            # Convert only upper-case names: OCRSVC_Engine is unknown, because OCRSVC_ENGINE may be set, too.
            yield RawValue(name.lower() if name.isupper() else name, variable, value, "environment")


def _from_file(file: Path) -> Iterator[RawValue]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {file} is not a TOML file: {error}.") from error
    for key, value in table.items():
        # Check values of the file as text like those of the environment, so that `workers = true` does not mean 1.
        plain = value if isinstance(value, dict | list) else str(value)
        yield RawValue(key, f"{key} (in {file.name})", plain, "file")


def _unknown(item: RawValue) -> str:
    """The error message for an unknown setting, with its replacement or the most similar setting."""
    written = variable_of if item.source == "environment" else str
    if item.name in REPLACED:
        return f"{item.label} is no longer a setting: use {written(REPLACED[item.name])}. {_ONE_ACCOUNT}"
    if isinstance(item.value, dict):
        return f"{item.label}: settings are written without [sections]."
    known = [*settings_class().model_fields, "config"]
    near = difflib.get_close_matches(item.name.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean {written(near[0])}?" if near else "`ocrsvc settings --markdown` lists all settings."
    # Hidden, because the setting may be a secret with a misspelt name.
    value = "***" if near and is_secret(near[0]) else repr(without_passwords(str(item.value)))
    return f"{item.label} is {value}: unknown setting; {hint}"


def _refusal(item: RawValue) -> str:
    value = "***" if is_secret(item.name) else repr(without_passwords(str(item.value)))
    return f"{item.label} is {value}: accepted is {accepted(item.name)}."
