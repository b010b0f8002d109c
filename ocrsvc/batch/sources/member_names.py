"""Names of an archive's members: valid text, inside the archive, and each once."""

from __future__ import annotations

from ocrsvc.batch.sources.name_hashes import NameHashes
from ocrsvc.batch.sources.names import bytes_name


class MemberNames:
    """The names that one archive has given so far; memory holds a hash of each.

    A second member of one name becomes NAME#2, or what follows and is free.
    """

    def __init__(self) -> None:
        self._hashes = NameHashes()

    def name(self, path: bytes) -> str:
        """The name of a member with this path: "/" and parts that lead nowhere else; .. becomes __."""
        name = "/" + "/".join(
            "__" if part == ".." else part for part in bytes_name(path).split("/") if part not in {"", "."}
        )
        unique, number = name, 1
        while not self._hashes.add(unique):
            number += 1
            unique = f"{name}#{number}"
        return unique
