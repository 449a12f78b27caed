"""Approvals, nodes, switches, policies, ledgers, rehearsals: what is sent, what is asked back, how each ends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from rekindle.cli.main import build_parser
from tests.cli.conftest import Ended, Run
from tests.cli.service import FakeService

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\r\n\u202egpj\x9b31m\x7f"


class Terminal(io.StringIO):
    """Standard input with a person at it."""

    def isatty(self) -> bool:
        return True


def person_says(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)


def given(service: FakeService, *bodies: dict[str, Any]) -> None:
    service.answers += [(200, {}, json.dumps(body).encode()) for body in bodies]


def question(**more: Any) -> dict[str, Any]:
    return {
        "approval_id": "a1",
        "what": "stop lm and start lm-r2",
        "why": "rule costs",
        "default": "denied",
        "deadline_at": "2026-11-20T10:30:00+00:00",
        "answer": None,
        **more,
    }


TAKEN = {"what": "joined", "reason": "", "incident_id": "inc-1"}
SWITCHES: dict[str, Any] = {"paused": False}


# --- approvals ------------------------------------------------------------------------------------------------------


def test_what_waits_for_an_answer_is_listed(rekindle: Run, service: FakeService) -> None:
    assert "Nothing waits" in rekindle("approvals").out
    given(service, {"approvals": [question(incident={"incident_id": "inc-1", "job_id": "lm"})]})
    out = rekindle("approvals").out
    assert all(word in out for word in ("inc-1", "a1", "lm", "denied", "stop lm and start lm-r2", "10:30:00Z"))


def test_an_approval_says_what_is_approved_and_asks(
    rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(service, {"approvals": [question()]}, SWITCHES, TAKEN)
    person_says(monkeypatch, "y\n")
    ended = rekindle("approve", "inc-1", "--comment", "go on")
    assert ended.code == 0
    assert "stop lm and start lm-r2" in ended.err
    sent = service.requests[-1]
    assert (sent.method, sent.path) == ("POST", "/incidents/inc-1/approvals/a1")
    assert sent.body == {"answer": "approve", "comment": "go on"}
    assert sent.headers["idempotency-key"]


def test_a_denial_is_sent_as_one(rekindle: Run, service: FakeService) -> None:
    given(service, {"approvals": [question(), question(approval_id="a2")]}, SWITCHES, TAKEN)
    assert rekindle("deny", "inc-1", "a2", "--yes").code == 0
    assert service.requests[-1].path.endswith("/approvals/a2")
    assert service.requests[-1].body == {"answer": "deny"}


def test_of_several_questions_one_must_be_named(rekindle: Run, service: FakeService) -> None:
    given(service, {"approvals": [question(), question(approval_id="a2"), question(approval_id="a0", answer="denied")]})
    ended = rekindle("approve", "inc-1", "--yes")
    assert ended.code == 2
    assert "name one of a1, a2" in ended.err


def test_without_a_question_there_is_nothing_to_answer(rekindle: Run, service: FakeService) -> None:
    given(service, {"approvals": []}, {"approvals": [question()]})
    assert "waits for no answer" in rekindle("approve", "inc-1", "--yes").err
    assert "asks nothing called a9" in rekindle("approve", "inc-1", "a9", "--yes").err
    assert all(request.method == "GET" for request in service.requests)


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_replacing_a_node_says_that_its_volumes_are_lost_and_asks(
    rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"cluster": "ml", "nodes": [{"node": "ip-1", "state": "idle"}], "jobs": []}
    given(service, cluster, SWITCHES, TAKEN)
    person_says(monkeypatch, "yes\n")
    ended = rekindle("replace", "ml/ip-1", "--why", "it hums", "--force")
    assert ended.code == 0
    assert all(text in ended.err for text in ("EVERYTHING ON ITS VOLUMES IS LOST", "now: idle", "budgets"))
    assert service.requests[-1].path == "/clusters/ml/nodes/ip-1/repair"
    assert service.requests[-1].body == {"do": "replace", "why": "it hums", "force": True}


def test_rebooting_asks_too_and_no_is_no(rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    given(service, {"cluster": "ml", "nodes": []})
    person_says(monkeypatch, "n\n")
    assert rekindle("reboot", "ml/ip-1").code == 1
    assert all(request.method == "GET" for request in service.requests)


@pytest.mark.parametrize("target", ["ml", "/ip-1", "ml/", ""])
def test_a_node_is_named_with_its_cluster(rekindle: Run, target: str) -> None:
    assert rekindle("reboot", target, "--yes").code == 2


def test_a_cluster_may_be_an_arn(rekindle: Run, service: FakeService) -> None:
    given(service, {"cluster": "c"}, SWITCHES, TAKEN)
    arn = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abc"
    assert rekindle("reboot", f"{arn}/ip-1", "--yes").code == 0
    assert "cluster%2Fabc/nodes/ip-1/repair" in service.requests[-1].path


def test_hardware_that_failed_is_listed_with_what_befell_it_last(rekindle: Run, service: FakeService) -> None:
    fault = {"at": "2026-11-20T09:00:00+00:00", "cluster": "ml", "node": "ip-1", "kind": "node_hardware", "text": ""}
    suspect = {"identity": "GPU-1f2e", "kind": "gpu", "is_suspect": True, "faults_total": 4, "faults_in_window": 3}
    given(service, {"hardware": [suspect | {"window_days": 30, "faults": [fault]}]}, {"hardware": []})
    out = rekindle("hardware").out
    assert all(text in out for text in ("GPU-1f2e", "yes", "3", "4", "ml/ip-1", "09:00:00Z", "node_hardware"))
    assert "No hardware" in rekindle("hardware").out


# --- switches -------------------------------------------------------------------------------------------------------


def test_shadow_mode_is_put_on_without_asking_and_left_only_after(
    rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.protect("lm")
    assert "nothing is done" in rekindle("shadow", "on", "--job", "lm").out
    assert "on for job lm" in rekindle("switches").out
    assert rekindle("shadow", "off", "--job", "lm").code == 1  # nobody to ask
    person_says(monkeypatch, "y\n")
    ended = rekindle("shadow", "off", "--job", "lm")
    assert ended.code == 0
    assert "is done from now on" in ended.err
    assert "shadow  off" in rekindle("switches").out


@pytest.mark.parametrize("where", [(), ("--job", "lm", "--everywhere"), ("--job", "lm", "--cluster", "ml")])
def test_shadow_mode_is_for_one_thing(rekindle: Run, where: tuple[str, ...]) -> None:
    ended = rekindle("shadow", "on", *where)
    assert ended.code == 2
    assert "one of them" in ended.err


def test_a_pause_keeps_its_reason(rekindle: Run, service: FakeService) -> None:
    assert rekindle("pause", "--why", "new driver").code == 0
    assert service.requests[-1].body == {"paused": True, "why": "new driver"}
    assert "paused by" in rekindle("switches").out


def test_a_breaker_that_holds_nothing_is_not_lifted(rekindle: Run) -> None:
    ended = rekindle("lift", "--yes")
    assert ended.code == 1
    assert "holds nothing" in ended.err


# --- policies -------------------------------------------------------------------------------------------------------


def test_a_policy_is_tried_compared_stored_and_read_back(
    rekindle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"budgets": {"max_attempts": 20}}')
    assert rekindle("policy", "validate", str(file)).code == 0
    ended = rekindle("policy", "diff", "default", str(file), "--exit-code")
    assert ended.code == 1
    assert "budgets.max_attempts" in ended.out
    assert rekindle("policy", "put", "default", str(file)).code == 1  # nobody to ask
    person_says(monkeypatch, "y\n")
    put = rekindle("policy", "put", "default", str(file))
    assert put.code == 0
    assert "budgets.max_attempts" in put.err
    assert json.loads(rekindle("policy", "get", "default").out) == {"budgets": {"max_attempts": 20}}
    assert json.loads(rekindle("policy", "get", "default", "--effective").out)["budgets"]["max_attempts"] == 20
    assert "default" in rekindle("policy", "list").out
    assert "Nothing changes." in rekindle("policy", "diff", "default", str(file), "--exit-code").out


def test_a_policy_that_was_stored_by_another_hand_meanwhile_is_not_overwritten(rekindle: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"budgets": {"max_attempts": 20}}')
    assert rekindle("policy", "put", "default", str(file), "--yes").code == 0
    file.write_text('{"budgets": {"max_attempts": 30}}')
    assert rekindle("policy", "put", "default", str(file), "--yes", "--replaces", "0").code == 1


def test_every_problem_of_a_policy_is_told_with_its_field(rekindle: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text('{"budgets": {"max_attempts": 0}, "colour": "red"}')
    ended = rekindle("policy", "validate", str(file))
    assert ended.code == 1
    assert "budgets.max_attempts: " in ended.out
    assert "colour: is not known" in ended.out


def test_a_policy_is_tried_under_the_name_that_it_gives_itself(rekindle: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"name": "night-runs", "budgets": {"max_attempts": 20}}')
    assert rekindle("policy", "validate", str(file)).code == 0
    ended = rekindle("policy", "validate", str(file), "--name", "day-runs")
    assert ended.code == 1
    assert "night-runs" in ended.out
    file.write_text('{"name": "../night", "budgets": {"max_attempts": 20}}')  # none that a policy can be stored under
    assert rekindle("policy", "validate", str(file)).code == 1


def test_a_file_that_cannot_be_read_is_told_in_words(rekindle: Run, tmp_path: Path) -> None:
    ended = rekindle("policy", "validate", str(tmp_path / "none.json"))
    assert ended.err == f"rekindle: {tmp_path / 'none.json'}: No such file or directory\n"
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in rekindle("policy", "validate", str(tmp_path / "bytes.json")).err


@pytest.mark.parametrize("text", ["[]", "not json", "", "\udcff", '{"timing": {"look_max_s": 2, "look_max_s": 9}}'])
def test_what_is_no_document_is_not_even_sent(rekindle: Run, service: FakeService, tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert rekindle("policy", "validate", str(file)).code == 2
    assert rekindle("policy", "validate", str(tmp_path / "none.json")).code == 2
    assert service.requests == []


# --- orders ---------------------------------------------------------------------------------------------------------


def test_a_stop_says_that_it_stays_so(rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.protect("lm")
    person_says(monkeypatch, "y\n")
    ended = rekindle("stop", "lm")
    assert ended.code == 0
    assert "start nothing in its place" in ended.err
    assert service.requests[-1].body == {"checkpoint": True}
    assert rekindle("stop", "lm", "--no-checkpoint", "--yes").code == 0
    assert service.requests[-1].body == {"checkpoint": False}


def test_nodes_can_be_left_out_of_a_resubmission(rekindle: Run, service: FakeService) -> None:
    given(service, {"job_id": "slurm.ml.1", "current_attempt": "slurm.ml.1"}, SWITCHES, TAKEN)
    assert rekindle("resubmit", "slurm.ml.1", "--exclude", "ip-1,ip-2", "--exclude", "ip-3", "--yes").code == 0
    assert service.requests[-1].body == {"exclude": ["ip-1", "ip-2", "ip-3"]}


def test_how_a_job_is_watched_is_said_at_its_registration(rekindle: Run, service: FakeService) -> None:
    service.scheduler.put("lm", mailbox="s3://box/runs/lm")
    ended = rekindle(
        "register", "lm", "--yes", "--alarms", "job", "--hang-minutes", "20", "--metric", "loss=train:loss"
    )
    assert ended.code == 0
    sent = service.requests[-1].body
    assert sent == {"training_job": "lm", "alarms": "job", "hang_minutes": 20, "metrics": {"loss": "train:loss"}}
    assert "loss=train:loss" in rekindle("jobs", "lm").out
    assert "20 min" in rekindle("jobs", "--wide").out
    assert rekindle("register", "--slurm", "ml/1", "--alarms", "job").code == 2
    assert rekindle("register", "lm", "--metric", "speed=x").code == 2


# --- rehearsals and ledgers -----------------------------------------------------------------------------------------


def drill(**outcome: Any) -> dict[str, Any]:
    return {
        "drill_id": "drill-1",
        "job_id": "lm",
        "fault": "hang",
        "outcome": {"phase": "recovered", "rule": "verify.passed", "finished": True, **outcome},
        "total_s": {"unknown": "not known for: stopping"},
        "would_do": ["RequestCheckpoint", "StopJob"],
        "looks": [{"after_s": 0, "phase": "stopping", "rule": "r", "text": "t", "actions": [{"action": "StopJob"}]}],
    }


def test_a_rehearsal_that_would_end_with_a_person_has_a_code_of_its_own(rekindle: Run, service: FakeService) -> None:
    job = {"job_id": "lm"}
    given(service, job, drill(), job, drill(phase="handed_over"), job, drill(finished=False))
    given(service, drill(phase="handed_over"))
    ended = rekindle("drill", "hang", "--job", "lm")
    assert ended.code == 0
    assert "nothing was done" in ended.out
    assert "unknown (not known for: stopping)" in ended.out
    assert "ask for an emergency checkpoint, then stop the run" in ended.out
    assert "-> stop the run" in ended.out
    assert "StopJob" not in ended.out
    assert (service.requests[-1].path, service.requests[-1].body) == ("/jobs/lm/drills", {"fault": "hang"})
    assert rekindle("drill", "hang", "--job", "lm").code == 6
    assert rekindle("drill", "hang", "--job", "lm", "--json").code == 6
    assert rekindle("drill", "--show", "drill-1").code == 6


@pytest.mark.parametrize("words", [(), ("hang",), ("flat_tyre", "--job", "lm"), ("hang", "--show", "drill-1")])
def test_a_rehearsal_needs_a_fault_and_a_job(rekindle: Run, service: FakeService, words: tuple[str, ...]) -> None:
    assert rekindle("drill", *words).code == 2
    assert service.requests == []


def test_a_postmortem_keeps_its_lines_and_nothing_else_is_obeyed(rekindle: Run, service: FakeService) -> None:
    given(service, {"markdown": "# inc-1\n\n- one\x1b[31m\n"})
    assert rekindle("postmortem", "inc-1").out == "# inc-1\n\n- one\\x1b[31m\n"


# --- nothing from outside is obeyed by a terminal ---------------------------------------------------------------------


def hostile(shape: Any) -> Any:
    """The same with every text, and every member's name that is data, replaced."""
    if isinstance(shape, dict):
        return {name: hostile(value) for name, value in shape.items()}
    if isinstance(shape, list):
        return [hostile(value) for value in shape]
    return HOSTILE if isinstance(shape, str) else shape


