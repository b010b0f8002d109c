"""Exemplars of histograms: for each bucket the last sampled trace in it, in shared memory as in metrics_store.py."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ocrsvc.system.shared_memory import shared_array
from ocrsvc.telemetry.metric import Key

SERIES: Final = 64
"""Series of one process that have exemplars; later ones have none."""

# An exemplar stays for this long, so that many requests a second cost nothing here.
_FRESH_S: Final = 1.0
_KEY_BYTES: Final = 96
_TRACE_BYTES: Final = 32
_MOST_BUCKETS: Final = 16


class Exemplar(NamedTuple):
    """A value that was observed, in which trace, and when in Unix time."""

    trace_id: str
    value: float
    at_s: float


Exemplars = Mapping[Key, Mapping[int, Exemplar]]
"""By series and by bucket."""


class _Bucket(ctypes.Structure):
    # at_s is 0 while there is no exemplar, or it is being written.
    _fields_ = (("at_s", ctypes.c_double), ("value", ctypes.c_double), ("trace_id", ctypes.c_char * _TRACE_BYTES))


class _Entry(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * _KEY_BYTES), ("buckets", _Bucket * _MOST_BUCKETS))


class _Block(ctypes.Structure):
    _fields_ = (("used", ctypes.c_int64), ("entries", _Entry * SERIES))


class WorkerExemplars:
    """One block, and its only writer: one thread at a time."""

    def __init__(self, block: _Block) -> None:
        self._block = block
        self._entries: dict[Key, _Entry] = {}

    def put(self, key: Key, bucket: int, exemplar: Exemplar) -> None:
        """Keep the exemplar of a bucket, unless it has a newer one, or one hardly older."""
        entry = self._entries.get(key) or self._begin(key)
        if entry is None:
            return
        place = entry.buckets[bucket]
        if place.at_s > exemplar.at_s - _FRESH_S:
            return
        place.at_s = 0.0
        place.trace_id, place.value = exemplar.trace_id.encode(), exemplar.value
        place.at_s = exemplar.at_s

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
    """All blocks, in shared memory. Make it in the arbiter, before any fork; `common` is the arbiter's own block."""

    def __init__(self, slots: int) -> None:
        self._blocks = shared_array(_Block, slots + 1)
        self.common = WorkerExemplars(self._blocks[0])

    def of_worker(self, slot: int) -> WorkerExemplars:
        """Worker, once, after its fork: what it writes."""
        return WorkerExemplars(self._blocks[slot + 1])

    def fold(self, slot: int) -> None:
        """Arbiter, when a worker has been reaped: keep its exemplars, and clear its block."""
        block = self._blocks[slot + 1]
        for key, bucket, exemplar in _exemplars(block):
            self.common.put(key, bucket, exemplar)
        ctypes.memset(ctypes.byref(block), 0, ctypes.sizeof(block))

    def read(self, blocks: int) -> Exemplars:
        """The last exemplars in the first blocks."""
        found: dict[Key, dict[int, Exemplar]] = {}
        for block in self._blocks[:blocks]:
            for key, bucket, exemplar in _exemplars(block):
                known = found.setdefault(key, {})
                if bucket not in known or known[bucket].at_s < exemplar.at_s:
                    known[bucket] = exemplar
        return found


def _exemplars(block: _Block) -> Iterator[tuple[Key, int, Exemplar]]:
    for number in range(min(block.used, SERIES)):
        entry = block.entries[number]
        key = tuple(entry.key.decode("utf-8", "replace").split("\t"))
        for bucket, place in enumerate(entry.buckets):
            at_s = place.at_s
            exemplar = Exemplar(place.trace_id.decode("ascii", "replace"), place.value, at_s)
            if at_s and place.at_s == at_s:
                yield key, bucket, exemplar
