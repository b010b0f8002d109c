"""What planning found and did not plan: counted by kind, and told to people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

_MOST_KINDS: Final = 200
_MOST_TOLD: Final = 8
_OTHER_KINDS: Final = "other kinds"


@dataclass(slots=True)
class PlanningCounts:
    """Counts that grow while sources are planned.

    Attributes:
        skipped: Files that are no images by name and content, by kind: ".json", "hidden", "folder links" and the like.
        unreadable: Files, folders and archives that were planned as one page that fails with its reason.
        first_unreadable: What is wrong with the first of them that is a file or an archive.
        named_twice: Files that were found again, and are planned once.
        without_pages: Documents that have none of the pages asked for.
        left_out: Files that --include or --exclude leave out.
        not_sampled: Pages that a sample leaves out.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    first_unreadable: str = ""
    named_twice: int = 0
    without_pages: int = 0
    left_out: int = 0
    not_sampled: int = 0

    def to_sentences(self) -> list[str]:
        """What people should know of it, in their words; nothing of what did not happen."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.skipped.most_common(_MOST_TOLD))
        kinds += ", and others" if len(self.skipped) > _MOST_TOLD else ""
        such_as = f", such as {self.first_unreadable}" if self.first_unreadable else ""
        told = [
            (self.skipped.total(), f"no image by name and content, left out ({kinds})"),
            (self.unreadable, f"cannot be read, counted as a page that fails{such_as}"),
            (self.named_twice, "named twice, read once"),
            (self.without_pages, "without the pages asked for"),
            (self.left_out, "left out by --include or --exclude"),
        ]
        sentences = [f"{count} {'files' if count > 1 else 'file'}: {what}" for count, what in told if count]
        return sentences + ([f"{self.not_sampled} pages are not in the sample"] if self.not_sampled else [])

    def skip(self, kind: str) -> None:
        """Count a file that is not planned; kinds are bounded, as whoever made the files names them."""
        if kind not in self.skipped and len(self.skipped) >= _MOST_KINDS:
            kind = _OTHER_KINDS
        self.skipped[kind] += 1
