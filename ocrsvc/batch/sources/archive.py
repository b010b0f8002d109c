"""The contract of what is read inside a file: archives and tables of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ocrsvc.errors import BodyTooLarge


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive, or an image in a table.

    Attributes:
        name: As results call it behind the archive's name, its separator included: "/a/b.png" or "#12".
        place: What `Archive.load` needs to load it.
        size: Bytes, of a row of a table in the mean; 0 where it is not known.
        head: Its first bytes; None where they were not looked at, so that its name says what it is.
        problem: Why it cannot be read; "" where nothing is known of that.
        is_image: Whether it is planned whatever it is.
        path: Of the file that it stands for, seen from the archive's folder, or a URL; "" for what is in the archive.
    """

    name: str
    place: str
    size: int
    head: bytes | None = None
    problem: str = ""
    is_image: bool = False
    path: str = ""


class Archive(Protocol):
    """An archive that is open; `close` it."""

    def members(self) -> Iterator[Member]:
        """What is in it, in the archive's order, in bounded memory; for one thread.

        Raises:
            OSError: It cannot be read.
            BrokenArchive: It is cut off or damaged; what came before stands.
        """

    def load(self, place: str, most_bytes: int) -> bytes:
        """The bytes of a member, without looking through the archive; for any thread.

        Args:
            place: As Member.place.
            most_bytes: What it may hold.

        Raises:
            OSError: It cannot be read.
            BrokenArchive: It is cut off or damaged.
            BodyTooLarge: It is larger than that.
        """

    def close(self) -> None:
        """Close the file."""


def too_large(size: int, most_bytes: int) -> BodyTooLarge:
    """The error of a file or member that holds too much."""
    return BodyTooLarge(
        f"It has {size} bytes; the limit is {most_bytes} (OCRSVC_MAX_BODY_BYTES).", "Raise the limit, or split it."
    )
