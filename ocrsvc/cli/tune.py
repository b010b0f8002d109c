"""`ocrsvc tune`: finds the settings that suit this machine and the user's own pages, by measuring them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from ocrsvc.cli import tune_choice
from ocrsvc.cli.options import COUNT, FILE, Command, option
from ocrsvc.cli.serve import command_line
from ocrsvc.cli.terminal import show_progress
from ocrsvc.cli.tune_choice import Measurement, SettingValues, choose, show_all, to_toml
from ocrsvc.cli.tune_trial import Load, measure
from ocrsvc.errors import NothingSent, OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.load import CONFIG_VARIABLE, read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cpu_quota import read_cpus
from ocrsvc.system.thread_plan import device_for

_TRIED: Final = ("workers", "engine_threads", "batch_pixels", "batch_wait_s", "precision")


@click.command(
    cls=Command, examples=("ocrsvc tune pages/*.png", "ocrsvc tune pages/*.png --p95 2 --clients 8 --out ocrsvc.toml")
)
@click.argument("pages", nargs=-1, required=True, type=FILE, metavar="FILE...", help="Images like those to be read.")
@option("--p95", type=float, metavar="SECONDS", help="Goal: what 95 % of the requests may take at most.")
@option("--clients", type=COUNT, default=20, metavar="N", help="Requests at once (20).")
@option("--seconds", type=float, default=15.0, metavar="SECONDS", help="Time for each choice (15).")
@option("--out", type=FILE, default=Path("ocrsvc.toml"), metavar="FILE", help="File to write (ocrsvc.toml).")
def tune(pages: Sequence[Path], p95: float | None, clients: int, seconds: float, out: Path) -> None:
    """Measure which settings suit this machine and your pages, and write them to a file.

    A service is started with each choice of workers, threads and so on, and loaded with the pages.
    """
    if out.exists():
        raise OperatorError(f"{out} is there already.", "Name another file with --out, or move it away.")
    settings, load = read_settings(), Load(_read(pages), clients, seconds)
    if settings.keys is not None:
        raise OperatorError(
            "The services that are tried would want API keys (OCRSVC_KEYS).", "Leave it out while settings are tried."
        )
    measured: list[Measurement] = []
    best = _best_of_all(settings, load, p95, measured)
    print("\n".join(tune_choice.table(measured)))
    if best is None:
        raise OperatorError(
            f"None of these keeps a p95 of {p95} s with {clients} clients." if p95 else "All failed.",
            "Allow more time, fewer --clients, or use a faster machine.",
        )
    goal = f"p95 at most {p95:g} s" if p95 else "highest throughput"
    how = f"engine {settings.engine}, {read_cpus():g} CPUs, {len(pages)} pages, {clients} clients, {seconds:g} s each"
    out.write_text(to_toml(best, measured, f"{how}, goal: {goal}."), encoding="utf-8")
    print(f"written to {out}; start with {CONFIG_VARIABLE}={out}")


def _read(files: Sequence[Path]) -> list[bytes]:
    try:
        return [file.read_bytes() for file in files]
    except OSError as error:
        raise NothingSent(f"{error.filename} cannot be read: {error.strerror}.") from error


def _best_of_all(
    settings: Settings, load: Load, p95_s: float | None, measured: list[Measurement]
) -> Measurement | None:
    """The best of what is tried, one kind of setting after the other; None where nothing keeps the goal."""
    device = device_for(settings)
    _try_all(tune_choice.workers_and_threads(read_cpus(), device), load, measured)
    # What a CPU computes in is proved at the first start.
    more = [tune_choice.batches, *([tune_choice.precisions] if settings.engine == "ppocr" else [])]
    for others in more if device == "cuda" else ():
        if (best := choose(measured, p95_s)) is not None:
            _try_all(others(best.knobs), load, measured)
    return choose(measured, p95_s)


def _try_all(candidates: Sequence[SettingValues], load: Load, measured: list[Measurement]) -> None:
    """Measure all candidates that start. Raises OperatorError where the first of all does not: none would."""
    gone = {variable_of(name) for name in _TRIED}
    environ = {name: value for name, value in os.environ.items() if name not in gone}
    for number, knobs in enumerate(candidates):
        show_progress(number, len(candidates), show_all(knobs))
        try:
            measured.append(measure(command_line(()), knobs, load, environ))
        except OperatorError as error:
            if not measured:
                raise
            print(f"ocrsvc: {show_all(knobs)} is left out: {error}", file=sys.stderr)
    show_progress(len(candidates), len(candidates))
