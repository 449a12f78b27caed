"""`rekindle replay`: one verdict per event, never an exception, always the same."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from localcloud.replay.read import Recorded, read
from localcloud.replay.run import MAX_IDLE_GENERATIONS, IncidentStanding, Replay, Verdict
from rekindle.cli.main import main
from tests.ingest import golden
from tests.sizes import examples

EVENTS = Path(__file__).parents[2] / "events"
START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
KEYS = ["event", "signal", "dropped", "incident", "fault", "rule", "actions", "look_again_in_s"]


def envelope(source: str, detail_type: str, detail: dict[str, Any], *, after_s: float = 0) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "5f1c0000-0000-4000-8000-000000000001",
        "source": source,
        "detail-type": detail_type,
        "account": "111122223333",
        "time": (START + timedelta(seconds=after_s)).isoformat(),
        "region": "us-west-2",
        "resources": [],
        "detail": detail,
    }


def job(
    name: str, status: str, *, after_s: float = 0, secondary: str = "", reason: str = "", **tags: str
) -> dict[str, Any]:
    detail = {
        "TrainingJobName": name,
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary or status,
        "FailureReason": reason,
        "LastModifiedTime": int((START + timedelta(seconds=after_s)).timestamp() * 1000),
        "Tags": {key.replace("_", ":"): value for key, value in tags.items()},
    }
    return envelope("aws.sagemaker", "SageMaker Training Job State Change", detail, after_s=after_s)


def monitor(
    kind: str, step: int, *, after_s: float = 0, attempt: str = "lm", number: int = 1, **more: Any
) -> dict[str, Any]:
    detail = {
        "v": 1,
        "job_id": "lm",
        "attempt": attempt,
        "attempt_number": number,
        "rank": 0,
        "world_size": 2,
        "step": step,
        "at": (START + timedelta(seconds=after_s)).isoformat(),
        **more,
    }
    return envelope("rekindle.monitor", f"Rekindle {kind}", detail, after_s=after_s)


def stall(step: int, *, after_s: float = 0, **more: Any) -> dict[str, Any]:
    return monitor("Stall", step, after_s=after_s, phase="training", silent_s=95, limit_s=60, **more)


def nan(step: int, *, after_s: float = 0, **more: Any) -> dict[str, Any]:
    return monitor("Non-Finite Loss", step, after_s=after_s, loss_state="nan", metric="loss", **more)


def log_batch(*messages: dict[str, Any]) -> dict[str, Any]:
    batch = {
        "messageType": "DATA_MESSAGE",
        "owner": "111122223333",
        "logGroup": "/aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab",
        "logStream": "SagemakerHealthMonitoringAgent/gpu/i-0a1b2c3d4e5f60718",
        "subscriptionFilters": ["hma"],
        "logEvents": [
            {"id": str(index), "timestamp": int(START.timestamp() * 1000), "message": json.dumps(message)}
            for index, message in enumerate(messages)
        ],
    }
    return {"awslogs": {"data": base64.b64encode(gzip.compress(json.dumps(batch).encode(), mtime=0)).decode()}}


def play(*events: Any, policy: Policy = DEFAULT_POLICY) -> tuple[list[Verdict], list[IncidentStanding]]:
    replay = Replay([Recorded(name=f"e{index}", raw=event) for index, event in enumerate(events)], policy)
    return list(replay.verdicts()), replay.standings()


# --- verdicts ---


def test_a_failed_job_is_resubmitted_at_once() -> None:
    (verdict,), (standing,) = play(job("lm", "Failed", reason="AlgorithmError: exit code 1"))
    assert verdict.to_wire() == {
        "event": "e0",
        "signal": "attempt_state",
        "dropped": None,
        "incident": standing.incident.incident_id,
        "fault": "software_crash",
        "rule": "resubmit.now",
        "actions": ["ResubmitJob"],
        "look_again_in_s": 60.0,
        "signals": 1,
        "malformed": False,
    }


def test_a_stall_asks_for_a_checkpoint_and_is_recovered_by_the_time_of_the_next_event() -> None:
    verdicts, (standing,) = play(stall(100), monitor("Monitor Started", 100, after_s=3600))
    assert verdicts[0].actions == ("RequestCheckpoint",)
    assert verdicts[0].rule == "playbook.checkpoint"
    assert standing.incident.phase is Phase.RECOVERED
    assert dict(standing.actions) == {"RequestCheckpoint": 1, "StopJob": 1, "ResubmitJob": 1, "Notify": 1}


def test_an_attempt_that_was_stopped_is_stopped_whatever_the_recording_says_later() -> None:
    verdicts, (standing,) = play(stall(500), job("lm", "Failed", after_s=900, reason="x"))
    assert dict(standing.actions)["StopJob"] == 1
    assert verdicts[1].dropped == "stale: about an attempt that has been succeeded"
    assert standing.incident.resubmission.tries[0].name == "lm-r2"


def test_a_new_attempt_that_the_recording_knows_follows_its_events_into_the_budget() -> None:
    events = [job("lm", "Failed", reason="AlgorithmError: a"), monitor("Monitor Started", 100, after_s=-50)]
    for number in (2, 3, 4):
        name, at = f"lm-r{number}", number * 1000.0
        events += [
            monitor("Monitor Started", 90, after_s=at, attempt=name, number=number),
            job(name, "Failed", after_s=at + 100, reason=f"AlgorithmError: {'abcdef'[number]}", rekindle_job="lm"),
        ]
    verdicts, (standing,) = play(*events)
    assert verdicts[-1].rule == "budget.no_progress"
    assert verdicts[-1].look_again_in_s is None
    assert verdicts[-1].actions == ("Notify",)
    assert standing.incident.phase is Phase.HANDED_OVER
    assert dict(standing.actions)["ResubmitJob"] == 3


def test_a_hang_that_heals_by_itself_costs_nothing() -> None:
    verdicts, (standing,) = play(stall(100), monitor("Progress Resumed", 101, after_s=3, silent_s=98))
    assert verdicts[1].rule == "heal.confirm"  # one heartbeat; its next one closes it
    assert "StopJob" not in dict(standing.actions)


def test_an_answer_in_the_recording_is_waited_for() -> None:
    asked, _ = play(stall(100))
    request_id = f"{asked[0].incident}-c1"
    reply = {
        "request_id": request_id,
        "outcome": "cannot",
        "step": None,
        "manifest": None,
        "why": "the main thread hangs",
    }
    event = monitor("Checkpoint Reply", 100, after_s=20)
    event["detail"].update(reply)
    verdicts, (standing,) = play(stall(100), event, monitor("Monitor Started", 100, after_s=40))
    assert verdicts[1].rule == "stacks.waiting"  # a recording holds no reports of single ranks
    assert dict(standing.actions)["StopJob"] == 1


@pytest.mark.parametrize(
    ("look_max_s", "generation"), [(60, 2), pytest.param(1, MAX_IDLE_GENERATIONS + 5, marks=pytest.mark.long)]
)
def test_an_incident_goes_on_after_its_execution_has_used_up_its_turns(look_max_s: int, generation: int) -> None:
    """With an observation every second it sleeps by then, until the event: so long after people were told that it is
    down, in its third execution."""
    patient = Policy.from_wire({"timing": {"look_max_s": look_max_s, "stop_limit_s": 86400}})
    stopping, failed = job("lm", "Stopping", after_s=-5), job("lm", "Failed", after_s=9 * 3600, reason="exit code 1")
    verdicts, (standing,) = play(stopping, stall(7), failed, policy=patient)
    assert (verdicts[1].rule, verdicts[2].rule) == ("open.stopping", "resubmit.now")
    assert standing.incident.generation == generation


def test_sagemakers_own_repair_is_left_alone() -> None:
    repairing = job("lm", "InProgress", secondary="Restarting")
    verdicts, _ = play(monitor("Monitor Started", 5, after_s=-9), repairing, stall(5, after_s=60))
    assert verdicts[-1].rule == "defer.platform_repair"


def test_events_are_fed_in_order_of_their_times() -> None:
    verdicts, _ = play(stall(100, after_s=50), monitor("Monitor Started", 0, after_s=10), {"version": "0"})
    assert [verdict.event for verdict in verdicts] == ["e1", "e2", "e0"]  # e2 has no time of its own


def test_the_same_event_twice_is_a_duplicate_of_the_first() -> None:
    verdicts, (standing,) = play(stall(100), stall(100))
    assert verdicts[1].dropped is not None
    assert verdicts[1].dropped.startswith("duplicate")
    assert verdicts[1].incident == standing.incident.incident_id
    assert verdicts[1].actions == ()


def test_a_batch_tells_its_strongest_signal_and_how_many_there_were() -> None:
    app_xid = {"Event detail": {"Action": "", "Type": "x", "Reason": "XidUserAppError", "Message": "NVRM: Xid 31"}}
    broken = {"Event detail": {"Action": "replace", "Type": "NvidiaGPUUnhealthy", "Reason": "r", "Message": "m"}}
    (verdict,), _ = play(log_batch(app_xid, broken))
    assert verdict.to_wire()["signals"] == 2
    assert verdict.fault == "node_hardware"
    assert verdict.rule == "cluster.tell"


def test_a_malformed_event_is_dropped_with_its_field() -> None:
    broken = stall(100)
    del broken["detail"]["rank"]
    (verdict,), standings = play(broken)
    assert verdict.dropped == "detail.rank: missing"
    assert verdict.malformed
    assert standings == []


def test_the_policy_on_trial_decides() -> None:
    shadow = Policy.from_wire({"shadow": True})
    (verdict,), _ = play(stall(100), policy=shadow)
    assert (verdict.rule, verdict.actions) == ("guard.shadow", ("Notify",))
    patient = Policy.from_wire({"playbooks": {"hang": {"response": "tell"}}})
    assert play(stall(100), policy=patient)[0][0].rule == "playbook.tell"


def test_a_gap_of_many_years_is_passed_in_a_moment() -> None:
    century = 99 * 365 * 86400
    verdicts, _ = play(
        job("a", "Stopping", after_s=-5),
        envelope("rekindle.monitor", "Rekindle Stall", {**stall(7)["detail"], "job_id": "a", "attempt": "a"}),
        stall(9, after_s=century),
    )
    assert verdicts[1].rule == "open.stopping"
    assert len(verdicts) == 3


# --- files ---


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Ended]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*argv: object) -> Ended:
        code = main(["replay", *(str(word) for word in argv)])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return call


def test_the_golden_events_have_one_verdict_each_and_always_the_same(command: Command) -> None:
    first, second = command(EVENTS, "--json"), command(EVENTS, "--json")
    assert first.code == 0
    assert first.out == second.out
    files = {path.relative_to(EVENTS).as_posix() for path in EVENTS.rglob("*.json")}
    told = [item["event"] for item in first.objects]
    assert len(told) == len(set(told))
    requests = {name for name in files if name.startswith("webhooks/")}  # no events: bodies of inbound webhooks
    assert files - set(told) == {golden.EXPECTED_FILE} | requests
    for item in first.objects:
        assert list(item)[:8] == KEYS
        assert (item["dropped"] is None) == (item["incident"] is not None and item["fault"] is not None)


def test_each_malformed_twin_is_dropped_with_the_field_it_names(command: Command) -> None:
    told = {item["event"]: item["dropped"] for item in command(EVENTS, "--json").objects}
    for name in golden.malformed():
        assert told[name].startswith(f"{golden.EXPECTED[name]['field']}:"), name


@pytest.mark.long
def test_every_golden_event_can_be_replayed_alone(command: Command) -> None:
    for file in sorted(EVENTS.glob("*_*.json")):
        ended = command(file, "--json")
        assert ended.code == 0
        assert [item["event"] for item in ended.objects] == [file.name]


def test_lists_lines_and_single_events_are_read_alike(command: Command, tmp_path: Path) -> None:
    events = [stall(100), nan(200, after_s=1000)]
    (tmp_path / "list.json").write_text(json.dumps(events))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps(event) for event in events) + "\n\n")
    (tmp_path / "pretty.json").write_text(json.dumps(events[0], indent=2))
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(events[0]).encode())
    assert [item["event"] for item in command(tmp_path / "list.json", "--json").objects] == [
        "list.json[0]",
        "list.json[1]",
    ]
    lines = command(tmp_path / "lines.jsonl", "--json").objects
    assert [item["event"] for item in lines] == ["lines.jsonl:1", "lines.jsonl:2"]
    for name in ("pretty.json", "bom.json"):
        assert [item["rule"] for item in command(tmp_path / name, "--json").objects] == ["playbook.checkpoint"]


def test_a_broken_line_among_good_ones_is_told_by_its_number(command: Command, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(stall(1)) + "\n{broken\n[]\n")
    told = {item["event"]: item["dropped"] for item in command(tmp_path / "x.jsonl", "--json").objects}
    assert told == {
        "x.jsonl:1": None,
        "x.jsonl:2": "event: is not JSON",
        "x.jsonl:3": "event: must be an object, not list",
    }


def test_a_folder_is_searched_through_and_other_files_are_passed_over(command: Command, tmp_path: Path) -> None:
    (tmp_path / "2026" / "11").mkdir(parents=True)
    (tmp_path / "2026" / "11" / "a.json").write_text(json.dumps(stall(1)))
    (tmp_path / "README.md").write_text("# not an event")
    (tmp_path / "sources.json").write_text('{"a.json": "somewhere"}')
    ended = command(tmp_path, "--json")
    assert [item["event"] for item in ended.objects] == ["2026/11/a.json"]
    assert command(tmp_path / "sources.json", "--json").objects[0]["dropped"] == "version: missing"


def test_malformed_events_are_counted_and_no_failure(command: Command, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    ended = command(tmp_path)
    assert ended.code == 0
    assert "malformed 1" in ended.out
    assert "event: is not JSON" in ended.out
    assert "malformed 1" in command(tmp_path, "--json").err


def test_where_there_is_nothing_to_replay_that_is_said(command: Command, tmp_path: Path) -> None:
    ended = command(tmp_path, "--json")
    assert (ended.code, ended.out) == (1, "")
    assert f"nothing to replay: no event in {tmp_path}" in ended.err


def test_a_path_that_is_not_there_is_exit_code_2(command: Command, tmp_path: Path) -> None:
    ended = command(tmp_path / "nowhere", "--json")
    assert (ended.code, ended.out) == (2, "")
    assert "nowhere" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"timing": {"look_max_s": 0}}', "timing.look_max_s"),
        ('{"looks": 1}', "looks"),
        ("[]", "policy"),
        ("{", "is not JSON"),
        (None, "No such file"),
    ],
)
def test_an_invalid_policy_is_exit_code_2(command: Command, tmp_path: Path, text: str | None, said: str) -> None:
    policy = tmp_path / "policy.json"
    if text is not None:
        policy.write_text(text)
    ended = command(EVENTS / "monitor_stall.json", "--policy", policy)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""


def test_the_table_tells_events_and_where_each_incident_stands(command: Command) -> None:
    ended = command(EVENTS / "monitor_stall.json")
    assert ended.code == 0
    assert "playbook.checkpoint" in ended.out
    assert "checkpointing" in ended.out
    assert ended.out.endswith("events 1: taken in 1, dropped 0, malformed 0; Incidents 1\n")


# --- anything at all ---

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_GOLDEN = [json.loads(path.read_text()) for path in sorted(EVENTS.glob("*_*.json"))]


@st.composite
def _events(draw: st.DrawFn) -> Any:
    """A golden event at some time, perhaps with one member replaced by anything; or anything."""
    if draw(st.integers(0, 5)) == 0:
        return draw(_JSON)
    event = json.loads(json.dumps(draw(st.sampled_from(_GOLDEN))))
    if "time" in event:
        event["time"] = (START + timedelta(seconds=draw(st.integers(-10_000, 100_000)))).isoformat()
    if draw(st.booleans()):
        place = draw(st.sampled_from([event, event["detail"]] if isinstance(event.get("detail"), dict) else [event]))
        place[draw(st.sampled_from(sorted(place)))] = draw(_JSON)
    return event


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(_events(), max_size=12))
def test_any_recording_has_one_verdict_per_event_and_the_same_again(events: list[Any]) -> None:
    verdicts, standings = play(*events)
    assert sorted(verdict.event for verdict in verdicts) == sorted(f"e{index}" for index in range(len(events)))
    assert (verdicts, standings) == play(*events)
    for verdict in verdicts:
        wire = verdict.to_wire()
        assert list(wire)[:8] == KEYS
        json.dumps(wire, allow_nan=False)
        if verdict.dropped is not None:
            assert (verdict.rule, verdict.actions, verdict.look_again_in_s) == (None, (), None)
    open_jobs = [
        standing.incident.job_id for standing in standings if standing.incident.is_open and standing.incident.job_id
    ]
    assert len(open_jobs) == len(set(open_jobs))


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_file_is_read_without_an_exception(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "x.json"
    file.write_bytes(content)
    recorded = read([file])
    assert len(list(Replay(recorded, DEFAULT_POLICY).verdicts())) == len(recorded)
