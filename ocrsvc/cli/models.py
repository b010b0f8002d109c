"""`ocrsvc models`: lists, adds, checks, labels, loads, encrypts and removes models of the repository."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import orjson

from ocrsvc.cli.options import FILE, gathered, group, option
from ocrsvc.cli.output import table
from ocrsvc.cli.service import Access, service_access
from ocrsvc.engines.model.key_source import read_model_key
from ocrsvc.engines.model.version import ModelVersion, built_in_model
from ocrsvc.errors import OperatorError, UnknownModel
from ocrsvc.models.importers.write_version import ADDING, REMOVING, remove_version
from ocrsvc.models.model_control import ModelControl, VersionStatus, open_control
from ocrsvc.models.model_name import WantedModel, parse_wanted_model
from ocrsvc.models.proof.prover import Prover
from ocrsvc.models.proof.verdicts import Verdicts, prove_by_command
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import Judgement, state_folder
from ocrsvc.models.version_selection import VersionSelector
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import plan_for

_DEFECTIVE: Final = 65
_NO_VERSION: Final = "none"
_SEE_LIST: Final = "See `ocrsvc models list`."
_COLUMNS: Final = ("model", "state", "labels", "tier", "languages", "size", "engine", "licence", "source")
_EXPLAINED: Final = frozenset({"refused", "bad", "copying"})
"""States that need an operator; their reasons are printed."""
_MAX_LANGUAGES: Final = 5


def named_version(text: str) -> tuple[str, int]:
    """Parse NAME/VERSION. Raises OperatorError."""
    wanted = named_model(text)
    if wanted.number is None:
        raise OperatorError(f"{text[:100]!r} has no version.", "Write NAME/VERSION, such as mine/2.")
    return wanted.name, wanted.number


def named_model(text: str) -> WantedModel:
    """Parse NAME or NAME/VERSION. Raises OperatorError."""
    try:
        wanted = parse_wanted_model(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.label is not None:
        raise OperatorError(f"{text[:100]!r} is not a model.", "Write NAME or NAME/VERSION, such as mine or mine/2.")
    return wanted


_MODEL: Final = click.argument("model", type=named_model, metavar="NAME[/VERSION]", help="A model, or a version.")
_VERSION: Final = click.argument("version", type=named_version, metavar="NAME/VERSION", help="The version.")
repository_option: Final = gathered(
    "settings",
    lambda models: read_settings(os.environ | ({"OCRSVC_MODELS": str(models)} if models else {})),
    option("--models", type=FILE, metavar="FOLDER", help="Model repository; by default OCRSVC_MODELS."),
)


@group(
    "export OCRSVC_MODELS=/var/lib/ocrsvc/models",
    "ocrsvc models add mine det.onnx rec.onnx --dictionary characters.txt",
    "ocrsvc models check mine",
    "ocrsvc models label mine stable 2",
    "ocrsvc models list",
)
def models() -> None:
    """List, add, check, label, load, encrypt and remove models.

    OCRSVC_MODELS names the model repository. A running service follows changes.
    """


def repository_of(settings: Settings) -> Path:
    """The repository's folder. Raises OperatorError if none is configured."""
    if settings.models is None:
        raise OperatorError("No model repository is configured.", "Set OCRSVC_MODELS or --models FOLDER.")
    return settings.models


def control_of(settings: Settings) -> ModelControl:
    """Open the repository's ModelControl as a worker does. Raises OperatorError."""
    folder = repository_of(settings)
    return open_control(folder, state_folder(folder, settings.models_state), read_model_key(settings))


def selector_of(control: ModelControl, settings: Settings) -> VersionSelector:
    """The VersionSelector of a worker that has loaded all available versions."""
    return VersionSelector(control, parse_wanted_model(settings.model), lambda _version: True)


