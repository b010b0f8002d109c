"""gunicorn's configuration file, which `ocrsvc serve` passes with -c; no module imports it."""

from ocrsvc.worker.hooks import configuration_or_exit

# gunicorn reads its settings and hooks by name from this module.
globals().update(configuration_or_exit())
