"""The settings worth trying on this machine, from its CPUs and whether there is a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final

SettingValues = Mapping[str, float | str]
"""Settings by name, as in the TOML file."""

_BATCH_PIXELS: Final = (16 * 48 * 320, 32 * 48 * 320, 64 * 48 * 320)
_BATCH_WAIT_S: Final = (0.0, 0.002, 0.005)


def workers_and_threads(cpus: float, device: str) -> list[SettingValues]:
    """How the cores may be shared out: few workers with many engine threads, or the other way round.

    `cpus` may be a fraction; "cuda" tries more threads, which mostly wait for the GPU.
    """
    if device == "cuda":
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
