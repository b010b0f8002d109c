"""Opens pages in a real browser and checks that they report no errors."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
Open = Callable[..., Page]
_WAIT_MS = 60_000
_FAINT = Path(__file__).parent / "data" / "faint.js"


@contextmanager
def launched_browser() -> Iterator[Browser]:
    """A browser for a module's tests; skips them where Chromium is not installed."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    expect.set_options(timeout=_WAIT_MS)
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root, and CI runs as root.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@contextmanager
def opening(browser: Browser, address: str) -> Iterator[Open]:
    """Yield a function that opens pages; afterwards, require no console errors and requests to one host only."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []
    hosts: set[str] = set()

    def on_console(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    def on_request(request: Request) -> None:
        if not request.url.startswith(("blob:", "data:")):
            hosts.add(request.url.split("/")[2])

    def open_page(url: str = address, **options: Any) -> Page:
        context = browser.new_context(**({"locale": "en-GB", "viewport": {"width": 1280, "height": 800}} | options))
        contexts.append(context)
        context.set_default_timeout(_WAIT_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.on("console", on_console)
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        context.on("request", on_request)
        page = context.new_page()
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong, wrong
    assert len(hosts) == 1


def low_contrast_texts(page: Page) -> list[str]:
    """Texts whose contrast with their background is below 4.5 (WCAG 2.2, 1.4.3)."""
    found: list[str] = page.evaluate(_FAINT.read_text("utf-8"))
    return found
