"""`ocrsvc settings`: the settings that hold, and where each came from; also the reference in docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ocrsvc.cli.options import FILE, command, option
from ocrsvc.settings.describe import accepted, groups, help_of, unit_of, variable_of, without_passwords
from ocrsvc.settings.group import Percentage
from ocrsvc.settings.load import RawValue, check_settings, gather
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.thread_plan import ThreadPlan, plan_for

_PREAMBLE: Final = """\
# Settings

Made by `ocrsvc settings --markdown`, which adds those of installed plug-ins at the end; a test keeps it true.
`ocrsvc settings` prints the values that hold, and where each came from.

A value comes from the environment variable, else from the TOML file that `OCRSVC_CONFIG` names (there in lower case and
without the prefix: `workers = 4`), else from the default. An empty variable counts as not set. An unknown `OCRSVC_`
variable, an unknown key in the file, or a value that is not accepted stops the start with exit code 78, and all of them
are named at once. gunicorn's own flags win over the settings: `-b`, `-w`, `--threads`. Sizes in bytes may carry a unit:
`kB`, `MB`, `GB` count in thousands, `KiB`, `MiB`, `GiB` in 1024s.

"planned" numbers follow from the CPUs that the process may really use: the smaller of its affinity and the quotas of
its cgroups, never the host's core count.
"""


@command("ocrsvc settings", "ocrsvc settings --file ocrsvc.toml")
@option("--file", type=FILE, help="TOML file to read instead of the one that OCRSVC_CONFIG names.")
@option("--markdown", is_flag=True, help="Print the reference of all settings instead.")
def settings(*, file: Path | None, markdown: bool) -> None:
    """Print the settings in effect, and where each came from: environment, file, plan or default."""
    if markdown:
        print(reference(), end="")
        return
    given = gather(file=file)
    checked = check_settings(given)
    for line in describe(checked, given, plan_for(checked)):
        print(line)


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
    rows = [
        f"| `{variable_of(name)}` | {_default(name)} | {unit_of(name)} | {accepted(name)} | {help_of(name)} |"
        for name in names
    ]
    head = [f"## {title}", "", "| variable | default | unit | accepted | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _default(name: str) -> str:
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
