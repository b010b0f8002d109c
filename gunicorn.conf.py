"""gunicorn's configuration file in a checkout; the settings are OCRSVC_ variables (docs/settings.md)."""

from ocrsvc.worker.lifecycle import configuration_or_exit, on_starting, post_fork, post_worker_init, worker_exit

__all__ = ["on_starting", "post_fork", "post_worker_init", "worker_exit"]

globals().update(configuration_or_exit())
