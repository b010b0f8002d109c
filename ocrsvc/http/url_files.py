"""Files that requests name by URL, fetched within the request's deadline and memory limit."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ocrsvc.connections.fetching import FetchedFile, fetch_file
from ocrsvc.connections.policy import OutgoingPolicy
from ocrsvc.errors import ClientGone, QueueFull, TooManyAtOnce
from ocrsvc.http.request import current_request
from ocrsvc.serving.request_guard import waiting

_OFF: Final = OutgoingPolicy(())
_REMEDY: Final = "Send the request again after the time that Retry-After names."


class UrlFiles:
    """Fetches files in the threads of the requests that name them. By default no host is allowed.

    One caller may use half of the permitted fetches, so that hosts that never answer delay only that caller.
    """

    def __init__(self, policy: OutgoingPolicy = _OFF, max_fetches: int = 1) -> None:
        self._policy, self._max_fetches = policy, max_fetches
        # Whether any host is allowed; if not, adapters refuse URLs with messages of their own.
        self.is_on = policy.is_on
        self._max_of_caller = (max_fetches + 1) // 2
        # Number of running fetches by caller.
        self._fetching: Counter[str] = Counter()
        self._lock = threading.Lock()

    def fetch(self, url: str) -> FetchedFile:
        """Fetch the file at a URL for this thread's request. Raises QueueFull, TooManyAtOnce, and as `fetch_file`."""
        request = current_request()

        def check() -> None:
            if request.is_gone():
                raise ClientGone("The client closed its connection while its file was fetched.")

        self._policy.check_url(url)
        with self._permit(request.caller), waiting(), request.ledger.during("wait"):
            return fetch_file(url, self._policy, request.left_s, check, request.share.take)

    @contextmanager
    def _permit(self, caller: str) -> Iterator[None]:
        """Count a fetch of this caller during the block. Raises QueueFull, TooManyAtOnce."""
        with self._lock:
            if self._fetching.total() >= self._max_fetches:
                detail = f"This worker is fetching {self._max_fetches} files, its limit (OCRSVC_URL_FETCHES)."
                raise QueueFull(detail, _REMEDY)
            if self._fetching[caller] >= self._max_of_caller:
                detail = f"This worker is fetching {self._max_of_caller} files for this caller, the limit"
                raise TooManyAtOnce(f"{detail} for one caller (half of OCRSVC_URL_FETCHES).", _REMEDY)
            self._fetching[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._fetching[caller] -= 1
                # Adding a Counter drops callers whose count is 0.
                self._fetching += Counter()
