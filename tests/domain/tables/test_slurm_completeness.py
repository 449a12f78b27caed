"""decide() has an answer to everything that Slurm can show, in every phase; nothing of it is waited for without end."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import timedelta

import pytest

from chalicelib.domain.faults.slurm_states import STATUSES, failure_of_end, fault_of_end
from chalicelib.domain.model.action import ActionResult, AdoptAttempt, Done, Notify, ResubmitJob, StopJob
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.start_view import StartView, Submission, Waits
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.run.submission import ROWS, Case, choose
from chalicelib.platforms.slurm.pending_reasons import REASONS, judge
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.signals import FaultClass
from tests.agent_slurm.node_words import recorded
from tests.domain.looks import NOW, checkpoint, decide
from tests.domain.slurm_looks import R0, R1, R2, case, decided, node, node_signal, sees, start, try_of

pytestmark = pytest.mark.long

JOB_PHASES = [
    Phase.OPEN,
    Phase.HOLDING,
    Phase.WATCHING,
    Phase.CHECKPOINTING,
    Phase.STOPPING,
    Phase.RESUBMITTING,
    Phase.VERIFYING,
]
FAULTS = (
    FaultClass.NODE_HARDWARE,
    FaultClass.NODE_LOST,
    FaultClass.HANG,
    FaultClass.SOFTWARE_CRASH,
    FaultClass.NON_FINITE,
    FaultClass.PLANNED_END,
    FaultClass.UNCLEAR,
)
STANDING = (FaultClass.NODE_LOST, FaultClass.UNCLEAR)
POINTS = Known((checkpoint(90, attempt=R0), checkpoint(80, attempt=R0)))


def views(name: str) -> list[AttemptView]:
    after = R2 if name == R1 else R1
    made = [start(status, name, state=state) for state, status in STATUSES.items()]
    for by in EndedBy:
        made.append(start(AttemptStatus.STOPPED, name, state=SlurmState.REQUEUED, requeued_by=by, successor=after))
        made.append(start(AttemptStatus.FAILED, name, state=SlurmState.NODE_FAIL, requeued_by=by, successor=after))
        made.append(start(AttemptStatus.STOPPED, name, ended_by=by))
    made += [start(AttemptStatus.STARTING, name, pending_reason=row.example) for row in REASONS]
    made.append(start(AttemptStatus.RUNNING, name, has_auto_resume=True))
    made.append(start(AttemptStatus.FAILED, name, is_known=False, has_spec=False, cannot_resubmit=("an array job",)))
    made.append(dataclasses.replace(start(AttemptStatus.GONE, name), start=None))
    return made


def observations(phase: Phase) -> list[Observation]:
    name = R1 if phase is Phase.VERIFYING else R0
    after = R2 if name == R1 else R1
    seens = []
    for what, other in itertools.product(
        views(name), (None, AttemptStatus.STARTING, AttemptStatus.RUNNING, AttemptStatus.STOPPED)
    ):
        seens.append(sees(what, after=None if other is None else start(other, after), checkpoints=POINTS))
    down = (node("ip-1"), node("ip-2", "down", "not_responding"))
    news = (node_signal(FaultClass.NODE_LOST, attempt=name),)
    seens += [sees(what, nodes=down, new_signals=news, checkpoints=POINTS) for what in views(name)]
    for action, done in itertools.product(("StopJob", "ResubmitJob", "AdoptAttempt", "CordonNode", "ReportNode"), Done):
        answers = (ActionResult(action=action, done=done, detail="x"),)
        seens += [
            sees(what, results=answers, checkpoints=POINTS)
            for what in (start(name=name), start(AttemptStatus.FAILED, name))
        ]
    return seens


@pytest.mark.parametrize("phase", JOB_PHASES)
def test_every_phase_and_state_has_a_decision(phase: Phase) -> None:
    for fault, what in itertools.product(FAULTS, observations(phase)):
        for pending in (False, True) if phase is Phase.RESUBMITTING else (False,):
            more = {"tries": (try_of(),), "attempt": R1, "attempt_number": 2} if pending else {}
            before = case(phase, fault, **more)
            decision = decided(before, what)
            assert decision.rule
            assert decision.reason
            assert (decision.look_again_in is None) == (not decision.incident.is_open)
            starts = [action for action in decision.actions if isinstance(action, ResubmitJob | AdoptAttempt)]
            stops = [action for action in decision.actions if isinstance(action, StopJob)]
            assert len(starts) <= 1
            # Beside a run that was started by hand, our own start is ended whose order was under way.
            ends_ours = decision.rule in ("resubmit.sibling", "resubmit.goes_on")
            assert not ends_ours or all(pending and stop.attempt == R1 for stop in stops), decision.rule
            assert not (starts and stops) or ends_ours or decision.rule == "adopt.loop", decision.rule
            assert all(start.how is not Submission.CLONE for start in starts if isinstance(start, ResubmitJob))
            if not decision.incident.is_open:
                ends = stops if ends_ours else []
                assert all(isinstance(action, Notify) or action in ends for action in decision.actions), decision.rule


@pytest.mark.parametrize("phase", JOB_PHASES)
def test_what_is_seen_and_decided_survives_the_wire(phase: Phase) -> None:
    for what in observations(phase)[::5]:
        decision = decided(case(phase, FaultClass.NODE_LOST), what)
        assert Incident.from_wire(decision.incident.to_wire()) == decision.incident
        assert Observation.from_wire(what.to_wire()) == what


@pytest.mark.parametrize("phase", JOB_PHASES)
def test_an_incident_in_a_world_that_stands_still_ends(phase: Phase) -> None:
    for fault, view in itertools.product(STANDING, views(R1 if phase is Phase.VERIFYING else R0)):
        before, now, at_once = case(phase, fault, signals=(node_signal(fault),)), NOW, 0
        for _ in range(5000):
            name = before.attempt or R0
            what = dataclasses.replace(view, name=name)
            if what.successor is not None and what.successor == name:
                what = dataclasses.replace(what, successor=None)
            seen = dataclasses.replace(sees(what, checkpoints=POINTS, current=name), observed_at=now)
            decision = decide(before, seen, now=now, policy=DEFAULT_POLICY)
            before = dataclasses.replace(decision.incident, version=before.version + 1)
            if decision.look_again_in is None or any(isinstance(action, ResubmitJob) for action in decision.actions):
                break
            at_once = 0 if decision.look_again_in else at_once + 1
            assert at_once < 10, f"looks at once for ever: {decision.rule}"
            now += max(decision.look_again_in, timedelta(seconds=1))
        else:
            pytest.fail(f"{phase} {fault} {view} never ends: {decision.rule}")


# --- the tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", REASONS, ids=lambda row: row.example or "none")
def test_a_pending_reason_means_what_its_row_says(row: object) -> None:
    assert row in REASONS
    found = judge(row.example)  # type: ignore[attr-defined]
    assert found is row


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        ("", Waits.IN_QUEUE),
        ("None", Waits.IN_QUEUE),
        ("(Priority)", Waits.IN_QUEUE),
        ("AssocGrpNodeLimit", Waits.IN_QUEUE),
        ("QOSGrpGRES", Waits.IN_QUEUE),
        ("QOSMaxJobsPerUserLimit", Waits.IN_QUEUE),
        ("MaxGRESPerAccount", Waits.IN_QUEUE),
        ("QOSMaxGRESPerNode", Waits.NEVER),
        ("QOSMaxWallDurationPerJobLimit", Waits.NEVER),
        ("AssocMaxNodePerJobLimit", Waits.NEVER),
        ("AssocMaxJobsLimit", Waits.IN_QUEUE),
        ("AssocMaxSubmitJobLimit", Waits.IN_QUEUE),
        ("AssocMaxWallDurationPerJobLimit", Waits.NEVER),
        ("ReservationInvalid", Waits.HELD),
        ("QOSMinGRES", Waits.NEVER),
        ("DependencyNeverSatisfied", Waits.NEVER),
        ("Dependency", Waits.IN_QUEUE),
        ("ReqNodeNotAvail, UnavailableNodes:ip-[1-4]", Waits.DOUBTFUL),
        ("JobHeldAdmin", Waits.HELD),
        ("JobHoldMaxRequeue", Waits.HELD),
        ("launch failed requeued held", Waits.HELD),
    ],
)
def test_reasons_that_look_alike_are_told_apart(reason: str, waits: Waits) -> None:
    found = judge(reason)
    assert found is not None
    assert found.waits is waits


@pytest.mark.parametrize("version", ["22.05", "23.11", "24.11", "25.11", "26.05"])
def test_every_reason_that_slurms_library_has_stands_in_a_row(version: str) -> None:
    """But for Blue Gene's, and the word of a number that is none."""
    nothing = {"BlockMaxError", "BlockFreeAction", "InvaildReason", "InvalidReason"}
    assert [word for word in recorded(version)["reasons"] if judge(word) is None and word not in nothing] == []


