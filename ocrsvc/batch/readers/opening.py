"""Opens the reader that a command names: who reads the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ocrsvc.batch.readers.ray_cluster.cluster_request import ADDRESS_PREFIX, ClusterRequest
from ocrsvc.errors import BadOption

if TYPE_CHECKING:
    from ocrsvc.batch.page_reader import PageReader
    from ocrsvc.batch.tasks import SourceFile
    from ocrsvc.client.request import Options


@dataclass(frozen=True, slots=True)
class ReaderRequest:
    """What is asked of a reader.

    Attributes:
        on: Who reads: "local", "ray", or the ray:// address of a cluster.
        options: How pages are read.
        load: Gives the bytes of a file, in any thread or process; raises SourceGone.
        environment: Of the settings OCRSVC_….
        cluster: What actors of a cluster.
    """

    on: str
    options: Options
    load: Callable[[SourceFile], bytes]
    environment: Mapping[str, str]
    cluster: ClusterRequest = field(default_factory=ClusterRequest)


def open_reader(request: ReaderRequest) -> PageReader:
    """The reader, not started. Raises BadOption and SettingsError."""
    if request.on == "local":
        return _open_local(request)
    if request.on == "ray" or request.on.startswith(ADDRESS_PREFIX):
        return _open_ray(request)
    raise BadOption(f"--on is {request.on!r}: accepted are local, ray, and ray://HOST:PORT.")


def _open_local(request: ReaderRequest) -> PageReader:
    from ocrsvc.batch.readers.local_reader import PAGE_LIMIT_S, LocalReader
    from ocrsvc.http.options import read_options
    from ocrsvc.settings.load import read_settings

    # Whoever reads files of their own may read all of them; a page that crashes the engine costs itself alone.
    own = {"OCRSVC_ISOLATION": "process"} | dict(request.environment) | {"OCRSVC_MAX_PAGES": "100000"}
    options = read_options(request.options.items()).read
    settings = read_settings(own)
    limit_s = settings.deadline_s if "OCRSVC_DEADLINE_S" in own else PAGE_LIMIT_S
    return LocalReader(settings, options, lambda group: request.load(group.file), limit_s)


def _open_ray(request: ReaderRequest) -> PageReader:
    from ocrsvc.batch.readers.ray_cluster.ray_reader import RayReader
    from ocrsvc.batch.readers.ray_cluster.sent_settings import settings_to_send
    from ocrsvc.http.options import read_options

    given = settings_to_send(request.environment, request.cluster)
    options = read_options(request.options.items()).read
    return RayReader(request.on, request.cluster, given, options, request.load)
