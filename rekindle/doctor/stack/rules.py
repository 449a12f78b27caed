"""Rekindle's own stack: what was read of it, and what is wrong with it. Pure: `now` is handed in.

What must be there is what CloudFormation says the stack has made; nothing is listed here a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rekindle.doctor.base.checks import Area, check
from rekindle.doctor.base.facts import NOT_ASKED, Found, Missing, NotInspected, Read
from rekindle.doctor.base.findings import Finding, counted, error, listed, quoted, unknown, warning

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
    yield from stack_status(stack, label)
    if isinstance(stack, StackFacts):
        for examine in (_rules, _events, _functions, _mappings, _sweep, _queues, _alarms, _people, _roles):
            yield from examine(stack, label)
        yield from bucket_findings(label, stack.buckets)


@check("stack", Area.STACK, "CloudFormation user guide, stack status codes")
def stack_status(stack: Found[StackFacts], label: str) -> Iterator[Finding]:
    """The stack is there, and its last change ended well.

    An incomplete stack does not protect Jobs, and reports no error.
    """
    match stack:
        case Missing():
            yield error(label, "there is no such stack in this account and region (rekindle stack deploy; --stack)")
        case NotInspected(why):
            yield unknown(label, f"the stack was not looked at: {why}")
        case StackFacts():
            yield from _status(stack, label)
            if not (stack.rules and stack.functions and stack.alarms):
                text = "lacks rules, functions or alarms of Rekindle's: is it the right one (--stack), and whole?"
                yield error(label, text)


def _lost(where: str, lost: Missing | NotInspected, *, gone: str, what: str) -> Finding:
    """The finding about a part that was not checked further: `gone` if it is, else that `what` was not read."""
    if isinstance(lost, Missing):
        return error(where, gone)
    return unknown(where, f"{what} was not looked at: {lost.why}")


def _status(stack: StackFacts, label: str) -> Iterator[Finding]:
    text = f": {quoted(stack.reason, 200)}" if stack.reason else ""
    if stack.status in _SETTLED:
        return
    if stack.status in _HALF:
        yield warning(label, f"is {stack.status}: the last update failed and was undone{text}")
    elif stack.status.endswith("_IN_PROGRESS"):
        yield warning(label, f"is {stack.status}: it is being changed now")
    else:
        yield error(label, f"is {stack.status}{text}")


@check("stack-rules", Area.STACK, "EventBridge API, DescribeRule, ListTargetsByRule")
def _rules(stack: StackFacts, label: str) -> Iterator[Finding]:
    """Every rule of the stack is there, ENABLED, and has its target.

    A disabled rule drops every event silently.
    """
    for name, found in stack.rules.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(where, lost, gone="the rule has been deleted: its events are lost", what="the rule")
            case RuleFacts() as rule:
                if not rule.enabled:
                    yield error(where, "the rule is switched off: its events are lost")
                if rule.targets == 0:
                    yield error(where, "the rule has no target: its events are lost")


@check("stack-events", Area.STACK, "EventBridge user guide, eb-monitoring")
def _events(stack: StackFacts, label: str) -> Iterator[Finding]:
    """What each rule has matched, and failed to deliver, in 7 days.

    An event that could not be delivered is lost after a day.
    """
    for name, rule in stack.rules.items():
        if isinstance(rule, RuleFacts) and not rule.is_schedule:
            yield from _delivery(rule, f"{label}:{name}")


def _delivery(rule: RuleFacts, where: str) -> Iterator[Finding]:
    if isinstance(rule.failed, NotInspected) or isinstance(rule.matched, NotInspected):
        why = rule.failed.why if isinstance(rule.failed, NotInspected) else ""
        yield unknown(where, f"whether events arrive was not looked at: {why or 'no metrics'}")
        return
    if rule.failed > 0:
        text = f"{counted(rule.failed, 'event')} of {EVENT_DAYS} days could not be handed to the function"
        yield error(where, f"{text}; those that waited for a day are in the failures queue")
    elif rule.matched == 0:
        text = f"no event has come in {EVENT_DAYS} days, which proves nothing: `rekindle drill` and a test event do"
        yield unknown(where, text)


@check("stack-functions", Area.STACK, "Lambda API, GetFunction")
def _functions(stack: StackFacts, label: str) -> Iterator[Finding]:
    """Every function is Active, its last update went well, its concurrency is not 0; no errors of late.

    A function that cannot start fails every event it gets.
    """
    for name, found in stack.functions.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(where, lost, gone="the function has been deleted", what="the function")
            case FunctionFacts() as function:
                why = f": {quoted(function.reason, 200)}" if function.reason else ""
                if function.state not in ("Active", "Pending", "Inactive", ""):  # Inactive: idle for long; it wakes up
                    yield error(where, f"the function is {function.state}{why}")
                if function.update == "Failed":
                    yield error(where, f"its last update failed{why}")
                if function.reserved == 0:
                    yield error(where, "its reserved concurrency is 0: it never runs")
                if not isinstance(function.errors, NotInspected) and function.errors > 0:
                    text = f"it failed {counted(function.errors, 'time')} in {ERROR_HOURS} hours"
                    text += " (docs/runbook/function-errors.md)"
                    yield warning(where, text)


@check("stack-mappings", Area.STACK, "Lambda API, GetEventSourceMapping")
def _mappings(stack: StackFacts, label: str) -> Iterator[Finding]:
    """Every queue that feeds a function is Enabled.

    Messages behind a disabled mapping are not processed.
    """
    for name, found in stack.mappings.items():
        where = f"{label}:{name}"
        match found:
            case Missing():
                yield error(where, "the queue feeds no function any more")
            case NotInspected(why):
                yield unknown(where, f"was not looked at: {why}")
            case state if state not in ("Enabled", "Enabling", "Creating", "Updating"):
                yield error(where, f"is {state}: what waits in its queue is delivered to no one")


@check("stack-sweep", Area.STACK, "CloudWatch, AWS/Lambda Invocations")
def _sweep(stack: StackFacts, label: str) -> Iterator[Finding]:
    """The sweep has run in the last 15 minutes.

    Only the sweep finds faults whose events were lost.
    """
    where = f"{label}:{SWEEP}"
    if isinstance(stack.sweeps, NotInspected):
        yield unknown(where, f"whether it runs was not looked at: {stack.sweeps.why}")
    elif stack.sweeps == 0:
        yield error(where, f"it has not run in {SWEEP_MINUTES} minutes (docs/runbook/sweep-silent.md)")


@check("stack-queues", Area.STACK, "SQS API, GetQueueAttributes")
def _queues(stack: StackFacts, label: str) -> Iterator[Finding]:
    """Queues of what could not be read, delivered or sent are empty.

    Each message is an event or a notification that was not processed.
    """
    for name, found in stack.queues.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(where, lost, gone="the queue has been deleted", what="the queue")
            case int(count) if count and any(word in name for word in TROUBLE_QUEUES):
                reported = {
                    "QuarantineQueue": "rekindle dead-letters events list",
                    "UndeliveredQueue": "rekindle dead-letters notices list",
                }
                how = reported.get(name, "docs/runbook")
                yield warning(where, f"{counted(count, 'message')} there: each is something that failed ({how})")


@check("stack-alarms", Area.STACK, "CloudWatch API, DescribeAlarms")
def _alarms(stack: StackFacts, label: str) -> Iterator[Finding]:
    """Every alarm on Rekindle itself exists, is enabled, has a subscriber, and is not in ALARM.

    Otherwise a failure of Rekindle itself goes unnoticed.
    """
    for name, found in stack.alarms.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(where, lost, gone="the alarm has been deleted", what="the alarm")
            case AlarmFacts() as alarm:
                if alarm.state == "ALARM":
                    yield error(where, f"is in ALARM: {quoted(alarm.reason, 200)}")
                if not alarm.may_act or alarm.actions == 0:
                    yield warning(where, "notifies no one: its actions are off, or it has none")


@check("stack-people", Area.STACK, "SNS API, ListSubscriptionsByTopic; docs/notifications.md")
def _people(stack: StackFacts, label: str) -> Iterator[Finding]:
    """Notifications have a receiver: a confirmed subscription, or a channel whose secrets exist.

    A page without a receiver is lost.
    """
    where = f"{label}:channels"
    if isinstance(stack.people, NotInspected):
        yield unknown(where, f"who is notified was not checked: {stack.people.why}")
        return
    people = stack.people
    if people.unreadable:
        yield error(where, f"the document of channels cannot be used: {people.unreadable}")
    if people.missing_secrets:
        yield error(where, f"secrets that a channel names do not exist: {listed(people.missing_secrets)}")
    if people.pending:
        yield warning(f"{label}:topic", f"{counted(people.pending, 'subscription')} not confirmed yet")
    if people.confirmed == 0 and people.channels == 0:
        text = "no one is notified: subscribe an address (NoticeEmail) or set up a channel (docs/notifications.md)"
        yield warning(where, text)


@check("stack-buckets", Area.STACK, "S3 API, ListObjectsV2")
def bucket_findings(label: str, buckets: Mapping[str, Found[bool]]) -> Iterator[Finding]:
    """Buckets of mailboxes exist.

    A run without its bucket cannot be asked for a checkpoint.
    """
    for name, found in buckets.items():
        where = f"{label}:s3://{name}"
        match found:
            case Missing():
                yield error(where, "the bucket does not exist")
            case NotInspected(why):
                yield unknown(where, f"was not looked at: {why}")


@check("stack-permissions", Area.STACK, "IAM API, SimulatePrincipalPolicy")
def _roles(stack: StackFacts, label: str) -> Iterator[Finding]:
    """No boundary, organization policy or Deny removes what the functions' own policies grant.

    Otherwise a recovery fails halfway.
    """
    for name, found in stack.roles.items():
        where = f"{label}:{name}"
        match found:
            case Missing() | NotInspected() as lost:
                yield _lost(where, lost, gone="the function's role has been deleted", what="what it may do")
            case tuple() as denied if denied:
                text = (
                    f"its policy grants {listed(denied)}, and something else denies it (boundary, organization, Deny)"
                )
                yield error(where, text)
