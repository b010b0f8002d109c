"""Exemplars of histograms: the last sampled trace in each bucket, in shared memory as in metrics_store.py."""

import ctypes
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ocrsvc.system.shared_memory import shared_array
from ocrsvc.telemetry.metric import Key

SERIES: Final = 64
"""Largest number of series with exemplars in one process; later series have none."""

# Shortest time between two writes of a bucket's exemplar, so that not every request writes one.
_FRESH_S: Final = 1.0
_KEY_BYTES: Final = 96
_TRACE_BYTES: Final = 32
_MAX_BUCKETS: Final = 16


class Exemplar(NamedTuple):
    """An observed value with the id of its trace and the Unix time."""

    trace_id: str
    value: float
    at_s: float


Exemplars = Mapping[Key, Mapping[int, Exemplar]]
"""Exemplars by key of the series, then by number of the bucket."""


class _Bucket(ctypes.Structure):
    # at_s is 0 if the bucket has no exemplar, or one is being written.
    _fields_ = (("at_s", ctypes.c_double), ("value", ctypes.c_double), ("trace_id", ctypes.c_char * _TRACE_BYTES))


class _Entry(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * _KEY_BYTES), ("buckets", _Bucket * _MAX_BUCKETS))


class _Block(ctypes.Structure):
    _fields_ = (("used", ctypes.c_int64), ("entries", _Entry * SERIES))


class WorkerExemplars:
    """The only writer of one process's block of exemplars; used by one thread at a time."""

    def __init__(self, block: _Block) -> None:
        self._block = block
        self._entries: dict[Key, _Entry] = {}

    def put(self, key: Key, bucket: int, exemplar: Exemplar) -> None:
        """Replace a bucket's exemplar, unless the stored one is newer than `exemplar` or less than a second older."""
        entry = self._entries.get(key) or self._begin(key)
        if entry is None:
            return
        shared = entry.buckets[bucket]
        if shared.at_s > exemplar.at_s - _FRESH_S:
            return
        shared.at_s = 0.0
        shared.trace_id, shared.value = exemplar.trace_id.encode(), exemplar.value
        shared.at_s = exemplar.at_s

    def _begin(self, key: Key) -> _Entry | None:
        block = self._block
        if block.used == SERIES:
            return None
        entry: _Entry = block.entries[block.used]
        entry.key = "\t".join(key).encode()[:_KEY_BYTES]
        block.used += 1
        self._entries[key] = entry
        return entry


class ExemplarStore:
    """A block of exemplars per process; the arbiter creates the store before any fork; its own block is `common`."""

    def __init__(self, slots: int) -> None:
        self._blocks = shared_array(_Block, slots + 1)
        self.common = WorkerExemplars(self._blocks[0])

    def of_worker(self, slot: int) -> WorkerExemplars:
        """Call once in a worker, after its fork; returns the writer of the worker's exemplars."""
        return WorkerExemplars(self._blocks[slot + 1])

    def fold(self, slot: int) -> None:
        """Arbiter, after reaping a worker: move the worker's exemplars to the arbiter's block."""
        block = self._blocks[slot + 1]
        for key, bucket, exemplar in _exemplars(block):
            self.common.put(key, bucket, exemplar)
        ctypes.memset(ctypes.byref(block), 0, ctypes.sizeof(block))

    def read(self, blocks: int) -> Exemplars:
        """The latest exemplar of each histogram bucket; only the first `blocks` blocks are in use."""
        latest: dict[Key, dict[int, Exemplar]] = {}
        for block in self._blocks[:blocks]:
            for key, bucket, exemplar in _exemplars(block):
                by_bucket = latest.setdefault(key, {})
                if bucket not in by_bucket or by_bucket[bucket].at_s < exemplar.at_s:
                    by_bucket[bucket] = exemplar
        return latest


def _exemplars(block: _Block) -> Iterator[tuple[Key, int, Exemplar]]:
    for number in range(min(block.used, SERIES)):
        entry = block.entries[number]
        key = tuple(entry.key.decode("utf-8", "replace").split("\t"))
        for bucket, shared in enumerate(entry.buckets):
            at_s = shared.at_s
            exemplar = Exemplar(shared.trace_id.decode("ascii", "replace"), shared.value, at_s)
            if at_s and shared.at_s == at_s:
                yield key, bucket, exemplar
