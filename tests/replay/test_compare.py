"""Two policies on one recording: what differs is told, what does not is not, and the figures are the ledger's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from localcloud.replay.compare import compare, estimated_s, play
from localcloud.replay.read import Recorded, read
from localcloud.worlds.recoveries import Script, World, crash_at, freeze_at, world
from rekindle.cli.main import main
from rekindle.protocol.signals import FaultClass
from tests.ledger.books import incident
from tests.replay.test_replay import EVENTS, job, monitor, nan, stall

pytestmark = pytest.mark.long

TELL = Policy.from_wire({"playbooks": {"hang": {"response": "tell"}}})
SHADOW = Policy.from_wire({"shadow": True})
NO_TRIES = Policy.from_wire({"playbooks": {"software_crash": {"response": "hand_over"}}})


@dataclass
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def call(*argv: object) -> Ended:
        capsys.readouterr()  # what the world of the test has logged is not the command's
        code = main(["replay", *(str(word) for word in argv)])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return call


def recorded(*events: Any) -> list[Recorded]:
    return [Recorded(name=f"e{index}", raw=event) for index, event in enumerate(events)]


def compared(recording: list[Recorded], a: Policy, b: Policy, **more: Any) -> dict[str, Any]:
    return compare(play(recording, a, name="A"), play(recording, b, name="B"), **more)


def storm(seed: int, jobs: int = 30) -> list[Any]:
    """Runs that hang, crash and turn to NaN, some of them again and again, in no order that anybody meant."""
    rng = random.Random(seed)
    events: list[Any] = []
    for number in range(jobs):
        name = f"run-{number}"
        at = rng.uniform(0, 7200)
        for _ in range(rng.randint(1, 4)):
            step = rng.randint(1, 5000)
            kind = rng.choice(["stall", "nan", "failed"])
            if kind == "failed":
                events.append(job(name, "Failed", after_s=at, reason=rng.choice(["AlgorithmError: exit 1", "OOM"])))
            else:
                make = stall if kind == "stall" else nan
                event = make(step, after_s=at)
                event["detail"] |= {"job_id": name, "attempt": name}
                events.append(event)
            at += rng.uniform(1, 4000)
    rng.shuffle(events)
    return [*events, monitor("Monitor Started", 1, after_s=90_000)]


def test_a_policy_against_itself_differs_in_nothing() -> None:
    recording = [*read([EVENTS]), *recorded(*storm(7))]
    same = compared(recording, DEFAULT_POLICY, DEFAULT_POLICY, gpus=64)
    assert same["differences"] == []
    assert [one for one in same["incidents"] if one["differs"]] == []
    assert same["totals"]["a"] == same["totals"]["b"]
    assert same["held"]["a"] == same["held"]["b"]


def test_the_one_decision_that_differs_is_told_with_both_rules() -> None:
    recording = recorded(stall(100), job("other", "Failed", after_s=5, reason="AlgorithmError: exit code 1"))
    found = compared(recording, DEFAULT_POLICY, TELL)
    (difference,) = found["differences"]
    assert difference["event"] == "e0"
    assert (difference["a"]["rule"], difference["a"]["actions"]) == ("playbook.checkpoint", ["RequestCheckpoint"])
    assert (difference["b"]["rule"], difference["b"]["actions"]) == ("playbook.tell", ["Notify"])
    assert found["events"] == 2
    assert [(one["about"], one["differs"]) for one in found["incidents"]] == [("lm", True), ("other", False)]


@pytest.mark.parametrize("seed", [1, 2])
def test_in_a_storm_the_totals_are_those_of_the_incidents_and_shadow_mode_starts_nothing(seed: int) -> None:
    found = compared(recorded(*storm(seed)), DEFAULT_POLICY, SHADOW, gpus=8)
    for side in "ab":
        rows = [one[side] for one in found["incidents"] if one[side] is not None]
        total = found["totals"][side]
        assert sum(total["incidents"].values()) == len(rows)
        assert total["starts"] == sum(row["starts"] for row in rows)
        known = [row["gpu_hours"] for row in rows if not isinstance(row["gpu_hours"], dict)]
        assert total["gpu_hours"]["counted"] == len(known)
        assert total["gpu_hours"]["not_counted"] == len(rows) - len(known)
        assert total["gpu_hours"]["sum"] == pytest.approx(sum(known), abs=0.1)
        assert all(value >= 0 for value in known)
    assert found["totals"]["a"]["starts"] > 0
    assert found["totals"]["b"]["starts"] == 0
    assert "ResubmitJob" not in found["totals"]["b"]["actions"]
    assert "StopJob" not in found["totals"]["b"]["actions"]


def test_the_guard_that_held_is_counted_on_the_side_where_it_did() -> None:
    found = compared(recorded(stall(100)), DEFAULT_POLICY, SHADOW)
    assert found["held"]["a"].get("shadow", 0) == 0
    assert found["held"]["b"].get("shadow") == 1


def test_each_incident_says_which_guards_held_it_and_the_policies_in_which_fields_they_differ() -> None:
    night = Policy.from_wire({"name": "night", "windows": [{"from": "00:00", "to": "00:00"}]})
    recording = recorded(job("other", "Failed", after_s=5, reason="AlgorithmError: exit code 1"))
    found = compared(recording, DEFAULT_POLICY, night)
    (row,) = found["incidents"]
    assert ("window" in row["a"]["held"], row["b"]["held"], row["differs"]) == (False, ["window"], True)
    assert list(found["policy"]) == ["windows"]
    assert found["policy"]["windows"]["a"] == []
    assert compared(recording, night, night)["policy"] == {}


@pytest.mark.parametrize("seed", [1, 2])
def test_only_incidents_known_under_both_are_held_against_each_other(seed: int) -> None:
    """A total leaves out what it cannot tell, and that may be another Incident on each side."""
    found = compared(recorded(*storm(seed)), DEFAULT_POLICY, SHADOW, gpus=8)
    pairs = [(one["a"], one["b"]) for one in found["incidents"]]
    known = [
        (a["gpu_hours"], b["gpu_hours"])
        for a, b in pairs
        if a and b and not isinstance(a["gpu_hours"], dict) and not isinstance(b["gpu_hours"], dict)
    ]
    both = found["in_both"]
    assert 0 < both["incidents"] == len(known)
    assert both["left_out"] == len(pairs) - len(known)
    assert both["a"] == pytest.approx(sum(a for a, _ in known), abs=0.1)
    assert both["b"] == pytest.approx(sum(b for _, b in known), abs=0.1)
    for side in "ab":
        total = found["totals"][side]
        assert sum(total["unknown"].values()) == total["gpu_hours"]["not_counted"]


def test_a_folder_of_events_that_open_nothing_says_so_instead_of_finding_the_policies_alike(
    command: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    for name, text in {"a.json": "{", "b.json": "[1]"}.items():
        (tmp_path / "events" / name).write_text(text)
    (tmp_path / "b.json").write_text('{"shadow": true}')
    ended = command(tmp_path / "events", "--against", tmp_path / "b.json")
    assert "They differ in: shadow." in ended.out
    assert "Nothing to compare: of 2 events none opens an Incident" in ended.out
    assert "differs in" not in ended.out
    assert "a.json: event: is not JSON" in ended.out


def test_what_is_not_known_says_why_in_the_text(command: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(stall(100)))
    (tmp_path / "b.policy").write_text(json.dumps({"playbooks": {"hang": {"response": "tell"}}}))
    shown = command(tmp_path, "--against", tmp_path / "b.policy").out
    assert "They differ in: playbooks." in shown
    assert "GPU-hours not known under A: 1 x the recording ends before it closes." in shown


# --- figures, by hand ---


def test_a_recovery_costs_its_time_and_five_minutes_for_each_start() -> None:
    assert estimated_s(incident()) == Known(660.0 + 300)  # one start, 660 s from the onset to the end


def test_what_is_left_to_a_person_costs_an_hour_and_a_start_more() -> None:
    left = incident(phases=((Phase.RESUBMITTING, 60), (Phase.HANDED_OVER, 90)), restarts=[])
    assert estimated_s(left) == Known(90.0 + 3600 + 300)


@pytest.mark.parametrize(
    ("fault", "phase"), [(FaultClass.THROUGHPUT_DROP, Phase.HANDED_OVER), (FaultClass.SOFTWARE_CRASH, Phase.STOPPED)]
)
def test_what_a_replay_cannot_tell_is_unknown(fault: FaultClass, phase: Phase) -> None:
    assert isinstance(estimated_s(incident(fault=fault, phases=((Phase.OPEN, 5), (phase, 90)), restarts=[])), Unknown)
    assert isinstance(estimated_s(incident(phases=((Phase.OPEN, 5), (Phase.VERIFYING, 90)))), Unknown)


def test_a_run_s_size_is_the_recordings_own_where_it_tells_it() -> None:
    """The golden event of a training job tells 4 x p5.48xlarge: 32 GPUs, whatever is assumed for others."""
    golden = json.loads((EVENTS / "sagemaker_training_job_failed_killed.json").read_text())
    assert golden["detail"]["ResourceConfig"]["InstanceType"] == "ml.p5.48xlarge"
    count = golden["detail"]["ResourceConfig"]["InstanceCount"]
    (row,) = compared(recorded(golden), NO_TRIES, NO_TRIES, gpus=1)["incidents"]
    assert row["a"]["phase"] == "handed_over"
    assert row["a"]["gpu_hours"] == pytest.approx(row["a"]["lost_s"] / 3600 * 8 * count, abs=0.01)
    sized = json.loads(json.dumps(golden))
    del sized["detail"]["ResourceConfig"]
    (row,) = compared(recorded(sized), NO_TRIES, NO_TRIES)["incidents"]
    assert "--gpus" in row["a"]["gpu_hours"]["unknown"]


# --- an exported history ---


def exported(w: World, incident_id: str) -> dict[str, Any]:
    """What GET /incidents/{id} answers (chalicelib/api/operations/incidents.py), with its ledger beside it."""
    looked = w.service.store.load(incident_id)
    return {
        **looked.incident.to_wire(defaults=True),
        "inbox": [one.to_wire() for one in looked.inbox],
        "timeline": [one.to_wire() for one in w.service.store.timeline(incident_id)],
        "timeline_left_out": 0,
        "ledger": w.service.ledgers.incident(incident_id),
    }


def test_a_history_played_under_its_own_policy_ends_as_it_did_and_another_policy_is_told_apart(
    command: Callable[..., Ended], tmp_path: Path
) -> None:
    with world() as w:
        w.submit("crashed", scripts=(Script(faults=(crash_at(25),)), Script()))
        w.submit("hung", scripts=(Script(faults=(freeze_at(15),)), Script()))
        w.recover(count=2)
        history = [json.loads(json.dumps(exported(w, one.incident_id))) for one in w.incidents()]
    for index, one in enumerate(history):
        (tmp_path / f"{index}.json").write_text(json.dumps(one))
    own = play(read([tmp_path]), DEFAULT_POLICY, name="own")
    assert {one.incident.job_id: one.incident.fault for one in own.standings} == {
        "crashed": FaultClass.SOFTWARE_CRASH,
        "hung": FaultClass.HANG,
    }
    for standing in own.standings:
        kept = next(one for one in history if one["job_id"] == standing.incident.job_id)
        assert (standing.incident.phase, standing.incident.outcome) == (Phase.RECOVERED, kept["outcome"])
        assert standing.size.gpus == Known(32)
        if standing.incident.job_id == "crashed":
            assert standing.incident.resubmission.tries[0].resume_step == Known(
                20
            )  # the checkpoint that it really went on from
    (tmp_path / "b.policy").write_text(json.dumps({"playbooks": {"hang": {"response": "tell"}}}))
    ended = command(tmp_path, "--against", tmp_path / "b.policy", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert {one["about"] for one in found["incidents"] if one["differs"]} == {"hung"}
    assert found["totals"]["b"]["starts"] == found["totals"]["a"]["starts"] - 1
    shown = command(tmp_path, "--against", tmp_path / "b.policy")
    assert "playbook.tell" in shown.out
    assert "GPU-hours" in shown.out


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
    command: Callable[..., Ended], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    wire = {**replace(incident(), policy_document=None).to_wire(defaults=True), "timeline": [], **change}
    (tmp_path / "one.json").write_text(json.dumps(wire))
    (row,) = [json.loads(line) for line in command(tmp_path / "one.json", "--json").out.splitlines()]
    assert said in row["dropped"]


def test_the_command_refuses_a_policy_that_is_none(command: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("[]")
    ended = command(EVENTS, "--against", tmp_path / "b.json")
    assert ended.code == 2
    assert "b.json" in ended.err


def test_the_moments_of_a_story_do_not_depend_on_who_reads_it() -> None:
    first, second = (compared(recorded(*storm(3, jobs=8)), DEFAULT_POLICY, TELL) for _ in range(2))
    assert first == second
