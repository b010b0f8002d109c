"""Stand-in for Open WebUI's functions that add user headers and custom headers, both off by default."""

from typing import Any


def include_user_info_headers(headers: dict[str, str], user: Any) -> dict[str, str]:
    """Fail: by default, Open WebUI never calls this."""
    raise AssertionError((headers, user))


def parse_custom_headers(
    headers: dict[str, str] | None, user: Any, metadata: Any, *, user_groups: Any
) -> dict[str, str]:
    """Return no headers, as Open WebUI does by default."""
    assert (headers, user, metadata, user_groups) == (None, None, None, None)
    return {}
