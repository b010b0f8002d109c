"""The contract of whatever reads pages for a run: this process, services, or actors of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from ocrsvc.batch.tasks import PageGroup, PageResult


class PageReader(Protocol):
    """Reads groups of pages, in several threads of the run at once.

    Every reader gives the same records, byte by byte: they are made by `batch.page_record`.
    """

    def start(self) -> Mapping[str, str]:
        """Be ready to read.

        Returns:
            Engine, model and version that read, and what else changes results, such as "settings". A run is not gone on
            with where another owner said something else under the same key; a reader leaves out what it cannot know.

        Raises:
            OcrsvcError: Nothing can be read.
        """

    @property
    def at_once(self) -> int:
        """How many groups are read at once, each in a thread of the run; asked again during the run."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether others read than this process and its children: no page is suspected when this one is killed."""

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """Read the pages of one group.

        Yields one result for each page, as soon as it is read. What is wrong with a file or a page is a result; only
        what stops the whole run is raised: OcrsvcError with what the operator can do.
        """

    def close(self) -> None:
        """End, within seconds; what is being read may be given up. Called once, from any thread."""
