"""`ocrsvc models`: lists, adds, checks, labels, loads, encrypts and removes models, which a running service follows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from ocrsvc.cli.models_add import add, encrypt, new_model_key
from ocrsvc.cli.models_list import list_models
from ocrsvc.cli.models_repository import (
    control_of,
    named_model,
    named_version,
    repository_of,
    repository_option,
    selector_of,
)
from ocrsvc.cli.options import Group, option
from ocrsvc.engines.model.version import built_in_model
from ocrsvc.errors import OperatorError, UnknownModel
from ocrsvc.models.importers.write_version import ADDING, REMOVING, remove_version
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.proof.judgement import Judgement
from ocrsvc.models.repository import ModelRepository
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import plan_for

_FAULTY: Final = 65
_NONE: Final = "none"
_MODEL: Final = click.argument("model", metavar="NAME[/VERSION]", help="The model, or one version of it.")
_VERSION: Final = click.argument("version", metavar="NAME/VERSION", help="The version.")


@click.group(
    cls=Group,
    examples=(
        "export OCRSVC_MODELS=/var/lib/ocrsvc/models",
        "ocrsvc models add mine det.onnx rec.onnx --dictionary characters.txt",
        "ocrsvc models check mine",
        "ocrsvc models label mine stable 2",
        "ocrsvc models list",
    ),
)
def models() -> None:
    """List, add, check, label, load, encrypt and remove models.

    They are in the model repository, the folder that OCRSVC_MODELS names. A running service follows.
    """


models.add_command(list_models)
models.add_command(add)


@models.command()
@repository_option
@click.argument("model", required=False, metavar="[NAME[/VERSION]]", help="What to check; everything by default.")
def check(settings: Settings, model: str | None) -> int:
    """Verify, open and try versions, and say what is wrong with them.

    Each is opened in a process of its own and reads its reference pages. It ends with 65 if anything is wrong.
    """
    from ocrsvc.models.proof.prover import Prover

    chosen = None if model is None else named_model(model)
    prover = Prover(settings, plan_for(settings, workers=1), lambda: False)
    found = control_of(settings).status(chosen.name if chosen else None)
    if chosen is not None and chosen.number is not None:
        found = [one for one in found if one.number == chosen.number]
    if not found:
        raise UnknownModel(f"There is no {chosen} that could be checked.", "See `ocrsvc models list`.")
    code = 0
    for one in found:
        judged = Judgement("open", one.reason) if one.version is None else prover.prove(one.version, None)
        print(f"{one.name}/{one.number}: {'right. ' if judged.kind is None else ''}{judged.reason}", flush=True)
        code = code if judged.kind is None else _FAULTY
    for remark in unfinished(repository_of(settings)) if chosen is None else ():
        print(remark)
    return code


def unfinished(folder: Path) -> Iterator[str]:
    """What has been begun, and may never be ended; it is nothing that a service would read."""
    for name, number in ModelRepository(folder).incomplete():
        yield f"{name}/{number}: still being copied: it has no SHA256SUMS yet."
    for beginning in (ADDING, REMOVING):
        for left in sorted(folder.glob(f"*/{beginning}*")):
            yield f"{left.relative_to(folder)}: a command is at it, or was ended before its end. Then remove it."


@models.command(examples=("ocrsvc models label mine stable 2", "ocrsvc models label mine canary none"))
@repository_option
@click.argument("name", help="Name of the model.")
@click.argument("label", help="Its label.")
@click.argument("version", help=f"Number of the version, or {_NONE} to take the label away.")
def label(settings: Settings, name: str, label: str, version: str) -> None:
    """Set a label, such as stable or canary."""
    control = control_of(settings)
    if version == _NONE:
        control.set_labels(name, {label: None})
        print(f"{name} has no label {label}.")
        return
    if not version.isascii() or not version.isdecimal():
        raise OperatorError(f"{version[:40]!r} is no version.", f"Accepted is its number, or {_NONE}.")
    control.set_labels(name, {label: int(version)})
    print(f"{name}:{label} is {name}/{int(version)}.")


@models.command()
@repository_option
@_MODEL
def load(settings: Settings, model: str) -> None:
    """Have a model or version serve that the policy does not want."""
    wanted = named_model(model)
    control_of(settings).load(wanted.name, wanted.number)
    print(f"{wanted} is wanted, and serves as soon as it has proved itself.")


@models.command()
@repository_option
@_MODEL
def unload(settings: Settings, model: str) -> None:
    """Have a model or version serve no more."""
    wanted = named_model(model)
    control_of(settings).unload(wanted.name, wanted.number)
    print(f"{wanted} serves no more requests.")


@models.command()
@repository_option
@_VERSION
def forget(settings: Settings, version: str) -> None:
    """Forget what was found of a version, so that it is tried anew."""
    control, (name, number) = control_of(settings), named_version(version)
    found = [one.version for one in control.status() if (one.name, one.number) == (name, number)]
    if not found or found[0] is None:
        raise UnknownModel(f"There is no {name}/{number} that could be tried.", "See `ocrsvc models list`.")
    control.store.forget_verdict(found[0].digest)
    print(f"{name}/{number} is tried anew, as if it had just been added.")


@models.command()
@repository_option
@_VERSION
@option("--yes", is_flag=True, help="Do not ask.")
@option("--force", is_flag=True, help="Also if requests are read by it, or a label names it.")
def remove(settings: Settings, version: str, *, yes: bool, force: bool) -> int:
    """Remove a version.

    It asks first, and ends with 1 if the answer is no.
    """
    name, number = named_version(version)
    folder = repository_of(settings) / name / str(number)
    if (name, number) == (built_in_model().name, built_in_model().number):
        raise OperatorError(f"{name}/{number} is the built-in model.", "OCRSVC_MODEL names another one to read with.")
    if not folder.is_dir():
        raise OperatorError(f"There is no {name}/{number} in {settings.models}.", "See `ocrsvc models list`.")
    if not force:
        _check_free(settings, name, number)
    if not yes and not _ask(folder):
        return 1
    # It removes the manifest first: a service never sees half a version.
    remove_version(folder)
    print(f"{name}/{number} is removed.")
    return 0


def _check_free(settings: Settings, name: str, number: int) -> None:
    """Raises OperatorError where requests would be read by another version from now on, or by none."""
    control = control_of(settings)
    labels = [one.labels for one in control.status() if (one.name, one.number) == (name, number)]
    uses = [f"the label {label} names it" for label in next(iter(labels), ())]
    selector = selector_of(control, settings)
    for wanted in (WantedModel(name), selector.default):
        serving = selector.serving(wanted)
        if serving is not None and (serving.name, serving.number) == (name, number):
            uses.append(f"it reads requests for {wanted}")
    if uses:
        raise OperatorError(
            f"{name}/{number} is in use: {', '.join(dict.fromkeys(uses))}.",
            "Have another version serve first (ocrsvc models label, load or unload), or say --force.",
        )


def _ask(folder: Path) -> bool:
    """Whether the operator says yes. Raises OperatorError without a terminal."""
    if not sys.stdin.isatty():
        raise OperatorError("Not a terminal.", "Confirm with --yes.")
    print(f"Remove {folder}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


models.add_command(encrypt)
models.add_command(new_model_key)
