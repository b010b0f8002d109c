"""Hostile names, version numbers and labels in the paths of the protocols that serve models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from hostile_wire import MakePieces, request

_PATHS: Final = (
    *("/v2/models/{}/infer", "/v2/models/ocr/versions/{}/infer"),
    *("/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"),
    *("/v1/models/{}:predict", "/v1/models/ocr/versions/{}:predict", "/v1/models/ocr/labels/{}:predict"),
)
_NAMES: Final = (
    *("9" * 7000, "a" * 7000, "..%2F" * 1000, "%F0%9F%98%80" * 500, "ocr:" * 999),
    *("%00", "ocr%2F1", "%C2%B2", "-1"),
)


def messages_for_models() -> Iterator[MakePieces]:
    """A request for each path and name, whatever its size is to be."""
    for path in _PATHS:
        for name in _NAMES:
            yield partial(_message, path.format(name))


def _message(path: str, _size: int) -> Iterable[bytes]:
    return request(path, "application/json", b'{"inputs":[],"instances":[]}')
