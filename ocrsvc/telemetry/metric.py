"""What a metric is: its name, kind, unit, help and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "latest", "reading", "info"]

Unit = Literal["", "seconds", "bytes", "ratio"]

Key = tuple[str, ...]
"""A series: its kind, its metric's name, and the values of its labels."""

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the buckets of every histogram, in seconds; one more bucket takes what is above the last."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is counted or read.

    Attributes:
        name: By the conventions of Prometheus, without the `_total` of a counter and the `_info` of an info.
        kind: Counters and histograms outlive their worker, gauges end with it. Of a "latest", which is a time, the
            latest of all workers counts, and outlives them. A "reading" is what every worker reads of the same thing:
            the largest counts, and ends with its worker. An "info" is 1, and says what it says by its labels.
        help: One sentence.
        labels: Names of the labels; their values must come from small, fixed sets.
        unit: Of the value; the name ends in it. Empty for a number of things.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: Unit = ""

    @property
    def shown_name(self) -> str:
        """As Prometheus lists it; a histogram's series have `_bucket`, `_sum` and `_count` behind it."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")

    @property
    def shown_kind(self) -> str:
        """The type by which Prometheus knows it."""
        return self.kind if self.kind in ("counter", "histogram") else "gauge"

    def of(self, *labels: str) -> Key:
        """The key of one of its series."""
        return (self.kind, self.name, *labels)
