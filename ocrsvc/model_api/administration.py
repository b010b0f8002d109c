"""Loads, unloads and configures models for operators who ask by a protocol; each action is noted in the audit log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ocrsvc.access.audit import AuditLog, audit_log_of
from ocrsvc.errors import BadOption, CallerError, DeadlineExceeded, SettingsError, UnknownModel
from ocrsvc.model_api.caller import Caller
from ocrsvc.model_api.served_models import ServedModels
from ocrsvc.model_serving.catalogue import Catalogue, make_catalogue
from ocrsvc.model_serving.control import CHECK_S, ModelControl
from ocrsvc.model_serving.models_config import policies_of
from ocrsvc.model_serving.policy import Policies
from ocrsvc.settings.settings import Settings

# After this all workers have looked at the state file, which they do before they choose a version.
_FOLLOWED_S: Final = 2 * CHECK_S


class OperatorsOnly(CallerError):
    """The call is for operators, and this caller is none."""

    status = 403
    code = "operators_only"
    title = "For operators only"


class ModelRefused(CallerError):
    """The model was to be loaded, and has not proved itself."""

    code = "model_refused"
    title = "The model was refused"


class ModelAdministration:
    """What operators do to the models; for any thread.

    Args:
        settings: Used are models, ops, and those of the audit log.
        models: What it is done with.
        sleep: Waits so many seconds.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        models: ServedModels,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._models = settings, models
        self._audit: AuditLog = audit_log_of(settings)
        self._sleep, self._clock = sleep, clock

    def load(self, caller: Caller, name: str) -> None:
        """Have a model serve; returns when every worker answers requests for it.

        Raises:
            ModelRefused: No version of it has proved itself.
            OcrsvcError: OperatorsOnly, UnknownModel, DeadlineExceeded, OperatorError.
        """
        with self._action(caller, "models.load", model=name):
            self._control.load(name)
        self._wait(caller, (name,))

    def unload(self, caller: Caller, name: str) -> None:
        """Have a model serve no more; returns when no worker begins a request for it. Raises as `load`."""
        with self._action(caller, "models.unload", model=name):
            self._control.unload(name)
        self._sleep(_FOLLOWED_S)

    def configure(self, caller: Caller, config: Any) -> None:
        """Put TensorFlow Serving's message ModelServerConfig in place of the repository's policies.

        Raises:
            BadOption: The configuration is wrong, or labels a version that has not proved itself.
            OcrsvcError: As `load`.
        """
        assert self._settings.models is not None
        self._check_caller(caller)
        try:
            policies = policies_of(config, self._settings.models)
        except SettingsError as error:
            raise BadOption(error.detail, error.remedy) from error
        self._check_known(policies)
        self._check_labels(policies)
        with self._action(caller, "models.configure", models=sorted(policies.models)):
            self._control.apply_config(policies)
        self._wait(caller, tuple(policies.models))
        self._sleep(_FOLLOWED_S)

    @property
    def _control(self) -> ModelControl:
        return self._models.opened().control

    @contextmanager
    def _action(self, caller: Caller, action: str, **facts: object) -> Iterator[None]:
        """Do something that the audit log then says. Raises OperatorsOnly, OperatorError."""
        self._check_caller(caller)
        self._audit.check()
        yield
        self._audit.write(caller.name, action, time.time(), **facts)

    def _check_caller(self, caller: Caller) -> None:
        """Raises OperatorsOnly: without keys, who may do this are those who may see OCRSVC_OPS."""
        if caller.key:
            return
        if self._settings.ops == "off" or (self._settings.ops == "local" and not caller.is_local):
            raise OperatorsOnly(
                "Models are loaded, unloaded and configured by operators.",
                "Ask from the same machine, or with an API key for `operate`; see OCRSVC_OPS.",
            )

    def _check_known(self, policies: Policies) -> None:
        """Raises UnknownModel for a model that is not there at all."""
        known = self._control.rescan().models
        for name in policies.models:
            if name not in known:
                raise UnknownModel(f"There is no model {name} in the repository.", f"There is: {', '.join(known)}.")

    def _check_labels(self, policies: Policies) -> None:
        """Raises BadOption, as TensorFlow Serving does, for a label of a version that could not serve."""
        now = self._control.catalogue()
        state = now.state.model_copy(update={"policies": None, "labels": {}, "unloads": frozenset()})
        models = make_catalogue(now.scan, policies, state).models
        for name, policy in policies.models.items():
            numbers = [version.number for version in models[name].available]
            for label, number in policy.labels.items():
                if number not in numbers:
                    raise BadOption(
                        f"The label {label} of {name} is to be version {number}, which is not available.",
                        "Have the version loaded first, then set its label.",
                    )

    def _wait(self, caller: Caller, names: tuple[str, ...]) -> None:
        """Until no version of these models is left to be proved, and their newest ones are loaded here.

        Raises:
            ModelRefused: A new version was refused, or none may serve.
            OcrsvcError: DeadlineExceeded; what keeps a version from being loaded.
        """
        end_s = self._clock() + caller.limit_s
        catalogue = self._control.rescan()
        new = [one for name in names if name in catalogue.models for one in catalogue.models[name].candidates]
        while self._is_waiting(catalogue, names):
            if self._clock() >= end_s or caller.is_gone():
                raise DeadlineExceeded("The new version is still being proved.", "Ask for its status in a while.")
            self._sleep(CHECK_S)
            catalogue = self._control.rescan()
        for version in new:
            verdict = catalogue.verdict(version)
            if verdict is not None and not verdict.accepted:
                raise ModelRefused(f"The version {version} was refused: {verdict.reason}"[:1000])
        for name in names:
            self._check_available(catalogue, name)
            self._models.opened().loaded.preload(catalogue.models[name].available[0], end_s)

    def _is_waiting(self, catalogue: Catalogue, names: tuple[str, ...]) -> bool:
        return any(catalogue.models[name].candidates for name in names if name in catalogue.models)

    def _check_available(self, catalogue: Catalogue, name: str) -> None:
        model = catalogue.models.get(name)
        if model is None or not model.available:
            reasons = [f"{one.name}/{one.number}: {one.reason}" for one in self._control.status(name) if one.reason]
            raise ModelRefused(f"No version of {name} may serve.", " ".join(reasons)[:1000])
