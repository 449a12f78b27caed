"""Every command that changes something goes through one frame, and how each ends where its order cannot be given."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from moto import mock_aws

from chalicelib.domain.model.switches import ShadowScope
from chalicelib.domain.policy.document import Policy
from rekindle.client.api import Client
from rekindle.client.errors import CommandFailed, Exit, NotFound
from tests.cli.conftest import Ended, Run
from tests.cli.service import FakeService
from tests.cli.test_exit_codes import ALONE, SPOKEN, _parser

# Changes something; all others only read.
ASKING: Final = {
    "checkpoint",
    "register",
    "switches unpause",
    "dead-letters events redrive",
    "dead-letters notices redrive",
    "stop",
    "resubmit",
    "cancel",
    "approvals approve",
    "approvals deny",
    "nodes reboot",
    "nodes replace",
    "switches lift",
    "policy put",
}
# The brakes, which hold back and start nothing, and a rehearsal.
AT_ONCE: Final = {"switches pause", "switches shadow", "drill"}
# About a run or a node: a pause and shadow mode hold what these order.
HELD: Final = {
    "checkpoint",
    "stop",
    "resubmit",
    "approvals approve",
    "approvals deny",
    "nodes reboot",
    "nodes replace",
}
# What changes an account, a cluster, or files; the rest of ALONE reads, or writes where it is told to.
ELSEWHERE: Final = {
    "checkpoints",
    "init",
    "stack deploy",
    "stack undeploy",
    "slurm-agent install",
    "slurm-agent upgrade",
    "slurm-agent rollback",
    "slurm-agent uninstall",
    "slurm-agent stop",
}
HARMLESS: Final = ("/policies/validate", "/diff")  # POST, because a document travels; nothing is stored

# Stands for every answer: a run that lives, an open question, a pause, shadow mode, and an open breaker.
ANSWER: Final[dict[str, Any]] = {
    "what": "opened",
    "incident_id": "inc-1",
    "job_id": "lm",
    "active": True,
    "cluster": "ml",
    "phase": "watching",
    "approvals": [{"approval_id": "a-1", "what": "stop lm"}],
    "held_by": [
        {"guard": "pause", "effect": "waits", "text": "the pause by ada (change freeze)"},
        {"guard": "window", "effect": "later_steps", "text": "the window nightly holds"},
    ],
    "breaker": {"open": True, "text": "6 Incidents in ten minutes"},
    "document": {},
    "version": 1,
    "valid": True,
    "markdown": "# inc-1",
    "outcome": {"phase": "recovered", "finished": True},
}


def _words(name: str, folder: Path) -> list[str]:
    """The command as it is typed, without --yes."""
    (folder / "policy.json").write_text("{}")
    files = {"FILE": str(folder / "policy.json")}
    return [*name.split(), *(files.get(word, word) for word in SPOKEN[name] if word != "--yes")]


def _takes(name: str, option: str) -> bool:
    return option in _parser(name)._option_string_actions


def _played(run: Run, service: FakeService, name: str, folder: Path, *more: str) -> tuple[Ended, list[str]]:
    """One command against a service that answers ANSWER, and the routes of what it changed there."""
    service.requests.clear()
    service.answers[:] = [(200, {}, json.dumps(ANSWER).encode())] * 5
    ended = run("--api", service.url, *_words(name, folder), *more)
    changed = [seen.path for seen in service.requests if seen.method != "GET"]
    return ended, [route for route in changed if not route.endswith(HARMLESS)]


@pytest.mark.parametrize("name", sorted(SPOKEN))
def test_what_changes_something_is_an_order_and_what_only_reads_is_none(
    run: Run, service: FakeService, tmp_path: Path, name: str
) -> None:
    is_order = name in ASKING | AT_ONCE
    assert (_takes(name, "--yes"), _takes(name, "--key")) == (is_order, is_order)
    ended, changed = _played(run, service, name, tmp_path, *(["--yes"] if is_order else []))
    assert len(changed) == int(is_order), (changed, ended)
    assert ended.code == Exit.OK
    assert ended.err.startswith("rekindle: target: ") is is_order, ended.err


def test_every_command_that_changes_something_elsewhere_takes_yes() -> None:
    assert {name for name in ALONE if _takes(name, "--yes")} == ELSEWHERE


@pytest.mark.parametrize("name", sorted(ASKING | AT_ONCE))
def test_without_a_terminal_what_asks_is_refused_and_says_what_it_would_do(
    run: Run, service: FakeService, tmp_path: Path, name: str
) -> None:
    ended, changed = _played(run, service, name, tmp_path)
    if name in AT_ONCE:
        assert (ended.code, len(changed)) == (Exit.OK, 1)
        return
    assert (ended.code, changed, ended.out) == (Exit.FAILED, [], "")
    target, what, *_, refusal = ended.err.splitlines()
    assert target == f"rekindle: target: API {service.url}"
    assert what.endswith(":")
    assert refusal.endswith("in a script say --yes")


@pytest.mark.parametrize("name", sorted(HELD))
def test_what_holds_an_order_stands_in_its_question_and_in_its_answer(
    run: Run, service: FakeService, tmp_path: Path, name: str
) -> None:
    by = ("the pause by ada (change freeze)", "the window nightly holds")
    answered, _ = _played(run, service, name, tmp_path, "--yes")
    assert all(text in answered.out for text in by), answered.out
    for_machines, _ = _played(run, service, name, tmp_path, "--yes", "--json")
    assert len(json.loads(for_machines.out)["held_by"]) == 2
    if name in ASKING:
        asked, _ = _played(run, service, name, tmp_path)
        assert all(text in asked.err for text in by), asked.err


def test_what_the_service_says_of_its_holds_stands_in_the_answer(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    night = {"name": "night", "from": "00:00", "to": "00:00"}
    service.policies.stored["default"] = Policy.from_wire({"shadow": True, "windows": [night]})
    service.registry.trip("inc-x", now=service.clock.now(), text="6 Incidents in ten minutes")
    answered = json.loads(rekindle("checkpoint", "lm", "--yes", "--json").out)["held_by"]
    assert [(hold["guard"], hold["effect"]) for hold in answered] == [
        ("shadow", "not_done"),
        ("window", "later_steps"),
        ("breaker", "later_steps"),
    ]
    told = rekindle("checkpoint", "lm", "--yes").out
    assert all(f"held now: {hold['text']}" in told for hold in answered)
    beside = Client(url=service.url).get("/holds", cluster="ml")["held_by"]
    assert [hold["guard"] for hold in beside] == ["shadow", "window", "breaker"]
    incident = Client(url=service.url).get("/holds", incident_id=service.registry.get("lm").open_incident)["held_by"]
    assert [hold["effect"] for hold in incident] == ["not_done", "waits", "waits"]
    assert [hold["guard"] for hold in Client(url=service.url).get("/holds")["held_by"]] == [
        "shadow",
        "window",
        "breaker",
    ]
    with pytest.raises(NotFound):
        Client(url=service.url).get("/holds", job_id="typo")


_LATER: Final = "not this order, but what Rekindle decides by itself after it"
# What is switched on, and what every order that it holds then says of it before it asks.
STATES: Final = {
    "nothing": "",
    "pause": "the pause by ada since 2026-11-20 10:00 UTC (change freeze) holds it until `rekindle switches unpause`",
    "shadow": "shadow mode (everywhere): it is recorded and told, and nothing is done",
    "window": f"the window night holds until Sat 00:00 UTC: {_LATER}",
    "breaker": f"the fleet-wide breaker is open since 2026-11-20 10:00 UTC (6 Incidents in ten minutes): {_LATER}",
}
# Each order, the first line of what it says it will do, and whether what is switched on holds it.
ORDERS: Final[tuple[tuple[tuple[str, ...], str, bool], ...]] = (
    (("checkpoint", "lm"), "Checkpoint of lm:", True),
    (("stop", "lm"), "Stop lm, to stay stopped:", True),
    (("resubmit", "lm"), "Resubmit lm:", True),
    (("nodes", "reboot", "ml/ip-1"), "Reboot ip-1 of ml:", True),
    (("cancel", "INCIDENT"), "Cancel INCIDENT (unclear, now open):", False),
    (("register", "other"), "Protect other:", False),
    (("dead-letters", "events", "redrive"), "Feed the quarantined events in again:", False),
    (("dead-letters", "notices", "redrive"), "Send the undelivered notices again:", False),
)
READS: Final = (
    ("status",),
    ("jobs",),
    ("jobs", "lm"),
    ("incidents",),
    ("show", "INCIDENT"),
    ("clusters",),
    ("switches",),
)


def _switched(service: FakeService, state: str) -> None:
    now = service.clock.now()
    match state:
        case "pause":
            service.registry.set_paused(True, who="ada", now=now, why="change freeze")
        case "shadow":
            service.registry.set_shadow(ShadowScope.EVERYWHERE, "", True, who="ada", now=now)
        case "window":
            night = {"name": "night", "from": "00:00", "to": "00:00", "days": ["fri"]}
            service.policies.stored["default"] = Policy.from_wire({"windows": [night]})
        case "breaker":
            service.registry.trip("inc-x", now=now, text="6 Incidents in ten minutes")


@pytest.mark.parametrize("state", STATES)
def test_what_each_order_and_each_read_prints_without_a_terminal(
    rekindle: Run, service: FakeService, state: str
) -> None:
    for name in ("lm", "stuck"):
        service.protect(name)
    incident = service.stall("stuck")
    service.head_nodes.heartbeat("ml")
    _switched(service, state)
    service.requests.clear()
    for words, what, is_held in ORDERS:
        ended = rekindle(*(word.replace("INCIDENT", incident) for word in words))
        lines = ended.err.splitlines()
        expected = [f"  HELD NOW: {STATES[state]}"] if is_held and STATES[state] else []
        assert (ended.code, ended.out) == (Exit.FAILED, ""), (words, ended)
        assert lines[:2] == [f"rekindle: target: API {service.url}", what.replace("INCIDENT", incident)]
        assert [line for line in lines if "HELD NOW" in line] == expected, words
        assert (
            lines[-1] == "rekindle: nothing was ordered: no one can be asked without a terminal; in a script say --yes"
        )
    for words in READS:
        ended = rekindle(*(word.replace("INCIDENT", incident) for word in words))
        assert (ended.code, ended.err, bool(ended.out)) == (Exit.OK, "", True), (words, ended)
    assert {seen.method for seen in service.requests} == {"GET"}


@pytest.mark.parametrize("name", ["checkpoint", "stop"])
def test_an_order_about_a_job_that_is_over_opens_no_incident(rekindle: Run, service: FakeService, name: str) -> None:
    service.protect("lm")
    service.registry.deactivate("lm", ended_at=service.clock.now())
    ended = rekindle(name, "lm", "--yes")
    assert (ended.code, "lm is over" in ended.err) == (Exit.FAILED, True)
    with pytest.raises(CommandFailed, match="lm is over"):  # and the service itself, whoever asks
        Client(url=service.url).order("POST", f"/jobs/lm/{name}", {}, key="k")
    assert service.registry.get("lm").open_incident is None


def test_a_stop_that_is_repeated_with_its_key_once_the_job_is_over_is_the_same_order(
    rekindle: Run, service: FakeService
) -> None:
    service.protect("lm")
    assert rekindle("stop", "lm", "--yes", "--key", "k").code == 0
    service.work(service.registry.get("lm").open_incident or "")
    service.registry.deactivate("lm", ended_at=service.clock.now())
    assert rekindle("stop", "lm", "--yes", "--key", "k").out.startswith("Ordered before with this key")


# ---- which service ---------------------------------------------------------------------------------------------------


class _Expired(BaseHTTPRequestHandler):
    """CloudFormation's answer to credentials that have expired. Source: its API reference, common errors."""

    def do_POST(self) -> None:
        body = (
            b"<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code><Message>The security token included "
            b"in the request is expired</Message></Error></ErrorResponse>"
        )
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def _expired(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Expired)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _signed_in(monkeypatch: pytest.MonkeyPatch, region: str = "eu-west-1") -> None:
    for setting in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(setting, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)


