"""Files that requests name by URL: fetched for the request that this thread serves, on its time and its memory."""

from __future__ import annotations

import threading
from typing import Final

from ocrsvc.errors import ClientGone, QueueFull
from ocrsvc.http.request import Request, current_request
from ocrsvc.outgoing.fetching import FetchedFile, fetch_file
from ocrsvc.outgoing.policy import OutgoingPolicy, policy_of_files
from ocrsvc.serving.request_guard import waiting
from ocrsvc.settings.settings import Settings

_OFF: Final = OutgoingPolicy(())


class UrlFiles:
    """Fetches files for requests; for any thread that serves one.

    Args:
        policy: What may be asked; by default nobody.
        most_at_once: Each fetching keeps a thread for requests.
    """

    def __init__(self, policy: OutgoingPolicy = _OFF, most_at_once: int = 1) -> None:
        self._policy, self._most = policy, most_at_once
        self._permits = threading.BoundedSemaphore(most_at_once)

    @property
    def is_on(self) -> bool:
        """Whether URLs are fetched at all; where not, each format refuses them in its own words."""
        return self._policy.is_on

    def fetch(self, url: str) -> FetchedFile:
        """The file at a URL, counted in this thread's request.

        Raises:
            QueueFull: As many files are fetched as may be at once, or other requests hold the memory that it needs.
            ClientGone: Nobody waits for it any more.
            OcrsvcError: As `fetch_file`.
        """
        request = current_request()
        self._policy.check_url(url)
        if not self._permits.acquire(blocking=False):
            raise QueueFull(
                f"This worker fetches {self._most} files already, the most at once (OCRSVC_URL_FETCHES).",
                "Send the request again after the time that Retry-After names.",
            )
        try:
            with waiting(), request.ledger.during("wait"):
                return fetch_file(url, self._policy, request.left_s, lambda: _check(request), request.share.take)
        finally:
            self._permits.release()


def url_files_of(settings: Settings) -> UrlFiles:
    """As the settings want them."""
    return UrlFiles(policy_of_files(settings), settings.url_fetches)


def _check(request: Request) -> None:
    """Raises ClientGone."""
    if request.is_gone():
        raise ClientGone("The client closed its connection while its file was fetched.")