@models.command("list", examples=("ocrsvc models list", "ocrsvc models list --url http://127.0.0.1:8000 --json"))
@repository_option
@option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@option("--url", section="Service", metavar="URL", help="List the models of this service instead.")
@service_access
def _list(settings: Settings, url: str | None, access: Access, *, as_json: bool) -> None:
    """List the models and their versions."""
    if url:
        # A service does not send why a version is unusable, because that text may contain paths.
        with access.client(url) as client:
            listed = [asdict(one) | {"state": one.state.lower(), "reason": ""} for one in client.models().models]
    else:
        listed = list(_of_repository(settings))
    entries = sorted(listed, key=lambda entry: (entry["name"], entry["version"]))
    if as_json:
        print(orjson.dumps(entries, option=orjson.OPT_INDENT_2).decode())
        return
    print("\n".join(table(_COLUMNS, [_row(entry) for entry in entries])))
    for entry in entries:
        if entry["reason"] and entry["state"] in _EXPLAINED:
            print(f"{_name(entry)}: {entry['reason']}")


def _of_repository(settings: Settings) -> Iterator[dict[str, Any]]:
    if settings.models is None:
        yield _entry("ppocr", 1, "serving", "", (), built_in_model())
        return
    control = control_of(settings)
    selector = selector_of(control, settings)
    for one in control.status():
        entry = _entry(one.name, one.number, _state(one, control, selector), one.reason, one.labels, one.version)
        yield entry | ({"figures": dict(one.figures)} if one.figures else {})
    for name, number in ModelRepository(settings.models).incomplete():
        yield _entry(name, number, "copying", "It has no SHA256SUMS yet: it is still being copied.", (), None)


def _state(status: VersionStatus, control: ModelControl, selector: VersionSelector) -> str:
    """A version's state in one word; there are more states than in the serving protocols."""
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
    name: str, number: int, state: str, reason: str, labels: Sequence[str], version: ModelVersion | None
) -> dict[str, Any]:
    about = {"name": name, "version": number, "state": state, "reason": reason, "labels": list(labels)}
    if version is None:
        return about
    described = version.description
    # Count only the model's own files: the built-in model is in the folder of a wheel, which has other files too.
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
    # A model whose folder cannot be listed has the version number 0, which is not shown.
    return f"{entry['name']}/{entry['version']}" if entry["version"] else entry["name"]


def _row(entry: Mapping[str, Any]) -> Sequence[str]:
    size, languages = entry.get("size_bytes"), entry.get("languages", ())
    more = [f"+{len(languages) - _MAX_LANGUAGES}"] if len(languages) > _MAX_LANGUAGES else []
    return (
        _name(entry),
        entry["state"],
        " ".join(entry["labels"]) or "-",
        entry.get("tier") or "-",
        " ".join([*languages[:_MAX_LANGUAGES], *more]) or "-",
        "-" if size is None else f"{size / 1e6:.1f} MB",
        *(entry.get(name) or "-" for name in ("engine", "licence", "source")),
    )


@models.command("check", examples=("ocrsvc models check", "ocrsvc models check mine/2"))
@repository_option
@click.argument("chosen", required=False, type=named_model, metavar="[NAME[/VERSION]]", help="By default all.")
def _check(settings: Settings, chosen: WantedModel | None) -> int:
    """Verify and open versions, and read their reference pages.

    Each version is opened in its own process. If a version has no verdict yet, the result becomes its verdict, as if
    the service had proved it. The exit code is 65 if a version has defects.
    """
    control, prover = control_of(settings), Prover(settings, plan_for(settings, workers=1), lambda: False)
    statuses, verdicts = control.status(chosen.name if chosen else None), Verdicts(settings, control.store)
    if chosen is not None and chosen.number is not None:
        statuses = [one for one in statuses if one.number == chosen.number]
    if not statuses:
        raise UnknownModel(f"The repository has no {chosen}.", _SEE_LIST)
    code = 0
    for one in statuses:
        judged = Judgement("open", one.reason)
        if one.version is not None:
            judged = prove_by_command(one.version, control, prover.prove, verdicts)
        print(f"{one.name}/{one.number}: {'good. ' if judged.kind is None else ''}{judged.reason}", flush=True)
        code = code if judged.kind is None else _DEFECTIVE
    for remark in unfinished(repository_of(settings)) if chosen is None else ():
        print(remark)
    return code


