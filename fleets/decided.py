"""What Rekindle does about a failure, by its own decision: each kind is played once through `decide()`. Pure.

The world is the drills' (`DrillWorld`), on HyperPod with Slurm: whatever is ordered succeeds, and stopping, saving and
starting take what they are given here. So a change of a rule, of a playbook's row or of a wait shows in every figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from chalicelib.domain.decide import decide
from chalicelib.domain.drills.catalogue import DrillRow, StageTimes, drill_for
from chalicelib.domain.drills.world import DrillWorld
from chalicelib.domain.fault_specs.faults import NODE_FAULTS
from chalicelib.domain.fault_specs.spec import Effect
from chalicelib.domain.model.action import Action, ActionResult, CordonNode, Notify, ReportNode, ResubmitJob, Severity
from chalicelib.domain.model.evidence import Need, Suspicion, SuspicionKind
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import NodesSeen
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, JobRecord, Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.start_view import StartState, StartView
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.platforms.slurm.platform import SLURM
from fleets.causes import Symptom
from rekindle.detectors.rank_rules import STRONG
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.signals import FaultClass

BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)  # of the play; no decision depends on the date
ATTEMPT: Final = "slurm.fleet.1"
NODES: Final = tuple(f"ip-10-0-0-{number}" for number in range(1, 5))
BAD: Final = NODES[0]
STEP: Final = 100_000  # where the failure strikes
SAVED_EVERY: Final = 100  # steps
SAVED: Final = 40  # checkpoints that are kept
MAX_LOOKS: Final = 5000
LOOK: Final = timedelta(seconds=1)  # the engine waits whole seconds, at least one

# The drill that stands for each kind of failure.
_DRILL: Final[Mapping[Symptom, FaultClass]] = {
    Symptom.CRASH: FaultClass.SOFTWARE_CRASH,
    Symptom.NODE_CRASH: FaultClass.NODE_HARDWARE,
    Symptom.NODE_GONE: FaultClass.NODE_LOST,
    Symptom.HANG: FaultClass.HANG,
    Symptom.NON_FINITE: FaultClass.NON_FINITE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seconds that the platform and the run themselves need; a step's length."""

    save_s: float
    stop_s: float
    start_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayResult:
    """What decide() did about one failure, from the Signal on.

    `down_s`: from then until the new attempt trains. `cordons`: the broken node is kept out of the next attempt.
    `recovers`: closed as recovered. `pages`: notifications at level page.
    """

    recovers: bool
    restarts: int
    down_s: float
    cordons: bool
    pages: int
    rules: tuple[str, ...]


@lru_cache(maxsize=256)
def played(
    shows: Symptom,
    stages: Stages,
    *,
    monitored: bool,
    names_node: bool = False,
    dies_again: bool = False,
    policy: Policy = DEFAULT_POLICY,
) -> PlayResult:
    """Play one failure until its Incident closes.

    `names_node`: the broken node stands in the evidence: the health agent names it, Slurm lost it, or a hung run's
    ranks point at it. `monitored`: the run has a monitor; else neither its steps nor its saves can be asked for.
    `dies_again`: so does every new attempt, before it has gained a step.
    """
    row = _row(shows, monitored=monitored)
    if dies_again:
        row = replace(row, effect=Effect.DIES_AGAIN)
    return _Play(shows, row, stages, monitored=monitored, names_node=names_node, policy=policy).run()


