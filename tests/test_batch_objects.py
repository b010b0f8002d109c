"""Requests to object stores: how long they are sent again, and what of a URL is shown."""

from __future__ import annotations

import pytest

from ocrsvc.batch.objects import Objects, is_transient, os_error_of, without_secrets


class SlowSystem:
    """fsspec's contract: every request takes thirty seconds, and fails once it `is_lost`."""

    def __init__(self) -> None:
        self.now, self.is_lost = 0.0, False
        self.waits: list[float] = []

    def _strip_protocol(self, url: str) -> str:
        return url

    def cat_file(self, _path: str) -> bytes:
        if not self.is_lost:
            return b""
        self.now += 30.0
        raise ConnectionResetError

    def sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now += wait_s


@pytest.mark.parametrize(("is_heard", "least_s", "most_s"), [(True, 290, 350), (False, 0, 61)])
def test_waits_grow_and_end(is_heard: bool, least_s: float, most_s: float) -> None:
    system = SlowSystem()
    objects = Objects("s3", system, clock=lambda: system.now, sleep=system.sleep)
    if is_heard:
        objects.read("s3://x")
    system.is_lost = True
    with pytest.raises(TimeoutError, match="GET s3://x"):
        objects.read("s3://x")
    assert least_s < system.now < most_s
    mosts = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert all(0.5 * most <= wait_s <= most for wait_s, most in zip(system.waits, mosts, strict=False))


def s3_error(status: int, code: str) -> OSError:
    """What s3fs raises for an answer of S3."""
    errors = pytest.importorskip("s3fs.errors", reason="s3fs is not installed; it comes with the extra dev")
    exceptions = pytest.importorskip("botocore.exceptions")
    answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found: OSError = errors.translate_boto_error(exceptions.ClientError(answer, "PutObject"))
    return found


ANSWERS = {
    TimeoutError: (
        *("500 InternalError", "503 SlowDown", "503 ServiceUnavailable", "429 TooManyRequests"),
        *("400 RequestTimeout", "409 ConditionalRequestConflict"),
    ),
    FileNotFoundError: ("404 NoSuchKey",),
    PermissionError: ("403 AccessDenied", "400 ExpiredToken"),
    FileExistsError: ("412 PreconditionFailed",),
    OSError: ("400 InvalidBucketName",),
}


@pytest.mark.parametrize(("kind", "answer"), [(kind, answer) for kind in ANSWERS for answer in ANSWERS[kind]])
def test_answers_of_s3_are_told_apart(kind: type[OSError], answer: str) -> None:
    status, code = answer.split()
    error = s3_error(int(status), code)
    assert is_transient(error) == (kind is TimeoutError)
    assert type(os_error_of(error, "PUT s3://bucket/name")) is kind


def test_lost_connections_of_every_library_are_worth_another_try() -> None:
    botocore, aiohttp = pytest.importorskip("botocore.exceptions"), pytest.importorskip("aiohttp")
    names = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError")
    lost = [getattr(botocore, name)(endpoint_url="http://host", error="x") for name in names]
    lost += [
        botocore.ResponseStreamingError(error="x"),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError(),
    ]
    lost += [ConnectionResetError(), TimeoutError()]
    assert [type(error).__name__ for error in lost if not is_transient(error)] == []
    refused = [ValueError("name"), botocore.ParamValidationError(report="x"), botocore.NoCredentialsError()]
    assert [is_transient(error) for error in refused] == [False] * 3
    assert type(os_error_of(refused[-1], "GET s3://bucket/name")) is PermissionError


def test_urls_are_shown_without_secrets() -> None:
    text = "GET https://me:secret@host/a?X-Amz-Signature=secret was refused; see 'http://host/b?token=secret'"
    assert without_secrets(text) == "GET https://***@host/a?*** was refused; see 'http://host/b?***'"
