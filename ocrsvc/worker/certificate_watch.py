"""TLS certificate reload: the arbiter loads changed files, and each worker then switches to the same version."""

import logging
import time
from collections.abc import Callable
from typing import Final

from ocrsvc.connections.certificates import Certificates, files_of, in_utc
from ocrsvc.errors import SettingsError
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.metrics import TLS_NOT_AFTER, TLS_READS
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.worker_table import Head

_DAY_S: Final = 86400.0
# Warn daily in the last 14 days of a certificate, or in the last quarter of its lifetime if that is shorter.
_EXPIRES_SOON_S: Final = 14 * _DAY_S
_LAST_SHARE: Final = 0.25


class CertificateWatch:
    """Arbiter: loads changed certificate files, publishes their version to workers, and warns before an expiry."""

    def __init__(
        self, head: Head, metrics: WorkerMetrics, log: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.certificates: Certificates | None = None
        self._head, self._metrics, self._log, self._clock = head, metrics, log, clock
        self._warned_s = -_DAY_S

    def open(self, settings: Settings, *, is_start: bool) -> Certificates | None:
        """Read the certificates at the start and at each SIGHUP; return None without TLS. Raises SettingsError."""
        try:
            files, before = files_of(settings), self.certificates
            if not is_start and (files is None) != (before is None):
                raise SettingsError("OCRSVC_TLS_CERTIFICATE: SIGHUP cannot turn TLS on or off.", "Restart the service.")
            if files is None or before is None:
                return None if files is None else Certificates(files)
            before.read_again(files)
        except SettingsError:
            self._metrics.count(TLS_READS, "failed")
            raise
        return before

    def begin(self, certificates: Certificates | None) -> None:
        """Publish these certificates to workers, and watch their files; called at the start and after each SIGHUP."""
        self.certificates = certificates
        if certificates is not None:
            self._head.certificates = certificates.generation
            self._metrics.put(TLS_NOT_AFTER, certificates.current.certificate.not_after_s)

    def look(self) -> None:
        """Once a second: load certificate files that have changed, and log a warning before the certificate expires."""
        if self.certificates is None:
            return
        if self.certificates.have_changed():
            self._read_again(self.certificates)
        current, left_s = self.certificates.current.certificate, self.certificates.left_s()
        soon_s = min(_EXPIRES_SOON_S, _LAST_SHARE * (current.not_after_s - current.not_before_s))
        if left_s < soon_s and self._clock() >= self._warned_s + _DAY_S:
            self._warned_s = self._clock()
            state = "expires at" if left_s > 0 else "has expired: clients have refused it since"
            self._log.warning("The service's certificate %s %s.", state, in_utc(current.not_after_s))

    def _read_again(self, certificates: Certificates) -> None:
        try:
            certificates.read_again()
        except SettingsError as error:
            self._metrics.count(TLS_READS, "failed")
            self._log.error("The certificates stay as they were: %s", error)
            return
        self._metrics.count(TLS_READS, "ok")
        self.begin(certificates)
        self._warned_s, current = -_DAY_S, certificates.current.certificate
        self._log.info("New certificate: %s, until %s", ", ".join(current.names), in_utc(current.not_after_s))


def follow(certificates: Certificates, head: Head, log: logging.Logger) -> None:
    """Worker, in the watch's thread: load the certificates that the arbiter has published."""
    try:
        if certificates.generation != head.certificates:
            certificates.follow(head.certificates)
            log.info("New connections get the new certificate.")
        certificates.drop_sessions()
    except SettingsError as error:
        log.error("The certificates stay as they were in this worker: %s", error)
