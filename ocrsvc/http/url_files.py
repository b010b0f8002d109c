"""Files that requests name by URL: fetched for the request that this thread serves, on its time and its memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ocrsvc.connections.fetching import FetchedFile, fetch_file
from ocrsvc.connections.policy import OutgoingPolicy
from ocrsvc.errors import ClientGone, QueueFull, TooManyAtOnce
from ocrsvc.http.request import Request, current_request
from ocrsvc.serving.request_guard import waiting

_OFF: Final = OutgoingPolicy(())
_REMEDY: Final = "Send the request again after the time that Retry-After names."


class UrlFiles:
    """Fetches files for requests; for any thread that serves one. By default no host may be asked.

    Each fetch keeps a thread for requests. One caller has half of them at most, so that hosts that never answer delay
    their own caller only.
    """

    def __init__(self, policy: OutgoingPolicy = _OFF, max_fetches: int = 1) -> None:
        self._policy, self._max_fetches = policy, max_fetches
        self._max_of_caller = (max_fetches + 1) // 2
        # By caller.
        self._fetching: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether URLs are fetched at all; if not, each format refuses them in its own words."""
        return self._policy.is_on

    def fetch(self, url: str) -> FetchedFile:
        """The file at a URL, counted in this thread's request. Raises QueueFull, TooManyAtOnce, and as `fetch_file`."""
        request = current_request()
        self._policy.check_url(url)
        with self._permit(request.caller), waiting(), request.ledger.during("wait"):
            return fetch_file(url, self._policy, request.left_s, lambda: _check(request), request.share.take)

    @contextmanager
    def _permit(self, caller: str) -> Iterator[None]:
        """Count one more file of a caller within the block. Raises QueueFull, TooManyAtOnce."""
        with self._lock:
            if self._fetching.total() >= self._max_fetches:
                raise QueueFull(
                    f"This worker fetches {self._max_fetches} files already, the most at once (OCRSVC_URL_FETCHES).",
                    _REMEDY,
                )
            if self._fetching[caller] >= self._max_of_caller:
                raise TooManyAtOnce(
                    f"This worker fetches {self._max_of_caller} files for this caller already, the most at once for "
                    "one (half of OCRSVC_URL_FETCHES).",
                    _REMEDY,
                )
            self._fetching[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._fetching[caller] -= 1
                # Drops the names of callers without any.
                self._fetching += Counter()


def _check(request: Request) -> None:
    """Raises ClientGone."""
    if request.is_gone():
        raise ClientGone("The client closed its connection while its file was fetched.")
