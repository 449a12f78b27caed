"""What is written can be read again; where a new attempt may resume; what a policy document may say."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.domain.fault_specs.faults import FAULT_RANK
from chalicelib.domain.model.action import (
    Action,
    ActionResult,
    Notify,
    RequestCheckpoint,
    ResubmitJob,
    StopJob,
    read_action,
)
from chalicelib.domain.model.errors import InvalidPolicy, InvalidTransition
from chalicelib.domain.model.evidence import LossEpisode, Need, Onset, Stretch, Suspicion
from chalicelib.domain.model.incident import (
    MAX_KEPT_SIGNALS,
    CheckpointAsk,
    Failure,
    Incident,
    Phase,
    SkipWindow,
    TimelineEntry,
    Try,
    execution_name,
    incident_id_for,
)
from chalicelib.domain.model.incident_parts import AttemptTracking, BadLoss, Evidence, Halt, Resubmissions
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptView, CheckpointView, Observation, ReplyView
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import PLAYBOOKS, ROLL_BACKS, Deadline, Response
from chalicelib.domain.resume.resume_point import MAX_NAME_CHARS, attempt_name, choose_resume_point, mark_abandoned
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, a_try, checkpoint, incident, signal
from tests.domain.policies import changed
from tests.sizes import examples

MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants naive bounds
STEPS = st.integers(0, 10**9).map(Known) | st.text(max_size=8).map(Unknown)
SMALL = st.text(max_size=12)
JSON = st.dictionaries(SMALL, st.none() | st.booleans() | st.integers() | SMALL, max_size=3)
st.register_type_strategy(datetime, MOMENTS)
SKIPS = st.lists(st.builds(SkipWindow, from_step=st.integers(0, 99), to_step=st.integers(100, 200)), max_size=2)
SIGNALS = st.builds(Signal, evidence=JSON, summary=SMALL, dedupe_key=SMALL)
SUSPICIONS = st.builds(
    Suspicion, ranks=st.just((3,)), hosts=st.just(("h",)), confidence=st.sampled_from([0.0, 0.5, 0.9])
)
TRIES = st.builds(Try, resume_step=STEPS, last_step=STEPS)
INCIDENTS = st.builds(
    Incident,
    signals=st.lists(SIGNALS, max_size=2).map(tuple),
    target_step=STEPS,
    tracking=st.builds(AttemptTracking, watch_step=STEPS, seen_since=st.none() | MOMENTS),
    loss=st.builds(
        BadLoss,
        onset_step=STEPS,
        verify_to=STEPS,
        onsets=st.lists(st.builds(Onset, step=STEPS), max_size=2).map(tuple),
        episode=st.none()
        | st.builds(LossEpisode, onset_step=STEPS, reported_step=STEPS, unseen_since=st.none() | MOMENTS),
        stretches=st.lists(st.builds(Stretch), max_size=2).map(tuple),
        skips=SKIPS.map(tuple),
    ),
    evidence=st.builds(
        Evidence,
        suspicions=st.lists(SUSPICIONS, max_size=2).map(tuple),
        needs=st.lists(st.sampled_from(Need), max_size=2, unique=True).map(tuple),
        needs_since=st.none() | MOMENTS,
        evidence_since=st.none() | MOMENTS,
    ),
    halt=st.builds(
        Halt, ask=st.none() | st.builds(CheckpointAsk), stopped_attempts=st.lists(SMALL, max_size=2).map(tuple)
    ),
    resubmission=st.builds(
        Resubmissions,
        tries=st.lists(TRIES, max_size=2).map(tuple),
        failures=st.lists(st.builds(Failure, step=STEPS), max_size=2).map(tuple),
        excluded_checkpoints=st.lists(SMALL, max_size=2).map(tuple),
    ),
    policy_document=st.none() | JSON,
    order=st.none() | JSON,
    paused_since=st.none() | MOMENTS,
)
VIEWS = st.builds(
    AttemptView,
    first_step=STEPS,
    last_step=STEPS,
    judged_step=st.none() | st.integers(0, 9),
    loss_health=SMALL,
)
SEEN = st.builds(
    Observation,
    attempt=VIEWS.map(Known) | st.just(Unknown("x")),
    checkpoints=st.lists(st.builds(CheckpointView, problems=st.just(())), max_size=2).map(tuple).map(Known)
    | st.just(Unknown("x")),
    reply=(st.none() | st.builds(ReplyView)).map(Known) | st.just(Unknown("x")),
    suspicion=SUSPICIONS.map(Known) | st.just(Unknown("x")),
    new_signals=st.lists(SIGNALS, max_size=2).map(tuple),
    results=st.just(()),
)
ACTIONS: st.SearchStrategy[Action] = (
    st.builds(RequestCheckpoint)
    | st.builds(StopJob)
    | st.builds(ResubmitJob, resume_step=STEPS, skips=SKIPS.map(tuple), goes_back=st.booleans())
    | st.builds(Notify)
)
FEW = settings(max_examples=examples(40), deadline=None, derandomize=True)


def through_json(wire: Any) -> Any:
    return json.loads(json.dumps(wire))


@FEW
@given(INCIDENTS)
def test_an_incident_survives_the_wire(one: Incident) -> None:
    assert Incident.from_wire(through_json(one.to_wire())) == one


@FEW
@given(SEEN)
def test_an_observation_survives_the_wire(one: Observation) -> None:
    assert Observation.from_wire(through_json(one.to_wire())) == one


@FEW
@given(ACTIONS)
def test_an_action_survives_the_wire(one: Action) -> None:
    assert read_action(through_json(one.to_wire())) == one


@FEW
@given(SIGNALS, st.builds(ActionResult), st.builds(TimelineEntry, facts=JSON, actions=st.just(())))
def test_signals_results_and_lines_survive_the_wire(one: Signal, answer: ActionResult, line: TimelineEntry) -> None:
    assert Signal.from_wire(through_json(one.to_wire())) == one
    assert ActionResult.from_wire(through_json(answer.to_wire())) == answer
    assert TimelineEntry.from_wire(through_json(line.to_wire())) == line


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="Dance"):
        read_action({"action": "Dance"})


# --- the Incident itself ---


def test_a_change_that_the_table_does_not_hold_is_refused() -> None:
    with pytest.raises(InvalidTransition):
        incident(Phase.STOPPING).enter(Phase.OPEN, now=NOW)
    assert incident(Phase.STOPPING).enter(Phase.STOPPING, now=NOW) == incident(Phase.STOPPING)


def test_the_newest_signals_are_kept_and_all_are_counted() -> None:
    many = tuple(signal(step=step) for step in range(MAX_KEPT_SIGNALS + 5))
    kept = incident().absorb(many)
    assert (len(kept.signals), kept.signals_seen) == (MAX_KEPT_SIGNALS, len(many))
    assert kept.signals[-1] == many[-1]


@pytest.mark.parametrize("scope", ["lm", "arn:aws:sagemaker:us-west-2:1:cluster/x", "Ünïcode!", "a" * 200, "///"])
def test_an_incident_id_names_a_durable_execution(scope: str) -> None:
    name = execution_name(incident_id_for(signal(), scope=scope), 999)
    assert re.fullmatch(r"[a-z0-9-]{1,64}", name)
    assert incident_id_for(signal(), scope=scope) == incident_id_for(signal(), scope=scope)
    assert incident_id_for(signal(step=7), scope=scope) != incident_id_for(signal(), scope=scope)


# --- resume points ---

POINTS = st.lists(
    st.builds(
        checkpoint,
        st.integers(0, 120),
        attempt=st.sampled_from(["lm", "lm-r2"]),
        problems=st.sampled_from([(), (), ("torn",)]),
        fenced=st.sampled_from([False, False, True]),
        manifest=st.sampled_from(["a", "b", "c", "d"]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(POINTS, st.none() | st.integers(0, 120), st.sampled_from([(), ("a",), ("a", "b")]), st.integers(0, 20))
def test_the_resume_point_is_the_newest_that_is_whole_unfenced_and_before_the_onset(
    points: list[CheckpointView], onset: int | None, excluded: tuple[str, ...], rewind: int
) -> None:
    case = incident(Phase.RESUBMITTING, FaultClass.HANG, excluded_checkpoints=excluded)
    if onset is not None:
        case = dataclasses.replace(
            case,
            loss=dataclasses.replace(
                case.loss, onset_attempt="lm", onset_step=Known(onset), onset_fault=FaultClass.LOSS_SPIKE
            ),
        )
    policy = changed(loss={"spike_rewind_steps": rewind})
    allowed = [
        item
        for item in points
        if not item.problems
        and not item.fenced
        and item.manifest not in excluded
        and (onset is None or item.step <= onset - max(rewind, 1))
    ]
    point = choose_resume_point(points, case, policy)
    if not allowed:
        assert point is None
        return
    assert point is not None
    assert point.step == Known(max(item.step for item in allowed))
    assert any((item.root, item.manifest) == (point.root, point.manifest) for item in allowed)


def test_a_poisoned_run_whose_onset_nobody_knows_is_not_resumed_from_its_own_checkpoints() -> None:
    case = incident(Phase.RESUBMITTING, FaultClass.NON_FINITE, onset_attempt="lm", onset_step=Unknown("no step"))
    assert choose_resume_point([checkpoint(50)], case, DEFAULT_POLICY) is None
    older = checkpoint(40, attempt="lm-0")
    assert choose_resume_point([checkpoint(50), older], case, DEFAULT_POLICY) is None  # its own may all be good
    torn = checkpoint(50, problems=("torn",))
    alone = choose_resume_point([torn, older], case, DEFAULT_POLICY)
    assert alone is not None
    assert alone.step == Known(40)


def test_without_any_manifest_the_trainers_own_habit_decides() -> None:
    point = choose_resume_point([], incident(), DEFAULT_POLICY)
    assert point is not None
    assert point.root is None
    assert isinstance(point.step, Unknown)


_POISONED: dict[str, Any] = {"onset_attempt": "lm", "onset_step": Known(95)}


@pytest.mark.parametrize(
    ("facts", "left_to_the_trainer"),
    [
        ({}, True),
        (_POISONED, False),
        (_POISONED | {"onset_step": Unknown("nothing told it")}, False),
        (_POISONED | {"onset_attempt": "lm-0"}, True),  # the attempt under care is a later, healthy one
        (_POISONED | {"order": {"do": "resubmit"}}, True),  # a person has chosen, knowing what was handed over
        ({"order": {"do": "resubmit", "from_step": 20}}, False),
        ({"order": {"do": "resubmit", "from_step": 20}, "tries": (a_try(),)}, True),
    ],
    ids=str,
)
def test_without_any_manifest_no_step_can_be_promised(facts: dict[str, Any], left_to_the_trainer: bool) -> None:
    point = choose_resume_point([], incident(Phase.RESUBMITTING, **facts), DEFAULT_POLICY)
    assert (point is not None) is left_to_the_trainer


def test_checkpoints_on_a_line_that_was_left_are_not_resumed_from() -> None:
    def attempt(number: int, name: str, resume: Any) -> Attempt:
        return Attempt(job_id="lm", number=number, name=name, submitted_at=NOW, resume_step=resume)

    attempts = [
        attempt(1, "lm", Unknown("first")),
        attempt(2, "lm-r2", Known(90)),
        attempt(3, "lm-r3", Unknown("its own habit")),
    ]
    marked = mark_abandoned(
        [checkpoint(105), checkpoint(90), checkpoint(95, attempt="lm-r2"), checkpoint(300, attempt="stranger")],
        attempts,
    )
    assert [bool(item.problems) for item in marked] == [True, False, False, False]


@pytest.mark.parametrize("name", ["lm", "a" * 63, "a" * 62 + "-", "--", "Zürich model"])
@pytest.mark.parametrize(("number", "salt"), [(2, 0), (9999, 5)])
def test_an_attempts_name_is_one_that_the_platform_takes(name: str, number: int, salt: int) -> None:
    made = attempt_name(name, number, salt)
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", made)
    assert len(made) <= MAX_NAME_CHARS


# --- policies ---


def test_the_default_policy_survives_its_own_document() -> None:
    assert Policy.from_wire(through_json(DEFAULT_POLICY.to_wire())) == DEFAULT_POLICY
    assert dataclasses.replace(Policy.from_wire({}), version="builtin") == DEFAULT_POLICY


BAD: list[tuple[dict[str, Any], str]] = [
    ({"schema": 2}, "schema"),
    ({"max_attemps": 3}, "max_attemps"),
    ({"name": ""}, "name"),
    ({"version": 7}, "version"),
    ({"shadow": "yes"}, "shadow"),
    ({"budgets": {"max_no_progress": 0}}, "budgets.max_no_progress"),
    ({"budgets": {"max_no_progress": True}}, "budgets.max_no_progress"),
    ({"timing": {"stop_limit_s": "soon"}}, "timing.stop_limit_s"),
    ({"timing": {"stop_limit_s": float("nan")}}, "timing.stop_limit_s"),
    ({"timing": {"look_max_s": 0}}, "timing.look_max_s"),
    ({"timing": {"hang_deadline_s": 301}}, "timing.hang_deadline_s"),
    ({"resubmission": {"backoff_s": []}}, "resubmission.backoff_s"),
    ({"resubmission": {"backoff_s": [1, -1]}}, "resubmission.backoff_s[1]"),
    ({"playbooks": []}, "playbooks"),
    ({"playbooks": {"hangs": {}}}, "playbooks.hangs"),
    ({"playbooks": {"hang": 1}}, "playbooks.hang"),
    ({"playbooks": {"hang": {"retries": 1}}}, "playbooks.hang.retries"),
    ({"playbooks": {"hang": {"response": "pray"}}}, "playbooks.hang.response"),
    ({"playbooks": {"hang": {"deadline": "never"}}}, "playbooks.hang.deadline"),
    ({"playbooks": {"hang": {"tries": -1}}}, "playbooks.hang.tries"),
    ({"playbooks": {"hang": {"deadline": "none"}}}, "playbooks.hang.deadline"),
]


@pytest.mark.parametrize(("document", "field"), BAD, ids=[field for _, field in BAD])
def test_a_bad_policy_names_the_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Policy.from_wire(document)
    assert caught.value.field == field


def test_a_policy_must_be_an_object() -> None:
    with pytest.raises(InvalidPolicy):
        Policy.from_wire([])  # type: ignore[arg-type]


def test_equal_documents_are_equal_policies_and_a_changed_row_names_its_source() -> None:
    one, two = (Policy.from_wire({"playbooks": {"hang": {"response": "tell", "tries": 2}}}) for _ in range(2))
    assert one == two
    assert one.version.startswith("sha-")
    assert one.playbook(FaultClass.HANG).source == "policy document"
    assert one.playbook(FaultClass.NODE_LOST).source != "policy document"


def test_every_fault_has_one_row_with_a_source_and_a_rank() -> None:
    assert [row.fault for row in PLAYBOOKS].count(FaultClass.HANG) == 1
    assert {row.fault for row in PLAYBOOKS} == set(FaultClass) == set(FAULT_RANK)
    assert len(set(FAULT_RANK.values())) == len(FAULT_RANK)
    for row in PLAYBOOKS:
        assert row.source
        asks = row.response in (Response.CHECKPOINT_THEN_RESTART, Response.CHECKPOINT_THEN_HAND_OVER)
        assert row.deadline is not Deadline.NONE or not asks
        assert row.deadline is Deadline.NONE or asks or row.response in ROLL_BACKS
        assert (DEFAULT_POLICY.deadline(row) > timedelta(0)) == (row.deadline is not Deadline.NONE)
