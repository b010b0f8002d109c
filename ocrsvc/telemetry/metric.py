"""What a metric is: its name, kind, help and labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "latest", "reading", "info"]
"""Counters and histograms outlive their worker, gauges end with it. Of a "latest", which is a time, the latest of all
workers counts, and outlives them. A "reading" is what every worker reads of the same thing: the largest counts, and
ends with its worker. An "info" is 1, and says what it says by its labels."""

Key = tuple[str, ...]
"""A series: its kind, its metric's name, and the values of its labels."""

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the buckets of every histogram, in seconds; one more bucket takes what is above the last."""

_UNITS: Final = ("seconds", "bytes", "ratio")


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is counted or read; its name is without the `_total` of a counter and the `_info` of an info.

    The values of labels must come from small, fixed sets. Series of `known` labels are 0 before anything happens.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()
    kind: Kind = field(kw_only=True)

    @property
    def unit(self) -> str:
        """The unit, which the name ends in; empty for a number of things."""
        unit = self.name.rpartition("_")[2]
        return unit if unit in _UNITS else ""

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


counter: Final = partial(Metric, kind="counter")
gauge: Final = partial(Metric, kind="gauge")
histogram: Final = partial(Metric, kind="histogram")
latest: Final = partial(Metric, kind="latest")
reading: Final = partial(Metric, kind="reading")
info: Final = partial(Metric, kind="info")
