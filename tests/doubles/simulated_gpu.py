"""Creates and controls the simulated GPU that the doubles of Tr and NVML use. See simulated_gpu.h."""

from __future__ import annotations

import mmap
import struct
from enum import IntFlag
from pathlib import Path
from typing import Final

UUID: Final = "GPU-0de00000-0000-0000-0000-000000000001"
PART_UUID: Final = "MIG-0de00000-0000-0000-0000-000000000002"
VARIABLE: Final = "DOUBLE_GPU"

_HEAD: Final = struct.Struct("=4Q")
_ENTRY: Final = struct.Struct("=3Q")
_ENTRIES: Final = 256


class Mode(IntFlag):
    """How the GPU misbehaves; modes can be combined."""

    PLAIN = 0
    HIDES = 1
    HOST_IDS = 2
    DIVIDED = 4
    FAILS = 8
    NO_SIZES = 16


class SimulatedGpu:
    """The GPU, kept in a memory-mapped file.

    Args:
        file: Created, or overwritten.
        total_bytes: The GPU's memory.
    """

    def __init__(self, file: Path, total_bytes: int) -> None:
        self.file = file
        file.write_bytes(_HEAD.pack(total_bytes, 0, 0, 0) + bytes(_ENTRY.size * _ENTRIES))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which the doubles find the GPU, and pynvml finds the double of NVML in the same folder."""
        return {VARIABLE: str(self.file), "LD_LIBRARY_PATH": str(self.file.parent)}

    @property
    def refused(self) -> int:
        """Number of allocations refused because the memory was full."""
        return int(_HEAD.unpack_from(self._map)[3])

    @property
    def held(self) -> dict[int, int]:
        """Allocated bytes by process id; dead processes stay listed until a double checks again."""
        entries = (_ENTRY.unpack_from(self._map, _HEAD.size + number * _ENTRY.size) for number in range(_ENTRIES))
        return {pid: count for pid, _, count in entries if pid}

    def behave(self, mode: Mode) -> None:
        struct.pack_into("=Q", self._map, 16, mode)

    def hold_for_others(self, count: int) -> None:
        """Let processes outside this machine hold `count` bytes."""
        struct.pack_into("=Q", self._map, 8, count)

    def close(self) -> None:
        self._map.close()
