"""Request bodies in the event loop: any chunking, time limits, minimum rate and memory budget."""

import itertools
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc.errors import BodyTimeout, BodyTooLarge, CallerError, OcrsvcError, QueueFull
from ocrsvc.http.received_body import FREE_CHUNKS, LARGE_BYTES, MAX_LINE_BYTES, ReceivedBody
from ocrsvc.serving.memory_budget import Budget, Share


class FakeRequest:
    """The part of gunicorn's request that a body uses."""

    def __init__(self) -> None:
        self.closes = False

    def force_close(self) -> None:
        self.closes = True


class Client:
    """Sends a body in pieces, with a fake clock."""

    def __init__(self, length: int | None, most: int = 100_000, end_s: float = 60.0, budget: int = 10**9) -> None:
        self.now_s = 0.0
        self.request = FakeRequest()
        self.budget = Budget(budget)
        sock = socket.socket()
        sock.close()
        self.body = ReceivedBody(sock, self.request, length, most, Share(self.budget), end_s, lambda: self.now_s)

    def send(self, piece: bytes, after_s: float = 0.0, *, scarce: bool = False) -> bytes:
        """Check the pace four times a second for `after_s`, then send."""
        for _ in range(int(after_s / 0.25)):
            self.now_s += 0.25
            self.body.check_pace(self.now_s, scarce=scarce)
        return b"" if self.body.settled else self.body.feed(piece)


def in_chunks(data: bytes, *sizes: int, trailers: bytes = b"") -> bytes:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(b"%x;ext=1\r\n%s\r\n" % (size, data[at : at + size]))
        at += size
    rest = data[at:]
    return b"".join(pieces) + (b"%X\r\n%s\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n" + trailers + b"\r\n"


def cut(data: bytes, places: set[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]


@given(st.binary(min_size=1, max_size=300), st.sets(st.integers(1, 400), max_size=8), st.lists(st.integers(1, 40)))
def test_a_body_is_the_same_wherever_it_is_cut(data: bytes, places: set[int], sizes: list[int]) -> None:
    sizes = [size for size, end in zip(sizes, itertools.accumulate(sizes), strict=True) if end <= len(data)]
    for length, sent in ((len(data), data), (None, in_chunks(data, *sizes, trailers=b"X-Sum: 1\r\n"))):
        client = Client(length)
        rest = [client.send(piece) for piece in cut(sent + b"next", places)]
        unread = len(sent) + 4 - sum(len(piece) for piece in cut(sent + b"next", places)[: len(rest)])
        assert (client.body.settled, unread) == (True, 0)
        assert client.body.take() == data
        assert not client.request.closes
        assert client.body.share.held_bytes == len(data) + sum(map(len, rest))


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"nonsense\r\n", "instead of a chunk size"),
        (b"\r\n", "instead of a chunk size"),
        (b"-1\r\n", "instead of a chunk size"),
        (b"3\nabc", "does not end with CR LF"),
        (b"3\r\nabcd\r\n", "more data than a chunk.s size"),
        (b"1" * 17 + b"\r\n", "instead of a chunk size"),
        (b"3;" + b"x" * MAX_LINE_BYTES, f"more than {MAX_LINE_BYTES} bytes"),
        (b"0\r\n" + b"a:b\r\n" * 200, "a trailer that is not allowed"),
        (b"0\r\nno trailer\r\n", "a trailer that is not allowed"),
        (b"0\r\nHost: evil\r\n\r\n", "a trailer that is not allowed"),
        (b"0\r\nContent-Length: 5\r\n\r\n", "a trailer that is not allowed"),
    ],
)
def test_malformed_chunks_are_a_caller_error_and_close_the_connection(sent: bytes, message: str) -> None:
    for size in (1, len(sent)):
        client = Client(None)
        for at in range(0, len(sent), size):
            client.send(sent[at : at + size])
        with pytest.raises(CallerError, match=message):
            client.body.take()
        assert (client.request.closes, client.budget.held_bytes) == (True, 0)


def test_one_byte_chunks_are_refused_early_unless_they_are_few() -> None:
    client = Client(None, most=10**8)
    began_s = time.thread_time()
    client.send(b"1\r\na\r\n" * 2_000_000)
    assert time.thread_time() - began_s < 1
    with pytest.raises(CallerError, match="chunks are too small"):
        client.body.take()
    client = Client(None)
    client.send(in_chunks(b"a" * (FREE_CHUNKS - 2), *[1] * (FREE_CHUNKS - 2)))
    assert len(client.body.take()) == FREE_CHUNKS - 2


@pytest.mark.parametrize(
    ("pauses_s", "message", "ended_s"),
    [
        ([1.0, 1.0, 11.0], "nothing came for 10 seconds", 10.0),
        ([1.0] * 100, "less than 1000 bytes a second", 10.0),
        ([9.0] * 100, "less than 1000 bytes a second", 10.0),
    ],
)
def test_a_stalled_or_slow_body_ends_in_time(pauses_s: list[float], message: str, ended_s: float) -> None:
    client = Client(1000)
    for pause_s in pauses_s:
        client.send(b"a", pause_s)
    with pytest.raises(BodyTimeout, match=message):
        client.body.take()
    assert client.request.closes
    assert ended_s - 1 <= client.body.began_s + ended_s <= client.now_s


@pytest.mark.parametrize("scarce", [False, True])
def test_a_slow_body_is_read_while_memory_is_plentiful_and_makes_room_when_it_is_scarce(*, scarce: bool) -> None:
    client = Client(48_000)
    for _ in range(40):
        client.send(bytes(1200), 1.0, scarce=scarce)
    if scarce:
        assert isinstance(outcome(client), BodyTimeout)
    else:
        assert len(client.body.take()) == 48_000


def outcome(client: Client) -> OcrsvcError:
    with pytest.raises(OcrsvcError) as error:
        client.body.take()
    return error.value


def test_too_large_bodies_are_not_kept() -> None:
    declared, chunked = Client(101, most=100), Client(None, most=100)
    assert declared.body.settled
    chunked.send(in_chunks(bytes(101)))
    for client in (declared, chunked):
        assert isinstance(outcome(client), BodyTooLarge)
        assert (client.request.closes, client.budget.held_bytes) == (True, 0)


def test_a_large_body_that_does_not_fit_beside_others_is_refused() -> None:
    beside = Client(8 * LARGE_BYTES, most=10**8, budget=10 * LARGE_BYTES)
    beside.budget.take(3 * LARGE_BYTES)
    beside.send(bytes(3 * LARGE_BYTES))
    assert beside.budget.held_bytes == 6 * LARGE_BYTES
    # The rest of the budget is reserved for processing received bodies and for small bodies.
    beside.send(b"a")
    assert isinstance(outcome(beside), QueueFull)
    assert beside.budget.held_bytes == 3 * LARGE_BYTES


def test_a_small_body_fits_beside_large_ones_and_one_above_the_budget_is_too_large() -> None:
    client, alone = Client(LARGE_BYTES, most=10**8, budget=10 * LARGE_BYTES), Client(200, budget=100)
    client.budget.take(9 * LARGE_BYTES)
    client.send(bytes(LARGE_BYTES))
    assert client.body.settled
    assert client.body.error is None
    alone.send(bytes(101))
    assert isinstance(outcome(alone), BodyTooLarge)


def test_a_body_can_be_read_as_a_stream_and_a_closed_connection_is_detected() -> None:
    client = Client(10)
    client.send(b"0123456789")
    assert [client.body.read(4), client.body.read(), client.body.read(4)] == [b"0123", b"456789", b""]
    assert Client(1).body.is_gone()
