"""The certificates while the service runs: the arbiter decides when they are read again, and each worker follows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from ocrsvc.connections.certificates import Certificates, in_utc
from ocrsvc.connections.tls_contexts import files_of
from ocrsvc.errors import SettingsError
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics import TLS_NOT_AFTER, TLS_READS
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.worker_table import Head

_DAY_S: Final = 86400.0
# A warning comes so early, or in the last part of a shorter time; then each day.
_EXPIRES_SOON_S: Final = 14 * _DAY_S
_LAST_PART: Final = 0.25


def open_certificates(settings: Settings, before: Certificates | None, *, is_start: bool) -> Certificates | None:
    """Arbiter, at the start and at each SIGHUP: what the settings name; None without TLS. Raises SettingsError."""
    files = files_of(settings)
    if not is_start and (files is None) != (before is None):
        raise SettingsError("OCRSVC_TLS_CERTIFICATE: TLS begins or ends at the start only.", "Restart the service.")
    if files is None or before is None:
        return None if files is None else Certificates(files)
    before.read_again(files)
    return before


class CertificateWatch:
    """The arbiter's part: reads changed files, has the workers follow, and warns before a certificate ends."""

    def __init__(
        self, head: Head, metrics: WorkerMetrics, log: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # None without TLS.
        self.certificates: Certificates | None = None
        self._head, self._metrics, self._log, self._clock = head, metrics, log, clock
        self._warned_s = -_DAY_S

    def open(self, settings: Settings, *, is_start: bool) -> Certificates | None:
        """See `open_certificates`; a failure is counted."""
        try:
            return open_certificates(settings, self.certificates, is_start=is_start)
        except SettingsError:
            self._metrics.count(TLS_READS, "failed")
            raise

    def begin(self, certificates: Certificates | None) -> None:
        """These are the service's from now on, at the start and after each SIGHUP."""
        self.certificates = certificates
        if certificates is not None:
            self._head.certificates = certificates.generation
            self._metrics.put(TLS_NOT_AFTER, certificates.current.certificate.not_after_s)

    def look(self) -> None:
        """Once a second."""
        if self.certificates is None:
            return
        if self.certificates.have_changed():
            self._read_again(self.certificates)
        self._warn_of_end(self.certificates)

    def _read_again(self, certificates: Certificates) -> None:
        try:
            certificates.read_again()
        except SettingsError as error:
            self._metrics.count(TLS_READS, "failed")
            self._log.error("The certificates stay as they were: %s", error)
            return
        self._head.certificates = certificates.generation
        own = certificates.current.certificate
        self._metrics.count(TLS_READS, "ok")
        self._metrics.put(TLS_NOT_AFTER, own.not_after_s)
        self._warned_s = -_DAY_S
        self._log.info("New certificate: %s, until %s", ", ".join(own.names), in_utc(own.not_after_s))

    def _warn_of_end(self, certificates: Certificates) -> None:
        own, left_s = certificates.current.certificate, certificates.left_s()
        soon_s = min(_EXPIRES_SOON_S, _LAST_PART * (own.not_after_s - own.not_before_s))
        if left_s < soon_s and self._clock() >= self._warned_s + _DAY_S:
            self._warned_s = self._clock()
            state = "expires at" if left_s > 0 else "has expired: clients refuse it since"
            self._log.warning("The service's certificate %s %s.", state, in_utc(own.not_after_s))


def follow(certificates: Certificates, head: Head, log: logging.Logger) -> None:
    """Worker, several times a second, not on an event loop: do as the arbiter did."""
    try:
        if certificates.generation != head.certificates:
            certificates.follow(head.certificates)
            log.info("New connections get the new certificate.")
        certificates.drop_sessions()
    except SettingsError as error:
        log.error("The certificates stay as they were in this worker: %s", error)
