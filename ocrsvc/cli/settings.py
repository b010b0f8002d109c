"""`ocrsvc settings`: the settings that hold, and where each came from; also the reference in docs/settings.md."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ocrsvc.settings.describe import accepted, groups, help_of, unit_of, variable_of, without_passwords
from ocrsvc.settings.group import Percentage
from ocrsvc.settings.load import RawValue, check_settings, gather
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.thread_plan import ThreadPlan, plan_for

HELP: Final = "print the settings that hold, and where each came from"
_PREAMBLE: Final = """\
# Settings

Made by `ocrsvc settings --markdown`, which adds those of installed plug-ins at the end; a test keeps it true.
`ocrsvc settings` prints the values that hold, and where each came from.

A value comes from the environment variable, else from the TOML file that `OCRSVC_CONFIG` names (there in lower case and
without the prefix: `workers = 4`), else from the default. An empty variable counts as not set. An unknown `OCRSVC_`
variable, an unknown key in the file, or a value that is not accepted stops the start with exit code 78, and all of them
are told at once. gunicorn's own flags win over the settings: `-b`, `-w`, `--threads`. Sizes in bytes may carry a unit:
`kB`, `MB`, `GB` count in thousands, `KiB`, `MiB`, `GiB` in 1024s.

"planned" numbers follow from the CPUs that the process may really use: the smaller of its affinity and the quotas of
its cgroups, never the host's core count.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc settings`."""
    parser.add_argument("--file", type=Path, help="TOML file to read instead of the one that OCRSVC_CONFIG names")
    parser.add_argument("--markdown", action="store_true", help="print the reference of all settings instead")


def run(args: argparse.Namespace) -> int:
    """Print the settings; raises SettingsError when they are wrong."""
    if args.markdown:
        print(reference(), end="")
        return 0
    given = gather(file=args.file)
    settings = check_settings(given)
    for line in describe(settings, given, plan_for(settings)):
        print(line)
    return 0


def describe(settings: Settings, given: Mapping[str, RawValue], plan: ThreadPlan) -> Iterator[str]:
    """One line for each setting: variable, effective value, unit, source."""
    planned = asdict(plan)
    for name in settings_class().model_fields:
        value = getattr(settings, name)
        source: str = given[name].source if name in given else "default"
        if value is None and name in planned:
            value, source = planned[name], "planned"
        unit = "" if isinstance(value, Percentage) else unit_of(name)
        yield f"{variable_of(name)} = {f'{show(value)} {unit}'.strip()}  ({source})"


def reference() -> str:
    """The text of docs/settings.md."""
    return "\n".join(
        [_PREAMBLE, *(_section(str(group.model_config["title"]), group.model_fields) for group in groups())]
    )


def _section(title: str, names: Iterable[str]) -> str:
    """A heading, and the table of some settings."""
    rows = [
        f"| `{variable_of(name)}` | {_default(name)} | {unit_of(name)} | {accepted(name)} | {help_of(name)} |"
        for name in names
    ]
    head = [f"## {title}", "", "| variable | default | unit | accepted | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _default(name: str) -> str:
    """The default in words."""
    default = settings_class().model_fields[name].get_default(call_default_factory=True)
    if default is None:
        return "planned" if name in ThreadPlan.__dataclass_fields__ else "none"
    return show(default)


def show(value: object) -> str:
    """A value as it could be written in the environment."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return ", ".join(f"{key}={item}" for key, item in value.items())
        case tuple():
            return ", ".join(value) or "none"
        case None:
            return "none"
        case _:
            return without_passwords(str(value))
