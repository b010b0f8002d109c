"""Which files and pages a run is about, as its command says it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

MOST_FILE_BYTES: Final = 64 * 1024 * 1024
"""What a file or a member of an archive may hold unless it is said otherwise: as OCRSVC_MAX_BODY_BYTES."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What is to be planned.

    Attributes:
        sources: Files, folders, patterns, lists (@FILE, or - for standard input), archives, tables, URLs.
        pages: Which pages of each document, such as "1-3,7"; None is all.
        column: The column of a table that holds the images; None finds it.
        include: Patterns of names, of which one must match; () is any.
        exclude: Patterns of names that are left out.
        sample: How many pages to take, "1000", or which share of them, "2.5%"; None is all.
        seed: Which of them.
        is_sorted: Whether the order is that of the names over all sources, and not that of the sources.
        most_file_bytes: What is larger fails without being read.
    """

    sources: tuple[str, ...]
    pages: str | None = None
    column: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sample: str | None = None
    seed: int = 0
    is_sorted: bool = False
    most_file_bytes: int = MOST_FILE_BYTES

    def choice(self) -> dict[str, Any]:
        """What chooses pages beside the sources, as far as it was said; a run goes on with the same choice only."""
        own = asdict(self)
        for name in ("sources", "most_file_bytes"):
            del own[name]
        return {name: value for name, value in own.items() if value != SourceRequest.__dataclass_fields__[name].default}
