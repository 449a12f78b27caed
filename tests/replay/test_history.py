"""Exported Incidents, played again by `rekindle replay`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from localcloud.replay.read import read
from localcloud.replay.run import IncidentStanding, Replay
from localcloud.worlds.recoveries import Script, World, crash_at, freeze_at, world
from rekindle.cli.main import main
from rekindle.protocol.signals import FaultClass
from tests.ledger.books import incident

pytestmark = pytest.mark.long

TELL = Policy.from_wire({"playbooks": {"hang": {"response": "tell"}}})


def exported(w: World, incident_id: str) -> dict[str, Any]:
    """What GET /incidents/{id} answers (chalicelib/api/operations/incidents.py)."""
    looked = w.service.store.load(incident_id)
    return {
        **looked.incident.to_wire(defaults=True),
        "inbox": [signal.to_wire() for signal in looked.inbox],
        "timeline": [entry.to_wire() for entry in w.service.store.timeline(incident_id)],
        "timeline_left_out": 0,
    }


def played(folder: Path, policy: Policy) -> dict[str, IncidentStanding]:
    """The last of each Job's Incidents, by the Job's name."""
    replay = Replay(read([folder]), policy)
    list(replay.verdicts())
    return {standing.incident.job_id or "": standing for standing in replay.standings()}


def test_a_history_played_under_its_own_policy_ends_as_it_did_and_another_policy_changes_its_own_fault_alone(
    tmp_path: Path,
) -> None:
    with world() as w:
        w.submit("crashed", scripts=(Script(faults=(crash_at(25),)), Script()))
        w.submit("hung", scripts=(Script(faults=(freeze_at(15),)), Script()))
        w.recover(count=2)
        history = [json.loads(json.dumps(exported(w, incident.incident_id))) for incident in w.incidents()]
    for index, export in enumerate(history):
        (tmp_path / f"{index}.json").write_text(json.dumps(export))
    own = played(tmp_path, DEFAULT_POLICY)
    assert {job_id: standing.incident.fault for job_id, standing in own.items()} == {
        "crashed": FaultClass.SOFTWARE_CRASH,
        "hung": FaultClass.HANG,
    }
    for export in history:
        again = own[export["job_id"]].incident
        assert (again.phase, again.outcome) == (Phase.RECOVERED, export["outcome"])
    # The checkpoint that it really went on from.
    assert own["crashed"].incident.resubmission.tries[0].resume_step == Known(20)
    told = played(tmp_path, TELL)
    assert told["crashed"].actions == own["crashed"].actions
    assert "ResubmitJob" in dict(own["hung"].actions)
    assert "ResubmitJob" not in dict(told["hung"].actions)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"phase": "sleeping"}, "sleeping"),
        ({"opened_at": 5}, "incident: cannot be read"),
        ({"signals": [{"kind": "stall"}]}, "signals.0.source: is missing"),
        ({"node": "n1", "cluster": "ml"}, "node"),
        ({"signals": []}, "no Signal"),
    ],
)
def test_an_export_that_cannot_be_played_says_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    wire = {**replace(incident(), policy_document=None).to_wire(defaults=True), "timeline": [], **change}
    (tmp_path / "one.json").write_text(json.dumps(wire))
    main(["replay", str(tmp_path / "one.json"), "--json"])
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said in row["dropped"]
