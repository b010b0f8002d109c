"""An event loop in a separate thread, which runs coroutines for synchronous callers."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from ocrsvc.errors import NotConnected

T = TypeVar("T")


class LoopThread:
    """A thread with an event loop, for one process; `at_end` runs after `close` has cancelled all tasks."""

    def __init__(self, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.pid: Final = os.getpid()
        self._at_end = at_end
        # Reentrant, because the garbage collector may call `close` while this thread holds the lock.
        self._lock = threading.RLock()
        self._is_closed = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="ocrsvc-client", daemon=True)
        self._thread.start()
        self._ready.wait()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. Raises NotConnected if the thread is closed."""
        with self._lock:
            if self._is_closed:
                coroutine.close()
                raise _closed()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Raises as the coroutine; NotConnected if the thread is closed."""
        return result_of(self.submit(coroutine))

    def close(self) -> None:
        """Cancel running coroutines and end the thread."""
        if self.pid != os.getpid():
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._at_end()


def result_of(future: Future[T]) -> T:
    """Wait for a submitted coroutine's result; if the wait is interrupted, cancel the coroutine. Raises as `run`."""
    try:
        return future.result()
    except CancelledError as error:
        raise _closed() from error
    finally:
        future.cancel()


def _closed() -> NotConnected:
    return NotConnected("The client is closed.", "Create a new one.")
