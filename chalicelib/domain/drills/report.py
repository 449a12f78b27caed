"""The result of a drill as JSON: each decision, the guards that held, where it resumes, how long it takes.

A duration is Unknown where any part of it had to be assumed, so that no guess is reported as a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from chalicelib.domain.decide import Decision
from chalicelib.domain.drills.catalogue import DrillRow, StageTimes
from chalicelib.domain.drills.world import DRILL_ROOT, DrillWorld
from chalicelib.domain.fault_specs.spec import Effect
from chalicelib.domain.guards.holds import guard_of
from chalicelib.domain.model.action import AskApproval, Notify, ResubmitJob
from chalicelib.domain.model.approvals import Guard, Hold
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown, maybe_to_wire
from chalicelib.domain.model.observation import CheckpointView, Observation
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.resume.resume_point import choose_resume_point
from chalicelib.domain.rules.run.starts import undo_try

MAX_LOOKS_SHOWN: Final = 60
MAX_TEXT: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RealState:
    """What is real in a drill: the Job, its first observation, its policy.

    `row`: the drill of the assumed fault. `stage_times`: medians of the Job's earlier recoveries; `earlier`: how many.
    """

    job: Job
    row: DrillRow
    first: Observation
    policy: Policy
    stage_times: StageTimes
    earlier: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStart:
    """The Incident enters `phase` by `rule`."""

    phase: Phase
    rule: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Resubmission:
    """The first resubmission that the drill decides on, and the checkpoints that it chose from."""

    decision: Decision
    action: ResubmitJob
    checkpoints: Maybe[tuple[CheckpointView, ...]]


@dataclass(slots=True, kw_only=True)
class Play:
    """Records one drill as it is played.

    `looks`: the decisions shown, at most MAX_LOOKS_SHOWN; `left_out` counts the others. `guards`: what held, or would
    have. `asks`: when people would be asked for an approval. `last`: the newest decision.
    """

    began: datetime
    ended: datetime | None = None
    looks: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    guards: list[dict[str, Any]] = field(default_factory=list)
    phases: list[PhaseStart] = field(default_factory=list)
    asks: list[datetime] = field(default_factory=list)
    last: Decision | None = None
    resubmission: Resubmission | None = None
    _previous: tuple[str, Phase] | None = None  # rule and phase of the newest decision shown

    def add_decision(
        self, decision: Decision, *, before: Incident, now: datetime, checkpoints: Maybe[tuple[CheckpointView, ...]]
    ) -> None:
        """Record one decision. `before`: the Incident that it was made for. `checkpoints`: those it was made from."""
        phase = decision.incident.phase
        is_repeated = self._previous == (decision.rule, phase)
        self.last = decision
        self._add_phase(decision, before, now)
        for action in decision.actions:
            if isinstance(action, ResubmitJob) and self.resubmission is None:
                self.resubmission = Resubmission(decision=decision, action=action, checkpoints=checkpoints)
        if not is_repeated:
            self._add_guards_of(decision, now)
        if not is_repeated or decision.actions:
            self._previous = (decision.rule, phase)
            self._add_look(decision, now)

    def _add_phase(self, decision: Decision, before: Incident, now: datetime) -> None:
        if not self.phases:
            self.phases.append(PhaseStart(phase=before.phase, rule=decision.rule, at=now))
        phase = decision.incident.phase
        if self.phases[-1].phase is not phase:
            self.phases.append(PhaseStart(phase=phase, rule=decision.rule, at=now))

    def _add_guards_of(self, decision: Decision, now: datetime) -> None:
        # A drill assumes that people who are asked for an approval give it at once.
        is_asked = any(isinstance(action, AskApproval) for action in decision.actions)
        guard = guard_of(decision.rule)
        if guard is not None:
            self._add_guard(guard, decision.reason, now, lifted=is_asked)

    def _add_look(self, decision: Decision, now: datetime) -> None:
        if len(self.looks) >= MAX_LOOKS_SHOWN:
            self.left_out += 1
            return
        self.looks.append(
            {
                "after_s": self._after(now),
                "phase": decision.incident.phase.value,
                "rule": decision.rule,
                "text": decision.reason[:MAX_TEXT],
                "actions": [_cut(action.to_wire(defaults=True)) for action in decision.actions],
            }
        )

    def add_lifted_guard(self, guard: Guard, decision: Decision, now: datetime) -> None:
        """Record a switch that would hold everything back; the drill continues as if it were off."""
        self._add_guard(guard, decision.reason, now, lifted=True)

    def add_ask(self, now: datetime) -> None:
        """Record that people would be asked now; how long they would take to answer is unknown."""
        self.asks.append(now)

    def _add_guard(self, guard: Guard, text: str, now: datetime, *, lifted: bool) -> None:
        if any(row["guard"] == guard.value and row["text"] == text[:MAX_TEXT] for row in self.guards):
            return
        self.guards.append(
            {"guard": guard.value, "after_s": self._after(now), "text": text[:MAX_TEXT], "lifted": lifted}
        )

    def add_holds(self, holds: tuple[Hold, ...]) -> None:
        """Record the guards that the Incident itself lists, where no rule has reported them."""
        known = {guard["guard"] for guard in self.guards}
        for hold in holds:
            if hold.guard.value not in known:
                self._add_guard(hold.guard, hold.text, hold.since, lifted=False)

    def _after(self, now: datetime) -> float:
        return round((now - self.began).total_seconds(), 1)


def report(seen: RealState, play: Play, world: DrillWorld | None) -> dict[str, Any]:
    """The whole result as JSON. `world`: the assumed run; None where the attempt cannot be read."""
    last = play.last
    if last is not None:
        play.add_holds(last.incident.holds)
    stages = _stages(seen, play, world)
    return {
        "policy": {"name": seen.policy.name, "version": seen.policy.version},
        "seen": _real(seen),
        "outcome": {
            "phase": last.incident.phase.value if last is not None else Phase.OPEN.value,
            "rule": last.rule if last is not None else "",
            "text": last.reason[:MAX_TEXT] if last is not None else "",
            "finished": last is not None and not last.incident.is_open,
        },
        "looks": play.looks,
        "looks_left_out": play.left_out,
        "guards": play.guards,
        "resume": _resume(seen, play, world),
        "stages": stages,
        "total_s": maybe_to_wire(_total(stages)),
        "would_do": _would_do(play),
        "assumptions": _assumptions(seen, play, world),
    }


def _cut(wire: dict[str, Any]) -> dict[str, Any]:
    """The action with its texts cut to MAX_TEXT."""
    return {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in wire.items()}


def _real(seen: RealState) -> dict[str, Any]:
    first = seen.first
    view = first.attempt.value if isinstance(first.attempt, Known) else None
    return {
        "attempt": seen.job.current_attempt,
        "status": maybe_to_wire(
            Known(view.status.value) if view is not None else Unknown(_why(first.attempt, "not read"))
        ),
        "last_step": maybe_to_wire(view.last_step if view is not None else Unknown("the attempt cannot be read")),
        "step_s": maybe_to_wire(
            Known(view.step_s) if view is not None and view.step_s else Unknown("no heartbeat tells its step time")
        ),
        "heartbeat_age_s": maybe_to_wire(
            Known(round((first.observed_at - view.heartbeat_at).total_seconds(), 1))
            if view is not None and view.heartbeat_at is not None
            else Unknown("no heartbeat")
        ),
        "paused": first.paused,
        "open_incident": seen.job.open_incident,
        "earlier_incidents": seen.earlier,
    }


def _stages(seen: RealState, play: Play, world: DrillWorld | None) -> list[dict[str, Any]]:
    """The phases that take time, in order, each with how long it takes and what the policy allows."""
    ended = play.ended or play.began
    stages = []
    ends = [*(start.at for start in play.phases[1:]), ended]
    for start, end in zip(play.phases, ends, strict=False):
        if start.phase.is_terminal or end == start.at:
            continue
        stages.append(
            {
                "phase": start.phase.value,
                "rule": start.rule,
                "after_s": round((start.at - play.began).total_seconds(), 1),
                "seconds": maybe_to_wire(_took(start.phase, start.at, end, play, world)),
                "at_most_s": _at_most(start.phase, seen),
            }
        )
    return stages


def _took(phase: Phase, began: datetime, until: datetime, play: Play, world: DrillWorld | None) -> Maybe[float]:
    """The seconds that a phase takes; Unknown, with the reasons, where any part of it was assumed."""
    whys = [
        guess.why
        for guess in (world.guessed if world is not None else [])
        if guess.began < until and guess.ended > began
    ]
    if any(began <= at < until for at in play.asks):
        whys.append("how long people take to answer")
    is_paced = phase in (Phase.VERIFYING, Phase.WATCHING)
    if is_paced and world is not None and world.run.step_s is None and world.run.heartbeat_at is not None:
        whys.append("how long a step takes: no heartbeat tells")
    return Unknown("; ".join(dict.fromkeys(whys))) if whys else Known(round((until - began).total_seconds(), 1))


def _at_most(phase: Phase, seen: RealState) -> float | None:
    """The seconds that the policy allows before a person is called or the next phase begins; None: no limit."""
    policy = seen.policy
    limits = {
        Phase.CHECKPOINTING: policy.deadline(policy.playbook(seen.row.fault)),
        Phase.STOPPING: policy.timing.stop_limit,
        Phase.VERIFYING: policy.timing.start_limit,
    }
    return limits[phase].total_seconds() if phase in limits else None


def _total(stages: list[dict[str, Any]]) -> Maybe[float]:
    unknown = [str(stage["phase"]) for stage in stages if "unknown" in stage["seconds"]]
    if unknown:
        return Unknown(f"not known for: {', '.join(dict.fromkeys(unknown))}")
    return Known(round(sum(float(stage["seconds"]["known"]) for stage in stages), 1))


def _resume(seen: RealState, play: Play, world: DrillWorld | None) -> dict[str, Any] | None:
    """Where the new attempt would resume, and how many steps would be lost; None where none would be started."""
    if play.resubmission is None:
        return None
    action, checkpoints = play.resubmission.action, play.resubmission.checkpoints
    incident = undo_try(play.resubmission.decision.incident)
    reached = incident.target_step
    struck = _real_step(seen)
    if isinstance(reached, Known) and reached != struck and world is not None and world.guessed:
        reached = Unknown("it trains on for as long as saving and stopping take, which is not known")
    periodic: Maybe[int] = Unknown("the checkpoints cannot be read")
    if isinstance(checkpoints, Known):
        real = tuple(checkpoint for checkpoint in checkpoints.value if not checkpoint.root.startswith(DRILL_ROOT))
        point = choose_resume_point(real, incident, seen.policy)
        periodic = point.step if point is not None else Unknown("no checkpoint that is there may be resumed from")
    is_emergency = (action.resume_root or "").startswith(DRILL_ROOT)
    return {
        "step": maybe_to_wire(action.resume_step),
        "from": "the emergency checkpoint that would be saved" if is_emergency else action.resume_root,
        "emergency": is_emergency,
        "name": action.name,
        "rule": action.why[:MAX_TEXT],
        "skips": [[window.from_step, window.to_step] for window in action.skips],
        "struck_step": maybe_to_wire(struck),
        "reached_step": maybe_to_wire(reached),
        "steps_lost": maybe_to_wire(_gap(reached, action.resume_step)),
        "steps_lost_at_strike": maybe_to_wire(_gap(struck, action.resume_step)),
        "without_emergency": {
            "step": maybe_to_wire(periodic),
            "steps_lost": maybe_to_wire(_gap(reached, periodic)),
            "steps_lost_at_strike": maybe_to_wire(_gap(struck, periodic)),
        },
    }


def _real_step(seen: RealState) -> Maybe[int]:
    """The step that the run had really reached when the fault was assumed to strike."""
    if isinstance(seen.first.attempt, Known):
        return seen.first.attempt.value.last_step
    return Unknown("the attempt cannot be read")


def _gap(reached: Maybe[int], resumed: Maybe[int]) -> Maybe[int]:
    """The steps to be trained again; Unknown where either step is."""
    if isinstance(reached, Unknown):
        return reached
    if isinstance(resumed, Unknown):
        return resumed
    return Known(max(reached.value - resumed.value, 0))


def _would_do(play: Play) -> list[str]:
    """The Actions' names in order, repeated ones once. Notices are left out; they are in `looks`."""
    names: list[str] = []
    for look in play.looks:
        for action in look["actions"]:
            if action["action"] != Notify.__name__ and (not names or names[-1] != action["action"]):
                names.append(str(action["action"]))
    return names


