"""Keeps a few pages of a request in the queue ahead of the one that is waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, TypeVarTuple

from ocrsvc.errors import ClientGone, OcrsvcError
from ocrsvc.imaging.document import DocumentPage
from ocrsvc.pipeline.decode_job import DecodeJob
from ocrsvc.readings import Reading
from ocrsvc.records import Page
from ocrsvc.serving.work_queue import Item

Source = bytes | DocumentPage | OcrsvcError
"""An image file, a page of a document, or why there is neither."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


Begun = Item[DecodeJob, Page] | Reading | OcrsvcError
"""A page in the queue or with an engine thread, what the result cache had of it, or why it cannot be read."""


def read_ahead(
    pages: Iterable[Source],
    begin: Callable[[Source], Begun],
    finish: Callable[[Begun], Reading],
    *,
    places: int,
    most_bytes: int,
) -> Iterator[Reading | OcrsvcError]:
    """The reading or error of each page, in order; `begin` and `finish` raise ClientGone to end them all.

    So many places may be taken, so that one request cannot fill the queue by itself, and no page is begun while those
    before it need more bytes.
    """
    begun: deque[Begun] = deque()
    try:
        for page in pages:
            while len(begun) >= places or _held_bytes(begun) > most_bytes:
                yield _or_error(finish, begun.popleft())
            begun.append(_or_error(begin, page))
        while begun:
            yield _or_error(finish, begun.popleft())
    finally:
        for entry in begun:
            if isinstance(entry, Item) and entry.work.place is not None:
                entry.work.place.give_up(entry)


def _held_bytes(begun: Iterable[Begun]) -> int:
    return sum(entry.work.most_bytes for entry in begun if isinstance(entry, Item))


def _or_error(step: Callable[[*Ts], T], *args: *Ts) -> T | OcrsvcError:
    try:
        return step(*args)
    except ClientGone:
        raise
    except OcrsvcError as error:
        return error.without_frames()
