"""`ocrsvc models check`: verifies versions, opens them in a process of their own, and has them read reference pages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ocrsvc.cli.models_repository import control_of, named_model, repository_of
from ocrsvc.errors import UnknownModel
from ocrsvc.models.importers.write_version import ADDING, REMOVING
from ocrsvc.models.proof.judgement import Judgement
from ocrsvc.models.repository import ModelRepository
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import plan_for

if TYPE_CHECKING:
    from ocrsvc.models.model_control import VersionStatus
    from ocrsvc.models.proof.prover import Prover

HELP: Final = "verify, open and try versions, and say what is wrong with them"
_FAULTY: Final = 65


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc models check`."""
    parser.add_argument("model", nargs="?", metavar="NAME[/VERSION]", help="what to check; everything by default")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Check, and say what is wrong; the exit code is 65 if anything is. Raises OperatorError, UnknownModel."""
    from ocrsvc.models.proof.prover import Prover

    chosen = None if args.model is None else named_model(args.model)
    control, prover = control_of(settings), Prover(settings, plan_for(settings, workers=1), lambda: False)
    found = [
        one
        for one in control.status(chosen.name if chosen else None)
        if chosen is None or chosen.number in (None, one.number)
    ]
    if not found:
        raise UnknownModel(f"There is no {chosen} that could be checked.", "See `ocrsvc models list`.")
    outcomes = [_check(one, prover) for one in found]
    for remark in unfinished(repository_of(settings)) if chosen is None else ():
        print(remark)
    return 0 if all(outcomes) else _FAULTY


def unfinished(folder: Path) -> Iterator[str]:
    """What has been begun, and may never be ended; it is nothing that a service would read."""
    for name, number in ModelRepository(folder).incomplete():
        yield f"{name}/{number}: still being copied: it has no SHA256SUMS yet."
    for beginning in (ADDING, REMOVING):
        for left in sorted(folder.glob(f"*/{beginning}*")):
            yield f"{left.relative_to(folder)}: a command is at it, or was ended before its end. Then remove it."


def _check(one: VersionStatus, prover: Prover) -> bool:
    """Say how a version is; whether it is right."""
    found = Judgement("open", one.reason) if one.version is None else prover.prove(one.version, None)
    right = "right. " if found.kind is None else ""
    print(f"{one.name}/{one.number}: {right}{found.reason}", flush=True)
    return found.kind is None
