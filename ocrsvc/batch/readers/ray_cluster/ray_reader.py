"""Reads pages with the actors of a Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ocrsvc.batch.page_record import failure_of
from ocrsvc.batch.readers.ray_cluster.actor_messages import FileMissing
from ocrsvc.batch.readers.ray_cluster.assignment import ActorsEnded, Call
from ocrsvc.batch.readers.ray_cluster.cluster_request import ClusterRequest
from ocrsvc.batch.readers.ray_cluster.dispatcher import Dispatcher
from ocrsvc.batch.readers.ray_cluster.sent_files import FileNotLoaded, SentFiles
from ocrsvc.batch.readers.ray_cluster.session import connect
from ocrsvc.batch.tasks import PageGroup, PageResult, SourceFile
from ocrsvc.errors import ImageCrashesEngine
from ocrsvc.records import ReadOptions
from ocrsvc.settings.load import RawValue
from ocrsvc.system.thread_plan import set_library_environment

_SPARE_CALLS: Final = 4
_GPU_CALLS: Final = 16


class RayReader:
    """Actors that hold an engine each; see PageReader.

    Args:
        on: "ray", or the address of a cluster.
        request: What actors.
        given: The settings of their engines, without secrets.
        options: How pages are read.
        load: Gives the bytes of a file, on any node; raises OcrsvcError.
        page_limit_s: Seconds after which a page has failed.
    """

    def __init__(
        self,
        on: str,
        request: ClusterRequest,
        given: Mapping[str, RawValue],
        options: ReadOptions,
        load: Callable[[SourceFile], bytes],
        page_limit_s: float,
    ) -> None:
        self._on, self._request = on, request
        self._actor = (given, options, load, page_limit_s, str(Path.cwd()))
        self._load, self._page_limit_s = load, page_limit_s
        self._ray: Any = None
        self._dispatcher: Dispatcher | None = None
        self._files: SentFiles | None = None

    def start(self) -> Mapping[str, str]:
        """As PageReader.start: returns when the first actor is ready."""
        from ocrsvc.batch.readers.ray_cluster.page_actor import PageActor

        self._ray = connect(self._on)
        remote = self._ray.remote(PageActor).options(**self._actor_options())
        self._dispatcher = Dispatcher(self._ray, self._request, lambda: remote.remote(*self._actor), self._page_limit_s)
        self._files = SentFiles(self._ray.put, self._load)
        return self._dispatcher.start()

    @property
    def at_once(self) -> int:
        """As PageReader.at_once: what the actors that are ready read at once."""
        return self._running().at_once

    @property
    def is_elsewhere(self) -> bool:
        """As PageReader.is_elsewhere."""
        return True

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """As PageReader.read.

        An actor that ends costs its pages nothing but time, unless actors end again and again with the same one.
        """
        answer = self._read(group, alone=False)
        if not isinstance(answer, ActorsEnded):
            yield from answer
            return
        for number, index in zip(group.pages, group.indexes, strict=True):
            yield from self._read_alone(PageGroup(group.file, (number,), (index,)))

    def close(self) -> None:
        """As PageReader.close."""
        if self._dispatcher is not None:
            self._dispatcher.close()
        if self._ray is not None:
            self._ray.shutdown()

    def _read_alone(self, page: PageGroup) -> tuple[PageResult, ...]:
        answer = self._read(page, alone=True)
        if not isinstance(answer, ActorsEnded):
            return answer
        error = ImageCrashesEngine(
            f"{answer.deaths} actors ended while they read this page and nothing else.",
            "Give actors more memory, or read it with OCRSVC_ISOLATION=process.",
        )
        return (failure_of(page, page.pages[0], error),)

    def _read(self, group: PageGroup, *, alone: bool) -> tuple[PageResult, ...] | ActorsEnded:
        """By an actor that loads the file, or is sent it where its node has none."""
        answer = self._running().read(Call(group, alone=alone))
        return self._read_sent(group, answer, alone=alone) if isinstance(answer, FileMissing) else answer

    def _read_sent(
        self, group: PageGroup, missing: FileMissing, *, alone: bool
    ) -> tuple[PageResult, ...] | ActorsEnded:
        assert self._files is not None, "it was started"
        try:
            with self._files.reference_to(group.file) as data:
                self._running().note_lacking(missing.node)
                answer = self._running().read(Call(group, data, alone=alone))
        except FileNotLoaded as failure:
            return tuple(failure_of(group, number, failure.error) for number in group.pages)
        assert not isinstance(answer, FileMissing), "it was sent"
        return answer

    def _running(self) -> Dispatcher:
        assert self._dispatcher is not None, "it was started"
        return self._dispatcher

    def _actor_options(self) -> dict[str, Any]:
        """Ray's options of an actor: what the command says, and what the engine needs."""
        own = {
            "num_cpus": self._request.cpus,
            "num_gpus": self._request.gpus,
            # An actor that has ended is not begun again by Ray: the pool starts another, wherever there is room.
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": max(_GPU_CALLS, math.ceil(self._request.cpus) + _SPARE_CALLS),
            "scheduling_strategy": "SPREAD",
        }
        given = dict(self._request.options)
        runtime = dict(given.pop("runtime_env", {}))
        # Ray would give the numeric libraries as many threads as the actor has CPUs, which the engine threads fill.
        variables: dict[str, str] = {}
        set_library_environment(variables)
        runtime["env_vars"] = variables | dict(runtime.get("env_vars", {}))
        return own | given | {"runtime_env": runtime}