def _assumptions(seen: RealState, play: Play, world: DrillWorld | None) -> list[str]:
    """What the result rests on, a sentence each."""
    first = seen.first
    if world is None:
        return [f"nothing: the attempt cannot be read ({_why(first.attempt, 'no reason')}), and so nothing is assumed"]
    if seen.row.effect is Effect.DIES_AGAIN:
        orders = "whatever is ordered is carried out by the platform; each new attempt dies before it gains a step"
    else:
        orders = "whatever is ordered is carried out by the platform, and no other fault strikes meanwhile"
    lines = [f"the fault strikes now: {seen.row.text}", orders, "the policy stays as it is"]
    times = seen.stage_times
    for what, took_s in (("saving", times.save_s), ("stopping", times.stop_s), ("starting", times.start_s)):
        if isinstance(took_s, Known):
            lines.append(f"{what} takes {took_s.value:.0f} s, the median of this Job's earlier recoveries")
    lines += list(
        dict.fromkeys(f"{guess.why}; a value is assumed so that the play continues" for guess in world.guessed)
    )
    lifted = [str(guard["guard"]) for guard in play.guards if guard["lifted"]]
    lines += [f"continues as though {guard} did not hold it" for guard in dict.fromkeys(lifted)]
    if seen.job.open_incident is not None:
        lines.append(f"{seen.job.open_incident} is open: a real fault would join it instead of opening one")
    return lines


def _why(maybe: Maybe[Any], default: str) -> str:
    return maybe.why if isinstance(maybe, Unknown) else default