def unfinished(folder: Path) -> Iterator[str]:
    """Report incomplete versions and leftover folders, which a service ignores."""
    for name, number in ModelRepository(folder).incomplete():
        yield f"{name}/{number}: still being copied: it has no SHA256SUMS yet."
    for left in sorted([*folder.glob(f"*/{ADDING}*"), *folder.glob(f"*/{REMOVING}*")]):
        yield f"{left.relative_to(folder)}: a command is writing it or was interrupted. Remove it if none is running."


@models.command("label", examples=("ocrsvc models label mine stable 2", "ocrsvc models label mine canary none"))
@repository_option
@click.argument("name", help="Name of the model.")
@click.argument("label", help="Its label.")
@click.argument("version", help=f"Number of the version, or {_NO_VERSION} to remove the label.")
def _label(settings: Settings, name: str, label: str, version: str) -> None:
    """Set a label, such as stable or canary."""
    if version != _NO_VERSION and not (version.isascii() and version.isdecimal()):
        raise OperatorError(f"{version[:40]!r} is not a version.", f"Accepted are a number and {_NO_VERSION}.")
    number = None if version == _NO_VERSION else int(version)
    control_of(settings).set_labels(name, {label: number})
    print(f"{name} has no label {label}." if number is None else f"{name}:{label} is {name}/{number}.")


@models.command("load", examples=("ocrsvc models load mine/1",))
@repository_option
@_MODEL
def _load(settings: Settings, model: WantedModel) -> None:
    """Load a model or version, even if the policy does not select it."""
    control_of(settings).load(model.name, model.number)
    print(f"{model} will serve when it has passed its proof.")


@models.command("unload", examples=("ocrsvc models unload mine/1",))
@repository_option
@_MODEL
def _unload(settings: Settings, model: WantedModel) -> None:
    """Stop serving a model or version."""
    control_of(settings).unload(model.name, model.number)
    print(f"{model} serves no more requests.")


@models.command("forget", examples=("ocrsvc models forget mine/2",))
@repository_option
@_VERSION
def _forget(settings: Settings, version: tuple[str, int]) -> None:
    """Forget the verdict on a version, so that it is proved again."""
    control = control_of(settings)
    found = next((one.version for one in control.status() if (one.name, one.number) == version), None)
    if found is None:
        raise UnknownModel("The repository has no readable {}/{}.".format(*version), _SEE_LIST)
    control.store.forget_verdict(found.digest)
    print(f"{found} will be proved again.")


@models.command("remove", examples=("ocrsvc models remove mine/1 --yes",))
@repository_option
@_VERSION
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
@option("--force", is_flag=True, help="Remove it even if it serves requests or has a label.")
def _remove(settings: Settings, version: tuple[str, int], *, yes: bool, force: bool) -> int:
    """Remove a version after asking; the exit code is 1 if the answer is no."""
    name, number = version
    folder = repository_of(settings) / name / str(number)
    if version == (built_in_model().name, built_in_model().number):
        raise OperatorError(f"The built-in {name}/{number} cannot be removed.", "Select another with OCRSVC_MODEL.")
    if not folder.is_dir():
        raise OperatorError(f"{settings.models} has no {name}/{number}.", _SEE_LIST)
    if not force:
        _check_free(settings, name, number)
    if not yes:
        if not sys.stdin.isatty():
            raise OperatorError("Not a terminal: confirm with --yes.")
        print(f"Remove {folder}? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 1
    # `remove_version` deletes the manifest first, so that a service never sees half a version.
    remove_version(folder)
    print(f"{name}/{number} is removed.")
    return 0


def _check_free(settings: Settings, name: str, number: int) -> None:
    """Raises OperatorError if the version is in use: a label names it, or it serves requests."""
    control = control_of(settings)
    found = next((one for one in control.status() if (one.name, one.number) == (name, number)), None)
    uses = [f"label {label}" for label in found.labels] if found else []
    selector = selector_of(control, settings)
    for wanted in dict.fromkeys((WantedModel(name), selector.default)):
        serving = selector.serving(wanted)
        if serving is not None and (serving.name, serving.number) == (name, number):
            uses.append(f"requests for {wanted}")
    if uses:
        remedy = "Make another version serve first (ocrsvc models label, load or unload), or add --force."
        raise OperatorError(f"{name}/{number} is in use by {', '.join(uses)}.", remedy)
