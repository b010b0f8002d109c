"""A Ray cluster on this machine, for benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STORE_BYTES: Final = 80 * 2**20


@contextmanager
def nodes_of_ray(folder: str, count: int, cpus: int) -> Iterator[str]:
    """Run a cluster of `count` nodes with `cpus` logical CPUs each; yields its address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False, "temp_dir": folder})
    try:
        for _ in range(count - 1):
            cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()
