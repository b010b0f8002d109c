"""Loads, unloads and configures models for operators who ask by a protocol; each action is noted in the audit log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.access.audit_log import AuditLog, audit_log_of
from ocrsvc.errors import BadOption, CallerError, DeadlineExceeded, SettingsError, UnknownModel
from ocrsvc.grpc_server.method import Call
from ocrsvc.http.origins import check_origin, is_local, is_loopback_address
from ocrsvc.http.request import request
from ocrsvc.models.catalogue import Catalogue, make_catalogue
from ocrsvc.models.model_control import CHECK_S
from ocrsvc.models.policy import Policies, policies_of
from ocrsvc.models.worker_models import WorkerModels
from ocrsvc.settings.settings import Settings

# After this all workers have looked at the state file, which they do before they choose a version.
_FOLLOWED_S: Final = 2 * CHECK_S


class OperatorsOnly(CallerError, status=403, code="operators_only", title="For operators only"):
    """The call is for operators, and this caller is none."""


class ModelRefused(CallerError, code="model_refused", title="The model was refused"):
    """The model was to be loaded, and has not proved itself."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller over HTTP or gRPC, who waits for `limit_s` seconds.

    `key` is the name of the API key, empty where none is wanted; that it allows `operate` was checked before. The
    peer's address is empty on a Unix socket; it is local on this machine, unless it is a proxy.
    """

    key: str
    address: str
    is_local: bool
    limit_s: float
    is_gone: Callable[[], bool] = bool


def caller_of_call(call: Call) -> Caller:
    """The caller of a gRPC call."""
    is_near = not call.is_forwarded and (not call.address or is_loopback_address(call.address))
    return Caller(call.key, call.address, is_near, call.left_s, call.gone.is_set)


def caller_of_request() -> Caller:
    """The sender of this thread's request. Raises HostNotAllowed: a page of another site, as for all operators do."""
    check_origin()
    key = request.key.name if request.key is not None else ""
    address = request.remote_addr or ""
    return Caller(key, address, is_local(request.environ), request.left_s, request.context.is_gone)


class ModelOperations:
    """What operators do to the models of a worker; for any thread. Raises NotReady before they are opened."""

    def __init__(
        self,
        settings: Settings,
        models: Callable[[], WorkerModels],
    ) -> None:
        self._settings, self._models = settings, models
        self._audit: AuditLog = audit_log_of(settings)

    def load(self, caller: Caller, name: str) -> None:
        """Have a model serve; returns when every worker answers requests for it.

        Raises ModelRefused where no version of it has proved itself; OperatorsOnly, UnknownModel, DeadlineExceeded,
        OperatorError.
        """
        with self._action(caller, "models.load", model=name):
            self._models().control.load(name)
        self._wait(caller, (name,))

    def unload(self, caller: Caller, name: str) -> None:
        """Have a model serve no more; returns when no worker begins a request for it. Raises as `load`."""
        with self._action(caller, "models.unload", model=name):
            self._models().control.unload(name)
        time.sleep(_FOLLOWED_S)

    def configure(self, caller: Caller, config: Any) -> None:
        """Put TensorFlow Serving's message ModelServerConfig in place of the repository's policies.

        Raises BadOption where it is wrong, or labels a version that has not proved itself; as `load`.
        """
        assert self._settings.models is not None
        self._check_caller(caller)
        try:
            policies = policies_of(config, self._settings.models)
        except SettingsError as error:
            raise BadOption(error.detail, error.remedy) from error
        self._check_policies(policies, self._models().control.rescan())
        with self._action(caller, "models.configure", models=sorted(policies.models)):
            self._models().control.apply_config(policies)
        self._wait(caller, tuple(policies.models))
        time.sleep(_FOLLOWED_S)

    @contextmanager
    def _action(self, caller: Caller, action: str, **facts: object) -> Iterator[None]:
        """Do something that the audit log then says. Raises OperatorsOnly, OperatorError."""
        self._check_caller(caller)
        self._audit.check()
        yield
        by = f"key:{caller.key}" if caller.key else f"address:{caller.address or 'local'}"
        self._audit.write(by, action, time.time(), **facts)

    def _check_caller(self, caller: Caller) -> None:
        """Raises OperatorsOnly: without keys, callers may do this who may see OCRSVC_OPS."""
        if not caller.key and (self._settings.ops == "off" or (self._settings.ops == "local" and not caller.is_local)):
            raise OperatorsOnly(
                "Models are loaded, unloaded and configured by operators.",
                "Ask from the same machine, or with an API key for `operate`; see OCRSVC_OPS.",
            )

    def _check_policies(self, policies: Policies, now: Catalogue) -> None:
        """Raises UnknownModel for a model that is not there; BadOption for a label of one that could not serve."""
        for name in policies.models:
            if name not in now.models:
                known = ", ".join(now.models)
                raise UnknownModel(f"There is no model {name} in the repository.", f"There is: {known}.")
        state = now.state.updated(policies=None, labels={}, unloads=frozenset())
        models = make_catalogue(now.scan, policies, state).models
        for name, policy in policies.models.items():
            for label, number in policy.labels.items():
                if models[name].find(number) is None:
                    raise BadOption(
                        f"The label {label} of {name} is to be version {number}, which is not available.",
                        "Have the version loaded first, then set its label.",
                    )

    def _wait(self, caller: Caller, names: tuple[str, ...]) -> None:
        """Until no version of these models is left to be proved, and their newest ones are loaded here.

        Raises ModelRefused where a new version was refused, or none may serve; DeadlineExceeded; what keeps a version
        from being loaded.
        """
        models, end_s = self._models(), time.monotonic() + caller.limit_s
        catalogue = models.control.rescan()
        new = [one for name in names if name in catalogue.models for one in catalogue.models[name].candidates]
        while any(one.name in names for one in catalogue.candidates):
            if time.monotonic() >= end_s or caller.is_gone():
                raise DeadlineExceeded("The new version is still being proved.", "Ask for its status in a while.")
            time.sleep(CHECK_S)
            catalogue = models.control.rescan()
        for version in new:
            verdict = catalogue.verdict(version)
            if verdict is not None and not verdict.accepted:
                raise ModelRefused(f"The version {version} was refused: {verdict.reason}"[:1000])
        for name in names:
            if name not in catalogue.models or not (available := catalogue.models[name].available):
                reasons = [
                    f"{one.name}/{one.number}: {one.reason}" for one in models.control.status(name) if one.reason
                ]
                raise ModelRefused(f"No version of {name} may serve.", " ".join(reasons)[:1000])
            models.loaded.preload(available[0], end_s)
