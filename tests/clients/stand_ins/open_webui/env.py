"""The Open WebUI settings that its Mistral loader reads, with their default values."""

AIOHTTP_CLIENT_SESSION_SSL = True
ENABLE_FORWARD_USER_INFO_HEADERS = False
GLOBAL_LOG_LEVEL = "INFO"
