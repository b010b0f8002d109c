"""gunicorn's configuration, and the hooks that it calls in the arbiter and in each worker.

A worker runs `post_fork` (makes its reader), imports the application, runs `post_worker_init` (loads and warms the
engine; only then accepts requests), and at the end `worker_exit`. The arbiter loads no model and no numeric library.
"""

import atexit
import gc
import logging
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ocrsvc
from ocrsvc import __version__
from ocrsvc.access.audit_log import audit_log_of
from ocrsvc.access.manage_keys import check_store, settle_rest
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.key_source import hide_key_variable, is_read_again, read_model_key
from ocrsvc.errors import OcrsvcError, OperatorError, SettingsError
from ocrsvc.jobs.job_folder import open_jobs
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import gpus_for, plan_for, set_library_environment
from ocrsvc.telemetry.loggable import loggable_path
from ocrsvc.telemetry.metrics import BOOT_FAILURES, LINES_DROPPED
from ocrsvc.telemetry.tracing import check_tracing
from ocrsvc.telemetry.worker_table import State
from ocrsvc.worker import boot
from ocrsvc.worker.config import address_of, check_server, configuration, listen, open_listeners
from ocrsvc.worker.gunicorn_internals import LastingArbiter, RecyclingWorker, take_over
from ocrsvc.worker.logger import count_lost_lines
from ocrsvc.worker.service_context import ServiceContext

_MAX_FILES: Final = 65_536

# This process's context, once it exists. A global, because gunicorn passes no object from hooks to the application.
_services: list[ServiceContext] = []


def configuration_or_exit() -> Mapping[str, object]:
    """gunicorn's settings, built from ours at the start and at each SIGHUP, before any numeric library is loaded.

    Invalid settings are logged. At the start they end the process with code 78; at a SIGHUP the old ones stay.
    """
    set_library_environment(os.environ)
    is_start = not _services
    if is_start:
        # Arbiter and workers: frozen objects are not searched for garbage at exit, which takes a tenth of a second.
        atexit.register(gc.freeze)
    try:
        settings = read_settings()
        check_tracing(settings, os.environ)
        service = ServiceContext(settings) if is_start else _services[0]
        certificates = service.certificate_watch.open(settings, is_start=is_start)
        service.model_key = open_model_key(settings, service.model_key, is_start=is_start)
    except SettingsError as error:
        if is_start:
            _write_line(f"ocrsvc cannot start: {error.title.lower()}.\n{error}")
            sys.exit(error.exit_code)
        _write_line(f"ocrsvc keeps its settings: {error.title.lower()}.\n{error}")
    else:
        _services[:] = [service]
        # Workers and child processes inherit the settings, which must not contain the models' key.
        service.settings = settings.model_copy(update={"models_key": None})
        service.certificate_watch.begin(certificates)
    [service] = _services
    # Listed in the arbiter, because each worker sees only its own GPU.
    service.gpus = gpus_for(service.settings)
    gunicorns = dict(configuration(service.settings, plan_for(service.settings)))
    # A reload keeps the addresses: gunicorn would end the service if it failed to bind new addresses.
    service.addresses = service.addresses or gunicorns["bind"]
    if gunicorns["bind"] != service.addresses:
        _write_line("ocrsvc keeps its addresses: restart the service to change them.")
        gunicorns["bind"] = service.addresses
    hooks = (on_starting, nworkers_changed, on_reload, pre_fork, pre_request, worker_exit, child_exit, on_exit)
    return {
        **gunicorns,
        **{hook.__name__: hook for hook in hooks},
        "post_fork": lambda _server, worker: boot.prepare(service, worker),
        "post_worker_init": lambda worker: boot.load(service, worker),
    }


def open_model_key(settings: Settings, before: ModelKey | None, *, is_start: bool) -> ModelKey | None:
    """Read the models' decryption key at the start and each SIGHUP; unset its variable. Raises SettingsError."""
    key = read_model_key(settings) if is_start or is_read_again(settings) else before
    hide_key_variable()
    has_changed = (key and key.id) != (before and before.id)
    if settings.models is not None and (is_start or has_changed):
        from ocrsvc.models.repository import ModelRepository

        ModelRepository(settings.models, key).check_key()
    return key


def _write_line(text: str) -> None:
    """Log a line, or print it to stderr before the log exists; ignore write errors, so that a reload continues."""
    if log := logging.getLogger("gunicorn.error").handlers:
        log[0].handle(logging.LogRecord("gunicorn.error", logging.ERROR, __file__, 0, text, None, None))
        return
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")


def current_service() -> ServiceContext:
    """This process's context; without gunicorn's configuration file, a new one with settings from the environment."""
    return _services[0] if _services else ServiceContext(read_settings())


def build_app() -> Any:
    """The Flask application over this process's reader, for gunicorn's command line. Loads no model."""
    return current_service().make_app()


