"""What actors a command asks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ADDRESS_PREFIX: Final = "ray://"


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """Actors that read, each with an engine of its own.

    Attributes:
        actors: How many; None is as many as the nodes have room for, nodes that come later included.
        cpus: CPUs of each, which are its engine threads; may be a fraction.
        gpus: GPUs of each; may be a fraction.
        options: Other options of Ray for them: memory, resources, label_selector, runtime_env, scheduling_strategy.
        wait_s: Seconds without any actor after which the run is given up.
    """

    actors: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    wait_s: float = 600.0

    def needs(self) -> dict[str, float]:
        """What each takes of its node, by Ray's names of resources; memory in bytes."""
        own = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.options.get("memory", 0))}
        return {name: amount for name, amount in (own | dict(self.options.get("resources", {}))).items() if amount}

    def room_in(self, free: Mapping[str, float]) -> int:
        """How many have room where so much is free."""
        needs = self.needs()
        # Ray counts in ten-thousandths; a hundredth GPU must not be lost to rounding.
        return min((int(free.get(name, 0) / amount + 1e-6) for name, amount in needs.items()), default=1)
