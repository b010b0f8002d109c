"""`ocrsvc tune`: finds the settings that suit this machine and the user's own pages, by measuring them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

import click

from ocrsvc.cli.options import COUNT, FILE, Command, option
from ocrsvc.cli.serve import command_line
from ocrsvc.cli.terminal import show_progress
from ocrsvc.cli.tune_trial import Load, Measurement, SettingValues, measure, show, show_all
from ocrsvc.errors import NothingSent, OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.load import CONFIG_VARIABLE, read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cpu_quota import read_cpus
from ocrsvc.system.thread_plan import device_for

_TRIED: Final = ("workers", "engine_threads", "batch_pixels", "batch_wait_s", "precision")

_BATCH_PIXELS: Final = (16 * 48 * 320, 32 * 48 * 320, 64 * 48 * 320)
_BATCH_WAIT_S: Final = (0.0, 0.002, 0.005)
_HEADER: Final = f"{'pages/s':>8} {'p50 s':>7} {'p95 s':>7} {'peak MB':>8} {'failed':>6}  settings"


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
    _try_all(workers_and_threads(read_cpus(), device), load, measured)
    # What a CPU computes in is proved at the first start.
    more = [batches, *([precisions] if settings.engine == "ppocr" else [])]
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


def workers_and_threads(cpus: float, device: str) -> list[SettingValues]:
    """How these cores may be shared out: few workers with many engine threads, or the other way round."""
    if device == "cuda":
        # Threads mostly wait for the GPU.
        return [{"workers": w, "engine_threads": t} for w, t in product((1, 2, 3), (2, 4, 8))]
    cores = max(1, round(cpus))
    workers = {count for count in (1, 2, 4, cores // 2, cores) if 1 <= count <= cores}
    # Whole shares of the cores, and one thread more than those.
    shares = {(w, cores // w + more) for w in workers for more in (0, 1)}
    return [{"workers": w, "engine_threads": t} for w, t in sorted(shares)]


def batches(base: SettingValues) -> list[SettingValues]:
    """How lines may be put together on a GPU, once workers and threads are chosen."""
    pairs = product(_BATCH_PIXELS, _BATCH_WAIT_S)
    return [{**base, "batch_pixels": pixels, "batch_wait_s": wait_s} for pixels, wait_s in pairs]


def precisions(base: SettingValues) -> list[SettingValues]:
    """What a GPU may compute the models in, once the rest is chosen."""
    return [{**base, "precision": name} for name in ("fp32", "fp16")]


def choose(measured: Sequence[Measurement], p95_s: float | None) -> Measurement | None:
    """The one with the highest throughput whose p95 keeps the goal; None when none does, or all failed requests."""
    kept = (one for one in measured if not one.failed and (p95_s is None or one.p95_s <= p95_s))
    return max(kept, key=lambda one: (one.pages_per_s, -one.p95_s, -one.peak_bytes), default=None)


def to_toml(chosen: Measurement, measured: Sequence[Measurement], how: str) -> str:
    """A settings file with the chosen values, and as a comment how they were measured and everything that was."""
    lines = [f"# Made by `ocrsvc tune`: {how}", "#", f"# {_HEADER}"]
    lines += [f"# {_row(one)}{'  <- chosen' if one is chosen else ''}" for one in measured]
    values = {name: f'"{value}"' if isinstance(value, str) else show(value) for name, value in chosen.knobs.items()}
    return "\n".join([*lines, "", *(f"{name} = {value}" for name, value in values.items()), ""])


def table(measured: Sequence[Measurement]) -> list[str]:
    """Everything that was tried, one line each, with a header."""
    return [_HEADER, *map(_row, measured)]


def _row(one: Measurement) -> str:
    figures = f"{one.pages_per_s:8.2f} {one.p50_s:7.2f} {one.p95_s:7.2f} {one.peak_bytes / 1e6:8.0f} {one.failed:6}"
    return f"{figures}  {show_all(one.knobs)}"
