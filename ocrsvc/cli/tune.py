"""`ocrsvc tune`: finds the settings that suit this machine and the user's own pages, by measuring them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ocrsvc.cli.progress import show_progress
from ocrsvc.cli.serve import command_line
from ocrsvc.errors import NothingSent, OperatorError
from ocrsvc.settings.load import CONFIG_VARIABLE, read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cpu_quota import read_cpus
from ocrsvc.system.thread_plan import device_for
from ocrsvc.tuning.candidates import SettingValues, batches, format_value, precisions, workers_and_threads
from ocrsvc.tuning.frontier import Measurement, choose, table, to_toml
from ocrsvc.tuning.trial import Load, measure, without_settings

HELP: Final = "measure which settings suit this machine and your pages"
_TRIED: Final = ("workers", "engine_threads", "batch_pixels", "batch_wait_s", "precision")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc tune`."""
    parser.add_argument("pages", nargs="+", type=Path, help="image files like those that will be read")
    parser.add_argument("--p95", type=float, help="goal: seconds that 95 %% of the requests may take at most")
    parser.add_argument("--clients", type=int, default=20, help="requests at once; %(default)s by default")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each choice; %(default)g by default")
    parser.add_argument("--out", type=Path, default=Path("ocrsvc.toml"), help="file to write; %(default)s by default")


def run(args: argparse.Namespace) -> int:
    """Try the settings, print the result, and write the settings file.

    Raises:
        OperatorError: The service does not start or wants API keys, no choice keeps the goal, or the file is there.
        NothingSent: A page cannot be read.
    """
    if args.out.exists():
        raise OperatorError(f"{args.out} is there already.", "Name another file with --out, or move it away.")
    settings, load = read_settings(), Load(_read(args.pages), args.clients, args.seconds)
    if settings.keys is not None:
        raise OperatorError(
            "The services that are tried would want API keys (OCRSVC_KEYS).", "Leave it out while settings are tried."
        )
    device = device_for(settings)
    measured: list[Measurement] = []

    def best_with(candidates: Sequence[SettingValues]) -> Measurement | None:
        _try_all(candidates, load, measured)
        return choose(measured, args.p95)

    best = best_with(workers_and_threads(read_cpus(), device))
    if device == "cuda" and best is not None:
        best = best_with(batches(best.knobs))
    if best is not None and _has_two_precisions(settings, device):
        best = best_with(precisions(best.knobs))
    print("\n".join(table(measured)))
    if best is None:
        raise OperatorError(
            f"None of these keeps a p95 of {args.p95} s with {args.clients} clients." if args.p95 else "All failed.",
            "Allow more time, fewer --clients, or use a faster machine.",
        )
    args.out.write_text(to_toml(best, measured, _conditions(settings, load, args.p95)), encoding="utf-8")
    print(f"written to {args.out}; start with {CONFIG_VARIABLE}={args.out}")
    return 0


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
        choice = " ".join(f"{name}={format_value(value)}" for name, value in knobs.items())
        show_progress(number, len(candidates), choice)
        try:
            measured.append(measure(command_line(()), knobs, load, environ))
        except OperatorError as error:
            if not measured:
                raise
            print(f"ocrsvc: {choice} is left out: {error}", file=sys.stderr)
    show_progress(len(candidates), len(candidates), "")


def _conditions(settings: Settings, load: Load, p95_s: float | None) -> str:
    goal = f"p95 at most {p95_s:g} s" if p95_s else "highest throughput"
    return (
        f"engine {settings.engine}, {read_cpus():g} CPUs, {len(load.pages)} pages, {load.clients} clients, "
        f"{load.seconds:g} s each, goal: {goal}."
    )
