"""What a rule takes and returns: the inputs of one observation, the Decision, and their wording for people."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from chalicelib.domain.decision.reported import suspects_text, text_of_loss_reports
from chalicelib.domain.fault_specs.faults import NODE_FAULTS
from chalicelib.domain.model.action import Action, ActionResult, Done, Notify, Severity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.platform import Platform
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.cluster.names import parse_attempt

if TYPE_CHECKING:
    from chalicelib.domain.policy.document import Policy

PAUSED: Final = "a global pause is set: nothing is done, and no limit runs, until `rekindle switches unpause`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict on one observation.

    `incident` is the Incident as it shall be recorded, before the Actions are carried out.
    `look_again_in` is None exactly when the Incident is closed; zero means at once.
    """

    rule: str
    reason: str
    incident: Incident
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None
    policy_version: str

    def __post_init__(self) -> None:
        if (self.look_again_in is None) == self.incident.is_open:
            raise ValueError(f"{self.rule}: an open Incident needs a next observation, a closed one has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """One call's inputs, so that rules take one argument.

    `incident` is the Incident as the rules see it: with what was observed, and as if the time had not passed in which
    a guard has held its next step back. `base` is the same with that time, and `before` the Incident as it was recorded
    before this observation.
    """

    incident: Incident
    base: Incident
    before: Incident
    seen: Observation
    now: datetime
    policy: Policy

    @classmethod
    def of(cls, incident: Incident, seen: Observation, *, now: datetime, policy: Policy) -> RuleContext:
        """The context of an Incident as it is recorded, before anything is noted."""
        return cls(incident=incident, base=incident, before=incident, seen=seen, now=now, policy=policy)

    @property
    def attempt(self) -> AttemptView | None:
        """The attempt under care; None while it cannot be read."""
        return self.seen.attempt.value if isinstance(self.seen.attempt, Known) else None

    @property
    def attempt_seen(self) -> AttemptView:
        """The attempt under care, for rules that stand below the one for an attempt that cannot be read.

        Raises:
            ValueError: it cannot be read.
        """
        if not isinstance(self.seen.attempt, Known):
            raise ValueError(f"the attempt cannot be read: {self.seen.attempt.why}")  # noqa: TRY004  no matter of type
        return self.seen.attempt.value

    @property
    def platform(self) -> Platform:
        """What the run's platform can do."""
        return self.seen.platform

    @property
    def in_phase(self) -> timedelta:
        """How long the Incident has been in its phase."""
        return self.now - self.incident.phase_entered_at

    @property
    def in_state(self) -> timedelta:
        """How long the attempt has been in the state it is seen in."""
        return self.now - (self.incident.tracking.seen_since or self.now)

    @property
    def unseen_for(self) -> timedelta:
        """How long the attempt could not be read."""
        return self.now - (self.incident.tracking.unseen_since or self.now)

    @property
    def ordered(self) -> str | None:
        """What an operator ordered and is not carried out yet."""
        order = self.incident.order
        return None if order is None or self.incident.resubmission.tries else str(order.get("do"))

    def has_ended(self, attempt: AttemptView) -> bool:
        """True once it will not run again. One answer "never heard of it" is not yet proof (SkyPilot #10162)."""
        if attempt.status is AttemptStatus.GONE and self.in_state < self.policy.timing.look_max:
            return False
        return attempt.status.has_ended

    def wait(self, *, until: datetime | None = None) -> timedelta:
        """The wait until the next observation: the phase's age so far, within the policy's bounds, at most `until`.

        New signals wake the Incident at once; this timer only covers signals that got lost.
        """
        interval = min(max(self.in_phase, self.policy.timing.look_min), self.policy.timing.look_max)
        if until is not None:
            interval = min(interval, max(until - self.now, timedelta(0)))
        return interval

    def changed(self, **changes: object) -> RuleContext:
        """The same look on an Incident with `changes`, as `Incident.changed` takes them."""
        if not changes:
            return self
        return dataclasses.replace(self, incident=self.incident.changed(**changes))

    def is_told(self, key: str) -> bool:
        """People were told what `key` names, and are not told it again in this Incident."""
        return key in self.incident.tracking.told

    def with_told(self, key: str) -> RuleContext:
        """The same, and recorded that people are told what `key` names."""
        return self if self.is_told(key) else self.changed(told=(*self.incident.tracking.told, key))

    def stay(
        self, rule: str, reason: str, *actions: Action, until: datetime | None = None, **changes: object
    ) -> Decision:
        """Nothing moves; look again later."""
        return self.decided(rule, reason, self.changed(**changes).incident, actions, self.wait(until=until))

    def move(
        self, rule: str, reason: str, phase: Phase, *actions: Action, at_once: bool = False, **changes: object
    ) -> Decision:
        """Enter `phase`."""
        incident = self.changed(**changes).incident.enter(phase, now=self.now)
        return self.decided(rule, reason, incident, actions, timedelta(0) if at_once else self.policy.timing.look_min)

    def unread(
        self, rule: str, limit_rule: str, reason: str, waited: timedelta, *actions: Action, **changes: object
    ) -> Decision:
        """A source that must be read cannot be, perhaps by an outage of ours: wait as for capacity, and notify.

        A page at `stop_limit`, once in an Incident however often the source comes and goes; handed over under
        `limit_rule` at `capacity_limit`.
        """
        if waited >= self.policy.resubmission.capacity_limit:
            return self.changed(**changes).hand_over(limit_rule, f"{reason}, for {span_word(waited)}")
        if waited < self.policy.timing.stop_limit or self.is_told(rule):
            return self.changed(**changes).stay(rule, reason, *actions)
        text = (
            f"{reason}, for {span_word(waited)}. Nothing is given up: Rekindle continues as soon as it can read again."
        )
        page = Notify(severity=Severity.PAGE, title=f"{subject(self)}: cannot be looked at", text=text)
        return self.with_told(rule).changed(**changes).stay(rule, reason, *actions, page)

    def close(self, rule: str, reason: str, phase: Phase, *actions: Action, severity: Severity | None) -> Decision:
        """End the Incident and tell people. `severity` None: they were told all of it before, and hear of the end only
        what is left for them to do.
        """
        incident = dataclasses.replace(self.incident, outcome=rule).enter(phase, now=self.now)
        more = suspects_text(self.incident) + hold_text(self)
        more += cordons_text(self) if phase is not Phase.RECOVERED else ""
        reported = text_of_loss_reports(self.incident)
        if reported and severity in (Severity.INFO, None):
            severity = Severity.WARNING
        more += reported
        if more:
            reason = (reason if reason.endswith((".", "!", "?")) else f"{reason}.") + more
            severity = severity or Severity.INFO
        if severity is None:
            return self.decided(rule, reason, incident, actions, None)
        notice = Notify(
            severity=severity, title=f"{subject(self)}: {_WORDS[phase]}", text=reason, alike=_alike(self, rule)
        )
        return self.decided(rule, reason, incident, (*actions, notice), None)

    def hand_over(self, rule: str, reason: str, *, severity: Severity = Severity.PAGE) -> Decision:
        """A person decides from here on."""
        return self.close(rule, reason, Phase.HANDED_OVER, severity=severity)

    def decided(
        self, rule: str, reason: str, incident: Incident, actions: tuple[Action, ...], again: timedelta | None
    ) -> Decision:
        """The Decision, with the policy version of this observation."""
        return Decision(
            rule=rule,
            reason=reason,
            incident=incident,
            actions=actions,
            look_again_in=again,
            policy_version=self.policy.version,
        )


_WORDS = {Phase.RECOVERED: "recovered", Phase.STOPPED: "closed", Phase.HANDED_OVER: "needs a person"}


def _alike(context: RuleContext, rule: str) -> str:
    """What ends of several runs have in common that have one cause: the words of their failures, or one open breaker.

    Equal words of failing hardware are each a node's own.
    """
    failures = context.incident.resubmission.failures
    if rule.startswith("guard.denied") and context.seen.breaker is not None:
        return rule
    if context.incident.fault in NODE_FAULTS or not failures or failures[-1].attempt != context.incident.attempt:
        return ""
    return f"{rule}: {failures[-1].signature}" if failures[-1].signature else ""


def has_passed(step: Maybe[int], target: Maybe[int]) -> bool:
    """True only if both are known."""
    return isinstance(step, Known) and isinstance(target, Known) and step.value > target.value


def hold_text(context: RuleContext) -> str:
    """Wording for notices: a job that we put back into the queue is held there until a person releases it."""
    attempt, incident = context.attempt, context.incident
    if not incident.halt.stop_hold or not incident.halt.stopped_attempts:
        return ""
    is_between = incident.phase in (Phase.STOPPING, Phase.RESUBMITTING)  # after it a start of ours, or theirs, is there
    title = context.platform.title
    if attempt is None or attempt.start is None:
        base = parse_attempt(incident.halt.stopped_attempts[-1]).base if is_between else ""
        job = base if base.isdigit() else "<its job id>"
        return f" Its {title} job may be in the queue, held by us: {_let_go(context, job)}." if is_between else ""
    job, let_go = f"{title} job {attempt.start.handle}", _let_go(context, attempt.start.handle)
    if attempt.name not in incident.halt.stopped_attempts:
        is_ours = is_between and attempt.start.held and attempt.start.is_queued
        return f" {job} is in the queue, held by us: {let_go}." if is_ours else ""
    if not attempt.status.has_ended:
        return f" {job} was ordered to stop, and may wait in the queue afterwards, held by us: {let_go}."
    if attempt.successor is not None:
        after = context.seen.successor.value.start if isinstance(context.seen.successor, Known) else None
        if after is not None and not (after.is_queued and after.held):
            return ""  # a person has released it, or ended it
        return f" {job} is in the queue, held by us: {let_go}."
    if attempt.status is AttemptStatus.COMPLETED or attempt.start.ended_by in (EndedBy.USER, EndedBy.ITSELF):
        return ""
    again = context.platform.again_command.format(id=attempt.start.handle)
    return f" {job} was ended by us: `{again}` starts it again while {title} knows it."


def _let_go(context: RuleContext, job: str) -> str:
    release, end = context.platform.release_command, context.platform.end_command
    return f"`{release.format(id=job)}` lets it go, `{end.format(id=job)}` ends it"


def cordons_text(context: RuleContext) -> str:
    """Wording for handovers: the nodes that this Incident cordoned, and the command that returns one to service."""
    names = [item.node for item in context.incident.resubmission.bad_nodes if item.is_cordoned]
    if not names:
        return ""
    text = f" Cordoned by us: {', '.join(names)}; each has an Incident of its own that gives it back"
    by_hand = context.platform.uncordon_command.format(node=names[0])
    return f"{text}, and by hand `{by_hand}` does." if by_hand else f"{text}."


def is_poisoned(context: RuleContext, attempt: AttemptView) -> bool:
    """Its loss is not finite, by its own heartbeat or a Signal."""
    return attempt.loss_state in ("nan", "inf") or (
        context.incident.is_poisoned and attempt.name == context.incident.attempt
    )


def stop_is_ours(context: RuleContext, attempt: AttemptView) -> bool:
    """We asked for this stop, in this Incident."""
    return attempt.name in context.incident.halt.stopped_attempts


def stopped_after_order(context: RuleContext, attempt: AttemptView) -> timedelta | None:
    """By how much the owner's stop of the attempt is dated after the newest order to resubmit it, negative for before;
    None where there is no such stop or no such order.
    """
    given = [signal.occurred_at for signal in context.incident.signals if signal.kind is SignalKind.ORDER_RESUBMIT]
    if attempt.status is not AttemptStatus.STOPPED or attempt.ended_at is None or not given:
        return None
    return None if stop_is_ours(context, attempt) else attempt.ended_at - max(given)


def newest_signal(signals: tuple[Signal, ...], kind: SignalKind) -> Signal | None:
    """The last to arrive of `kind`."""
    return next((signal for signal in reversed(signals) if signal.kind is kind), None)


def result(context: RuleContext, action: str, *ends: Done) -> ActionResult | None:
    """What the last turn's Action answered, if it ended in one of these ways."""
    return next((item for item in context.seen.results if item.action == action and item.done in ends), None)


def detail(context: RuleContext) -> str:
    """The platform's own reason from the last turn."""
    return next((item.detail for item in context.seen.results if item.detail), "no reason given")


def subject(context: RuleContext) -> str:
    """What the Incident is about, for a title."""
    return context.incident.scope or context.incident.incident_id


def story(context: RuleContext) -> str:
    """One line: the fault, the rule that diagnosed it, and the summary of the Signal behind it."""
    incident = context.incident
    reported = next((signal for signal in reversed(incident.signals) if signal.fault is incident.fault), None)
    if reported is None and incident.signals:
        reported = incident.signals[-1]
    what = reported.summary if reported else "nothing was reported"
    return f"{incident.fault} ({incident.fault_rule or 'no rule'}): {what.rstrip('.')}."


def whole_story(incident: Incident) -> str:
    """Everything known, for the person paged: each attempt's end, where it went bad, the data left out."""
    ends = {item.attempt: item for item in incident.resubmission.failures}
    bad = {item.attempt: item for item in incident.loss.onsets}
    lines = [
        f"{item.attempt} went bad ({item.fault}) at step {step_word(item.step)}" for item in incident.loss.onsets[:1]
    ]
    for item in incident.resubmission.tries:
        line = f"{item.name} resumed at {step_word(item.resume_step)}, ended at {step_word(item.last_step)}"
        if item.name in bad:
            line += f", went bad ({bad[item.name].fault}) at step {step_word(bad[item.name].step)}"
        if item.name in ends and ends[item.name].signature:
            line += f": {ends[item.name].signature[:120]}"
        lines.append(line)
    if incident.loss.skips:
        lines.append("data left out: " + ", ".join(f"steps {w.from_step}-{w.to_step - 1}" for w in incident.loss.skips))
    return "; ".join(lines)[:1500]


def state_of_the_run(context: RuleContext) -> str:
    """How the run is left behind."""
    attempt = context.attempt
    if attempt is None:
        return "the run's state could not be read"
    if attempt.status.has_ended:
        return f"{attempt.name} has ended ({attempt.status}) and nothing was started in its place"
    return f"{attempt.name} is {attempt.status} and left as it is"


def why_unknown(maybe: Maybe[object]) -> str:
    return maybe.why if isinstance(maybe, Unknown) else "known"


def step_word(maybe: Maybe[int]) -> str:
    """A step for people."""
    return str(maybe.value) if isinstance(maybe, Known) else f"unknown ({maybe.why})"


def span_word(span: timedelta) -> str:
    """A duration for people."""
    seconds = span.total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