# One of each kind; the rest of them goes the same way through `connected`, and is played in the long round.
SOME: Final = ("switches pause", "stop", "register", "status", "show")
REST: Final = tuple(sorted(SPOKEN.keys() - set(SOME)))


@pytest.mark.parametrize("names", [SOME, pytest.param(REST, marks=pytest.mark.long)], ids=["some", "rest"])
@pytest.mark.parametrize(
    ("situation", "why"),
    [
        ("no credentials", "no AWS credentials"),
        ("expired credentials", "The security token included in the request is expired"),
        ("another Region", "no stack 'rekindle' in this account and region"),
    ],
)
def test_beside_a_demo_an_order_is_refused_and_what_reads_says_first_where_it_looks(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, situation: str, why: str, names: tuple[str, ...]
) -> None:
    demo = tmp_path / "build" / "demo"
    demo.mkdir(parents=True)
    (demo / "notes.txt").write_text("no store: what is looked for here is told, and not found")
    if situation != "no credentials":
        _signed_in(monkeypatch)
    places = {"expired credentials": lambda: _expired(monkeypatch), "another Region": mock_aws}
    with places.get(situation, nullcontext)():
        told = {name: run(*_words(name, tmp_path), *(["--yes"] if _takes(name, "--yes") else [])) for name in names}
    for name, ended in told.items():
        first = ended.err.splitlines()[0]
        assert (ended.code, ended.out) == (Exit.UNREACHABLE, ""), (name, ended)
        if name in ASKING | AT_ONCE:
            assert first == f"rekindle: no service: {why}. Name one with --api URL, --stack NAME or --store DIR", name
        else:
            assert first == f"rekindle: {why}; looking at the embedded cloud's store build/demo", name
    assert sorted(path.name for path in demo.iterdir()) == ["notes.txt"]


@pytest.mark.parametrize(("name", "first"), [("switches pause", "rekindle: no service: "), ("status", "rekindle: ")])
def test_the_same_where_cloudformation_is_away(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, first: str
) -> None:
    (tmp_path / "build" / "demo").mkdir(parents=True)
    (tmp_path / "build" / "demo" / "notes.txt").write_text("no store")
    _signed_in(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    ended = run(*name.split())
    assert (ended.code, ended.err.startswith(first)) == (Exit.UNREACHABLE, True)
    assert ("looking at the embedded cloud" in ended.err) is (name == "status")
