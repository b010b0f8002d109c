"""The settings that actors of a cluster are given: those of the command, without secrets."""

from __future__ import annotations

from collections.abc import Mapping

from ocrsvc.batch.readers.ray_cluster.cluster_request import ClusterRequest
from ocrsvc.settings.describe import is_secret, without_passwords
from ocrsvc.settings.load import RawValue, check_settings, gather


def settings_to_send(environment: Mapping[str, str], cluster: ClusterRequest) -> dict[str, RawValue]:
    """Settings by name, read here, so that no node needs the file that OCRSVC_CONFIG names.

    Secrets, and addresses with passwords, stay: Ray keeps what actors are begun with. Nodes have their own.

    Args:
        environment: Of the command.
        cluster: What actors: on CPUs, each has as many engine threads as CPUs.

    Raises:
        SettingsError: As read_settings.
    """
    own = {"OCRSVC_ISOLATION": "process"}
    if not cluster.gpus:
        own["OCRSVC_ENGINE_THREADS"] = str(max(1, round(cluster.cpus)))
    given = gather(own | dict(environment) | {"OCRSVC_MAX_PAGES": "100000"})
    check_settings(given)
    return {name: value for name, value in given.items() if not is_secret(name) and not _has_password(value)}


def _has_password(value: RawValue) -> bool:
    return without_passwords(str(value.value)) != str(value.value)
