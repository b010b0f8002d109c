"""W3C Trace Context and request ids: parsing, propagation, and malformed headers."""

from typing import Any
from uuid import RFC_4122, UUID

import pytest
from flask.testing import FlaskClient
from grpc_doubles import REQUEST
from grpc_support import calling, serving
from image_support import png
from support import read_data

from ocrsvc.grpc_server.calls import headers_by_name
from ocrsvc.grpc_server.method import Method
from ocrsvc.telemetry.trace_context import MAX_STATE, read_trace_context, request_id_of

# From the specification: https://www.w3.org/TR/trace-context/#examples-of-http-traceparent-headers
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


# From the specification's test suite: https://github.com/w3c/trace-context/blob/main/test/test.py
CASES: dict[str, list[Any]] = read_data("trace_context.json")
LONG = f"cc-{TRACE}-{SPAN}-01-{'x' * 100_000}"


@pytest.mark.parametrize("sent", [*CASES["malformed traceparents"], LONG], ids=range(21))
def test_malformed_traceparent_is_ignored(sent: str) -> None:
    assert read_trace_context(sent, "rojo=1") is None


@pytest.mark.parametrize(
    ("sent", "flags"),
    [
        (f" {PARENT}\t", 1),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
        (f"cc-{TRACE}-{SPAN}-fe", 0),
        (f"00-{TRACE}-{SPAN}-ff", 3),
        (f"00-{TRACE}-{SPAN}-00", 0),
    ],
)
def test_later_version_uses_only_known_flags(sent: str, flags: int) -> None:
    found = read_trace_context(sent)
    assert found is not None
    assert found.headers() == {"traceparent": f"00-{TRACE}-{SPAN}-{flags:02x}"}


@pytest.mark.parametrize(
    ("sent", "passed"), [*CASES["tracestates and what is passed on"], ("x=1," * 100_000, "")], ids=range(19)
)
def test_malformed_tracestate_is_dropped_without_the_trace(sent: str, passed: str) -> None:
    found = read_trace_context(PARENT, sent)
    assert found is not None
    assert found.state == passed


def test_long_tracestate_loses_whole_members_at_its_end() -> None:
    members = [f"bar{number}={'x' * 60}" for number in range(20)]
    found = read_trace_context(PARENT, ",".join(members))
    assert found is not None
    assert found.state == ",".join(members[: found.state.count(",") + 1])
    assert MAX_STATE - 70 < len(found.state) <= MAX_STATE


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a\nstatus=500", "é", "\x1b[31m", "\t"])
def test_request_id_with_other_characters_is_replaced(sent: str) -> None:
    assert request_id_of("mine-1") == "mine-1"
    new = [UUID(request_id_of(sent)) for _ in range(3)]
    assert {(one.version, one.variant) for one in new} == {(7, RFC_4122)}
    assert len(set(new)) == 3


def test_http_response_carries_only_the_callers_trace(client: FlaskClient) -> None:
    sent = {"traceparent": PARENT, "tracestate": "rojo=1"}
    answer = client.post("/v1/ocr", data=png(), headers=sent)
    assert {name: answer.headers[name] for name in sent} == sent
    refused = client.post("/v1/ocr", data=b"nothing", headers=sent)
    assert (refused.status_code, refused.headers["traceparent"]) == (415, PARENT)
    for headers in ({}, {"traceparent": "00-nonsense", "tracestate": "rojo=1"}):
        answer = client.post("/v1/ocr", data=png(), headers=headers)
        assert not {"traceparent", "tracestate"} & set(answer.headers.keys())


def test_grpc_response_carries_the_callers_trace_and_id() -> None:
    methods = {"/t/Echo": Method(REQUEST, lambda sent, _: sent)}
    sent = {"traceparent": PARENT, "tracestate": "rojo=1", "x-request-id": "mine"}
    with serving(methods) as server, calling(server._listeners[0].getsockname()[1]) as channel:
        call = channel.unary_unary(
            "/t/Echo", request_serializer=REQUEST.SerializeToString, response_deserializer=REQUEST.FromString
        )
        _, done = call.with_call(REQUEST(), metadata=list(sent.items()))
        found = dict(done.initial_metadata())
        assert {name: found[name] for name in sent} == sent
        _, done = call.with_call(REQUEST(), metadata=[("traceparent", PARENT[1:]), ("x-request-id", "a b")])
        found = dict(done.initial_metadata())
        assert "traceparent" not in found
        assert UUID(found["x-request-id"]).version == 7


def test_grpc_rejects_two_traceparents_and_joins_two_tracestates() -> None:
    twice = [(name.encode(), value.encode()) for name, value in (("traceparent", PARENT), ("tracestate", "a=1"))] * 2
    assert headers_by_name(twice) == {"traceparent": f"{PARENT},{PARENT}", "tracestate": "a=1,a=1"}
