"""What one version of a model did with the reference pages, as its process reports it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson

RefusalKind = Literal[
    "files", "reference", "open", "failed", "nonsense", "text", "slow", "memory", "crash", "late", "live"
]
"""Why a version is refused: its files are not those of its manifest; a reference page is missing or unreadable; it does
not open; it fails on a page; it answers what no page can be; it reads too little; it is too slow; it takes too much
memory; its process crashed; it did not end in time; it was rolled back by what live traffic showed."""

FailureKind = RefusalKind | Literal["gone", "unknown"]


@dataclass(frozen=True, slots=True)
class PageMeasurement:
    """One reference page as a version read it.

    Attributes:
        name: Of its file.
        wanted: What should be read; None where nobody has said.
        text: What was read, a line of the page in a line.
        cpu_s, wall_s: What reading it took, all threads of the process together; the quickest of several times.
    """

    name: str
    wanted: str | None
    text: str
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """All pages as a version read them.

    Attributes:
        version: Its name and number.
        device: That it computed on: "cpu" or "cuda".
        private_bytes: The most memory of its own that its process had while it read, the interpreter's included.
        pages: In order of their names.
    """

    version: str
    device: str
    private_bytes: int
    pages: tuple[PageMeasurement, ...]

    @property
    def page_s(self) -> float:
        """Seconds a page: of the processor, or on a GPU those that passed."""
        times_s = [page.wall_s if self.device == "cuda" else page.cpu_s for page in self.pages]
        return sum(times_s) / max(1, len(times_s))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no measurement.

    Attributes:
        kind: What is to blame; "gone" where the version is not on the disk any more, or is another one by now, and
            "unknown" where the machine did not let it be measured. Both say nothing of the version.
        reason: A sentence for people.
    """

    kind: FailureKind
    reason: str


def pack(outcome: Measurement | Failure) -> bytes:
    """As a message from the process."""
    return orjson.dumps(asdict(outcome))


def unpack(message: bytes) -> Measurement | Failure:
    """The outcome of a message. Raises ValueError, TypeError or KeyError for what is none."""
    fields: dict[str, Any] = orjson.loads(message)
    if "pages" not in fields:
        return Failure(**fields)
    pages = tuple(PageMeasurement(**page) for page in fields.pop("pages"))
    return Measurement(**fields, pages=pages)
