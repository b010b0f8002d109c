"""Lets operators load, unload and configure models, and records each action in the audit log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.access.audit_log import audit_log_of
from ocrsvc.access.local_callers import is_local_peer
from ocrsvc.errors import BadOption, CallerError, DeadlineExceeded, SettingsError, UnknownModel
from ocrsvc.grpc_server.method import Call
from ocrsvc.http.origins import check_origin, is_local
from ocrsvc.http.request import request
from ocrsvc.models.catalogue import Catalogue, make_catalogue
from ocrsvc.models.model_control import CHECK_S
from ocrsvc.models.policy import Policies, policies_of
from ocrsvc.models.worker_models import WorkerModels
from ocrsvc.serving.work_queue import is_never_gone
from ocrsvc.settings.settings import Settings

# Time until all workers have seen a change, because each polls the state file every CHECK_S.
_PROPAGATION_S: Final = 2 * CHECK_S


class OperatorsOnly(CallerError, status=403, code="operators_only", title="For operators only"):
    """The caller asked for an operator's action, but is not an operator."""


class ModelRefused(CallerError, code="model_refused", title="The model was refused"):
    """The model failed its proof, the test before it may serve."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller over HTTP or gRPC, whose request waits at most `limit_s`.

    `key` is the name of its API key, whose scope is already checked; empty without keys. `address` is its network
    address, empty on a Unix socket; `is_local` is False behind a proxy.
    """

    key: str
    address: str
    is_local: bool
    limit_s: float
    is_gone: Callable[[], bool] = is_never_gone


def caller_of_call(call: Call) -> Caller:
    """The caller of a gRPC call."""
    is_here = is_local_peer(call.address, is_forwarded=call.is_forwarded)
    return Caller(call.key, call.address, is_here, call.left_s, call.gone.is_set)


def caller_of_request() -> Caller:
    """The caller of this thread's request. Raises HostNotAllowed for a cross-site request."""
    check_origin()
    key = request.key.name if request.key is not None else ""
    address = request.remote_addr or ""
    return Caller(key, address, is_local(request.environ), request.left_s, request.context.is_gone)


class ModelOperations:
    """Operators' actions on a worker's models; for any thread. Raises NotReady before the models are opened."""

    def __init__(self, settings: Settings, models: Callable[[], WorkerModels]) -> None:
        self._settings, self._models, self._audit = settings, models, audit_log_of(settings)

    def load(self, caller: Caller, name: str) -> None:
        """Load a model in all workers. Raises ModelRefused, OperatorsOnly, UnknownModel, DeadlineExceeded."""
        with self._action(caller, "models.load", model=name):
            self._models().control.load(name)
        self._wait(caller, (name,))

    def unload(self, caller: Caller, name: str) -> None:
        """Unload a model; return once no worker starts new requests for it. Raises as `load`."""
        with self._action(caller, "models.unload", model=name):
            self._models().control.unload(name)
        time.sleep(_PROPAGATION_S)

    def configure(self, caller: Caller, config: Any) -> None:
        """Apply the version policies of a TensorFlow Serving ModelServerConfig. Raises BadOption, and as `load`."""
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
        time.sleep(_PROPAGATION_S)

    @contextmanager
    def _action(self, caller: Caller, action: str, **facts: object) -> Iterator[None]:
        """Check the caller, run the block, write the audit log. Raises OperatorsOnly, OperatorError."""
        self._check_caller(caller)
        self._audit.check()
        yield
        by = f"key:{caller.key}" if caller.key else f"address:{caller.address or 'local'}"
        self._audit.write(by, action, time.time(), **facts)

    def _check_caller(self, caller: Caller) -> None:
        """Raises OperatorsOnly for a caller without an API key, unless OCRSVC_OPS allows its address."""
        if not caller.key and (self._settings.ops == "off" or (self._settings.ops == "local" and not caller.is_local)):
            raise OperatorsOnly(
                "Only operators may load, unload and configure models.",
                "Use an API key with the scope `operate`, or the same machine; see OCRSVC_OPS.",
            )

    def _check_policies(self, policies: Policies, now: Catalogue) -> None:
        """Raise UnknownModel for a model that the repository lacks, BadOption for a label of an unavailable version."""
        for name in policies.models:
            if name not in now.models:
                known = ", ".join(now.models)
                raise UnknownModel(f"The repository has no model {name}.", f"It has: {known}.")
        state = now.state.updated(policies=None, labels={}, unloads=frozenset())
        models = make_catalogue(now.scan, policies, state).models
        for name, policy in policies.models.items():
            for label, number in policy.labels.items():
                if models[name].find(number) is None:
                    raise BadOption(
                        f"The label {label} of {name} names version {number}, which is not available.",
                        "Load the version first, then set its label.",
                    )

    def _wait(self, caller: Caller, names: tuple[str, ...]) -> None:
        """Wait until new versions are proved (tested), then load the newest. Raises ModelRefused, DeadlineExceeded."""
        models, end_s = self._models(), time.monotonic() + caller.limit_s
        catalogue = models.control.rescan()
        new = [one for name in names if name in catalogue.models for one in catalogue.models[name].candidates]
        while any(one.name in names for one in catalogue.candidates):
            if time.monotonic() >= end_s or caller.is_gone():
                raise DeadlineExceeded("The new version is still being proved.", "Check its status later.")
            time.sleep(CHECK_S)
            catalogue = models.control.rescan()
        for version in new:
            verdict = catalogue.verdict(version)
            if verdict is not None and not verdict.accepted:
                raise ModelRefused(f"The version {version} was refused: {verdict.reason}"[:1000])
        for name in names:
            if name not in catalogue.models or not (available := catalogue.models[name].available):
                failed = [one for one in models.control.status(name) if one.reason]
                reasons = [f"{one.name}/{one.number}: {one.reason}" for one in failed]
                raise ModelRefused(f"No version of {name} may serve.", " ".join(reasons)[:1000])
            models.loaded.preload(available[0], end_s)
