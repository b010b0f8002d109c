"""Tars, also packed ones and WebDataset's shards: the images in them, loaded by their offsets."""

from __future__ import annotations

from collections.abc import Iterator

from ocrsvc.batch.sources.address_access import open_file
from ocrsvc.batch.sources.archive import Member, too_large
from ocrsvc.batch.sources.forward_stream import ForwardStream, ForwardStreams
from ocrsvc.batch.sources.member_names import MemberNames
from ocrsvc.batch.sources.packed_stream import open_packed
from ocrsvc.batch.sources.random_access import RandomAccess
from ocrsvc.batch.sources.tar_headers import ReadAt, read_headers
from ocrsvc.errors import BrokenArchive


class TarArchive:
    """A tar: any place of it can be read.

    Args:
        address: Of the tar.
    """

    def __init__(self, address: str) -> None:
        self._file = RandomAccess(open_file(address))

    def members(self) -> Iterator[Member]:
        """As Archive.members."""
        yield from _members(self._file.read_at, self._file.size)

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        return _load(self._file.read_at, place, most_bytes)

    def close(self) -> None:
        """As Archive.close."""
        self._file.close()


class PackedTarArchive:
    """A tar that was packed with gzip, Zstandard, bzip2 or xz: read from its beginning, nearly in order.

    Args:
        address: Of the tar; its name says how it is packed.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._streams = ForwardStreams(lambda: open_packed(address))

    def members(self) -> Iterator[Member]:
        """As Archive.members."""
        stream = ForwardStream(open_packed(self._address), history_bytes=0)
        try:
            yield from _members(stream.read_at, None)
        finally:
            stream.close()

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        return _load(self._streams.read_at, place, most_bytes)

    def close(self) -> None:
        """As Archive.close."""
        self._streams.close()


def _members(read_at: ReadAt, size: int | None) -> Iterator[Member]:
    names = MemberNames()
    for entry in read_headers(read_at):
        is_cut = size is not None and entry.offset + entry.size > size
        problem = "" if entry.kind == "file" else f"It is no plain file ({entry.kind})."
        problem = "The tar is cut off in it." if is_cut else problem
        yield Member(names.name(entry.name), f"{entry.offset},{entry.size}", entry.size, entry.head, problem)


def _load(read_at: ReadAt, place: str, most_bytes: int) -> bytes:
    offset, size = map(int, place.split(","))
    if size > most_bytes:
        raise too_large(size, most_bytes)
    data = read_at(offset, size)
    if len(data) < size:
        raise BrokenArchive("The tar is cut off in it.", "Make the tar again.")
    return data
