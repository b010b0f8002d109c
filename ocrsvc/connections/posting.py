"""Posts to a URL that a caller names, as callbacks are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ocrsvc.connections.deadline import Deadline
from ocrsvc.connections.exchange import exchange
from ocrsvc.connections.policy import OutgoingPolicy


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    policy: OutgoingPolicy,
    limit_s: float,
    check: Callable[[], object] = bool,
) -> int:
    """Post a body; the status of the answer, of which nothing else is read. A redirect is not followed.

    Args:
        url: As the caller sent it.
        body: What is sent.
        headers: Content-Type, and what else is sent, in ASCII.
        policy: What may be asked.
        limit_s: Seconds for all of it; the policy's own limit holds beside it.
        check: Called at least four times a second; raises what ends it.

    Raises:
        UrlRefused: The URL is wrong, or its host is not asked.
        UrlUnavailable: No connection came about or may, or it broke before an answer.
        DeadlineExceeded: `limit_s` is over.
        ResourcesExhausted: Too many names of hosts are looked up already.
    """
    deadline = Deadline(limit_s, policy.most_s, check)
    with exchange("POST", policy.check_url(url), headers, body, policy, deadline) as response:
        return response.status
