"""Training plans and quotas. Pure: `now` is handed in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from rekindle.compat import UTC
from rekindle.doctor.base.checks import PLANS, Area, check
from rekindle.doctor.base.facts import (
    NOT_ASKED,
    AccountFacts,
    Found,
    Missing,
    NotInspected,
    PlanFacts,
    SubnetFacts,
    TypeFacts,
)
from rekindle.doctor.base.findings import Finding, error, listed, quoted, unknown, warning
from rekindle.doctor.base.subject import Subject

# HyperPod's instances are terminated from one hour before the plan's end: docs/facts-sagemaker.md#capacity.
HYPERPOD_LEAD: Final = timedelta(hours=1)
SOON: Final = timedelta(days=2)  # of a run that is to last for days; a replacement alone takes half an hour
TARGET: Final = "hyperpod-cluster"  # botocore, SageMakerResourceName
INTERFACES_CODE: Final = "L-DF5E4CA3"  # Service Quotas, vpc
INTERFACES_QUOTA: Final = "Network interfaces per Region"
QUOTA_NAME: Final = "{} for cluster usage"  # how Service Quotas names HyperPod's quota of an instance type


def plan_findings(
    subject: Subject, facts: AccountFacts, *, now: datetime, run_time: timedelta | None = None
) -> Iterator[Finding]:
    """Every training plan. `run_time` is the time limit of the batch script that was given, None without one."""
    for group in subject.groups:
        if group.plan is None:
            continue
        where = subject.path(f"{group.at}.TrainingPlanArn")
        plan = facts.plans.get(group.plan, NOT_ASKED)
        yield from _status(group.plan, plan, where, now)
        if isinstance(plan, PlanFacts):
            yield from _end(plan, where, now, run_time)
            yield from _size(plan, where, group.to_start, group.types)
            subnets = map(facts.subnets.get, subject.subnets_of(group))
            yield from _zone(plan, where, [subnet for subnet in subnets if isinstance(subnet, SubnetFacts)])


@check("plan-status", Area.ACCOUNT, PLANS)
def _status(name: str, plan: Found[PlanFacts], where: str, now: datetime) -> Iterator[Finding]:
    """The training plan is active, and has no gap.

    An inactive plan has no capacity.
    """
    match plan:
        case Missing():
            yield error(where, f"{quoted(name)} does not exist")
        case NotInspected(why):
            yield unknown(where, f"the training plan was not looked at: {why}")
        case PlanFacts(status="Active"):
            pass
        case PlanFacts(status="Scheduled"):
            starts = f" (from {shown(plan.starts_at)})" if plan.starts_at and plan.starts_at > now else ""
            yield warning(where, f"the plan is Scheduled{starts}: it has no capacity now")
        case PlanFacts(status="Pending"):
            yield warning(where, "the plan is Pending: it has no capacity yet")
        case PlanFacts():
            yield error(where, f"the plan is {plan.status}: it has no capacity")
    if isinstance(plan, PlanFacts):
        yield from _gaps(plan, where)


@check("plan-end", Area.ACCOUNT, PLANS)
def _end(plan: PlanFacts, where: str, now: datetime, run_time: timedelta | None) -> Iterator[Finding]:
    """Its end, less the hour by which HyperPod takes nodes earlier; against the script's time limit too.

    Plans end at 11:30 UTC, and no event is sent.
    """
    if plan.ends_at is None:
        yield unknown(where, "the plan says no end")
        return
    last = plan.ends_at - HYPERPOD_LEAD
    ends = f"the plan ends at {shown(plan.ends_at)}; HyperPod takes its nodes from {shown(last)} on"
    if last <= now:
        yield error(where, f"{ends}, which is past")
    elif run_time is not None and now + run_time > last:
        yield warning(where, f"{ends}, before a run with the script's time limit would end")
    elif last - now < SOON:
        yield warning(where, ends)


def _gaps(plan: PlanFacts, where: str) -> Iterator[Finding]:
    """A plan may rest between two reservations: Active, Scheduled, Active (docs/facts-sagemaker.md#capacity)."""
    spans = sorted(
        (reservation.starts_at, reservation.ends_at)
        for reservation in plan.reservations
        if reservation.starts_at and reservation.ends_at
    )
    for (_, ends), (starts, _) in pairwise(spans):
        if starts > ends:
            yield warning(where, f"the plan has no capacity from {shown(ends)} to {shown(starts)}")


@check("plan-size", Area.ACCOUNT, "botocore, DescribeTrainingPlan")
def _size(plan: PlanFacts, where: str, to_start: int | None, types: tuple[str, ...]) -> Iterator[Finding]:
    """It is for HyperPod, for the type, and large enough; a spare is left.

    A replacement waits without a spare.
    """
    if plan.targets and TARGET not in plan.targets:
        yield error(where, f"the plan is for {listed(plan.targets)}, not for {TARGET}")
    reserved = {reservation.instance_type for reservation in plan.reservations if reservation.instance_type}
    if reserved and types and not reserved & set(types):
        yield error(where, f"the plan reserves {listed(sorted(reserved))}, the group wants {listed(types)}")
    if plan.available is None:
        yield unknown(where, "how many of the plan's instances are free is not stated")
    elif to_start and plan.available < to_start:
        message = f"free instances of the plan: {plan.available}; needed to start: {to_start}"
        yield error(where, message)
    if plan.spare == 0:
        yield warning(where, "the plan has no spare instance: a replacement waits until one is repaired")


@check("plan-zone", Area.ACCOUNT, "botocore, DescribeTrainingPlan")
def _zone(plan: PlanFacts, where: str, subnets: list[SubnetFacts]) -> Iterator[Finding]:
    """Its zone is among the group's subnets'.

    Reserved capacity cannot be used elsewhere.
    """
    reserved = {reservation.zone_id or reservation.zone for reservation in plan.reservations} - {""}
    if not subnets or not reserved:
        return
    if not any(subnet.zone_id in reserved or subnet.zone in reserved for subnet in subnets):
        has = listed(sorted({f"{subnet.zone_id} ({subnet.id})" for subnet in subnets}))
        yield error(where, f"the plan's capacity is in {listed(sorted(reserved))}, the subnets are in {has}")


@check("quota", Area.ACCOUNT, "Service Quotas")
def quota_findings(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """The quotas for clusters and for network interfaces allow what is to start.

    Creation stops half-way.
    """
    wanted: dict[str, tuple[int, str]] = {}
    for group in subject.groups:
        if group.plan is None and group.to_start and len(group.types) == 1:
            count, where = wanted.get(group.types[0], (0, subject.path(f"{group.at}.InstanceCount")))
            wanted[group.types[0]] = (count + group.to_start, where)
    if isinstance(facts.quotas, NotInspected):
        if wanted:
            yield unknown(subject.path("InstanceGroups"), f"quotas were not looked at: {facts.quotas.why}")
        return
    for name, (count, where) in wanted.items():
        quota = facts.quotas.get(QUOTA_NAME.format(name))
        if quota is None:
            yield unknown(where, f"Service Quotas names no quota '{QUOTA_NAME.format(name)}'")
        elif quota < count:
            yield error(where, f"{count} × {name} are to be started; the quota for clusters is {quota:g}")
    cards = [
        (facts.types.get(name), group.to_start or 0) for group in subject.groups for name in group.types[:1]
    ]  # one interface per network card and instance
    needed = sum((known.cards or 0) * count for known, count in cards if isinstance(known, TypeFacts))
    limit = facts.quotas.get(INTERFACES_QUOTA)
    if limit is not None and needed > limit:
        where = subject.path("InstanceGroups")
        yield error(where, f"{needed} network interfaces are needed; '{INTERFACES_QUOTA}' is {limit:g}")


def shown(moment: datetime | None) -> str:
    """A moment in a sentence."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if moment is not None else "?"
