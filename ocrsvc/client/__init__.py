"""The Python client of the service: `Client` waits for each answer, `AsyncClient` awaits it.

They load when they are first used, with httpx and no numeric library: what builds requests is used without it, too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocrsvc.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ocrsvc.client import client

    return getattr(client, name)
