"""Builds queries of Prometheus from the table of metrics, so that a query names no metric that does not exist."""

from __future__ import annotations

from ocrsvc.telemetry.metric import Metric


def series(metric: Metric, *matchers: str, part: str = "") -> str:
    """The series of a metric.

    Args:
        metric: From the table.
        matchers: Such as 'stage="queue"'.
        part: Of a histogram, "bucket", "sum" or "count".
    """
    name = f"{metric.shown_name}_{part}" if part else metric.shown_name
    return f"{name}{{{', '.join(matchers)}}}" if matchers else name


def rate(metric: Metric, window: str, *matchers: str, part: str = "") -> str:
    """The increase of its series in a second, over a window such as "5m"."""
    return f"rate({series(metric, *matchers, part=part)}[{window}])"


def total_rate(metric: Metric, window: str, *matchers: str, part: str = "", by: str = "") -> str:
    """The same of all series together, or of those that share these labels ("job, code")."""
    grouping = f"sum by ({by}) " if by else "sum"
    return f"{grouping}({rate(metric, window, *matchers, part=part)})"


def quantile(share: float, metric: Metric, window: str, *matchers: str, by: str = "") -> str:
    """The value of a histogram that this share of its observations does not exceed."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, {total_rate(metric, window, *matchers, part='bucket', by=labels)})"


def new_or_increased(metric: Metric, window: str, *matchers: str) -> str:
    """Series that grew within the window; one that begins with its first event, which is no increase yet, too."""
    found = series(metric, *matchers)
    return f"increase({found}[{window}]) > 0 or ({found} unless {found} offset {window})"


def one_of(values: tuple[str, ...]) -> str:
    """A regular expression for the values."""
    return "|".join(values)
