"""The declaration of a metric: name, kind, help and labels."""

from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "latest", "reading", "info"]
"""How the values of several workers are combined, and whether they are kept when their worker ends. Counters and
histograms: summed, kept. Gauges: summed, dropped. latest (a time): the maximum, kept. reading (all workers measure the
same thing): the maximum, dropped. info: always 1, with its content in the labels."""

Key = tuple[str, ...]
"""The key of a series: the metric's kind, its name, and the label values."""

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of every histogram, in seconds; one more bucket counts larger values."""

_UNITS: Final = ("seconds", "bytes", "ratio")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `name` is without the suffix `_total` of counters and `_info` of infos.

    Label values must come from small, fixed sets. Series with `known` label values exist from the start, with value 0.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()
    kind: Kind = field(kw_only=True)

    @property
    def unit(self) -> str:
        """The unit at the end of the metric's name; empty for a number without unit."""
        unit = self.name.rpartition("_")[2]
        return unit if unit in _UNITS else ""

    @property
    def shown_name(self) -> str:
        """The metric's name in Prometheus, to which a histogram's series add `_bucket`, `_sum` and `_count`."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")

    @property
    def shown_kind(self) -> str:
        """The metric's type in Prometheus."""
        return self.kind if self.kind in ("counter", "histogram") else "gauge"

    def of(self, *labels: str) -> Key:
        """The key of the series with these label values."""
        return (self.kind, self.name, *labels)


counter: Final = partial(Metric, kind="counter")
gauge: Final = partial(Metric, kind="gauge")
histogram: Final = partial(Metric, kind="histogram")
latest: Final = partial(Metric, kind="latest")
reading: Final = partial(Metric, kind="reading")
info: Final = partial(Metric, kind="info")
