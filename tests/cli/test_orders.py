"""Orders: what is sent, what is asked back, and how refusals end."""

from __future__ import annotations

import io
import json

import pytest

from rekindle.client.api import Client
from rekindle.client.errors import CommandFailed, NotFound
from tests.cli.conftest import Run
from tests.cli.service import FakeService


class Terminal(io.StringIO):
    """Standard input with a person at it."""

    def isatty(self) -> bool:
        return True


def _person_says(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)


def test_a_checkpoint_is_ordered(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    ended = rekindle("checkpoint", "lm", "--yes")
    assert ended.code == 0
    assert "rekindle show inc-lm" in ended.out
    assert service.work(_only_open(service)).outcome == "order.checkpoint"


def test_each_order_carries_its_own_random_key(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    rekindle("checkpoint", "lm", "--yes")
    rekindle("checkpoint", "lm", "--yes")
    keys = [seen.headers["idempotency-key"] for seen in service.requests if seen.method == "POST"]
    assert len(set(keys)) == 2
    assert all(len(key) >= 32 for key in keys)


def test_the_same_key_is_one_order(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    assert rekindle("checkpoint", "lm", "--yes", "--key", "k1").out.startswith("Ordered;")
    ended = rekindle("checkpoint", "lm", "--yes", "--key", "k1")
    assert ended.code == 0
    assert ended.out.startswith("Ordered before with this key")


def test_a_resubmission_is_refused_without_a_terminal_and_without_yes(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    ended = rekindle("resubmit", "lm")
    assert ended.code == 1
    assert "--yes" in ended.err
    assert {seen.method for seen in service.requests} == {"GET"}


def test_a_resubmission_says_what_it_will_do_and_asks(
    rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.protect("lm")
    service.saved(80)
    service.saved(90)
    _person_says(monkeypatch, "y\n")
    ended = rekindle("resubmit", "lm", "--from-step", "90", "--skip", "100:120", "--skip", "300:310")
    assert ended.code == 0
    for words in ("stop lm", "attempt 2", "at or before step 90", "steps 100 to 119", "steps 300 to 309", "[y/N]"):
        assert words in ended.err
    assert service.requests[-1].body == {"from_step": 90, "skip": [[100, 120], [300, 310]]}


def test_without_a_terminal_it_is_said_what_would_be_done_and_nothing_is(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    ended = rekindle("resubmit", "lm", "--skip", "100:120")
    assert (ended.code, ended.out) == (1, "")
    assert "steps 100 to 119" in ended.err
    assert "--yes" in ended.err
    assert all(seen.method == "GET" for seen in service.requests)


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "no\n", "yess\n", "maybe\n"])
def test_anything_but_yes_orders_nothing(
    rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    service.protect("lm")
    _person_says(monkeypatch, answer)
    ended = rekindle("resubmit", "lm")
    assert ended.code == 1
    assert "nothing was ordered" in ended.err
    assert all(seen.method == "GET" for seen in service.requests)


def test_a_resubmission_beside_an_open_incident_says_so(
    rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    _person_says(monkeypatch, "n\n")
    assert f"Incident {incident} is open" in rekindle("resubmit", "lm").err


def test_an_order_for_machines_is_what_the_service_answered(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    body = json.loads(rekindle("resubmit", "lm", "--yes", "--json").out)
    assert body["what"] == "opened"
    assert body["incident_id"] == _only_open(service)


def test_a_cancelled_incident_is_closed_by_its_next_look(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    ended = rekindle("cancel", incident, "--yes")
    assert ended.code == 0
    assert service.work(incident).outcome == "order.cancel"


def test_cancelling_asks_back_too(rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    assert rekindle("cancel", incident).code == 1
    _person_says(monkeypatch, "yes\n")
    ended = rekindle("cancel", incident)
    assert ended.code == 0
    assert "nothing more is done" in ended.err


def test_a_closed_incident_cannot_be_cancelled(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    service.work(incident)
    ended = rekindle("cancel", incident, "--yes")
    assert ended.code == 1
    assert "closed already: recovered" in ended.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_order_that_the_service_drops_is_a_failure(
    rekindle: Run, service: FakeService, flags: tuple[str, ...]
) -> None:
    service.answers += [(200, {}, b"{}")] * 2
    service.answers.append((202, {}, b'{"what": "dropped", "reason": "the Incident is closed", "incident_id": "i"}'))
    ended = rekindle("checkpoint", "lm", "--yes", *flags)
    assert ended.code == 1
    assert "the Incident is closed" in ended.err + ended.out


def test_orders_about_what_does_not_exist_are_exit_code_3(rekindle: Run) -> None:
    for command in (
        ("checkpoint", "none", "--yes"),
        ("resubmit", "none", "--yes"),
        ("cancel", "inc-none", "--yes"),
        ("register", "none", "--yes"),
    ):
        assert rekindle(*command).code == 3


def test_a_training_job_is_registered_once(rekindle: Run, service: FakeService) -> None:
    service.scheduler.put("mine", policy_name="", mailbox="")
    ended = rekindle("register", "mine", "--yes", "--mailbox", "s3://box/x")
    assert ended.out == "mine is protected by policy default.\n"
    assert json.loads(rekindle("register", "mine", "--yes", "--json").out)["mailbox"] == "s3://box/x"


def test_an_unknown_policy_is_not_found(rekindle: Run, service: FakeService) -> None:
    service.scheduler.put("mine", policy_name="")
    assert rekindle("register", "mine", "--yes", "--policy", "nowhere").code == 3


def test_the_pause_is_set_and_lifted(rekindle: Run, service: FakeService) -> None:
    assert "rekindle switches unpause" in rekindle("pause").out
    assert service.registry.is_paused()
    assert rekindle("status").out.startswith("protection  paused")
    assert json.loads(rekindle("unpause", "--json", "--yes").out)["paused"] is False
    assert not service.registry.is_paused()


@pytest.mark.parametrize(
    ("named", "code"), [(("--cluster", "typo"), 3), (("--cluster", "..x"), 3), (("--job", "typo"), 3)]
)
def test_shadow_mode_of_what_is_not_known_is_refused(
    rekindle: Run, service: FakeService, named: tuple[str, str], code: int
) -> None:
    before = service.registry.switches()
    assert rekindle("shadow", "on", *named).code == code
    body = {"scope": named[0].strip("-"), "name": named[1], "on": True}
    with pytest.raises((NotFound, CommandFailed)):  # and by the service itself, whoever asks
        Client(url=service.url).order("PUT", "/shadow", body, key="k")
    assert service.registry.switches() == before


def test_shadow_mode_of_a_cluster_that_is_gone_can_be_left(rekindle: Run, service: FakeService) -> None:
    service.head_nodes.heartbeat("ml")
    assert rekindle("shadow", "on", "--cluster", "ml").code == 0
    del service.head_nodes.agents["ml"]
    assert rekindle("shadow", "off", "--cluster", "ml", "--yes").code == 0
    assert service.registry.switches().clusters == ()


def test_a_redrive_that_fails_again_is_told_by_the_exit_code(rekindle: Run, service: FakeService) -> None:
    assert rekindle("quarantine", "redrive", "--yes").code == 0
    service.ingress.take("training_job_event", {"version": "0"})
    ended = rekindle("quarantine", "redrive", "--yes")
    assert ended.code == 1
    assert ended.out == "1 events fed in again, 1 went back to quarantine.\n"


def test_what_is_no_json_goes_back_as_it_was(rekindle: Run, service: FakeService) -> None:
    service.quarantine.put(raw="no json", function="sweep", error="?", field="?", at=service.clock.now())
    assert rekindle("quarantine", "redrive", "--yes").out == "1 events fed in again, 1 went back to quarantine.\n"
    (kept,) = service.quarantine.peek(limit=9)
    assert (kept["raw"], kept["function"], kept["error"]) == ("no json", "sweep", "event: is not JSON")


def _only_open(service: FakeService) -> str:
    ((incident, _),) = service.store.list_open()
    return incident.incident_id


@pytest.mark.parametrize(
    ("from_step", "said"),
    [
        ("101", "beyond the newest verified checkpoint, at step 90"),
        ("91", "beyond the newest verified checkpoint, at step 90"),
        ("39", "no verified checkpoint lies at or before step 39: the oldest is at step 40"),
    ],
)
def test_a_resubmission_from_a_step_that_no_checkpoint_serves_is_refused_and_nothing_is_stopped(
    rekindle: Run, service: FakeService, from_step: str, said: str
) -> None:
    service.protect("lm")
    for step in (40, 90):
        service.saved(step)
    service.saved(20, problems=("a file is missing",))
    service.saved(100, problems=("a file is missing",))
    ended = rekindle("resubmit", "lm", "--from-step", from_step, "--yes")
    assert ended.code == 1
    assert "from_step" in ended.err
    assert said in ended.err
    assert service.registry.get("lm").open_incident is None


def test_a_resubmission_from_a_step_without_any_checkpoint_is_refused(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    ended = rekindle("resubmit", "lm", "--from-step", "50", "--yes")
    assert (ended.code, "there is none" in ended.err) == (1, True)


@pytest.mark.parametrize("from_step", ["40", "41", "90"])
def test_a_resubmission_from_a_step_that_a_checkpoint_serves_is_taken(
    rekindle: Run, service: FakeService, from_step: str
) -> None:
    service.protect("lm")
    for step in (40, 90):
        service.saved(step)
    assert rekindle("resubmit", "lm", "--from-step", from_step, "--yes").code == 0
