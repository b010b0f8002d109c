"""Lists the GPUs, and reads one GPU's utilization, its free memory, and the memory that this process uses.

The only file that calls NVML; nothing in it starts CUDA. The arbiter lists the GPUs without loading NVML. A worker sees
only one GPU: CUDA_VISIBLE_DEVICES is set before CUDA loads. GPUs have the numbers of nvidia-smi and NVML, so CUDA is
set to the same order unless the environment sets another.

NVML lists processes by the host's process ids. In a container NVML may list this process under another id or not at
all, and under MIG without its memory. So its memory is the first known of these: the memory listed for its process id;
that of the only id that is new since the engine was loaded; the GPU's use, less the use before and by other workers.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_DEVICES: Final = Path("/dev")
_NVML: Final = "libnvidia-ml.so.1"


def find_gpus(setting: Sequence[str], environ: Mapping[str, str], devices: Path = _DEVICES) -> tuple[str, ...]:
    """GPUs to distribute the workers over, by names that CUDA_VISIBLE_DEVICES accepts; empty without a GPU.

    `setting` is OCRSVC_GPUS: names, ("all",), or () for the GPUs that the environment makes visible.
    """
    if setting and tuple(setting) != ("all",):
        return tuple(setting)
    visible = environ.get(VISIBLE)
    if visible is not None and not setting:
        # The list ends at the first invalid name (-1, NoDevFiles), as in CUDA.
        names = (part.strip() for part in visible.split(","))
        return tuple(dict.fromkeys(takewhile(lambda name: name.isdigit() or name.startswith(("GPU-", "MIG-")), names)))
    # Count the device files: a container may have only /dev/nvidia3, which CUDA and NVML number 0.
    return tuple(str(number) for number, _ in enumerate(devices.glob("nvidia[0-9]*")))


def pin_gpu(environ: MutableMapping[str, str], gpu: str) -> None:
    """Let this process see only this GPU; call it before CUDA loads, because CUDA reads the environment only once."""
    environ[VISIBLE] = gpu
    environ.setdefault(_ORDER, "PCI_BUS_ID")


class GpuUnreadable(Exception):
    """The GPU's memory cannot be read now; it may be readable later."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """GPU memory at one moment: used by this process, and used, free and total of its GPU or MIG instance."""

    own_bytes: int
    used_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Siblings:
    """GPU memory that the other workers last reported; `settled` if none of them is loading or draining."""

    gpu_bytes: int = 0
    settled: bool = True


class GpuMemoryReader:
    """Reads the memory of one worker's GPU. Create it before the engine is loaded, and read it afterwards.

    It logs one line when the GPU becomes unreadable, and one when it is readable again. `is_listed` says whether the
    last reading came from NVML's list of processes; otherwise it was estimated from the GPU's totals.
    """

    def __init__(self, source: Nvml, log: logging.Logger, siblings: Siblings, pid: int | None = None) -> None:
        self._source, self._log = source, log
        self._pid = os.getpid() if pid is None else pid
        self._readable = True
        used_bytes, _ = source.totals()
        self._before = frozenset(source.processes())
        self._foreign_bytes = max(0, used_bytes - siblings.gpu_bytes)
        self._listed_as: int | None = None
        self._last_own_bytes: int | None = None
        self.is_listed = False

    def read(self, siblings: Siblings) -> MemoryReading | None:
        """Read the GPU's memory, in less than a millisecond; None if it cannot be read now. Never raises."""
        try:
            reading = self._read(siblings)
        except GpuUnreadable as error:
            if self._readable:
                self._log.error("The GPU cannot be read (%s): only RSS limits apply until it can.", error)
            self._readable = False
            return None
        if not self._readable:
            self._log.info("The GPU can be read again.")
        self._readable = True
        return reading

    def read_busy_ratio(self) -> float | None:
        """The GPU's utilization from 0 to 1; None if NVML does not report it, for instance under MIG. Logs nothing."""
        try:
            return self._source.busy_ratio()
        except GpuUnreadable:
            return None

    def _read(self, siblings: Siblings) -> MemoryReading:
        used_bytes, total_bytes = self._source.totals()
        own_bytes = self._listed_bytes()
        self.is_listed = own_bytes is not None
        if own_bytes is None:
            # Estimate: used GPU memory, less that of other processes; while a sibling loads or drains, the last value.
            own_bytes = None if siblings.settled else self._last_own_bytes
        if own_bytes is None:
            own_bytes = max(0, used_bytes - self._foreign_bytes - siblings.gpu_bytes)
        self._last_own_bytes = own_bytes
        return MemoryReading(own_bytes, used_bytes, max(0, total_bytes - used_bytes), total_bytes)

    def _listed_bytes(self) -> int | None:
        """The memory that NVML lists for this process; None if this process is not listed."""
        listed = self._source.processes()
        # If the id was listed before this process used the GPU, it is that of another process outside this container.
        if self._pid in listed and self._pid not in self._before:
            return listed[self._pid]
        if self._last_own_bytes is None:
            fresh = set(listed) - self._before
            self._listed_as = fresh.pop() if len(fresh) == 1 else None
        return listed.get(self._listed_as) if self._listed_as is not None else None


