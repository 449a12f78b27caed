"""Rekindle's own stack: what was read of it, and what is wrong with it. Pure: `now` is handed in.

What must be there is what CloudFormation says the stack has made; nothing is listed here a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rekindle.doctor.base.facts import NOT_ASKED, Found, Missing, NotInspected, Read
from rekindle.doctor.base.findings import Finding, counted, error, listed, quoted, unknown, warning
from rekindle.doctor.base.ids import Id

SWEEP: Final = "Sweep"  # the logical id of the sweep's function, as Chalice names it
SWEEP_MINUTES: Final = 15
EVENT_DAYS: Final = 7
ERROR_HOURS: Final = 24
# Queues that hold what went wrong, by logical id. The agents' and the deliveries' queues hold work instead.
TROUBLE_QUEUES: Final = ("Quarantine", "Failures", "Dead", "Undelivered")
# Source: CloudFormation user guide, stack status codes.
_SETTLED: Final = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE")
_HALF: Final = ("UPDATE_ROLLBACK_COMPLETE", "IMPORT_ROLLBACK_COMPLETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """One rule. `matched` and `failed` are its events of EVENT_DAYS; None on a schedule."""

    enabled: bool
    targets: int
    is_schedule: bool
    matched: Read[float] = NOT_ASKED
    failed: Read[float] = NOT_ASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """One function. `reserved` is its reserved concurrency, None for none; `errors` those of ERROR_HOURS."""

    state: str
    update: str
    reason: str = ""
    reserved: int | None = None
    errors: Read[float] = NOT_ASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFacts:
    """One alarm."""

    state: str
    may_act: bool
    actions: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleFacts:
    """Who is notified: the topic's subscriptions, confirmed and pending; channels, and secrets that they lack."""

    confirmed: int
    pending: int
    channels: int
    missing_secrets: tuple[str, ...] = ()
    unreadable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """The stack. Mappings are by logical id."""

    name: str
    status: str
    reason: str = ""
    rules: Mapping[str, Found[RuleFacts]] = field(default_factory=dict)
    functions: Mapping[str, Found[FunctionFacts]] = field(default_factory=dict)
    mappings: Mapping[str, Found[str]] = field(default_factory=dict)
    queues: Mapping[str, Found[int]] = field(default_factory=dict)
    alarms: Mapping[str, Found[AlarmFacts]] = field(default_factory=dict)
    sweeps: Read[float] = NOT_ASKED
    people: Read[PeopleFacts] = NOT_ASKED
    buckets: Mapping[str, Found[bool]] = field(default_factory=dict)
    roles: Mapping[str, Found[tuple[str, ...]]] = field(default_factory=dict)


def stack_findings(name: str, stack: Found[StackFacts]) -> Iterator[Finding]:
    """Everything about the stack `name`."""
    label = f"stack {name}"
    match stack:
        case Missing():
            yield error(Id.STACK, label, "there is no such stack in this account and region (make deploy; --stack)")
        case NotInspected(why):
            yield unknown(Id.STACK, label, f"the stack was not looked at: {why}")
        case StackFacts():
            yield from _status(stack, label)
            if not (stack.rules and stack.functions and stack.alarms):
                text = "lacks rules, functions or alarms of Rekindle's: is it the right one (--stack), and whole?"
                yield error(Id.STACK, label, text)
            yield from _rules(stack, label)
            yield from _functions(stack, label)
            yield from _mappings(stack, label)
            yield from _sweep(stack, label)
            yield from _queues(stack, label)
            yield from _alarms(stack, label)
            yield from _people(stack, label)
            yield from bucket_findings(label, stack.buckets)
            yield from _roles(stack, label)


def _lost(check: Id, where: str, lost: Missing | NotInspected, *, gone: str, what: str) -> Finding:
    """The finding about a part that was not checked further: `gone` if it is, else that `what` was not read."""
    if isinstance(lost, Missing):
        return error(check, where, gone)
    return unknown(check, where, f"{what} was not looked at: {lost.why}")


def _status(stack: StackFacts, label: str) -> Iterator[Finding]:
    text = f": {quoted(stack.reason, 200)}" if stack.reason else ""
    if stack.status in _SETTLED:
        return
    if stack.status in _HALF:
        yield warning(Id.STACK, label, f"is {stack.status}: the last update failed and was undone{text}")
    elif stack.status.endswith("_IN_PROGRESS"):
        yield warning(Id.STACK, label, f"is {stack.status}: it is being changed now")
    else:
        yield error(Id.STACK, label, f"is {stack.status}{text}")


def _rules(stack: StackFacts, label: str) -> Iterator[Finding]:
    for name, found in stack.rules.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(
                    Id.STACK_RULES, where, lost, gone="the rule has been deleted: its events are lost", what="the rule"
                )
            case RuleFacts() as rule:
                if not rule.enabled:
                    yield error(Id.STACK_RULES, where, "the rule is switched off: its events are lost")
                if rule.targets == 0:
                    yield error(Id.STACK_RULES, where, "the rule has no target: its events are lost")
                if not rule.is_schedule:
                    yield from _events(rule, where)


def _events(rule: RuleFacts, where: str) -> Iterator[Finding]:
    if isinstance(rule.failed, NotInspected) or isinstance(rule.matched, NotInspected):
        why = rule.failed.why if isinstance(rule.failed, NotInspected) else ""
        yield unknown(Id.STACK_EVENTS, where, f"whether events arrive was not looked at: {why or 'no metrics'}")
        return
    if rule.failed > 0:
        text = f"{counted(rule.failed, 'event')} of {EVENT_DAYS} days could not be handed to the function"
        yield error(Id.STACK_EVENTS, where, f"{text}; those that waited for a day are in the failures queue")
    elif rule.matched == 0:
        text = f"no event has come in {EVENT_DAYS} days, which proves nothing: `rekindle drill` and a test event do"
        yield unknown(Id.STACK_EVENTS, where, text)


