"""The pages of one admitted request: reserved before they are read, and counted when their answer is made."""

from __future__ import annotations

from collections.abc import Mapping

from ocrsvc.access.admission import Admission


class RequestPages:
    """What an admitted request reads. Used by the threads of its request, one at a time.

    Args:
        admission: The request's.
        reserved: Pages that were reserved for it when it was admitted.
    """

    def __init__(self, admission: Admission, reserved: int = 0) -> None:
        self._admission = admission
        self._ahead = reserved
        self._answered = 0

    @property
    def may_cache(self) -> bool:
        """Whether its pages may be kept in the result cache, and be answered from it."""
        return self._admission.entry.may_cache

    @property
    def headers(self) -> Mapping[str, str]:
        """The RateLimit headers of its answer."""
        return self._admission.rate_limit_headers

    def expect(self, pages: int) -> None:
        """So many are to be read, or found in the cache. Raises as `Admission.charge`."""
        self._admission.charge(max(0, pages - self._ahead))
        self._ahead = max(self._ahead, pages)

    def take(self) -> None:
        """One is about to be, expected or not. Raises as `Admission.charge`."""
        self.expect(1)
        self._ahead -= 1

    def count(self) -> None:
        """One of them was read, or found."""
        self._answered += 1

    def settle(self, *, succeeded: bool) -> None:
        """The answer is made: the pages in it count, and those of a failure do not. Raises KeysUnavailable."""
        self._admission.settle(self._answered if succeeded else 0)

    def release(self) -> None:
        """The request is over, whatever way: what was not counted is given back."""
        self._admission.release()
