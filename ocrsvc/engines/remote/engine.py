"""An engine whose pages are read by a vision language model on other servers, or by a local engine if that fails."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Final

import cv2

from ocrsvc.client.loop_thread import LoopThread, result_of
from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.remote.alignment import align
from ocrsvc.engines.remote.chat import REPEATED, complete, open_servers, request_of
from ocrsvc.engines.remote.local_engine import LocalEngine
from ocrsvc.engines.remote.page_text import clean_markdown, page_of, plain_lines
from ocrsvc.engines.remote.prompts import PROMPTS
from ocrsvc.errors import BadOption, CallerError, DeadlineExceeded, EngineUnavailable, OcrsvcError, Refused, Unreachable
from ocrsvc.imaging.geometry import shrink, turn
from ocrsvc.results import EngineInfo, Fallback, FallbackReason, Page, Pixels, ReadTask
from ocrsvc.serving.work_queue import CLIENT_CHECK_S
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

LOG: Final = logging.getLogger("ocrsvc.remote")

_REASONS: Final[tuple[tuple[type[OcrsvcError], FallbackReason], ...]] = (
    (Unreachable, "unreachable"),
    (Refused, "refused"),
    (DeadlineExceeded, "late"),
    (CallerError, "rejected"),
    (OcrsvcError, "failed"),
)


class RemoteEngine:
    """The remote engine; its handles hold no resources. Raises EngineUnavailable, BadModel."""

    traits = EngineTraits(any_thread=True)

    def __init__(self, settings: Settings, plan: ThreadPlan) -> None:
        _check(settings)
        self._settings, self._prompt = settings, PROMPTS[settings.remote_prompt]
        key = settings.remote_key.get_secret_value() if settings.remote_key else ""
        try:
            self._servers = open_servers(settings.remote_url, key, settings.remote_concurrency)
        except BadOption as error:
            raise EngineUnavailable(f"OCRSVC_REMOTE_URL or OCRSVC_REMOTE_KEY: {error.detail}", error.remedy) from error
        self._local = LocalEngine(settings, plan)
        self._loop = LoopThread(self._servers.close)
        # The version is part of the result cache's key, so it names everything that changes the text.
        version = f"{settings.remote_prompt} {settings.remote_mode} {settings.remote_max_tokens}"
        if settings.remote_mode == "lines":
            version += f" {self._local.version}"
        self._info = EngineInfo("remote", settings.remote_model, version, "remote", "none", "none")

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine."""
        return self._info

    def open_handle(self) -> "RemoteHandle":
        """See engines.contract.Engine."""
        return RemoteHandle(self)

    def close(self) -> None:
        """Close the connections and the local engine."""
        self._loop.close()
        self._local.close()

    def read(self, task: ReadTask) -> Page | OcrsvcError:
        """Read an image with the model, or with the local engine if the model fails."""
        try:
            return self._read_page(task) if self._settings.remote_mode == "page" else self._read_lines(task)
        except OcrsvcError as error:
            return error

    def _read_page(self, task: ReadTask) -> Page:
        text = self._ask(task, task.image.pixels)
        if isinstance(text, Fallback):
            return replace(self._local.read(task), fallback=text)
        markdown = clean_markdown(text)
        return page_of(markdown, task.image.width, task.image.height, whole=not task.options.detect)

    def _read_lines(self, task: ReadTask) -> Page:
        page = self._local.read(task)
        text = self._ask(task, turn(task.image.pixels, page.angle)) if page.lines else ""
        if isinstance(text, Fallback):
            return replace(page, fallback=text)
        return replace(page, lines=align(page.lines, plain_lines(clean_markdown(text))))

    def _ask(self, task: ReadTask, pixels: Pixels) -> str | Fallback:
        """The remote model's text of an image, or a Fallback if it is missing or incomplete. Raises as `task.check`."""
        task.check()
        timeout_s = min(self._settings.remote_timeout_s, (task.deadline - time.monotonic()) / 2)
        _, encoded = cv2.imencode(".png", shrink(pixels, self._prompt.max_side_px)[0])
        request = request_of(self._prompt, encoded.data, self._settings.remote_model, self._settings.remote_max_tokens)
        future = self._loop.submit(complete(self._servers, request, timeout_s))
        try:
            while not wait([future], CLIENT_CHECK_S).done:
                task.check()
        finally:
            # If `task.check` has raised, the request still runs: cancel it, which closes its connection.
            future.cancel()
        try:
            text, finish_reason = result_of(future)
        except OcrsvcError as error:
            return self._fallback(next(why for kind, why in _REASONS if isinstance(error, kind)), error.detail)
        if finish_reason == "stop":
            return text
        return self._fallback("repeated" if finish_reason == REPEATED else "unfinished", finish_reason[:100])

    def _fallback(self, reason: FallbackReason, detail: str) -> Fallback:
        LOG.info("fallback to %s: %s (%s)", self._local.name, reason, detail)
        return Fallback(self._local.name, reason)


@dataclass(frozen=True, slots=True)
class RemoteHandle:
    """See engines.contract.Handle. It holds no resources."""

    engine: RemoteEngine

    def warm_up(self) -> None:
        """Do nothing: the local engine is warm, and the servers are not asked before the first page."""

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """See engines.contract.Handle."""
        return [self.engine.read(task) for task in tasks]

    def close(self) -> None:
        """Do nothing: a handle holds no resources."""


def _check(settings: Settings) -> None:
    if settings.isolation == "process":
        raise EngineUnavailable("The engine remote runs in threads.", "Set OCRSVC_ISOLATION=thread.")
    if not settings.remote_url or not settings.remote_model or settings.remote_local == settings.engine:
        raise EngineUnavailable(
            "The engine remote needs a server, a model, and another engine beside it.",
            "Set OCRSVC_REMOTE_URL, such as http://gpu1:8000/v1, OCRSVC_REMOTE_MODEL, and OCRSVC_REMOTE_LOCAL.",
        )
