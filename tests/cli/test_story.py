"""`rekindle show`: suspects, with the grounds for them and where their stacks lie."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.domain.model.approvals import Approval, ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.evidence import Stretch, Suspicion, SuspicionKind
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.node_findings import Finding, FindingKind
from chalicelib.domain.model.repair import NodeRepair, OutsideRepair, Route, Rung, Step, StepState
from rekindle.cli.views.incident import incident_text
from rekindle.cli.views.overview import incident_table
from rekindle.client.shapes import bad_steps
from rekindle.client.table import Style
from rekindle.console.charts import MarkKind
from rekindle.console.curves import marks_of_incident

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PLAIN = Style(columns=100)


def wire_of(**more: Any) -> dict[str, Any]:
    base = {"incident_id": "inc-lm-1", "job_id": "lm", "cluster": None, "opened_at": NOW, "phase_entered_at": NOW}
    return Incident(**base, phase=Phase.HOLDING).changed(**more).to_wire(defaults=True)


def shown(**more: Any) -> str:
    return incident_text({**wire_of(**more), "timeline": []}, PLAIN)


def test_a_suspect_is_named_with_its_host_its_grounds_and_its_stacks() -> None:
    one = Suspicion(
        attempt="lm",
        kind=SuspicionKind.HANG,
        rule="not_waiting",
        text="rank 3: in train.py:augment; 7 of 8 ranks wait in a collective",
        ranks=(3,),
        hosts=("algo-2",),
        confidence=0.9,
        reports=8,
        world_size=8,
        kept_at="s3://b/jobs/lm/rekindle/reports/lm/",
    )
    told = " ".join(shown(suspicions=(one,), conclusion="flaky hardware on algo-2").split())
    for words in (
        "SUSPECTS",
        "hang: rank 3 on algo-2",
        "rule not_waiting, confidence 0.9, 8 of 8 ranks",
        "reports/lm/",
        "concluded flaky hardware on algo-2",
    ):
        assert words in told


def test_reports_that_point_at_nobody_are_told_as_such() -> None:
    said = "all 8 ranks have it at step 25"
    no_rank = Suspicion(attempt="lm", kind=SuspicionKind.NON_FINITE, rule="all_at_once", text=said)
    assert "non_finite: no rank in particular" in shown(suspicions=(no_rank,))
    assert "SUSPECTS" not in shown()


def test_steps_whose_checkpoints_are_not_used_are_told() -> None:
    stretches = (Stretch(attempt="lm", from_step=50, to_step=70), Stretch(attempt="lm-r2", from_step=90))
    assert "checkpoints of lm steps 50-69, lm-r2 steps 90 and later" in shown(stretches=stretches)


def test_a_curve_marks_the_same_steps() -> None:
    """As the service writes them; what is no such row is passed over."""
    known = Stretch(attempt="lm", from_step=50, to_step=70, life=2)
    rows = wire_of(stretches=(known, Stretch(attempt="lm-r2", from_step=90)))["loss"]["stretches"]
    incident = {"loss": {"stretches": [*rows, ["lm", 3], "lm", ["lm", None, 4, 0]]}}
    assert bad_steps(incident) == [("lm", 50, 70), ("lm-r2", 90, None)]
    assert [(mark.kind, mark.low, mark.high) for mark in marks_of_incident(incident)] == [(MarkKind.BAD, 50.0, 70.0)]
    assert bad_steps({"loss": {"stretches": None}}) == bad_steps(None) == []


def test_a_nodes_incident_says_which_node_what_was_found_and_what_was_done() -> None:
    step = Step(
        number=1,
        rung=Rung.REPLACE,
        route=Route.API,
        at=NOW,
        instance_id="i-0aaaaaaaaaaaaaaa1",
        state=StepState.TAKEN,
        back_at=NOW,
    )
    repair = NodeRepair(
        instance_id="i-0aaaaaaaaaaaaaaa1",
        findings=(Finding(kind=FindingKind.AGENT_REPLACE, at=NOW, text="Xid 79 on GPU 3"),),
        steps=(step,),
        instance_word="i-0bbbbbbbbbbbbbbb2 Running",
        listed_word="idle+drain (rekindle:inc-1)",
        theirs=OutsideRepair(what="it was rebooted", at=NOW),
    )
    node = {"job_id": None, "cluster": "ml", "node": "ip-10-1-0-2", "repair": repair}
    told = " ".join(incident_text(_wire(node), Style(columns=200)).split())
    for words in (
        "about node ip-10-1-0-2 of cluster ml",
        "found agent_replace (Xid 79 on GPU 3)",
        "seen i-0bbbbbbbbbbbbbbb2 Running, idle+drain (rekindle:inc-1)",
        "by others it was rebooted",
        "1 replace i-0aaaaaaaaaaaaaaa1 api",
    ):
        assert words in told, told
    assert "ml/ip-10-1-0-2" in incident_table([_wire(node)], PLAIN)
    assert "by others" not in shown()


def _wire(changes: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {"incident_id": "inc-1", "job_id": None, "cluster": None}
    base |= {"opened_at": NOW, "phase_entered_at": NOW, "phase": Phase.HOLDING}
    return {**Incident(**base).changed(**changes).to_wire(defaults=True), "timeline": []}


def asked(name: str = "a1", **more: Any) -> Approval:
    base: dict[str, Any] = {
        "approval_id": name,
        "key": name,
        "actions": ("StopJob",),
        "what": "stop lm",
        "why": "the policy careful asks first. hang: rank 3 stands still.",
        "asked_at": NOW,
        "deadline_at": NOW + timedelta(hours=4),
        "default": ApprovalAnswer.DENIED,
    }
    return Approval(**(base | more))


def test_an_open_question_stands_at_the_top_with_the_commands_that_answer_it() -> None:
    told = shown(approvals=(asked(),))
    words = " ".join(told.split())
    assert "a1 stop lm: WAITS FOR AN ANSWER until 2026-11-21 16:00:00Z, then denied" in words
    assert "`rekindle approvals approve inc-lm-1 a1` or `rekindle approvals deny inc-lm-1 a1`" in words
    assert "the policy careful asks first" in words
    assert "QUESTIONS" not in shown()


def test_a_question_that_is_settled_says_by_whom_or_that_it_is_over() -> None:
    said: dict[str, Any] = {"answer": ApprovalAnswer.DENIED, "by": "ada", "answered_at": NOW, "comment": "I look at it"}
    told = " ".join(shown(approvals=(asked(**said), asked("a2", lapsed_at=NOW))).split())
    assert "a1 stop lm: denied by ada at 2026-11-21 12:00:00Z (I look at it)" in told
    assert "a2 stop lm: not asked any more since 2026-11-21 12:00:00Z" in told
    assert "rekindle approvals approve" not in told


def test_what_holds_an_incident_back_is_told_with_its_words_and_what_holds_now_comes_first() -> None:
    over = tuple(
        Hold(guard=Guard.BACK_OFF, since=NOW, text=f"wait {number}", until=NOW + timedelta(minutes=number + 1))
        for number in range(8)
    )
    still = Hold(guard=Guard.WINDOW, since=NOW, text="held back until Sat 12:30 UTC", actions=("ResubmitJob",))
    told = shown(holds=(*over[:4], still, *over[4:]))
    words = " ".join(told.split())
    assert (
        "HELD BACK window since 2026-11-21 12:00:00Z, and still does: ResubmitJob not done held back until Sat" in words
    )
    assert "wait 7" in words
    assert "wait 2" not in words
    assert "and 3 more before" in words


def test_a_service_that_tells_of_guards_in_another_shape_ends_in_no_traceback() -> None:
    base = {"incident_id": "inc", "phase": "open", "timeline": []}
    assert "HELD BACK" in incident_text(
        {**base, "holds": [{"guard": 5, "actions": "x"}, 7], "approvals": [{}, None]}, PLAIN
    )
    assert "HELD BACK" not in incident_text({**base, "holds": "x", "approvals": {}}, PLAIN)