class _Play:
    def __init__(
        self, shows: Symptom, row: DrillRow, stages: Stages, *, monitored: bool, names_node: bool, policy: Policy
    ) -> None:
        self.shows, self.stages, self.monitored, self.policy = shows, stages, monitored, policy
        self.names_node = names_node
        self.row = row
        run = _running(stages.step_s) if monitored else _unseen(_running(stages.step_s))
        stage_times = StageTimes(
            save_s=Known(stages.save_s), stop_s=Known(stages.stop_s), start_s=Known(stages.start_s), recoveries=1
        )
        self.world = DrillWorld.begin(self.row, run, stage_times, now=BEGAN)
        self.incident = Incident(
            incident_id="fleet",
            job_id="fleet",
            cluster=None,
            opened_at=BEGAN,
            phase=Phase.OPEN,
            phase_entered_at=BEGAN,
            attempt=ATTEMPT,
            attempt_number=1,
        )
        self.ordered: list[ResubmitJob] = []
        self.actions: list[Action] = []
        self.rules: list[str] = []
        self.trains_at: datetime | None = None  # of the newest attempt

    def run(self) -> PlayResult:
        now = BEGAN
        news: tuple[Signal, ...] = self._signals()
        results: tuple[ActionResult, ...] = ()
        for _ in range(MAX_LOOKS):
            seen = self._seen(now, news, results)
            decision = decide(self.incident, seen, now=now, policy=self.policy)
            self.incident, news = decision.incident, ()
            if not self.rules or self.rules[-1] != decision.rule:
                self.rules.append(decision.rule)
            self.actions += decision.actions
            self.ordered += [action for action in decision.actions if isinstance(action, ResubmitJob)]
            results = self.world.act(decision.actions, now)
            self._note(now)
            if decision.look_again_in is None:
                break
            now = self._next(now, decision.look_again_in)
        return self._result(now)

    def _next(self, now: datetime, again: timedelta) -> datetime:
        """The time of the next observation, or of what wakes it earlier."""
        wait = max(timedelta(seconds=round(again.total_seconds())), LOOK) if again > timedelta(0) else timedelta(0)
        event = self.world.next_event(now)
        return min(now + wait, event) if event is not None else now + wait

    def _note(self, now: datetime) -> None:
        run = self.world.view(now)
        if run.name != ATTEMPT and run.status is AttemptStatus.RUNNING and self.trains_at is None:
            self.trains_at = self.world.since

    def _result(self, now: datetime) -> PlayResult:
        recovers = self.incident.phase is Phase.RECOVERED
        # What has not been seen to recover may train all the same, unseen; what dies again does not.
        trains_at = now if self.trains_at is None or self.row.effect is Effect.DIES_AGAIN else self.trains_at
        pages = sum(isinstance(action, Notify) and action.severity is Severity.PAGE for action in self.actions)
        named = any(isinstance(action, CordonNode | ReportNode) and action.node == BAD for action in self.actions)
        return PlayResult(
            recovers=recovers,
            restarts=len(self.ordered),
            down_s=(trains_at - BEGAN).total_seconds(),
            cordons=named or (bool(self.ordered) and BAD in self.ordered[0].exclude),
            pages=pages,
            rules=tuple(self.rules),
        )

    # --- what it sees ---

    def _signals(self) -> tuple[Signal, ...]:
        row = self.row
        evidence: dict[str, object] = {}
        if row.effect in (Effect.FREEZES, Effect.NAN):
            evidence |= {"step": STEP, "onset_step": STEP}
        node = BAD if self.names_node and row.fault in NODE_FAULTS else None
        is_ended = row.effect in (Effect.DIES, Effect.DIES_AGAIN)
        ended = Signal(
            kind=SignalKind.ATTEMPT_STATE,
            source=SignalSource.AGENT,
            occurred_at=BEGAN,
            dedupe_key="fleet:ended",
            summary=row.reason_there or row.failure_reason or "the job has failed",
            job_id="fleet",
            attempt=ATTEMPT,
            cluster="fleet",
            fault=FaultClass.NODE_LOST if self.shows is Symptom.NODE_GONE else FaultClass.SOFTWARE_CRASH,
        )
        named = Signal(
            kind=row.kind,
            source=row.by if row.kind is not SignalKind.ATTEMPT_STATE else SignalSource.AGENT,
            occurred_at=BEGAN,
            dedupe_key="fleet:fault",
            summary=row.text,
            job_id="fleet",
            attempt=ATTEMPT,
            cluster="fleet",
            node=node,
            fault=row.signal_fault,
            evidence=evidence,
        )
        return (named, ended) if is_ended and row.kind is not SignalKind.ATTEMPT_STATE else (named,)

    def _seen(self, now: datetime, news: tuple[Signal, ...], results: tuple[ActionResult, ...]) -> Observation:
        world, incident = self.world, self.incident
        view = world.view(now)
        reply: Maybe[object] = Unknown("nothing asked")
        if incident.halt.ask is not None and incident.halt.ask.outcome is None:
            reply = world.answer(now)
        wants = (
            incident.phase is Phase.RESUBMITTING or view.status.has_ended or Need.CHECKPOINTS in incident.evidence.needs
        )
        found: Maybe[tuple[CheckpointView, ...]] = Unknown("not needed yet")
        if wants:
            found = Known(tuple(sorted((*world.saved, *_SAVED), key=lambda checkpoint: checkpoint.step, reverse=True)))
        return Observation(
            observed_at=now,
            has_job=True,
            paused=False,
            job_name="fleet",
            attempt=Known(view),
            successor=Known(world.successor) if world.successor is not None else Unknown("none that is known"),
            checkpoints=found,
            reply=reply,  # type: ignore[arg-type]  # DrillWorld's answer is a Maybe of a reply
            suspicion=self._suspicion(view),
            new_signals=news,
            next_number=2 + world.started,
            record=JobRecord(best_before=Known(0)),
            current=view.name if world.started else ATTEMPT,
            nodes=Known(NodesSeen(facts=self._nodes(), total=len(NODES))),
            results=results,
            node_count=Known(len(NODES)),
            platform=SLURM,
            cluster="fleet",
        )

    def _suspicion(self, view: AttemptView) -> Maybe[Suspicion]:
        if not self.monitored:
            return Unknown("no rank reports")
        points = self.names_node and self.shows is Symptom.HANG and view.name == ATTEMPT
        return Known(
            Suspicion(
                attempt=view.name,
                kind=SuspicionKind.HANG if self.shows is Symptom.HANG else SuspicionKind.NON_FINITE,
                rule="minority" if points else "unknown",
                text="one rank does not wait for the others" if points else "the ranks point at none of them",
                ranks=(0,) if points else (),
                hosts=(BAD,) if points else (),
                confidence=STRONG if points else 0.0,
                reports=len(NODES) - points,  # the suspect is stuck, and mute: its report is waited for in vain
                world_size=len(NODES),
            )
        )

    def _nodes(self) -> tuple[NodeFacts, ...]:
        down = self.shows is Symptom.NODE_GONE and self.names_node
        cordoned = any(isinstance(action, CordonNode) for action in self.actions)
        flags = ("drain",) if cordoned else ()
        bad = NodeFacts(
            name=BAD, state="down" if down else "idle", flags=flags, reason="Not responding" if down else ""
        )
        return (bad, *(NodeFacts(name=name, state="idle") for name in NODES[1:]))


