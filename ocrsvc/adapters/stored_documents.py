"""Documents that an adapter's clients leave to be read while nobody waits: jobs (`ocrsvc.jobs`) in its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flask import Blueprint

from ocrsvc.adapters.context import AdapterContext, Route, add_routes
from ocrsvc.http.request import request
from ocrsvc.job_requests import ResultFiles, job_view, owner_of_request, store_of
from ocrsvc.jobs.intake import JobRequest, add_job, find_job
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.records import ReadOptions


class StoredDocuments:
    """Those that came by the format `source`; for any thread that serves a request. Raises JobsOff where none may."""

    def __init__(self, context: AdapterContext, source: str) -> None:
        self._context, self._source = context, source

    @property
    def jobs(self) -> JobStore:
        """Where they are kept."""
        return store_of(self._context.jobs)

    @property
    def files(self) -> ResultFiles:
        """What is made of them."""
        return ResultFiles(self.jobs, self._context.reader)

    def add(
        self,
        data: bytes,
        options: ReadOptions,
        pages: Any,
        asked: Mapping[str, Any],
        name: str = "",
        formats: Sequence[str] = (),
    ) -> Job:
        """Take one in. `pages` as of a JobRequest; `asked` is what the answer is to hold. Raises as `add_job`."""
        record = Record(*owner_of_request(), self._source, name, asked=dict(asked), formats=tuple(formats))
        job_request, context = JobRequest(data, options, record, pages), self._context
        return add_job(self.jobs, context.reader, context.settings, job_request, request.context, request.left_s)

    @contextmanager
    def found(self, sent_id: object, missing: Exception) -> Iterator[Job]:
        """The one of this id. Raises `missing` where there is none, or none any more, or of another key."""
        job = find_job(self.jobs, sent_id, owner_of_request(), self._source)
        if job is None:
            raise missing
        try:
            yield job
        except FileNotFoundError as error:
            raise missing from error


def add_job_routes(blueprint: Blueprint, *routes: Route) -> None:
    """Add routes of stored documents, which ask for no place in front of the engine."""
    add_routes(blueprint, [(method, path, job_view(view)) for method, path, view in routes])
