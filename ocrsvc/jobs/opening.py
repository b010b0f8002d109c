"""Opens the job store of a service, as its settings say."""

from __future__ import annotations

from ocrsvc.jobs.folder import make_folder, open_folder
from ocrsvc.jobs.store import CallerLimits, JobStore
from ocrsvc.settings.settings import Settings


def open_store(settings: Settings) -> JobStore:
    """The store, whose folder is this process's and those that it forks; for the arbiter. Raises SettingsError.

    With OCRSVC_TASKS_DIR it lasts, and what an earlier service left in it is gone on with; without, it is to be removed
    when the service ends.
    """
    lasts = settings.tasks_dir is not None
    jobs = JobStore(
        open_folder(settings.tasks_dir) if settings.tasks_dir is not None else make_folder(),
        settings.tasks_bytes,
        settings.tasks_s,
        limits=CallerLimits(settings.jobs_waiting, settings.jobs_waiting_pages),
        is_durable=lasts,
    )
    jobs.begin_again()
    return jobs
