"""Keeps the secrets of API keys out of gunicorn's log, which quotes what it cannot take apart of a request."""

from __future__ import annotations

import logging
import re
from typing import Final

from ocrsvc.access.secrets import PREFIX

# What follows the public part of a key, by which an operator still knows it.
_SECRET: Final = re.compile(rf"({PREFIX}[0-9a-f]{{12}}_)[A-Za-z0-9_-]+")


class SecretsHidden(logging.Filter):
    """Writes … in place of the secret part of each key in a line; for the logger, before any handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        line = record.getMessage()
        if PREFIX in line:
            record.msg, record.args = _SECRET.sub(r"\1…", line), None
        return True


SECRETS_HIDDEN: Final = SecretsHidden()
"""The one that is used, so that adding it again does nothing."""
