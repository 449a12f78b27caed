"""Suspect hardware is known again under whatever name it comes back, and is replaced or told as the policy says."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import SignalKind
from chalicelib.services.sweep.clusters import SweepClusters
from tests.guardrails_nodes.stage import GPU, HOUR, NODE, OTHER, Yard, mark_of, with_policy
from tests.services.node_world import CLUSTER

DAY = timedelta(days=1)


def test_an_incident_of_the_hardware_is_kept_against_each_of_its_gpus() -> None:
    yard = Yard()
    yard.site.machines[NODE].gpus = (GPU, OTHER)
    incident_id = yard.report(xid=79, first_response="reboot")
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.RECOVERED
    (one, other) = yard.hardware_ledgers.listing()
    assert {one["identity"], other["identity"]} == {GPU, OTHER}
    assert one["faults"][0]["done"] == "reboot"
    assert (one["faults_total"], one["is_suspect"]) == (1, False)


def test_a_line_that_names_the_gpu_blames_that_one_alone() -> None:
    yard = Yard()
    yard.site.machines[NODE].gpus = (GPU, OTHER)
    yard.report(xid=79, first_response="reboot", marks=[mark_of(OTHER)])
    yard.settle()
    (one,) = yard.hardware_ledgers.listing()
    assert (one["identity"], one["faults"][0]["named"]) == (OTHER, True)


def test_hardware_that_nobody_has_told_apart_is_kept_by_its_instance() -> None:
    yard = Yard()
    old = yard.site.machines[NODE].instance_id
    yard.report(recommended="replace")
    yard.settle()
    (one,) = yard.hardware_ledgers.listing()
    assert (one["kind"], one["identity"]) == ("instance", old)


def test_what_says_nothing_against_the_hardware_is_not_kept() -> None:
    yard = Yard()
    for node in yard.site.machines.values():
        node.gpus = (GPU,)
    yard.report("ip-10-1-0-1", xid=31, fault=None)
    yard.order("reboot")
    yard.settle()
    assert yard.hardware_ledgers.listing() == []


def test_the_third_incident_in_a_month_replaces_where_a_reboot_would_have_been_tried() -> None:
    yard = Yard()
    yard.site.machines[NODE].gpus = (GPU,)
    yard.site.spares = [(OTHER,)]
    yard.had(GPU, 3 * DAY, 20 * DAY)
    incident_id = yard.report(xid=79, first_response="reboot")
    yard.settle()
    assert [what for what, _ in yard.site.calls] == ["replace"]
    assert yard.incident(incident_id).phase is Phase.RECOVERED, yard.told(incident_id)
    assert "n1 of elsewhere" in yard.told(incident_id)
    listed = next(record for record in yard.hardware_ledgers.listing() if record["identity"] == GPU)
    assert (listed["is_suspect"], listed["faults_in_window"], listed["window_days"]) == (True, 3, 28)


def test_two_incidents_are_no_suspect_hardware_and_neither_are_old_ones() -> None:
    for agos in ((3 * DAY,), (29 * DAY, 30 * DAY, 31 * DAY)):
        yard = Yard()
        yard.site.machines[NODE].gpus = (GPU,)
        yard.had(GPU, *agos)
        yard.report(xid=79, first_response="reboot")
        yard.settle()
        assert [what for what, _ in yard.site.calls] == ["reboot"]


def test_a_replacement_that_is_suspect_hardware_is_not_taken() -> None:
    yard = Yard()
    yard.had(GPU, DAY, 2 * DAY, 3 * DAY)
    yard.site.spares = [(GPU,), (OTHER,)]
    incident_id = yard.report(recommended="replace")
    yard.settle()
    assert [what for what, _ in yard.site.calls] == ["replace", "replace"]
    assert yard.rules(incident_id).count("repair.suspect_hardware") == 1
    assert yard.incident(incident_id).phase is Phase.RECOVERED, yard.told(incident_id)
    assert yard.site.machines[NODE].gpus == (OTHER,)


def test_the_very_machine_that_was_sent_back_is_known_under_its_new_instance_id() -> None:
    """No record is needed for that: it is what has just been replaced."""
    yard = Yard()
    yard.site.machines[NODE].gpus = (GPU,)
    yard.site.spares = [(GPU,), (OTHER,)]
    incident_id = yard.report(recommended="replace")
    yard.settle()
    assert "is the very machine that was replaced" in yard.told(incident_id)
    assert [what for what, _ in yard.site.calls] == ["replace", "replace"]


def test_a_provider_that_sends_nothing_but_suspect_hardware_ends_at_a_person() -> None:
    yard = Yard()
    yard.site.machines[NODE].gpus = (GPU,)
    yard.site.spares = [(GPU,)] * 9
    incident_id = yard.report(recommended="replace")
    yard.settle()
    assert len(yard.site.calls) == 2
    assert yard.rules(incident_id)[-1] == "repair.suspect_hardware_limit"
    assert yard.incident(incident_id).phase is Phase.HANDED_OVER
    assert yard.site.machines[NODE].drain.startswith("rekindle:")  # it gets no jobs until somebody says so


@pytest.mark.parametrize(("rule", "calls"), [("off", ["reboot"]), ("tell", ["reboot"])])
def test_the_policy_may_only_tell_or_look_away(rule: str, calls: list[str]) -> None:
    yard = Yard(with_policy(nodes={"suspect_repair": rule}))
    yard.site.machines[NODE].gpus = (GPU,)
    yard.had(GPU, DAY, 2 * DAY, 3 * DAY)
    incident_id = yard.report(xid=79, first_response="reboot")
    yard.settle()
    assert [what for what, _ in yard.site.calls] == calls
    assert ("node.suspect_hardware" in yard.rules(incident_id)) is (rule == "tell")
    notices = [notice.text for notice in yard.announcer.notices if "suspect hardware" in notice.text]
    assert len(notices) == (rule == "tell")


def test_a_ledger_that_cannot_be_read_makes_nothing_suspect_hardware_and_stops_no_repair() -> None:
    yard = Yard()
    yard.site.machines[NODE].gpus = (GPU,)
    yard.had(GPU, DAY, 2 * DAY, 3 * DAY)
    yard.ledger.is_blind = True
    incident_id = yard.report(xid=79, first_response="reboot")
    yard.settle()
    assert [what for what, _ in yard.site.calls] == ["reboot"]
    assert yard.incident(incident_id).phase is Phase.RECOVERED


def test_a_look_at_a_host_full_of_faults_stays_small() -> None:
    yard = Yard()
    gpus = tuple(f"GPU-5c89b0a6-2d1e-6a23-9a4b-{number:012x}" for number in range(16))
    yard.site.machines[NODE].gpus = gpus
    for gpu in gpus:
        yard.had(gpu, *(number * HOUR for number in range(1, 17)))
    incident_id = yard.report(xid=79, first_response="reboot")
    incident, seen = yard.look.observe(incident_id, generation=1, callback_id="c", quiet_limit=timedelta(minutes=1))
    assert incident.is_open
    assert len(json.dumps(seen.to_wire())) < 100_000  # a durable step's result holds 256 KB


# ---- what the sweep sees ---------------------------------------------------------------------------------------------


def sweep(yard: Yard) -> list[str | None]:
    """Each node's Incident that a sweep opens or joins."""
    found: list[str | None] = []
    sweeper = SweepClusters(
        head_nodes=yard.site, intake=yard.intake, clock=yard.clock, hardware_ledgers=yard.hardware_ledgers
    )
    for number in range(10):  # nodes are read in every tenth round
        outcomes, unread = sweeper.run({CLUSTER: "default"}, number=number)
        assert unread == 0
        found += [outcome.incident_id for outcome in outcomes]
    for incident_id in filter(None, found):
        yard.due[incident_id] = yard.clock.now()
    return found


