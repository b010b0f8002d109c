"""Names of an archive's members: valid text, inside the archive, and each once."""

from __future__ import annotations

from ocrsvc.batch.sources.name_hashes import NameHashes
from ocrsvc.batch.sources.names import bytes_name


class MemberNames:
    """The names that one archive has given so far; memory holds a hash of each.

    A second member of one name becomes NAME#2, or what follows and is free, found in few steps: an archive may
    hold a million of one name.
    """

    def __init__(self) -> None:
        self._hashes = NameHashes()

    def name(self, path: bytes) -> str:
        """The name of a member with this path: "/" and parts that lead nowhere else; .. becomes __."""
        name = "/" + "/".join(
            "__" if part == ".." else part for part in bytes_name(path).split("/") if part not in {"", "."}
        )
        if self._hashes.add(name):
            return name
        unique = f"{name}#{self._free_number(name)}"
        self._hashes.add(unique)
        return unique

    def _free_number(self, name: str) -> int:
        """A free number behind one that is taken, in few steps however often the name was there."""
        taken, free = 1, 2
        while f"{name}#{free}" in self._hashes:
            taken, free = free, 2 * free
        while free - taken > 1:
            middle = (taken + free) // 2
            if f"{name}#{middle}" in self._hashes:
                taken = middle
            else:
                free = middle
        return free
