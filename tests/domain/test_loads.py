"""A checkpoint is given up when it has killed enough new attempts, and not for anything else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, Done, QuarantineCheckpoint, ResubmitJob
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus as S
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import SignalKind
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import MINUTE, NOW, a_try, checkpoint, incident, look, seen, signal, view

CORRUPT = "PytorchStreamReader failed reading zip archive"
MISMATCH = "RuntimeError: size mismatch for wte.weight"
NEWEST, OLDER = checkpoint(90), checkpoint(80)
BOTH: dict[str, Any] = {"checkpoints": Known((NEWEST, OLDER))}
ONLY: dict[str, Any] = {"checkpoints": Known((NEWEST,))}


def loaded(number: int = 2, **more: Any) -> Any:
    base = {"resume_step": Known(90), "resume_manifest": NEWEST.manifest, "resume_root": NEWEST.root}
    return a_try(number, **(base | more))


def case(deaths_before: int = 0) -> Incident:
    """The newest try is the one that has just died; so many died on the same checkpoint before it."""
    before = tuple(loaded(2 + n, ended=True, died_at_load=True, gained=False) for n in range(deaths_before))
    last = loaded(2 + deaths_before)
    return incident(Phase.VERIFYING, F.SOFTWARE_CRASH, tries=(*before, last), attempt=last.name)


def died(before: Incident, reason: str, **more: Any) -> AttemptView:
    return view(
        S.FAILED, name=before.attempt or "", failure_reason=reason, **({"step": None, "heartbeat_at": NOW} | more)
    )


@pytest.mark.parametrize(
    ("deaths_before", "reason", "points", "is_given_up"),
    [
        (0, CORRUPT, BOTH, True),
        (0, CORRUPT, ONLY, False),
        (1, CORRUPT, ONLY, True),
        (0, MISMATCH, BOTH, False),
        (0, MISMATCH, ONLY, False),
        (0, "", BOTH, False),
        (1, "CUDA out of memory", BOTH, False),
        (1, "CapacityError: no room", BOTH, False),
    ],
)
def test_how_many_deaths_a_checkpoint_is_worth(
    deaths_before: int, reason: str, points: dict[str, Any], is_given_up: bool
) -> None:
    before = case(deaths_before)
    decision = look(before, seen(died(before, reason), next_number=9, **points))
    marks = [action for action in decision.actions if isinstance(action, QuarantineCheckpoint)]
    assert [mark.root for mark in marks] == ([NEWEST.root] if is_given_up else []), decision.reason
    assert (NEWEST.manifest in decision.incident.resubmission.excluded_checkpoints) is is_given_up


def test_the_next_older_one_is_taken_at_once() -> None:
    before = case()
    decision = look(before, seen(died(before, CORRUPT), **BOTH))
    (sent,) = (action for action in decision.actions if isinstance(action, ResubmitJob))
    assert sent.resume_step == Known(80)


@pytest.mark.parametrize("reason", [MISMATCH, ""])
def test_two_deaths_that_name_no_damage_only_pass_the_checkpoint_over(reason: str) -> None:
    """A bug in the first batch after it kills there as well."""
    before = case(1)
    decision = look(before, seen(died(before, reason), next_number=9, **BOTH))
    assert not any(isinstance(action, QuarantineCheckpoint) for action in decision.actions)
    assert decision.incident.resubmission.excluded_checkpoints == (NEWEST.manifest,)
    assert decision.incident.resubmission.quarantined == ()


@pytest.mark.parametrize("step", [None, 90])
def test_an_attempt_that_ended_long_after_its_last_heartbeat_may_have_made_steps(step: int | None) -> None:
    before = case(1)
    late = died(before, MISMATCH, step=step, heartbeat_at=NOW - 2 * MINUTE, ended_at=NOW)
    decision = look(before, seen(late, next_number=9, **BOTH))
    assert decision.incident.resubmission.excluded_checkpoints == ()


def from_another(step: int) -> Any:
    """The look at an attempt from an older checkpoint, after two that died on the newest."""
    dead = tuple(loaded(2 + n, ended=True, died_at_load=True, gained=False) for n in range(2))
    newest = a_try(4, resume_step=Known(80), resume_manifest="s3://b/m/lm/80", resume_root="s3://b/lm/80")
    verifying = incident(
        Phase.VERIFYING,
        F.SOFTWARE_CRASH,
        tries=(*dead, newest),
        attempt="lm-r4",
        target_step=Known(200),
        excluded_checkpoints=(NEWEST.manifest,),
    )
    return look(verifying, seen(view(name="lm-r4", step=step, first_step=Known(81)), next_number=5))


@pytest.mark.parametrize(("step", "is_proven"), [(85, False), (91, False), (92, True)])
def test_it_is_quarantined_once_another_one_has_passed_the_step_they_died_at(step: int, is_proven: bool) -> None:
    decision = from_another(step)
    marks = [action.root for action in decision.actions if isinstance(action, QuarantineCheckpoint)]
    assert marks == ([NEWEST.root] if is_proven else [])
    assert decision.incident.resubmission.quarantined == ((NEWEST.manifest,) if is_proven else ())


def test_a_trainer_that_may_have_loaded_a_damaged_newer_one_condemns_not_the_one_it_was_told() -> None:
    before = case(1)
    torn = checkpoint(95, problems=("a.bin is missing",))
    points = {"checkpoints": Known((torn, *BOTH["checkpoints"].value))}
    decision = look(before, seen(died(before, CORRUPT), next_number=9, **points))
    assert decision.incident.resubmission.excluded_checkpoints == ()


@pytest.mark.parametrize(("step", "is_load"), [(89, True), (90, True), (91, False)])
def test_a_step_past_the_checkpoint_clears_it(step: int, is_load: bool) -> None:
    before = case(1)
    decision = look(before, seen(died(before, MISMATCH, step=step), next_number=9, **BOTH))
    assert bool(decision.incident.resubmission.excluded_checkpoints) is is_load


def test_a_job_whose_steps_were_never_seen_blames_no_checkpoint() -> None:
    before = dataclasses.replace(case(1), target_step=Unknown("no monitor"))
    decision = look(before, seen(died(before, MISMATCH, heartbeat_at=None), next_number=9, **BOTH))
    assert decision.incident.resubmission.excluded_checkpoints == ()


def test_an_attempt_that_was_stopped_blames_no_checkpoint() -> None:
    before = case(1).changed(stopped_attempts=("lm-r3",))
    decision = look(before, seen(view(S.STOPPED, name="lm-r3", step=None), next_number=9, **BOTH))
    assert decision.incident.resubmission.excluded_checkpoints == ()


def test_a_mark_that_could_not_be_written_is_tried_once_more() -> None:
    ended = loaded(ended=True, died_at_load=True, gained=False)
    waiting = incident(
        Phase.RESUBMITTING, F.BAD_CHECKPOINT, tries=(ended,), attempt="lm-r2", excluded_checkpoints=(NEWEST.manifest,)
    )
    answer = (ActionResult(action="QuarantineCheckpoint", done=Done.UNAVAILABLE),)
    decision = look(waiting, seen(view(S.FAILED, name="lm-r2"), results=answer, next_number=3, **BOTH))
    assert [type(action).__name__ for action in decision.actions] == ["QuarantineCheckpoint", "ResubmitJob"]


@pytest.mark.parametrize(
    "reason",
    [
        "AlgorithmError: , exit code: 137",
        "AlgorithmError: SIGTERM received, exit code: 143",
        "AlgorithmError: worker 3 exitcode: -9",
    ],
)
def test_an_attempt_that_was_killed_from_outside_blames_no_checkpoint(reason: str) -> None:
    before = case(1)
    decision = look(before, seen(died(before, reason), next_number=9, **BOTH))
    assert decision.incident.resubmission.excluded_checkpoints == ()


def test_attempts_that_never_came_to_load_anything_blame_no_checkpoint() -> None:
    before = case(1)
    decision = look(before, seen(died(before, MISMATCH, heartbeat_at=None), next_number=9, **BOTH))
    assert decision.incident.resubmission.excluded_checkpoints == ()


@pytest.mark.parametrize("fault", [F.NODE_LOST, F.NODE_HARDWARE, F.PLATFORM_ERROR, F.OUT_OF_MEMORY])
@pytest.mark.parametrize("of", [0, 1])
def test_a_node_that_is_told_late_takes_the_blame_from_the_checkpoint(fault: F, of: int) -> None:
    before = case(1)
    late = signal(fault, kind=SignalKind.ALARM, attempt=before.resubmission.tries[of].name, step=None)
    decision = look(before, seen(died(before, MISMATCH), next_number=9, new_signals=(late,), **BOTH))
    assert decision.incident.resubmission.excluded_checkpoints == ()
