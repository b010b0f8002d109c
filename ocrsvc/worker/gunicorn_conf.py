"""gunicorn's configuration file inside the package: what `ocrsvc serve` passes with -c; nothing imports it."""

from ocrsvc.worker.lifecycle import configuration_or_exit, on_starting, post_fork, post_worker_init, worker_exit

__all__ = ["on_starting", "post_fork", "post_worker_init", "worker_exit"]

globals().update(configuration_or_exit())
