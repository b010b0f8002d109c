"""The Python client of the service: `Client` waits for each answer, `AsyncClient` awaits it."""

from ocrsvc.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
