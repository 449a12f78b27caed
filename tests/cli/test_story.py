"""`rekindle show`: suspects, with the grounds for them and where their stacks lie."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from chalicelib.domain.evidence import Stretch, Suspicion, SuspicionKind
from chalicelib.domain.incidents import Incident, Phase
from chalicelib.domain.node_findings import Finding, FindingKind
from chalicelib.domain.node_repair import NodeRepair, Route, Rung, Step, StepState
from rekindle.cli.reading import incident_table
from rekindle.cli.story import tell
from rekindle.cli.table import Style

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PLAIN = Style(columns=100)


def shown(**more: Any) -> str:
    base = {"incident_id": "inc-lm-1", "job_id": "lm", "cluster": None, "opened_at": NOW, "phase_entered_at": NOW}
    return tell({**Incident(**base, phase=Phase.HOLDING, **more).to_wire(), "timeline": []}, PLAIN)


def test_a_suspect_is_named_with_its_host_its_grounds_and_its_stacks() -> None:
    one = Suspicion(
        attempt="lm",
        kind=SuspicionKind.HANG,
        rule="not_waiting",
        said="rank 3: in train.py:augment; 7 of 8 ranks wait in a collective",
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
    nobody = Suspicion(attempt="lm", kind=SuspicionKind.NON_FINITE, rule="all_at_once", said=said)
    assert "non_finite: nobody in particular" in shown(suspicions=(nobody,))
    assert "SUSPECTS" not in shown()


def test_steps_whose_checkpoints_are_not_used_are_told() -> None:
    stretches = (Stretch(attempt="lm", from_step=50, to_step=70), Stretch(attempt="lm-r2", from_step=90))
    assert "checkpoints of lm steps 50-69, lm-r2 steps 90 and later" in shown(stretches=stretches)


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
        findings=(Finding(kind=FindingKind.AGENT_REPLACE, at=NOW, said="Xid 79 on GPU 3"),),
        steps=(step,),
        instance_word="i-0bbbbbbbbbbbbbbb2 Running",
        slurm_word="idle+drain (rekindle:inc-1)",
        theirs="it was rebooted",
    )
    node = {"job_id": None, "cluster": "ml", "node": "ip-10-1-0-2", "repair": repair}
    told = " ".join(tell(_wire(node), Style(columns=200)).split())
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
    base = {"incident_id": "inc-1", "opened_at": NOW, "phase_entered_at": NOW, "phase": Phase.HOLDING}
    return {**Incident(**(base | changes)).to_wire(), "timeline": []}
