"""A Ray cluster of two nodes on this machine, in processes of its own; run as a program, it is that cluster."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support import clean_environment

_STOP_S = 60.0
_STORE_BYTES = 80 * 2**20


class TwoNodes:
    """A cluster with a CPU on each of two nodes; `address` is HOST:PORT, as in RAY_ADDRESS."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    def kill_second(self) -> None:
        """The second node ends at once, and what runs on it."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()


@contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """The cluster, as long as the block runs; `folder` takes Ray's files."""
    environment = clean_environment({"PYTHONPATH": os.pathsep.join(sys.path)})
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # So that nothing is left behind if it has to be ended by force.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield TwoNodes(process, address)
        process.stdin.close()
        process.wait(_STOP_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()
        process.wait()


def _be_cluster(folder: str) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Where Ray notes which cluster a machine is part of: it does not make the folder, and a user's own stays as it is.
    os.environ["RAY_TMPDIR"] = folder
    (Path(folder) / "ray").mkdir()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    second = cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    if sys.stdin.readline() == "kill\n":
        cluster.remove_node(second, allow_graceful=False)
        sys.stdin.readline()
    cluster.shutdown()


if __name__ == "__main__":
    _be_cluster(sys.argv[1])
