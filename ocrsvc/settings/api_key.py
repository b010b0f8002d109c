"""The environment variable with a client's API key; not a setting of the service."""

from typing import Final

API_KEY_VARIABLE: Final = "OCRSVC_API_KEY"
