"""A thread pool whose threads are all started at once: one that the system refuses later would fail a request."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def start_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool of so many running threads. Raises RuntimeError when the system refuses one."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    together = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(together.wait)
    except RuntimeError:
        together.abort()
        raise
    together.wait()
    return pool