def test_a_word_that_no_row_knows_has_none() -> None:
    assert judge("SomethingNew") is None
    assert judge("x" * 100_000) is None


def test_each_way_to_start_again_has_a_case_and_none_is_left_open() -> None:
    spoken = set()
    bools = (False, True)
    for known, requeueable, spec, faithful, box, told, refused in itertools.product(bools, repeat=7):
        slurm = StartView(
            handle="7",
            is_known=known,
            is_requeueable=requeueable,
            has_spec=spec,
            cannot_resubmit=() if faithful else ("an array job",),
            has_mailbox=box,
        )
        choice = choose(Case(start=slurm, needs_plan=told, requeue_refused=refused))
        spoken.add(choice.rule)
        if choice.how is Submission.REQUEUE:
            assert known
            assert requeueable
            assert not refused
            assert box or not told
        elif choice.how is Submission.SUBMIT:
            assert spec
            assert faithful
            assert not (known and requeueable and not refused and (box or not told))
        else:
            assert not (spec and faithful)
        assert "{" not in choice.why
    assert spoken == {row.rule for row in ROWS}


@pytest.mark.parametrize(
    ("state", "successor", "by", "lost", "fault"),
    [
        (SlurmState.REQUEUED, True, EndedBy.SLURM, ("ip-2",), FaultClass.NODE_LOST),
        (SlurmState.REQUEUED, True, EndedBy.SLURM, (), None),
        (SlurmState.REQUEUED, True, EndedBy.USER, ("ip-2",), None),
        (SlurmState.NODE_FAIL, True, EndedBy.UNKNOWN, (), FaultClass.NODE_LOST),
        (SlurmState.NODE_FAIL, False, EndedBy.UNKNOWN, (), FaultClass.NODE_LOST),
        (SlurmState.FAILED, True, EndedBy.USER, (), None),
        (SlurmState.TIMEOUT, False, EndedBy.UNKNOWN, (), FaultClass.PLANNED_END),
        (SlurmState.UNKNOWN, False, EndedBy.UNKNOWN, (), None),
    ],
)
def test_a_lost_node_is_trouble_also_where_slurm_has_put_the_job_back(
    state: SlurmState, successor: bool, by: EndedBy, lost: tuple[str, ...], fault: FaultClass | None
) -> None:
    failure = failure_of_end(state)
    assert fault_of_end(state, failure, has_successor=successor, requeued_by=by, lost_nodes=lost) is fault
