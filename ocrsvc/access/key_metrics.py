"""Counts API keys for the metrics: those that are accepted, and those whose pages are nearly used up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ocrsvc.access.gate import AccessGate
from ocrsvc.access.quotas import quotas_of
from ocrsvc.access.records import KeyLimits, Usage
from ocrsvc.telemetry import metrics
from ocrsvc.telemetry.metric import Metric

USAGE_S: Final = 60.0
"""How often they are counted: the store is asked once for each key."""

_NEAR: Final = 0.1


def read_key_counts(gate: AccessGate) -> Iterator[tuple[Metric, float]]:
    """The metrics of keys; raises KeysUnavailable."""
    now_s = time.time()
    valid = [(entry.limits, usage) for entry, usage in gate.usage() if entry.is_valid(now_s)]
    yield metrics.KEYS, len(valid)
    yield metrics.KEYS_NEAR_QUOTA, sum(is_near_quota(limits, usage, now_s) for limits, usage in valid)


def is_near_quota(limits: KeyLimits, usage: Usage, now_s: float) -> bool:
    """Whether a tenth at most is left of the pages of the day or the month."""
    quotas = quotas_of(limits, usage, now_s)
    return any(quota.left <= _NEAR * quota.limit for quota in quotas if quota.name.startswith("pages"))