def _functions(stack: StackFacts, label: str) -> Iterator[Finding]:
    for name, found in stack.functions.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(Id.STACK_FUNCTIONS, where, lost, gone="the function has been deleted", what="the function")
            case FunctionFacts() as one:
                why = f": {quoted(one.reason, 200)}" if one.reason else ""
                if one.state not in ("Active", "Pending", "Inactive", ""):  # Inactive: idle for long; it wakes up
                    yield error(Id.STACK_FUNCTIONS, where, f"the function is {one.state}{why}")
                if one.update == "Failed":
                    yield error(Id.STACK_FUNCTIONS, where, f"its last update failed{why}")
                if one.reserved == 0:
                    yield error(Id.STACK_FUNCTIONS, where, "its reserved concurrency is 0: it never runs")
                if not isinstance(one.errors, NotInspected) and one.errors > 0:
                    text = f"it failed {counted(one.errors, 'time')} in {ERROR_HOURS} hours"
                    text += " (docs/runbook/function-errors.md)"
                    yield warning(Id.STACK_FUNCTIONS, where, text)


def _mappings(stack: StackFacts, label: str) -> Iterator[Finding]:
    for name, found in stack.mappings.items():
        where = f"{label}:{name}"
        match found:
            case Missing():
                yield error(Id.STACK_MAPPINGS, where, "the queue feeds no function any more")
            case NotInspected(why):
                yield unknown(Id.STACK_MAPPINGS, where, f"was not looked at: {why}")
            case state if state not in ("Enabled", "Enabling", "Creating", "Updating"):
                yield error(Id.STACK_MAPPINGS, where, f"is {state}: what waits in its queue is delivered to no one")


def _sweep(stack: StackFacts, label: str) -> Iterator[Finding]:
    where = f"{label}:{SWEEP}"
    if isinstance(stack.sweeps, NotInspected):
        yield unknown(Id.STACK_SWEEP, where, f"whether it runs was not looked at: {stack.sweeps.why}")
    elif stack.sweeps == 0:
        yield error(Id.STACK_SWEEP, where, f"it has not run in {SWEEP_MINUTES} minutes (docs/runbook/sweep-silent.md)")


def _queues(stack: StackFacts, label: str) -> Iterator[Finding]:
    for name, found in stack.queues.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(Id.STACK_QUEUES, where, lost, gone="the queue has been deleted", what="the queue")
            case int(count) if count and any(word in name for word in TROUBLE_QUEUES):
                reported = {
                    "QuarantineQueue": "rekindle dead-letters events list",
                    "UndeliveredQueue": "rekindle dead-letters notices list",
                }
                how = reported.get(name, "docs/runbook")
                yield warning(
                    Id.STACK_QUEUES, where, f"{counted(count, 'message')} there: each is something that failed ({how})"
                )


def _alarms(stack: StackFacts, label: str) -> Iterator[Finding]:
    for name, found in stack.alarms.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(Id.STACK_ALARMS, where, lost, gone="the alarm has been deleted", what="the alarm")
            case AlarmFacts() as alarm:
                if alarm.state == "ALARM":
                    yield error(Id.STACK_ALARMS, where, f"is in ALARM: {quoted(alarm.reason, 200)}")
                if not alarm.may_act or alarm.actions == 0:
                    yield warning(Id.STACK_ALARMS, where, "notifies no one: its actions are off, or it has none")


def _people(stack: StackFacts, label: str) -> Iterator[Finding]:
    where = f"{label}:channels"
    if isinstance(stack.people, NotInspected):
        yield unknown(Id.STACK_PEOPLE, where, f"who is notified was not checked: {stack.people.why}")
        return
    people = stack.people
    if people.unreadable:
        yield error(Id.STACK_PEOPLE, where, f"the document of channels cannot be used: {people.unreadable}")
    if people.missing_secrets:
        yield error(
            Id.STACK_PEOPLE, where, f"secrets that a channel names do not exist: {listed(people.missing_secrets)}"
        )
    if people.pending:
        yield warning(Id.STACK_PEOPLE, f"{label}:topic", f"{counted(people.pending, 'subscription')} not confirmed yet")
    if people.confirmed == 0 and people.channels == 0:
        text = "no one is notified: subscribe an address (NoticeEmail) or set up a channel (docs/notifications.md)"
        yield warning(Id.STACK_PEOPLE, where, text)


def bucket_findings(label: str, buckets: Mapping[str, Found[bool]]) -> Iterator[Finding]:
    """Buckets in which mailboxes lie, by name: whether they send events about new objects."""
    for name, found in buckets.items():
        where = f"{label}:s3://{name}"
        match found:
            case Missing():
                yield error(Id.STACK_NOTIFICATIONS, where, "the bucket does not exist")
            case NotInspected(why):
                yield unknown(Id.STACK_NOTIFICATIONS, where, f"its notifications were not looked at: {why}")
            case False:
                text = "does not send its events to EventBridge: an answer is seen only at the next observation"
                yield warning(Id.STACK_NOTIFICATIONS, where, text)


def _roles(stack: StackFacts, label: str) -> Iterator[Finding]:
    for name, found in stack.roles.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(
                    Id.STACK_PERMISSIONS,
                    where,
                    lost,
                    gone="the function's role has been deleted",
                    what="what it may do",
                )
            case tuple() as denied if denied:
                text = (
                    f"its policy grants {listed(denied)}, and something else denies it (boundary, organization, Deny)"
                )
                yield error(Id.STACK_PERMISSIONS, where, text)
