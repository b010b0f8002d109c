"""The result cache is bounded in bytes and time, and its failures never fail a request."""

import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis_support import running_redis
from support import Clock, wait_until

from ocrsvc.errors import EngineUnavailable
from ocrsvc.pipeline.result_cache import ENTRY_BYTES, MemoryCache, RedisCache

LONG_S = 3600.0


def entry_bytes(value: bytes) -> int:
    return 1 + len(value) + ENTRY_BYTES


def test_least_recently_used_entries_are_evicted_unless_the_value_exceeds_the_cache() -> None:
    cache = MemoryCache(2 * entry_bytes(b"x"), LONG_S)
    cache.put(b"a", b"1")
    cache.put(b"b", b"2")
    assert cache.get(b"a") == b"1"
    cache.put(b"c", b"3")
    assert [cache.get(key) for key in (b"a", b"b", b"c")] == [b"1", None, b"3"]
    cache = MemoryCache(1000, LONG_S)
    cache.put(b"a", b"1")
    cache.put(b"b", bytes(1000))
    assert (cache.get(b"a"), cache.get(b"b")) == (b"1", None)
    filling = bytes(1000 - entry_bytes(b""))
    cache.put(b"c", filling)
    assert (cache.get(b"a"), cache.get(b"c")) == (None, filling)


def test_an_entry_expires() -> None:
    clock = Clock()
    cache = MemoryCache(10_000, 5.0, clock)
    cache.put(b"a", b"1")
    clock.now_s += 4.9
    assert cache.get(b"a") == b"1"
    clock.now_s += 0.1
    assert cache.get(b"a") is None
    assert cache.used_bytes == 0


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.binary(max_size=400)), max_size=40))
def test_the_cache_never_exceeds_its_limit_and_counts_its_bytes(puts: list[tuple[bytes, bytes]]) -> None:
    cache = MemoryCache(1500, LONG_S)
    for key, value in puts:
        cache.put(key, value)
        assert cache.used_bytes <= 1500
    held = [cache.get(key) for key in (b"a", b"b", b"c", b"d")]
    assert cache.used_bytes == sum(entry_bytes(value) for value in held if value is not None)


def test_the_cache_is_thread_safe() -> None:
    cache = MemoryCache(20 * entry_bytes(b"12345678"), LONG_S)

    def use(seed: int) -> None:
        for turn in range(2000):
            key = bytes([(turn * seed) % 50])
            cache.put(key, key * 8)
            assert cache.get(key) in (None, key * 8)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(use, (1, 3, 7)))
    assert cache.used_bytes <= 20 * entry_bytes(b"12345678")


def test_processes_share_entries_in_redis_which_expire(tmp_path: Path) -> None:
    from redis import Redis

    with running_redis(tmp_path) as url:
        one, other, short = (RedisCache(url, keep_s) for keep_s in (LONG_S, LONG_S, 0.02))
        one.put(b"a", b"\x00\xff")
        assert (other.get(b"a"), other.get(b"b")) == (b"\x00\xff", None)
        client = Redis.from_url(url)
        [key] = client.keys()
        assert LONG_S - 60 < client.ttl(key) <= LONG_S
        short.put(b"c", b"1")
        wait_until(lambda: other.get(b"c") is None, "the entry expires")
        for connected in (one, other, short, client):
            connected.close()


@contextmanager
def closing_server(wire: Path) -> Iterator[list[object]]:
    """A server that closes each connection at once; yields a list with an entry per connection."""
    calls: list[object] = []
    with socketserver.UnixStreamServer(str(wire), lambda *call: calls.append(call)) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield calls
        finally:
            server.shutdown()
            thread.join()


def test_a_failing_redis_only_misses_and_is_not_retried_for_a_while(tmp_path: Path) -> None:
    clock = Clock()
    with closing_server(tmp_path / "redis.sock") as calls:
        cache = RedisCache(f"unix://{tmp_path}/redis.sock", LONG_S, clock)
        cache.put(b"a", b"1")
        assert cache.get(b"a") is None
        clock.now_s += 6
        assert cache.get(b"a") is None
        cache.close()
    assert len(calls) == 2


def test_an_invalid_redis_url_stops_the_start() -> None:
    with pytest.raises(EngineUnavailable, match="OCRSVC_CACHE_URL"):
        RedisCache("http://127.0.0.1", LONG_S)