def open_gpu_memory_reader(
    log: logging.Logger, siblings: Siblings, environ: Mapping[str, str] = os.environ
) -> GpuMemoryReader | None:
    """A reader for the GPU that this process will use; None without NVML or if unreadable, which logs a warning."""
    try:
        source = _open_nvml(environ)
        return None if source is None else GpuMemoryReader(source, log, siblings)
    except GpuUnreadable as error:
        log.warning("The GPU cannot be read (%s): only RSS limits apply to this worker.", error)
        return None


class Nvml:
    """One GPU or MIG instance, read through NVML. All methods raise GpuUnreadable."""

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml, self._handle = nvml, handle

    def totals(self) -> tuple[int, int]:
        """Used and total bytes of the GPU's memory."""
        memory = _ask(self._nvml, lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        return memory.used, memory.total

    def processes(self) -> Mapping[int, int | None]:
        """GPU memory of each listed process, by process id; None if NVML does not report its size."""
        listed = _ask(self._nvml, lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return {entry.pid: entry.usedGpuMemory for entry in listed}

    def busy_ratio(self) -> float:
        """The fraction of the last second in which the GPU was busy, from 0 to 1."""
        percent: int = _ask(self._nvml, lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle)).gpu
        return percent / 100


def _open_nvml(environ: Mapping[str, str]) -> Nvml | None:
    """Open the GPU through NVML; None if NVML is not installed. Raises GpuUnreadable."""
    try:
        ctypes.CDLL(_NVML)
    except OSError:
        return None
    import pynvml

    _ask(pynvml, pynvml.nvmlInit)
    return Nvml(pynvml, _ask(pynvml, lambda: _handle_of(pynvml, environ.get(VISIBLE, "0"))))


def _handle_of(nvml: Any, visible: str) -> object:
    """NVML's handle of the first device that CUDA sees. Raises GpuUnreadable or NVMLError."""
    name = visible.partition(",")[0].strip()
    if name.startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    if name.startswith("GPU-"):
        # CUDA accepts an abbreviated UUID, NVML does not: compare with every GPU's UUID.
        handles = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount()))
        matching = next((handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(name)), None)
        if matching is None:
            raise GpuUnreadable(f"{VISIBLE} names {name}, and NVML knows no such GPU")
        return _first_part(nvml, matching)
    if not name.isdigit():
        raise GpuUnreadable(f"{VISIBLE} is {visible!r}, which names no GPU")
    return _first_part(nvml, nvml.nvmlDeviceGetHandleByIndex(int(name)))


def _first_part(nvml: Any, device: object) -> object:
    """The GPU's first MIG instance, which CUDA uses; without MIG, the GPU itself."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError_NotSupported:
        return device
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0) if current else device


def _ask(nvml: Any, call: Callable[[], Any]) -> Any:
    """Call NVML, and raise its errors as GpuUnreadable."""
    try:
        return call()
    except (nvml.NVMLError, OSError) as error:
        raise GpuUnreadable(f"NVML: {error}") from error
