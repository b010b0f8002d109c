"""The headers of a user and of an administrator, which are sent where Open WebUI has them: not by default."""

from typing import Any


def include_user_info_headers(headers: dict[str, str], user: Any) -> dict[str, str]:
    """Never called at the defaults."""
    raise AssertionError((headers, user))


def parse_custom_headers(
    headers: dict[str, str] | None, user: Any, metadata: Any, *, user_groups: Any
) -> dict[str, str]:
    """No headers of its own, as at the defaults."""
    assert (headers, user, metadata, user_groups) == (None, None, None, None)
    return {}
