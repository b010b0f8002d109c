"""Open WebUI's settings that its loader for Mistral reads, at their defaults."""

AIOHTTP_CLIENT_SESSION_SSL = True
ENABLE_FORWARD_USER_INFO_HEADERS = False
GLOBAL_LOG_LEVEL = "INFO"
