"""What `ocrsvc tune` tries on this machine, and which of it is best: by throughput, latency and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

SettingValues = Mapping[str, float | str]
"""Settings by name, as in the TOML file."""

_BATCH_PIXELS: Final = (16 * 48 * 320, 32 * 48 * 320, 64 * 48 * 320)
_BATCH_WAIT_S: Final = (0.0, 0.002, 0.005)
_HEADER: Final = f"{'pages/s':>8} {'p50 s':>7} {'p95 s':>7} {'peak MB':>8} {'failed':>6}  settings"


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


@dataclass(frozen=True, slots=True)
class Measurement:
    """What some settings showed: `peak_bytes` is of all processes together, `failed` counts answers other than 200."""

    knobs: SettingValues
    pages_per_s: float
    p50_s: float
    p95_s: float
    peak_bytes: int
    failed: int = 0


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


def show_all(knobs: SettingValues) -> str:
    """Settings in one line."""
    return " ".join(f"{name}={show(value)}" for name, value in knobs.items())


def show(value: float | str) -> str:
    """A setting as a variable holds it: whole numbers without a point or an exponent."""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
