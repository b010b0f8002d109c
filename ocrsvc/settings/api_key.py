"""The variable that holds the API key of programs that ask a service; no setting of the service itself."""

from __future__ import annotations

from typing import Final

API_KEY_VARIABLE: Final = "OCRSVC_API_KEY"
