"""`ocrsvc models list`: every model and version of the repository, and why those that do not serve do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from ocrsvc.cli.models_repository import control_of, repository_option, selector_of
from ocrsvc.cli.options import Command, option
from ocrsvc.cli.service import Access, service_access
from ocrsvc.cli.terminal import table
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.repository import ModelRepository
from ocrsvc.settings.settings import Settings

if TYPE_CHECKING:
    from ocrsvc.models.model_control import ModelControl
    from ocrsvc.models.version_selection import VersionSelector

_COLUMNS: Final = ("model", "state", "labels", "tier", "languages", "size", "engine", "licence", "source")
_EXPLAINED: Final = frozenset({"refused", "bad", "copying"})
"""States that an operator has to do something about."""
_MOST_LANGUAGES: Final = 5


@click.command(
    "list", cls=Command, examples=("ocrsvc models list", "ocrsvc models list --url http://127.0.0.1:8000 --json")
)
@repository_option
@option("--json", "as_json", is_flag=True, help="As JSON, one array.")
@option("--url", section="Service", metavar="URL", help="A service whose models are listed, not those in a folder.")
@service_access
def list_models(settings: Settings, url: str | None, access: Access, *, as_json: bool) -> None:
    """List the models and their versions."""
    found = _of_service(url, access) if url else _found(settings)
    entries = sorted(found, key=lambda entry: (entry["name"], entry["version"]))
    if as_json:
        print(orjson.dumps(entries, option=orjson.OPT_INDENT_2).decode())
        return
    print("\n".join(table(_COLUMNS, [_row(entry) for entry in entries])))
    for entry in entries:
        if entry["reason"] and entry["state"] in _EXPLAINED:
            print(f"{_name(entry)}: {entry['reason']}")


def _of_service(url: str, access: Access) -> Iterator[Mapping[str, Any]]:
    """As a running service tells its clients, without what it keeps to itself. Raises OcrsvcError."""
    with access.client(url) as client:
        listed = client.models()
    yield from (asdict(one) | {"state": one.state.lower(), "reason": ""} for one in listed.models)


def _found(settings: Settings) -> Iterator[Mapping[str, Any]]:
    """What is on this machine."""
    if settings.models is None:
        yield _entry("ppocr", 1, "serving", version=built_in_model())
        return
    control = control_of(settings)
    selector = selector_of(control, settings)
    for one in control.status():
        entry = _entry(one.name, one.number, _state(one, control, selector), one.reason, one.labels, one.version)
        yield entry | ({"figures": dict(one.figures)} if one.figures else {})
    for name, number in ModelRepository(settings.models).incomplete():
        yield _entry(name, number, "copying", "It has no SHA256SUMS yet: it is still being copied.")


def _state(status: VersionStatus, control: ModelControl, selector: VersionSelector) -> str:
    """In one word; the protocols' own states say less."""
    if status.version is None:
        return "bad"
    if status.state == "AVAILABLE":
        return "serving" if selector.serving(WantedModel(status.name)) == status.version else "available"
    if status.state in ("START", "LOADING"):
        return "waiting"
    catalogue = control.catalogue()
    verdict = catalogue.verdict(status.version)
    if verdict is not None and not verdict.accepted:
        return "refused"
    return "unloaded" if {status.name, str(status.version)} & catalogue.state.unloads else "unwanted"


def _entry(
    name: str,
    number: int,
    state: str,
    reason: str = "",
    labels: Sequence[str] = (),
    version: ModelVersion | None = None,
) -> dict[str, Any]:
    about = {"name": name, "version": number, "state": state, "reason": reason, "labels": list(labels)}
    if version is None:
        return about
    described = version.description
    # Of the built-in model the files that it names, since its wheel holds others, too.
    files = [version.folder / file for file in version.digests or described.files]
    return {
        **about,
        **{member: getattr(described, member) for member in ("title", "tier", "engine", "licence", "source")},
        "languages": list(described.languages),
        "size_bytes": sum(file.stat().st_size for file in files if file.is_file()),
        "digest": version.digest,
        "is_encrypted": described.encryption is not None,
    }


def _name(entry: Mapping[str, Any]) -> str:
    """Of a version; a whole model, whose folder cannot be listed, has the number 0."""
    return f"{entry['name']}/{entry['version']}" if entry["version"] else entry["name"]


def _row(entry: Mapping[str, Any]) -> Sequence[str]:
    size, languages = entry.get("size_bytes"), entry.get("languages", ())
    more = [f"+{len(languages) - _MOST_LANGUAGES}"] if len(languages) > _MOST_LANGUAGES else []
    return (
        _name(entry),
        entry["state"],
        " ".join(entry["labels"]) or "-",
        entry.get("tier") or "-",
        " ".join([*languages[:_MOST_LANGUAGES], *more]) or "-",
        "-" if size is None else f"{size / 1e6:.1f} MB",
        *(entry.get(name) or "-" for name in ("engine", "licence", "source")),
    )
