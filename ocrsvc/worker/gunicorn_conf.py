"""gunicorn's configuration file inside the package: what `ocrsvc serve` passes with -c; nothing imports it."""

from ocrsvc.worker.hooks import configuration_or_exit

# Settings and hooks; gunicorn takes every name that it knows from here.
globals().update(configuration_or_exit())
