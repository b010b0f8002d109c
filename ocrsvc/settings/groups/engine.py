"""Settings of the engine: its name, its device and the GPUs it may use."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from ocrsvc.registry import engines
from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import Names

_GPU: Final = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,80}")


def _check_gpus(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, each once, if each can be one of a GPU, or `all` alone; raises ValueError."""
    if names != ("all",) and not all(_GPU.fullmatch(name) for name in names):
        raise ValueError("no names of GPUs")
    return tuple(dict.fromkeys(names))


def _check_engine(name: str) -> str:
    """The name, if the registry has it; raises ValueError."""
    if name not in engines():
        raise ValueError("no such engine")
    return name


EngineName = Annotated[str, AfterValidator(_check_engine)]
Gpus = Annotated[Names, AfterValidator(_check_gpus)]


class EngineSettings(SettingsGroup):
    """The engine and its device."""

    title = "Engine"

    engine: EngineName = setting(
        "ppocr", "The engine that reads the pages.", accepted=lambda: "one of " + ", ".join(engines())
    )
    device: Literal["cpu", "cuda", "auto"] = setting(
        "auto", "Where the engine computes; cuda refuses to start without a usable GPU, auto takes one if there is one."
    )
    gpus: Gpus = setting(
        (),
        "GPUs that the workers are spread over, by nvidia-smi's numbers or UUIDs (also of MIG parts), or all; by "
        "default what CUDA_VISIBLE_DEVICES shows, and without it all.",
        accepted="all, or numbers and UUIDs (GPU-…, MIG-…) of GPUs, separated by commas (in the file a list of texts)",
    )
