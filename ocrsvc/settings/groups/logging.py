"""Settings of the service's log and of the access log."""

from __future__ import annotations

from typing import Literal

from ocrsvc.settings.group import SettingsGroup, setting


class LoggingSettings(SettingsGroup):
    """The service's own log and the access log."""

    title = "Logging"

    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least serious events that are logged."
    )
    log_format: Literal["text", "json"] = setting(
        "text",
        "Of the service's log on stderr: lines for people, or one JSON object a line, as docs/operations.md says.",
    )
    access_log: Literal["off", "text", "json"] = setting(
        "off",
        "One line on stdout for each request, as key=value or as JSON, without its query and without any content.",
    )
    log_text: Literal["off", "masked"] = setting(
        "off",
        "Whether the service's own log has the recognised text of each page, at the level info: never, or with all "
        "that the rules of masking find as stars.",
    )