def on_starting(server: LastingArbiter) -> None:
    """Arbiter: check the configuration, open listeners and stores, and log what starts."""
    service = current_service()
    settings = service.settings
    take_over(server, service, service.pidfile)
    server.log.error_log.addFilter(service.hung_requests.replace_memory_guess)
    count_lost_lines(server.log, lambda: service.metrics.common.count(LINES_DROPPED))
    try:
        _open_all(server, service)
    except OperatorError as error:
        server.log.error("%s", error)
        sys.exit(error.exit_code)
    _raise_open_files_limit()
    plan = plan_for(settings, workers=server.cfg.workers, threads=server.cfg.threads)
    for listener in service.grpc_listeners:
        server.log.info("Listening for gRPC at: %s", address_of(listener))
    server.log.info("ocrsvc %s engine=%s device=%s plan: %s", __version__, settings.engine, settings.device, plan)
    if service.jobs is not None and settings.jobs_dir is None:
        server.log.info("Jobs and uploaded files are kept until the service ends: OCRSVC_JOBS_DIR is not set.")


def _open_all(server: LastingArbiter, service: ServiceContext) -> None:
    """Write the pid file, and open listeners and stores. Raises OperatorError if any of them cannot be used."""
    settings = service.settings
    check_server(server.cfg, settings)
    open_listeners(server, settings)
    try:
        if server.pidfile is not None:
            server.pidfile.write()
    except OSError as error:
        raise SettingsError(f"The pid file cannot be written: {error}.", "Choose another one.") from error
    service.grpc_listeners = tuple(map(listen, settings.grpc_bind))
    if settings.keys is not None:
        check_store(settings.keys)
    audit_log_of(settings).check()
    if settings.models is not None:
        from ocrsvc.models.policy import read_policies

        read_policies(settings.models)
    if settings.jobs_bytes:
        service.jobs = open_jobs(settings)


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files, which is usually too low for a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def nworkers_changed(server: LastingArbiter, count: int, before: int | None) -> None:
    """Arbiter, at the start, at each reload, and on SIGTTIN and SIGTTOU: set the number of workers."""
    service = current_service()
    if before is None:
        # Hide the pid file's path from gunicorn, which would write the file now and, if that failed, end the service.
        service.pidfile = server.cfg.pidfile
        server.cfg.set("pidfile", None)
        service.controller.worker_table.head.base = count
    else:
        service.controller.set_count(server)


def on_reload(server: LastingArbiter) -> None:
    """Arbiter, on SIGHUP, after reading the new configuration: replace all workers, and write to the audit log."""
    # Warn if an upgrade has replaced the installed package while this arbiter runs the old code.
    try:
        match = re.search(r'__version__ = "([^"]+)"', Path(ocrsvc.__file__).read_text(encoding="utf-8"))
    except OSError:
        match = None
    if (installed := match[1] if match else "nothing") != __version__:
        message = "ocrsvc %s is installed, but this arbiter runs %s: restart the service to use all of the new code."
        server.log.warning(message, installed, __version__)
    service = current_service()
    service.controller.reload(server)
    try:
        audit_log_of(service.settings).write("signal:SIGHUP", "service.reload", time.time())
    except OcrsvcError as error:
        server.log.error("The reload is not in the audit log: %s", error)


def pre_fork(_server: LastingArbiter, worker: RecyclingWorker) -> None:
    """Arbiter, before each fork: reserve the worker's entry, metrics block and request records."""
    service = current_service()
    service.controller.before_fork(worker, service.gpus, service.settings.boot_limit_s)
    service.metrics.claim(worker.slot_number)
    service.in_flight.clear(worker.slot_number)


def child_exit(server: LastingArbiter, worker: RecyclingWorker) -> None:
    """Arbiter, after reaping a worker: keep its metrics, and if it crashed, find the request at fault."""
    service = current_service()
    if worker.entry.state == State.BOOTING:
        service.metrics.common.count(BOOT_FAILURES)
    service.metrics.fold(worker.slot_number)
    service.hung_requests.note_exit(worker.pid, worker.slot_number, expected=worker.entry.state == State.BOOTING)
    service.controller.after_exit(server, worker)


def on_exit(server: LastingArbiter) -> None:
    """Arbiter, after all workers have ended: remove temporary jobs, and store the last page counts."""
    service = current_service()
    if service.jobs is not None and service.settings.jobs_dir is None:
        shutil.rmtree(service.jobs.folder, ignore_errors=True)
    if service.settings.keys is not None:
        try:
            settle_rest(service.settings.keys, service.page_counts)
        except OcrsvcError as error:
            server.log.error("The last page counts of API keys are lost: %s", error)


def pre_request(worker: RecyclingWorker, request: Any) -> None:
    """Worker, in the request's thread, before each request: log it, and balance the load between workers."""
    worker.log.debug("%s %s", request.method, loggable_path(request.path))
    worker.loop.balance(request)


def worker_exit(_server: LastingArbiter, worker: RecyclingWorker) -> None:
    """Worker, after its last request: end the threads, close the engine, flush the log."""
    service = current_service()
    # The worker ends normally, so none of its requests is at fault.
    service.in_flight.clear(worker.slot_number)
    service.worker.closing.close()
