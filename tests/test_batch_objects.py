"""Requests to object stores: how long they are sent again, and what of a URL is shown."""

from __future__ import annotations

import pytest

from ocrsvc.batch.objects import Retries, RetryLimits, is_transient, os_error_of, without_secrets


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


def s3_error(status: int, code: str) -> OSError:
    """What s3fs raises for an answer of S3."""
    errors = pytest.importorskip("s3fs.errors", reason="s3fs is not installed; it comes with the extra dev")
    exceptions = pytest.importorskip("botocore.exceptions")
    answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found: OSError = errors.translate_boto_error(exceptions.ClientError(answer, "PutObject"))
    return found


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (500, "InternalError", TimeoutError),
        (503, "SlowDown", TimeoutError),
        (503, "ServiceUnavailable", TimeoutError),
        (429, "TooManyRequests", TimeoutError),
        (400, "RequestTimeout", TimeoutError),
        (409, "ConditionalRequestConflict", TimeoutError),
        (404, "NoSuchKey", FileNotFoundError),
        (403, "AccessDenied", PermissionError),
        (400, "ExpiredToken", PermissionError),
        (412, "PreconditionFailed", FileExistsError),
    ],
)
def test_answers_of_s3_are_told_apart(status: int, code: str, kind: type[OSError]) -> None:
    error = s3_error(status, code)
    assert is_transient(error) == (kind is TimeoutError)
    assert type(os_error_of(error, "PUT s3://bucket/name")) is kind


def test_lost_connections_of_every_library_are_worth_another_try() -> None:
    botocore = pytest.importorskip(
        "botocore.exceptions", reason="botocore is not installed; it comes with the extra dev"
    )
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed; it comes with the extra dev")
    url = {"endpoint_url": "http://host", "error": "x"}
    lost = [
        botocore.EndpointConnectionError(**url),
        botocore.ConnectTimeoutError(**url),
        botocore.ReadTimeoutError(**url),
        botocore.ConnectionClosedError(**url),
        botocore.ResponseStreamingError(error="x"),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError(),
        ConnectionResetError(),
        TimeoutError(),
    ]
    assert [type(error).__name__ for error in lost if not is_transient(error)] == []
    assert not is_transient(botocore.NoCredentialsError())
    assert type(os_error_of(botocore.NoCredentialsError(), "GET s3://bucket/name")) is PermissionError


def test_urls_are_shown_without_secrets() -> None:
    text = "GET https://me:secret@host/a?X-Amz-Signature=secret was refused; see 'http://host/b?token=secret'"
    assert without_secrets(text) == "GET https://***@host/a?*** was refused; see 'http://host/b?***'"
