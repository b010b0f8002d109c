"""Run a request's steps: in a thread that waits, or on an event loop."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from ocrsvc.client.transport.waits import Call, Steps, WaitForAny

T = TypeVar("T")


def run(steps: Steps[T], left: threading.Event) -> T:
    """Run them in this thread; what they return, or raise.

    Args:
        steps: Of one request.
        left: Ends pauses once nobody waits any more; the request then goes on to its next failure.
    """
    result: Any = None
    error: Exception | None = None
    try:
        while True:
            step = steps.throw(error) if error is not None else steps.send(result)
            result, error = None, None
            try:
                result = step.function() if isinstance(step, Call) else _wait(step, left)
            except Exception as raised:  # noqa: BLE001  the steps say what may fail
                error = raised
    except StopIteration as done:
        returned: T = done.value
        return returned
    finally:
        steps.close()


async def run_async(steps: Steps[T]) -> T:
    """The same on an event loop; cancelling it closes the connections in use."""
    result: Any = None
    error: Exception | None = None
    try:
        while True:
            step = steps.throw(error) if error is not None else steps.send(result)
            result, error = None, None
            try:
                result = await (asyncio.to_thread(step.function) if isinstance(step, Call) else _wait_async(step))
            except Exception as raised:  # noqa: BLE001  as above
                error = raised
    except StopIteration as done:
        returned: T = done.value
        return returned
    finally:
        steps.close()


def _wait(step: WaitForAny, left: threading.Event) -> Sequence[int]:
    """The file descriptors that are ready."""
    if not step.waits:
        left.wait(step.seconds)
        return ()
    poller = select.poll()
    for each in step.waits:
        poller.register(each.fd, each.events)
    # Rounded up: a wait that ends early is begun again at once.
    return [fd for fd, _ in poller.poll(int(step.seconds * 1000) + 1)]


async def _wait_async(step: WaitForAny) -> Sequence[int]:
    if not step.waits:
        await asyncio.sleep(step.seconds)
        return ()
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    found: list[int] = []

    def note(fd: int) -> None:
        found.append(fd)
        ready.set()

    for each in step.waits:
        if each.events & select.POLLIN:
            loop.add_reader(each.fd, note, each.fd)
        if each.events & select.POLLOUT:
            loop.add_writer(each.fd, note, each.fd)
    timer = loop.call_later(step.seconds, ready.set)
    try:
        await ready.wait()
    finally:
        timer.cancel()
        for each in step.waits:
            loop.remove_reader(each.fd)
            loop.remove_writer(each.fd)
    return found
