"""Lists the GPUs and chooses the one a worker computes on, without touching CUDA, so safe in the arbiter.

A worker sees one GPU only: CUDA_VISIBLE_DEVICES is set in it before anything of CUDA loads. Numbers are those of
nvidia-smi (and of NVML), so CUDA is set to count in the same order, unless the environment says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_DEVICES: Final = Path("/dev")


def find_gpus(asked: Sequence[str], environ: Mapping[str, str], devices: Path = _DEVICES) -> tuple[str, ...]:
    """Names of the GPUs to spread the workers over, as CUDA_VISIBLE_DEVICES accepts them; none where there are none.

    `asked` is OCRSVC_GPUS: names, ("all",), or () for what the environment shows.
    """
    if asked and tuple(asked) != ("all",):
        return tuple(asked)
    shown = environ.get(VISIBLE)
    if shown is not None and not asked:
        return _seen_by_cuda(shown)
    # A container may be given /dev/nvidia3 alone, which CUDA and NVML number 0 there.
    return tuple(str(number) for number, _ in enumerate(devices.glob("nvidia[0-9]*")))


def _seen_by_cuda(shown: str) -> tuple[str, ...]:
    """The names in CUDA_VISIBLE_DEVICES, up to the first that names no GPU (-1, NoDevFiles): CUDA stops there too."""
    names: list[str] = []
    for name in (part.strip() for part in shown.split(",")):
        if not (name.isdigit() or name.startswith(("GPU-", "MIG-"))):
            break
        names.append(name)
    return tuple(dict.fromkeys(names))


def pin_gpu(environ: MutableMapping[str, str], gpu: str) -> None:
    """Let this process see that GPU only. Before anything of CUDA loads, which reads the environment once."""
    environ[VISIBLE] = gpu
    environ.setdefault(_ORDER, "PCI_BUS_ID")