def test_a_suspect_hardware_that_comes_back_into_service_is_found_by_the_sweep_and_replaced() -> None:
    yard = Yard(tag="default")
    yard.had(GPU, DAY, 2 * DAY, 3 * DAY)
    yard.site.machines["ip-10-1-0-2"].gpus = (GPU,)
    yard.site.machines["ip-10-1-0-2"].jobs = (41,)
    found = sweep(yard)
    assert len(found) == 1
    yard.run(HOUR)
    assert yard.site.calls == []  # it waits for the job, and disturbs no run
    yard.site.machines["ip-10-1-0-2"].jobs = ()
    yard.settle()
    incident = yard.incident(found[0] or "")
    assert incident.phase is Phase.RECOVERED, yard.told(incident.incident_id)
    assert [what for what, _ in yard.site.calls] == ["replace"]
    assert incident.fault_rule == "suspect_hardware"
    assert len(yard.ledger.records[mark_of(GPU)].faults) == 3  # to be found again is no fault of its own


def test_the_same_suspect_hardware_is_one_fact_until_something_new_is_known() -> None:
    yard = Yard(with_policy(nodes={"suspect_repair": "tell"}), tag="default")
    yard.had(GPU, DAY, 2 * DAY, 3 * DAY)
    yard.site.machines[NODE].gpus = (GPU,)
    (first,) = sweep(yard)
    assert set(sweep(yard)) <= {first}
    yard.settle()
    incident = yard.incident(first or "")
    assert incident.phase is Phase.STOPPED
    assert yard.site.calls == []
    assert set(sweep(yard)) <= {first}
    assert list(yard.store.list_open()) == []


def test_a_cluster_that_nobody_asked_us_to_look_after_is_left_alone() -> None:
    yard = Yard()
    yard.had(GPU, DAY, 2 * DAY, 3 * DAY)
    yard.site.machines[NODE].gpus = (GPU,)
    assert sweep(yard) == []


def test_a_word_of_suspect_hardware_from_elsewhere_proves_nothing() -> None:
    """The ledger is asked, not the Signal: who can send one cannot have a node replaced by saying so."""
    yard = Yard(tag="default")
    incident_id = yard.report(kind=SignalKind.NODE_SUSPECT, suspect_hardware=True)
    yard.settle()
    assert yard.site.calls == []
    assert yard.rules(incident_id)[-1] == "node.omen"


def test_a_gpu_that_two_nodes_claim_at_once_condemns_neither() -> None:
    """After a swap one of them tells of the machine that it had before. Taken at its word, a sound node would go."""
    yard = Yard(tag="default")
    for name in (NODE, "ip-10-1-0-1"):
        yard.site.machines[name].gpus = (GPU,)
    yard.had(GPU, 3 * DAY, 4 * DAY, 5 * DAY)
    listed = yard.site.nodes(CLUSTER)
    assert isinstance(listed, Known)
    assert list(yard.hardware_ledgers.come_back(CLUSTER, listed.value)) == []
    incident_id = yard.report(xid=79, first_response="reboot")
    yard.settle()
    assert [what for what, _ in yard.site.calls] == ["reboot"], yard.told(incident_id)
    yard.site.machines["ip-10-1-0-1"].gpus = (OTHER,)
    listed = yard.site.nodes(CLUSTER)
    assert isinstance(listed, Known)
    assert [one.node for one in yard.hardware_ledgers.come_back(CLUSTER, listed.value)] == [NODE]
