"""What an API adapter is made from, over HTTP and over gRPC; `ocrsvc.registry` lists the adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What the factory of a blueprint is given.

    Attributes:
        settings: The effective settings.
        reader: Reads images and documents.
        model: The same reader as a model with tensors; its requests are counted apart.
        jobs: Keeps documents that are read while nobody waits; None where none are taken in.
        url_files: Fetches files that requests name by URL; by default none.
    """

    settings: Settings
    reader: Reader
    model: OcrModel
    jobs: JobStore | None = None
    url_files: UrlFiles = field(default_factory=UrlFiles)


@dataclass(frozen=True, slots=True)
class GrpcService:
    """The gRPC services of one adapter.

    Attributes:
        files: The .proto files that declare their messages.
        make: Returns the methods by path, given messages and model.
    """

    files: tuple[str, ...]
    make: Callable[[Messages, OcrModel], Methods]
