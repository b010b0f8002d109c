"""Run a request's steps: in a thread that waits, or on an event loop."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from ocrsvc.client.balancing.changes import Left
from ocrsvc.client.transport.waits import Call, Steps, WaitForAny
from ocrsvc.errors import NotConnected

T = TypeVar("T")


def run(steps: Steps[T], left: Left) -> T:
    """Run them in this thread; what they return, or raise.

    Args:
        steps: Of one request.
        left: Ends pauses, and with them the request, once nobody waits any more.
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


def _wait(step: WaitForAny, left: Left) -> Sequence[int]:
    """The file descriptors that are ready. Raises NotConnected in a pause, once nobody waits any more."""
    if not step.waits:
        if left.pause(step.seconds, step.change):
            # Without its pauses it would be sent again and again.
            raise NotConnected("Nobody waits for the answer any more.", "Ask again.")
        return ()
    poller = select.poll()
    for each in step.waits:
        poller.register(each.fd, each.events)
    # Rounded up: a wait that ends early is begun again at once.
    return [fd for fd, _ in poller.poll(int(step.seconds * 1000) + 1)]


async def _wait_async(step: WaitForAny) -> Sequence[int]:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    if not step.waits:
        await _pause(step, loop, ready)
        return ()
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


async def _pause(step: WaitForAny, loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    def wake() -> None:
        # What never ran to its end on a loop that is closed may still be here.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(ready.set)

    with step.change.waking(wake) if step.change else nullcontext(), suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ready.wait(), step.seconds)