def _row(shows: Symptom, *, monitored: bool) -> DrillRow:
    row = drill_for(_DRILL[shows].value)
    if shows is Symptom.NODE_CRASH:
        return replace(row, effect=Effect.DIES, reason_there="Slurm FAILED: exit code: 1")
    if not monitored and shows in (Symptom.HANG, Symptom.NON_FINITE):
        # Nothing in the run tells of it: it ends by the collective's own time-out, or by a person's order to stop.
        return drill_for(FaultClass.SOFTWARE_CRASH.value)
    return row


def _running(step_s: float) -> AttemptView:
    return AttemptView(
        name=ATTEMPT,
        status=AttemptStatus.RUNNING,
        first_step=Known(1),
        last_step=Known(STEP),
        heartbeat_at=BEGAN,
        loss_state="finite",
        work="training",
        step_s=step_s,
        loss_health="ok",
        start=StartView(
            handle="1",
            state=StartState.RUNNING,
            nodes=NODES,
            is_requeueable=True,
            has_spec=True,
            has_mailbox=True,
            node_count=len(NODES),
        ),
    )


def _unseen(run: AttemptView) -> AttemptView:
    """The same without a monitor: no heartbeat tells anything."""
    nothing: Maybe[int] = Unknown("no heartbeat")
    return replace(
        run,
        first_step=nothing,
        last_step=nothing,
        heartbeat_at=None,
        loss_state="none",
        work="",
        step_s=None,
        loss_health="unknown",
    )


_SAVED: Final = tuple(
    CheckpointView(
        step=STEP - 1 - number * SAVED_EVERY,
        root=f"/checkpoints/step-{STEP - 1 - number * SAVED_EVERY}",
        manifest=f"/checkpoints/step-{STEP - 1 - number * SAVED_EVERY}/manifest.json",
        attempt=ATTEMPT,
        kind="periodic",
        saved_at=BEGAN - timedelta(seconds=10 + number * 1000),
    )
    for number in range(SAVED)
)
