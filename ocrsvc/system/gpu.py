"""Reads the GPU: how much memory this process holds, how much is left, how busy it is; the only file that calls NVML.

For workers only: nothing here starts CUDA (but for cupy, if NVML is missing), and the arbiter must not even load NVML.

NVML names processes by the ids of the machine. In a container this process may therefore be listed under another id,
or not at all, and under MIG without a size. So its own share is, in this order: what is listed under its id; what is
listed under the one id that appeared while it loaded; what the GPU holds beyond what others held before the load and
what its siblings say they hold.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ocrsvc.system.gpu_devices import VISIBLE

_NVML: Final = "libnvidia-ml.so.1"


class GpuUnreadable(Exception):
    """The GPU's memory cannot be read now; a later read may work."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """GPU memory at one time: this process's own, and that of the GPU, or part of it (MIG), that this process sees."""

    own_bytes: int
    used_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Siblings:
    """The other workers of this service, as far as the worker table knows: the sum of what they last said they hold.

    They are settled while none of them loads or leaves, so that the sum is what they hold.
    """

    gpu_bytes: int = 0
    settled: bool = True


class Source(Protocol):
    """Where readings come from. All calls raise GpuUnreadable."""

    def totals(self) -> tuple[int, int]:
        """Used and total bytes of the GPU."""
        ...

    def processes(self) -> Mapping[int, int | None]:
        """Bytes that each process holds, by process id, as far as listed; None where the size is not reported."""
        ...

    def busy_ratio(self) -> float:
        """The share of the last second in which the GPU computed, from 0 to 1."""
        ...


class GpuMemoryReader:
    """Reads the GPU for one worker. Make it before the engine is loaded; read it after.

    The log gets one line when the GPU cannot be read, and one when it can be again. `is_listed` says whether the last
    reading is what NVML lists for this process, not estimated from the GPU's totals.
    """

    def __init__(self, source: Source, log: logging.Logger, siblings: Siblings, pid: int | None = None) -> None:
        self._source = source
        self._log = log
        self._pid = os.getpid() if pid is None else pid
        self._readable = True
        used_bytes, _ = source.totals()
        self._before = frozenset(source.processes())
        self._foreign_bytes = max(0, used_bytes - siblings.gpu_bytes)
        self._listed_as: int | None = None
        self._last_own_bytes: int | None = None
        self.is_listed = False

    def read(self, siblings: Siblings) -> MemoryReading | None:
        """Read the GPU, in well under a millisecond; None when it cannot be read just now. Never raises."""
        try:
            reading = self._read(siblings)
        except GpuUnreadable as error:
            if self._readable:
                self._log.error("The GPU cannot be read (%s); until it can, only RSS limits hold here.", error)
            self._readable = False
            return None
        if not self._readable:
            self._log.info("The GPU can be read again.")
        self._readable = True
        return reading

    def read_busy_ratio(self) -> float | None:
        """The share of the last second in which the GPU computed, from 0 to 1; None where it cannot be read.

        A part of a GPU (MIG) has none. Never raises, and logs nothing: `read` says when the GPU does not answer.
        """
        try:
            return self._source.busy_ratio()
        except GpuUnreadable:
            return None

    def _read(self, siblings: Siblings) -> MemoryReading:
        used_bytes, total_bytes = self._source.totals()
        own_bytes = self._listed_bytes()
        self.is_listed = own_bytes is not None
        if own_bytes is None:
            own_bytes = self._estimated_bytes(used_bytes, siblings)
        self._last_own_bytes = own_bytes
        return MemoryReading(own_bytes, used_bytes, max(0, total_bytes - used_bytes), total_bytes)

    def _listed_bytes(self) -> int | None:
        """What is listed for this process, under whatever id; None if it is not."""
        listed = self._source.processes()
        # An id that was there before the load is another process, of another container or of the machine.
        if self._pid in listed and self._pid not in self._before:
            return listed[self._pid]
        if self._last_own_bytes is None:
            fresh = set(listed) - self._before
            self._listed_as = fresh.pop() if len(fresh) == 1 else None
        return listed.get(self._listed_as) if self._listed_as is not None else None

    def _estimated_bytes(self, used_bytes: int, siblings: Siblings) -> int:
        """What nobody else accounts for. While a sibling loads or leaves, its memory would count as ours: no news."""
        if self._last_own_bytes is not None and not siblings.settled:
            return self._last_own_bytes
        return max(0, used_bytes - self._foreign_bytes - siblings.gpu_bytes)


def open_gpu_memory_reader(
    log: logging.Logger, siblings: Siblings, environ: Mapping[str, str] = os.environ, *, nvml_only: bool = False
) -> GpuMemoryReader | None:
    """A reader of the GPU that the engine of this process will use; None without one.

    A GPU that is there but cannot be read is one line in the log. With `nvml_only` there is no reading rather than one
    through cupy, which knows the GPU's totals only.
    """
    for open_source in (_open_nvml,) if nvml_only else (_open_nvml, _open_cupy):
        try:
            source = open_source(environ)
            if source is not None:
                return GpuMemoryReader(source, log, siblings)
        except GpuUnreadable as error:
            log.warning("No readings of a GPU (%s): only RSS limits hold in this worker.", error)
            return None
    return None


class _Nvml:
    """One GPU, or one part of it, through NVML."""

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle

    def totals(self) -> tuple[int, int]:
        """See Source."""
        memory = _ask(self._nvml, lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        return memory.used, memory.total

    def processes(self) -> Mapping[int, int | None]:
        """See Source."""
        listed = _ask(self._nvml, lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return {entry.pid: entry.usedGpuMemory for entry in listed}

    def busy_ratio(self) -> float:
        """See Source."""
        percent: int = _ask(self._nvml, lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle)).gpu
        return percent / 100


def _open_nvml(environ: Mapping[str, str]) -> Source | None:
    """The GPU through NVML; None when its library is not there. Raises GpuUnreadable."""
    try:
        ctypes.CDLL(_NVML)
    except OSError:
        return None
    import pynvml

    _ask(pynvml, pynvml.nvmlInit)
    return _Nvml(pynvml, _ask(pynvml, lambda: _handle_of(pynvml, environ.get(VISIBLE, "0"))))


def _handle_of(nvml: Any, visible: str) -> object:
    """NVML's handle for the first device that CUDA would see; raises GpuUnreadable or NVMLError."""
    name = visible.partition(",")[0].strip()
    if name.startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    if name.startswith("GPU-"):
        # CUDA accepts the beginning of a UUID, NVML does not.
        handles = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount()))
        found = next((handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(name)), None)
        if found is None:
            raise GpuUnreadable(f"{VISIBLE} names {name}, and NVML knows no such GPU")
        return _first_part(nvml, found)
    if not name.isdigit():
        raise GpuUnreadable(f"{VISIBLE} is {visible!r}, which names no GPU")
    return _first_part(nvml, nvml.nvmlDeviceGetHandleByIndex(int(name)))


