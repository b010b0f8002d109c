"""Files that the rows of a table name: where they are, and whether they may be read."""

from __future__ import annotations

import posixpath
from typing import Final

_OUTSIDE: Final = (
    "It names a file outside the table's folder, which is read only where --column names the column with the paths."
)


def linked_address(table: str, path: str) -> str:
    """The address of a file that a table names.

    Args:
        table: Address of the table.
        path: As the row has it: seen from the table's folder, or a whole path or URL.
    """
    is_whole = "://" in path or path.startswith("/")
    return path if is_whole else f"{_folder_of(table)}/{path}"


def problem_of_linked(table: str, address: str, *, may_lead_away: bool) -> str:
    """Why a file that a table names is not read; "" where nothing is against it.

    Args:
        table, address: Of the table, and of the file.
        may_lead_away: Whether it may be anywhere; otherwise it must be below the table's folder, without `..`.
    """
    if "\0" in address:
        return "The path that it names has a NUL in it."
    if may_lead_away or _is_below(_folder_of(table), address):
        return ""
    return _OUTSIDE


def _is_below(folder: str, address: str) -> bool:
    scheme, _, rest = address.rpartition("://")
    above, _, below = folder.rpartition("://")
    top = posixpath.normpath(below) if below else ""
    return scheme == above and posixpath.normpath(rest).startswith(f"{top}/")


def _folder_of(table: str) -> str:
    return table.rpartition("/")[0]
