"""gunicorn's configuration file in a checkout; the settings are OCRSVC_ variables (docs/settings.md)."""

from ocrsvc.worker.hooks import configuration_or_exit

# Settings and hooks; gunicorn takes every name that it knows from here.
globals().update(configuration_or_exit())