def _first_part(nvml: Any, device: object) -> object:
    """The GPU itself or, when it is divided (MIG), its first part, which is what CUDA takes."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError_NotSupported:
        return device
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0) if current else device


def _ask(nvml: Any, call: Callable[[], Any]) -> Any:
    """What NVML answers. Raises GpuUnreadable."""
    try:
        return call()
    except (nvml.NVMLError, OSError) as error:
        raise GpuUnreadable(f"NVML: {error}") from error


class _Cupy:
    """The present GPU through cupy, which knows its totals only."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def totals(self) -> tuple[int, int]:
        """See Source."""
        try:
            free_bytes, total_bytes = self._cupy.cuda.runtime.memGetInfo()
        except (RuntimeError, OSError) as error:
            raise GpuUnreadable(f"cupy: {error}") from error
        return total_bytes - free_bytes, total_bytes

    def processes(self) -> Mapping[int, int | None]:
        """See Source."""
        return {}

    def busy_ratio(self) -> float:
        """See Source."""
        raise GpuUnreadable("cupy does not know how busy a GPU is")


def _open_cupy(_environ: Mapping[str, str]) -> Source | None:
    """The GPU through cupy, in the CUDA context that the engine will use too; None without cupy."""
    if importlib.util.find_spec("cupy") is None:
        return None
    try:
        import cupy
    except ImportError as error:
        raise GpuUnreadable(f"cupy: {error}") from error
    return _Cupy(cupy)
