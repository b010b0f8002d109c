"""Which files are archives or tables, by their names, and what reads each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ocrsvc.batch.sources.archive import Archive

_KINDS: Final = {
    "tar": "tar",
    "tgz": "packed-tar",
    "tbz": "packed-tar",
    "tbz2": "packed-tar",
    "txz": "packed-tar",
    "tzst": "packed-tar",
    "zip": "zip",
    "cbz": "zip",
    "parquet": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
}
_PACKED: Final = frozenset({"gz", "bz2", "xz", "zst"})


def archive_kind(name: str) -> str:
    """The kind of archive or table that a file is by its name; "" for none."""
    stem, _, extension = name.lower().rpartition(".")
    if extension in _PACKED and stem.endswith(".tar"):
        return "packed-tar"
    return _KINDS.get(extension, "")


def open_archive(kind: str, address: str, column: str | None = None) -> Archive:
    """The archive at an address; to be closed.

    Args:
        kind: As `archive_kind` gives it.
        address: Path or URL.
        column: Of a table: what holds the images; None finds it.

    Raises:
        OSError: It cannot be opened.
        SourceGone: What reads it is not installed, or there is no such column.
        BrokenArchive: It is damaged.
    """
    return _OPENERS[kind](address, column)


def _open_tar(address: str, _column: str | None) -> Archive:
    from ocrsvc.batch.sources.tar_archive import TarArchive

    return TarArchive(address)


def _open_packed_tar(address: str, _column: str | None) -> Archive:
    from ocrsvc.batch.sources.tar_archive import PackedTarArchive

    return PackedTarArchive(address)


def _open_zip(address: str, _column: str | None) -> Archive:
    from ocrsvc.batch.sources.zip_archive import ZipArchive

    return ZipArchive(address)


def _open_parquet(address: str, column: str | None) -> Archive:
    from ocrsvc.batch.sources.table import TableArchive, check_pyarrow

    check_pyarrow()
    from ocrsvc.batch.sources.parquet_file import ParquetTable

    return TableArchive(ParquetTable(address), column)


def _open_arrow(address: str, column: str | None) -> Archive:
    from ocrsvc.batch.sources.table import TableArchive, check_pyarrow

    check_pyarrow()
    from ocrsvc.batch.sources.arrow_file import ArrowTable

    return TableArchive(ArrowTable(address), column)


_OPENERS: Final[dict[str, Callable[[str, str | None], Archive]]] = {
    "tar": _open_tar,
    "packed-tar": _open_packed_tar,
    "zip": _open_zip,
    "parquet": _open_parquet,
    "arrow": _open_arrow,
}