_ROW = {
    name: "x"
    for name in [
        "job_id",
        "incident_id",
        "name",
        "policy",
        "current_attempt",
        "open_incident",
        "alarms",
        "alarms_state",
        "fault",
        "phase",
        "outcome",
        "cluster",
        "node",
        "approval_id",
        "what",
        "why",
        "default",
        "identity",
        "kind",
        "serial",
        "said",
        "error",
        "function",
        "field",
        "problem",
        "state",
        "rule",
        "text",
        "guard",
        "markdown",
        "unknown",
        "agent_version",
        "slurm_version",
        "by",
        "paused_by",
        "source",
        "summary",
        "attempt",
        "version",
        "conclusion",
        "title",
    ]
}
_MEMBERS = [
    "jobs",
    "incidents",
    "approvals",
    "hardware",
    "policies",
    "problems",
    "changes",
    "events",
    "notices",
    "clusters",
    "nodes",
    "attempts",
    "timeline",
    "signals",
    "looks",
    "guards",
    "stages",
    "tries",
    "inbox",
    "holds",
    "actions",
]


def everything() -> dict[str, Any]:
    """A body that has every member that any command reads."""
    body: dict[str, Any] = dict(_ROW)
    row = {**_ROW, "incident": dict(_ROW), "resume_step": {"unknown": "x"}, "seconds": {"unknown": "x"}}
    body |= {name: [row] for name in _MEMBERS}
    body |= {
        "limits": ["x"],
        "assumptions": ["x"],
        "would_do": ["x"],
        "metrics": {HOSTILE: "x"},
        "shadow": {"everywhere": True, "jobs": ["x"], "clusters": ["x"]},
        "breaker": {"open": True, "text": "x"},
        "paused": True,
        "outcome": {"phase": "x", "rule": "x", "finished": True},
        "resume": dict(_ROW) | {"step": {"unknown": "x"}, "from": "x"},
        "total_s": {"unknown": "x"},
        "seen": {"attempt": "x", "status": {"known": "x"}, "last_step": {"unknown": "x"}},
        "document": {HOSTILE: "x"},
        "loss": {"skips": [[1, 2]], "onset_step": {"known": 1}, "stretches": [["x", 1, 2]]},
        "evidence": {"conclusion": "x", "suspicions": [row]},
        "halt": {"ask": dict(_ROW)},
        "resubmission": {"tries": [row]},
        "counterfactual": {"assumptions": ["x"], "lost_s": {"unknown": "x"}},
        "ettr": {"unknown": "x"},
        "lost_by_fault_s": {HOSTILE: 3},
        "what": "x",
        "reason": "x",
        "unreadable": "x",
        "order": {"who": "x"},
        "ask": {"outcome": "x", "why": "x", "step": 3},
    }
    return dict(hostile(body))


