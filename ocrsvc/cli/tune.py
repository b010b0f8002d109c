"""`ocrsvc tune`: finds the settings that suit this machine and the user's own pages, by measuring them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from ocrsvc.cli.options import COUNT, FILE, Command, option
from ocrsvc.cli.serve import command_line
from ocrsvc.cli.terminal import show_progress
from ocrsvc.errors import NothingSent, OperatorError
from ocrsvc.settings.load import CONFIG_VARIABLE, read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cpu_quota import read_cpus
from ocrsvc.system.thread_plan import device_for
from ocrsvc.tuning.choice import Measurement, choose, show, table, to_toml
from ocrsvc.tuning.settings_to_try import SettingValues, batches, precisions, workers_and_threads
from ocrsvc.tuning.trial import Load, measure, without_settings

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
    print("\n".join(table(measured)))
    if best is None:
        raise OperatorError(
            f"None of these keeps a p95 of {p95} s with {clients} clients." if p95 else "All failed.",
            "Allow more time, fewer --clients, or use a faster machine.",
        )
    out.write_text(to_toml(best, measured, _conditions(settings, load, p95)), encoding="utf-8")
    print(f"written to {out}; start with {CONFIG_VARIABLE}={out}")


def _best_of_all(
    settings: Settings, load: Load, p95_s: float | None, measured: list[Measurement]
) -> Measurement | None:
    """The best of what is tried, one kind of setting after the other; None where nothing keeps the goal."""
    device = device_for(settings)

    def best_with(candidates: Sequence[SettingValues]) -> Measurement | None:
        _try_all(candidates, load, measured)
        return choose(measured, p95_s)

    best = best_with(workers_and_threads(read_cpus(), device))
    if device == "cuda" and best is not None:
        best = best_with(batches(best.knobs))
    if best is not None and _has_two_precisions(settings, device):
        best = best_with(precisions(best.knobs))
    return best


def _has_two_precisions(settings: Settings, device: str) -> bool:
    """Whether there are two to try: what a CPU computes in is proved at the first start."""
    return settings.engine == "ppocr" and device == "cuda"


def _read(files: Sequence[Path]) -> list[bytes]:
    try:
        return [file.read_bytes() for file in files]
    except OSError as error:
        raise NothingSent(f"{error.filename} cannot be read: {error.strerror}.") from error


def _try_all(candidates: Sequence[SettingValues], load: Load, measured: list[Measurement]) -> None:
    """Measure all candidates that start. Raises OperatorError where the first of all does not: none would."""
    environ = without_settings(os.environ, _TRIED)
    for number, knobs in enumerate(candidates):
        show_progress(number, len(candidates), show(knobs))
        try:
            measured.append(measure(command_line(()), knobs, load, environ))
        except OperatorError as error:
            if not measured:
                raise
            print(f"ocrsvc: {show(knobs)} is left out: {error}", file=sys.stderr)
    show_progress(len(candidates), len(candidates))


def _conditions(settings: Settings, load: Load, p95_s: float | None) -> str:
    goal = f"p95 at most {p95_s:g} s" if p95_s else "highest throughput"
    return (
        f"engine {settings.engine}, {read_cpus():g} CPUs, {len(load.pages)} pages, {load.clients} clients, "
        f"{load.seconds:g} s each, goal: {goal}."
    )
