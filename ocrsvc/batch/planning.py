"""The plan of a run: a new one, or the one that the destination holds, if the sources are still those of the plan."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.plan import Plan, plan_names, read_plan, remove_plans, write_plan
from ocrsvc.batch.run_description import RunDescription
from ocrsvc.batch.sources.opening import find_sources
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.source_changes import find_changes, find_new
from ocrsvc.batch.store.contract import Store
from ocrsvc.errors import RunChanged

if TYPE_CHECKING:
    from ocrsvc.batch.start import BatchRequest


def open_plan(store: Store, request: BatchRequest, counts: PlanningCounts) -> Plan:
    """The plan of the run.

    Args:
        store: Where it is.
        request: What is asked for.
        counts: What a new one leaves out, counted meanwhile.

    Raises:
        RunChanged, SourceGone, DamagedLedger, BadOption, OSError: There is none.
    """
    planning = {"part_pages": request.part_pages} | request.sources.choice()
    asked = RunDescription(request.sources.sources, request.options, request.outputs, planning)
    described = RunDescription.read(store)
    if described is None:
        plan = write_plan(store, find_sources(request.sources, counts), request.part_pages)
        if _take_effect(store, asked, plan):
            return plan
        # Another process has begun the same run meanwhile: its plan stands.
        described = RunDescription.read(store) or asked
    described.check_same(asked, store.address)
    return _look_for_changes(store, request, described, counts)


def _look_for_changes(store: Store, request: BatchRequest, described: RunDescription, counts: PlanningCounts) -> Plan:
    """The plan, with new files if those are asked for. Raises RunChanged where the sources are others."""
    plan = read_plan(store)
    if not request.as_planned:
        changes = find_changes(plan.all_files(), request.sources)
        if request.update:
            changes.new = 0
        changes.check_none(store.address)
    return _extend(store, request, described, plan, counts) if request.update else plan


def _extend(store: Store, request: BatchRequest, described: RunDescription, plan: Plan, counts: PlanningCounts) -> Plan:
    """A plan with the new files in parts of their own behind the others. Raises RunChanged while others work."""
    _check_idle(store, plan)
    new = find_new(plan.all_files(), request.sources, counts)
    longer = write_plan(store, new, request.part_pages, after=plan)
    if longer.totals == plan.totals:
        remove_plans(store, [longer.name])
        return plan
    if not _take_effect(store, replace(described, revision=described.revision + 1), longer, plan):
        raise RunChanged(
            f"Another process has planned the new files of the run in {store.address} meanwhile.",
            "Give the same command again without --update.",
        )
    return longer


def _take_effect(store: Store, described: RunDescription, plan: Plan, before: Plan | None = None) -> bool:
    """Have a run go by a plan, unless another process was first; whether it does. Removes what cannot count any more.

    A plan that was there before this revision of the run was not written for a later one: whoever stands still in here
    for a day removes nothing that is needed. A process that has just begun with the plan before may still read it.
    """
    others = plan_names(store) - {plan.name, before.name if before else ""}
    is_first = replace(described, plan=plan.totals.digest, plan_file=plan.name).write(store)
    remove_plans(store, others if is_first else [plan.name])
    return is_first


def _check_idle(store: Store, plan: Plan) -> None:
    ledger, here = Ledger(store, plan), Owner.this_process()
    ledger.refresh()
    now = time.time()
    for part in range(plan.parts):
        if (holder := ledger.holder(part, now, here)) is not None:
            raise RunChanged(
                f"{holder.name} works on the run in {store.address}, and does not know of a longer plan.",
                "Let all its processes end before --update.",
            )
