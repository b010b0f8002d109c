"""Caches pages by the bytes they were read from, the options, and the engine."""

from __future__ import annotations

from dataclasses import astuple, replace
from hashlib import blake2b

import orjson

from ocrsvc import __version__
from ocrsvc.formats.page_serialization import InvalidData, pack_page, unpack_page
from ocrsvc.imaging.document import DocumentPage
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page, ReadOptions
from ocrsvc.serving.byte_cache import Cache, MemoryCache, RedisCache
from ocrsvc.settings.settings import Settings


class ResultCache:
    """Pages by what they were read from, in a cache. Errors are never cached: the next try may go better."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.close = cache.close

    def key_of(self, page: DocumentPage, options: ReadOptions, engine: EngineInfo, digest: str = "") -> bytes:
        """Bytes that are the same only for the same page, options, engine and version of this service.

        The digest is of the model's files, whose version may be another one tomorrow; empty without OCRSVC_MODELS.
        """
        known = (astuple(options), astuple(engine))
        if digest:
            # However the model was named, it is this one.
            known = (astuple(replace(options, model=None, tier=None)), (*astuple(engine), digest))
        rest = repr((__version__, *known)).encode()
        key = blake2b(rest, digest_size=32).digest()
        return blake2b(page.document.key(page.number), digest_size=32, key=key).digest()

    def get(self, key: bytes) -> Page | None:
        """The page, if it is still cached; a damaged value counts as a miss."""
        value = self._cache.get(key)
        if value is None:
            return None
        try:
            return unpack_page(orjson.loads(value))
        except (InvalidData, orjson.JSONDecodeError):
            return None

    def put(self, key: bytes, page: Page) -> None:
        """Cache a page."""
        self._cache.put(key, orjson.dumps(pack_page(page)))


def open_result_cache(settings: Settings) -> ResultCache | None:
    """The cache that the settings ask for; None when they ask for none. Raises EngineUnavailable."""
    if settings.cache_url is not None:
        return ResultCache(RedisCache(settings.cache_url, settings.cache_s))
    return ResultCache(MemoryCache(settings.cache_bytes, settings.cache_s)) if settings.cache_bytes else None
