"""Whether there is a repository, and the key of the versions that are to be loaded; asked before workers start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ocrsvc.errors import BadModel, SettingsError
from ocrsvc.model_repository.repository import KEY_REMEDY, BadVersion, ModelRepository, Scan
from ocrsvc.model_serving.policy import Policies, read_policies


def check_key(repository: ModelRepository) -> None:
    """Raises SettingsError: there is no repository, or a version that the policies want cannot be decrypted.

    What cannot be read otherwise is left to those who load the models.
    """
    if repository.folder is None:
        return
    with suppress(OSError):
        if not repository.folder.is_dir():
            raise SettingsError(
                f"OCRSVC_MODELS is {repository.folder}, and that is no folder.",
                "Name one that is there; `ocrsvc models add` makes it with the first model.",
            )
    try:
        scan = repository.scan()
    except BadModel:
        return
    lacking = list(wanted_without_key(scan, read_policies(repository.folder)))
    if lacking:
        told = "\n".join(f"{one.name}/{one.number}: {one.reason}" for one in lacking)
        raise SettingsError(told, "" if KEY_REMEDY in told else KEY_REMEDY)


def wanted_without_key(scan: Scan, policies: Policies) -> Iterator[BadVersion]:
    """The versions that the policies want, and that lack their key."""
    lacking = [one for one in scan.bad if one.lacks_key]
    for one in lacking:
        policy = policies.of(one.name)
        if policy is None:
            continue
        numbers = {*scan.numbers(one.name), *(other.number for other in lacking if other.name == one.name)}
        if one.number in sorted(numbers, reverse=True)[: policy.newest or 0] or policy.wants(one.number):
            yield one
