"""Requests to object stores: how long they are sent again, which chunks hold a log, and what of a URL is shown."""

from __future__ import annotations

import pytest

from ocrsvc.batch.objects.retry import Retries, RetryLimits
from ocrsvc.batch.objects.url import without_secrets
from ocrsvc.batch.store.log_chunks import Chunk, covering


def test_waits_grow_and_end() -> None:
    now, waits = [0.0], []

    def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        now[0] += wait_s

    retries = Retries(RetryLimits(), clock=lambda: now[0], sleep=sleep)
    retries.send("GET x", lambda: None)

    def fail() -> None:
        now[0] += 30.0
        raise ConnectionResetError

    with pytest.raises(TimeoutError, match="GET x"):
        retries.send("GET x", fail)
    assert 290 < now[0] < 350
    mosts = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert all(0.5 * most <= wait_s <= most for wait_s, most in zip(waits, mosts, strict=False))
    never_heard = Retries(RetryLimits(), clock=lambda: now[0], sleep=sleep)
    began = now[0]
    with pytest.raises(TimeoutError):
        never_heard.send("GET x", fail)
    assert now[0] - began < 61


def test_chunks_that_overlap_are_read_once() -> None:
    chunks = [Chunk(0, 4), Chunk(4, 8), Chunk(0, 8), Chunk(8, 9), Chunk(20, 30), Chunk(2, 6)]
    assert list(covering(chunks)) == [Chunk(0, 8), Chunk(8, 9)]
    assert list(covering([Chunk(1, 2)])) == []


def test_urls_are_shown_without_secrets() -> None:
    text = "GET https://me:secret@host/a?X-Amz-Signature=secret was refused; see 'http://host/b?token=secret'"
    assert without_secrets(text) == "GET https://***@host/a?*** was refused; see 'http://host/b?***'"
