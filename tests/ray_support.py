"""A Ray cluster of two nodes in a child process, which runs this file as a program."""

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
    """A cluster of two nodes with one CPU each; `address` is HOST:PORT, as in RAY_ADDRESS."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    def kill_second(self) -> None:
        """Kill the second node and everything that runs on it."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()


@contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """Run the cluster during the block, with Ray's files in `folder`."""
    environment = clean_environment({"PYTHONPATH": os.pathsep.join(sys.path)})
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Killing the session's process group ends all processes of the cluster.
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


def _run_cluster(folder: str) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray records the current cluster in RAY_TMPDIR/ray, which must exist. The user's own record stays unchanged.
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
    _run_cluster(sys.argv[1])
