"""The logs of an object store: which chunks each has, and their bytes; few requests, whoever wrote them."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ocrsvc.batch.objects.contract import Objects
from ocrsvc.batch.store.log_chunks import Chunk, covering, small_runs

_CACHE_BYTES: Final = 32 * 1024 * 1024
_WHOLE_BYTES: Final = 4 * 1024 * 1024
"""A chunk of so many bytes is read whole and kept for a while; of a larger one what is asked for."""

_READ_AT_ONCE: Final = 8
_AHEAD_BYTES: Final = 64 * 1024
_READ_TRIES: Final = 10
_MANY_CHUNKS: Final = 300
"""With so many, what processes that died have left in small chunks is merged at the start."""


@dataclass(slots=True)
class _Listed:
    """The chunks of a log, as of a listing: those that hold it, one behind the other."""

    chunks: list[Chunk]
    begins: list[int]
    listing: int
    has_gap: bool

    @classmethod
    def of(cls, chunks: Iterable[Chunk], listing: int) -> _Listed:
        found = list(chunks)
        cover = list(covering(found))
        # A listing of several requests may miss a merge between two of them.
        has_gap = max((chunk.end for chunk in found), default=0) > (cover[-1].end if cover else 0)
        return cls(cover, [chunk.begin for chunk in cover], listing, has_gap)

    @property
    def end(self) -> int:
        return self.chunks[-1].end if self.chunks else 0

    def between(self, begin: int, end: int) -> list[Chunk]:
        first = max(0, bisect_right(self.begins, begin) - 1)
        found = self.chunks[first : bisect_right(self.begins, end - 1)]
        return [chunk for chunk in found if chunk.end > begin]


class ObjectLogs:
    """The logs below a path; for any thread.

    What was listed is used until something beyond its end is asked for; only then is a log listed again.

    Args:
        objects: The object store.
        root: Path of the store in it.
    """

    def __init__(self, objects: Objects, root: str) -> None:
        self._objects, self._root = objects, root
        self._listing_lock, self._lock = threading.RLock(), threading.Lock()
        self._logs: dict[str, _Listed] = {}
        self._own: set[str] = set()
        self._followed: set[str] = set()
        self._listings = 0
        self._cache: OrderedDict[tuple[str, Chunk], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._is_tidy = False

    def names(self, prefix: str) -> list[str]:
        """The logs whose names begin so; what others have committed until now is read from then on."""
        with self._listing_lock:
            found, listing = self._list(prefix)
            if not self._is_tidy and sum(map(len, found.values())) > _MANY_CHUNKS:
                self._tidy(found)
                found, listing = self._list(prefix)
            self._is_tidy = True
            grown: list[tuple[str, Chunk]] = []
            with self._lock:
                for name, chunks in found.items():
                    if name in self._own:
                        self._logs[name].listing = listing
                        continue
                    known, self._logs[name] = self._logs.get(name), _Listed.of(chunks, listing)
                    if known is not None and name in self._followed:
                        new = (chunk for chunk in self._logs[name].chunks if chunk.begin >= known.end)
                        grown += [(name, chunk) for chunk in new if chunk.end - chunk.begin <= _AHEAD_BYTES]
        self._read_ahead(grown)
        return sorted(found)

    def size(self, name: str) -> int:
        """Bytes of a log; 0 if there is none."""
        return self._list_one(name).end

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Bytes of a log, fewer at its end."""
        for _ in range(_READ_TRIES):
            chunks = self._known(name, offset).between(offset, offset + size)
            if not chunks:
                # Whoever reads up to the end will want what comes behind it.
                self._followed.add(name)
            try:
                return self._join(name, chunks, offset, size)
            except FileNotFoundError:
                # Its chunks were merged, or removed.
                self._list_one(name)
        raise FileNotFoundError(2, f"The log {name} changes while it is read")

    def chunks(self, name: str) -> Sequence[Chunk]:
        """The chunks of an own log."""
        with self._lock:
            return tuple(self._logs[name].chunks)

    def begin(self, name: str) -> None:
        """A new log, which this process writes. Raises FileExistsError."""
        if self._list_one(name).chunks:
            raise FileExistsError(17, f"There is a log {name}")
        self._own.add(name)

    def put(self, name: str, chunk: Chunk, data: bytes) -> None:
        """Write a chunk of an own log."""
        self._objects.put(self._path(name, chunk), data)
        with self._lock:
            listed = self._logs[name]
            self._logs[name] = _Listed.of([*listed.chunks, chunk], listed.listing)
            self._keep(name, chunk, data)

    def merge(self, name: str, chunks: Sequence[Chunk]) -> None:
        """Have one object hold what these hold, and remove them."""
        merged = Chunk.around(chunks)
        data = self.read(name, merged.begin, merged.end - merged.begin)
        if len(data) == merged.end - merged.begin:
            self.put(name, merged, data)
            self._objects.delete([self._path(name, chunk) for chunk in chunks])

    def delete(self, name: str) -> None:
        """Remove a log."""
        found, _ = self._list(f"{name}/")
        self._objects.delete([self._path(name, chunk) for chunk in found.get(name, [])])
        with self._lock:
            self._logs.pop(name, None)
            self._own.discard(name)

    def _known(self, name: str, offset: int) -> _Listed:
        """The chunks as they are known, if that is enough for this offset.

        What the ledger names was written before the ledger was listed: a log that was listed later ends where it seems
        to.
        """
        with self._lock:
            known = self._logs.get(name)
            if known is not None and (offset < known.end or (known.listing == self._listings and not known.has_gap)):
                return known
        return self._list_one(name)

    def _list_one(self, name: str) -> _Listed:
        with self._listing_lock:
            found, listing = self._list(f"{name}/")
            chunks = found.get(name, [])
            with self._lock:
                if name in self._own:
                    # What another thread has written meanwhile.
                    end = max((chunk.end for chunk in chunks), default=0)
                    chunks += [chunk for chunk in self._logs[name].chunks if chunk.end > end]
                self._logs[name] = _Listed.of(chunks, listing)
                return self._logs[name]

    def _list(self, prefix: str) -> tuple[dict[str, list[Chunk]], int]:
        """The chunks of all logs with this prefix, and the number of this listing."""
        found: dict[str, list[Chunk]] = {}
        with self._listing_lock:
            for some in self._objects.listing(f"{self._root}/{prefix}"):
                for listed in some:
                    name, _, last = listed.path.removeprefix(f"{self._root}/").rpartition("/")
                    chunk = Chunk.of(last)
                    if chunk is not None and listed.size == chunk.end - chunk.begin:
                        found.setdefault(name, []).append(chunk)
            with self._lock:
                self._listings += 1
                return found, self._listings

    def _read_ahead(self, wanted: Iterable[tuple[str, Chunk]]) -> None:
        """Have small chunks in memory, reading several at once; what is gone by now is not missed yet."""
        small: list[tuple[str, Chunk]] = []
        size = 0
        for name, chunk in wanted:
            size += chunk.end - chunk.begin
            if size > _CACHE_BYTES // 2:
                break
            small.append((name, chunk))
        if len(small) > 1:
            with ThreadPoolExecutor(min(_READ_AT_ONCE, len(small))) as threads:
                list(threads.map(lambda one: self._try_piece(*one), small))

    def _try_piece(self, name: str, chunk: Chunk) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._piece(name, chunk, chunk.begin, chunk.begin)

    def _tidy(self, found: dict[str, list[Chunk]]) -> None:
        """Merge the small chunks of all logs. Also of those that are being written: their bytes stay the same."""
        with self._lock:
            self._logs |= {name: _Listed.of(chunks, self._listings) for name, chunks in found.items()}
        runs = [(name, run) for name, chunks in found.items() for run in small_runs(chunks)]
        self._read_ahead((name, chunk) for name, run in runs for chunk in run)
        for name, run in runs:
            with contextlib.suppress(OSError):
                self.merge(name, run)

    def _join(self, name: str, chunks: Sequence[Chunk], offset: int, size: int) -> bytes:
        """The bytes asked for, out of the chunks that hold them. Raises FileNotFoundError if one is gone."""
        pieces = [(chunk, max(offset, chunk.begin), min(offset + size, chunk.end)) for chunk in chunks]
        # Overlapping ones each give what the one before does not have.
        wanted = [
            (chunk, max(begin, before), end)
            for (chunk, begin, end), before in zip(pieces, [0, *(end for _, _, end in pieces)], strict=False)
        ]
        if len(wanted) <= 1:
            return b"".join(self._piece(name, *one) for one in wanted)
        with ThreadPoolExecutor(min(_READ_AT_ONCE, len(wanted))) as threads:
            return b"".join(threads.map(lambda one: self._piece(name, *one), wanted))

    def _piece(self, name: str, chunk: Chunk, begin: int, end: int) -> bytes:
        with self._lock:
            data = self._cache.get((name, chunk))
            if data is not None:
                self._cache.move_to_end((name, chunk))
        if data is None and chunk.end - chunk.begin > _WHOLE_BYTES:
            return self._objects.get(self._path(name, chunk), begin - chunk.begin, end - chunk.begin)
        if data is None:
            data = self._objects.get(self._path(name, chunk))
            with self._lock:
                self._keep(name, chunk, data)
        return data[begin - chunk.begin : end - chunk.begin]

    def _keep(self, name: str, chunk: Chunk, data: bytes) -> None:
        """Keep a chunk's bytes for a while; with the lock held."""
        if len(data) > _WHOLE_BYTES or (name, chunk) in self._cache:
            return
        self._cache[name, chunk] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > _CACHE_BYTES:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    def _path(self, name: str, chunk: Chunk) -> str:
        return f"{self._root}/{name}/{chunk.name}"