_COMMANDS = [
    ("status",),
    ("jobs",),
    ("jobs", "--wide"),
    ("jobs", "lm"),
    ("incidents", "--open"),
    ("show", "inc-1"),
    ("clusters",),
    ("clusters", "ml"),
    ("approvals",),
    ("hardware",),
    ("switches",),
    ("policy", "list"),
    ("policy", "get", "p"),
    ("ledger",),
    ("ledger", "--job", "lm"),
    ("ledger", "--incident", "inc-1"),
    ("postmortem", "inc-1"),
    ("drill", "hang", "--job", "lm"),
    ("quarantine", "list"),
    ("undelivered", "list"),
    ("approve", "inc-1", HOSTILE, "--yes"),
    ("deny", "inc-1", HOSTILE, "--yes"),
    ("checkpoint", "lm", "--yes"),
    ("stop", "lm", "--yes"),
    ("resubmit", "lm", "--yes"),
    ("cancel", "inc-1", "--yes"),
    ("reboot", "ml/ip-1", "--yes"),
    ("shadow", "on", "--everywhere"),
    ("lift", "--yes"),
    ("pause",),
    ("quarantine", "redrive", "--yes"),
    ("undelivered", "redrive", "--yes"),
]


_MUTE = ("shadow", "lift", "pause", "quarantine")  # they show people nothing of what the service answers


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["people", "machines"])
@pytest.mark.parametrize("words", _COMMANDS, ids=lambda words: " ".join(words[:2]).encode("ascii", "ignore").decode())
def test_no_text_from_outside_reaches_a_terminal_as_anything_but_text(
    rekindle: Run, service: FakeService, words: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    body = everything()
    body["open"] = True
    service.answers += [(200, {}, json.dumps(body).encode())] * 4
    said(rekindle(*words, *flags), words)


@pytest.mark.parametrize("words", _COMMANDS, ids=lambda words: " ".join(words[:2]).encode("ascii", "ignore").decode())
def test_nor_does_a_refusal(rekindle: Run, service: FakeService, words: tuple[str, ...]) -> None:
    service.answers += [(422, {}, json.dumps({"detail": HOSTILE, "title": HOSTILE}).encode())] * 3
    ended = rekindle(*words)
    assert ended.code == 1
    said(ended, words)


def said(ended: Ended, words: tuple[str, ...]) -> None:
    for text in (ended.out, ended.err):
        assert all(char.isprintable() or char == "\n" for char in text), (words, text)
    if words[0] not in _MUTE:
        assert "owned" in ended.out + ended.err, "the hostile text was not even shown, so nothing was tried"


def test_every_command_that_speaks_to_the_service_has_json_and_help() -> None:
    parser = build_parser()
    (known,) = (action for action in parser._actions if hasattr(action, "choices") and action.dest == "command")
    assert known.choices is not None
    for name, command in dict(known.choices).items():  # type: ignore[call-overload]  # argparse types it as Iterable
        text = command.format_help()
        groups = ("nodes", "policy", "dead-letters", "quarantine", "undelivered", "stack", "slurm-agent")
        alone = ("completion", "console", "run", "doctor", "init", "deploy", "undeploy", "package", "slack-app")
        if name not in groups + alone:
            assert "--json" in text, name


def test_a_sum_of_which_nothing_is_known_is_no_zero(rekindle: Run, service: FakeService) -> None:
    given(
        service,
        {
            "days": 7,
            "gpu_hours_lost": {"sum": 0.0, "counted": 0, "not_counted": 3},
            "gpu_hours_saved": {"sum": 0.0, "counted": 3, "not_counted": 0},
            "steps_lost": {"sum": 12.0, "counted": 1, "not_counted": 2},
        },
    )
    lines = {" ".join(line.split()) for line in rekindle("ledger").out.splitlines()}
    assert "GPU-hours lost not known (3 Incidents)" in lines
    assert "GPU-hours saved 0" in lines
    assert "steps lost 12; 2 not known" in lines
