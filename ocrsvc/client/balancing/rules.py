"""The numbers that decide how requests are balanced over services."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """How a client deals with services. Durations are seconds.

    Attributes:
        connect_s: How long one connection may take to come about.
        patience_s: How long a request goes on while no service can be reached at all; its deadline still holds.
        failures: How many failures in a row, without an answer between them, eject a service; a connection that does
            not come about ejects it at once.
        first_ejection_s: How long a service is left alone when it is ejected; twice as long each time that the one
            request which then tries it fails.
        longest_ejection_s: Where that doubling ends.
        at_once: How many requests one service is thought to take at once, until it refuses one.
        refresh_s: How often names are looked up again.
    """

    connect_s: float = 2.0
    patience_s: float = 10.0
    failures: int = 3
    first_ejection_s: float = 1.0
    longest_ejection_s: float = 30.0
    at_once: int = 16
    refresh_s: float = 30.0
