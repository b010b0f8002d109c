"""The numbers that decide how requests are balanced over services."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """How a client deals with several services. Durations are seconds.

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
        hedge_share: Which share of the requests may be sent a second time, to another service, because the first takes
            longer than `hedge_percentile` of those before; 0 is none.
        hedge_percentile: In (0, 1).
        hedge_first_s: What is too long before there were enough answers to tell.
    """

    connect_s: float = 2.0
    patience_s: float = 10.0
    failures: int = 3
    first_ejection_s: float = 1.0
    longest_ejection_s: float = 30.0
    at_once: int = 16
    refresh_s: float = 30.0
    hedge_share: float = 0.0
    hedge_percentile: float = 0.95
    hedge_first_s: float = 10.0
