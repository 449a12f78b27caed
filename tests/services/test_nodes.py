"""Whole Incidents of nodes over a small cluster in memory, undisturbed and disturbed in every way at once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.errors import Permanent
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.node import NodeRecovery
from chalicelib.domain.model.node_actions import ReplaceNode
from chalicelib.domain.model.repair import Allowed, Route
from chalicelib.domain.model.signal import SignalKind
from rekindle.protocol.signals import FaultClass
from tests.domain.policies import changed
from tests.services.node_world import CLUSTER, DENIED, THROTTLED, NodeWorld
from tests.sizes import examples

NODE = "ip-10-1-0-0"
MINUTE = timedelta(minutes=1)


def test_a_sick_node_is_cordoned_replaced_and_given_back() -> None:
    world = NodeWorld()
    old = world.site.machines[NODE].instance_id
    incident_id = world.report(recommended="replace")
    world.settle()
    incident = world.incident(incident_id)
    assert incident.phase is Phase.RECOVERED, world.rules(incident_id)
    assert world.site.calls == [("replace", old)]
    assert world.site.machines[NODE].drain == ""
    assert world.site.machines[NODE].instance_id != old
    assert f"replaced {old}" in world.announcer.notices[-1].text
    line = world.store.timeline(incident_id)[-1]
    assert line.facts["node"]["slurm"].startswith("idle")


def test_a_reboot_that_does_not_cure_is_followed_by_a_replacement_in_the_same_incident() -> None:
    world = NodeWorld()
    incident_id = world.report(xid=79)
    while not world.site.calls:
        world.run(MINUTE)
    world.run(3 * MINUTE)
    world.report(key="again", xid=79)
    world.settle()
    assert [what for what, _ in world.site.calls] == ["reboot", "replace"]
    assert world.incident(incident_id).phase is Phase.RECOVERED


def test_the_same_fault_after_a_closed_incident_begins_a_rung_higher() -> None:
    world = NodeWorld()
    world.report(xid=79)
    world.settle()
    world.run(timedelta(hours=5))
    second = world.report(key="next day", xid=79)
    world.settle()
    assert [what for what, _ in world.site.calls] == ["reboot", "replace"]
    assert world.incident(second).phase is Phase.RECOVERED


@pytest.mark.parametrize("rung", ["reboot", "replace"])
def test_a_head_node_that_names_another_cluster_has_none_of_its_nodes_repaired(rung: str) -> None:
    """The ARN in the agent's document is its own word: whoever holds its role could name a neighbour's."""
    world = NodeWorld()
    world.site.named = "the-neighbour"
    incident_id = world.report(recommended=rung)
    world.settle()
    assert world.site.calls == []
    assert world.incident(incident_id).phase is not Phase.RECOVERED
    said = " ".join(line.text for line in world.store.timeline(incident_id)) + str(
        [line.facts for line in world.store.timeline(incident_id)]
    )
    assert "rekindle:cluster=" in said
    assert "the-neighbour" in said


def test_a_cluster_whose_owner_names_its_head_nodes_is_repaired_under_that_name() -> None:
    world = NodeWorld()
    world.site.named, world.site.tagged = "pod-7", CLUSTER
    world.report(recommended="replace")
    world.settle()
    assert [what for what, _ in world.site.calls] == ["replace"]


def test_an_agent_that_changes_its_word_between_a_look_and_an_act_repairs_nothing() -> None:
    world = NodeWorld()
    incident = world.incident(world.report(recommended="replace"))
    machine = world.site.machines[NODE]
    action = ReplaceNode(
        cluster=CLUSTER, node=NODE, instance_id=machine.instance_id, route=Route.API, number=1, why="Xid 79"
    )
    world.site.named = "the-neighbour"
    with pytest.raises(Permanent, match="cluster_arn"):
        world.nodes.act(action, incident)
    assert world.site.calls == []


def test_nobodys_job_is_ended_for_a_repair() -> None:
    world = NodeWorld()
    world.site.machines[NODE].jobs = (77,)
    incident_id = world.report(xid=64)
    world.run(timedelta(hours=20))
    assert world.site.calls == []
    assert world.incident(incident_id).phase is Phase.DRAINING
    world.site.machines[NODE].jobs = ()
    world.settle()
    assert [what for what, _ in world.site.calls] == ["replace"]


def test_two_reports_of_one_node_are_one_incident_and_one_repair() -> None:
    world = NodeWorld()
    first = world.report(key="job-a", kind=SignalKind.NODE_SUSPECT)
    second = world.report(key="job-b", kind=SignalKind.NODE_SUSPECT)
    world.settle()
    assert first == second
    assert len(world.site.calls) == 1


def test_hyperpods_own_repair_is_waited_for_and_recorded_as_theirs() -> None:
    world = NodeWorld()
    world.site.recovery = NodeRecovery.AUTOMATIC
    incident_id = world.report(recommended="replace")
    world.run(2 * MINUTE)
    world.site.theirs(NODE)
    world.settle()
    incident = world.incident(incident_id)
    assert world.site.calls == []
    assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "node.theirs_done")
    assert "not by us" in world.announcer.notices[-1].text


def test_hyperpod_that_does_not_act_within_its_grace_is_helped() -> None:
    world = NodeWorld()
    world.site.recovery = NodeRecovery.AUTOMATIC
    world.report(recommended="replace")
    world.report(key="job-a", kind=SignalKind.NODE_SUSPECT)  # a run has suffered from it
    world.run(9 * MINUTE)
    assert world.site.calls == []
    world.settle()
    assert [what for what, _ in world.site.calls] == ["replace"]


def test_a_node_that_hyperpod_alone_accuses_and_leaves_alone_is_a_persons_to_judge() -> None:
    world = NodeWorld()
    world.site.recovery = NodeRecovery.AUTOMATIC
    incident_id = world.report(recommended="replace")
    world.settle()
    incident = world.incident(incident_id)
    assert world.site.calls == []
    assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "node.unconfirmed")


@pytest.mark.parametrize("most", [(6, 100), (100, 5), (6, 5)])
def test_repairs_that_are_booked_at_once_pass_no_budget_of_a_day(most: tuple[int, int]) -> None:
    """Half of the nodes may be in repair at once, more than are repaired in a day: each counts those before it."""
    of_cluster, of_group = most
    limits = {"max_repairs_per_day": of_cluster, "max_group_repairs_per_day": of_group}
    policy = changed(budgets=limits | {"max_nodes_in_repair_percent": 50.0})
    world = NodeWorld(policy, nodes=16)
    for name in world.site.machines:
        world.report(name, key="storm", recommended="replace")
    world.settle()
    assert len(world.site.calls) == min(most)


def test_a_storm_repairs_no_more_than_the_share_at_once_and_no_more_than_so_many_a_day() -> None:
    limits = {"max_nodes_in_repair_percent": 25.0, "max_repairs_per_day": 6, "max_group_repairs_per_day": 100}
    world = NodeWorld(changed(budgets=limits), nodes=12)
    ids = [world.report(name, key="storm", recommended="replace") for name in world.site.machines]
    most = 0
    for _ in range(60 * 12):
        world.run(MINUTE)
        most = max(most, sum(machine.until is not None for machine in world.site.machines.values()))
        assert sum(bool(machine.drain) for machine in world.site.machines.values()) <= 12
    world.settle()
    assert most == 3
    assert len(world.site.calls) == 6
    outcomes = [world.incident(identifier).outcome for identifier in ids]
    assert outcomes.count("return.done") == 6
    assert outcomes.count("node.day_limit") == 6


def test_plain_slurm_reboots_and_leaves_a_replacement_to_a_person() -> None:
    world = NodeWorld()
    world.site.is_plain = True
    incident_id = world.report(xid=79, instance_id=None)
    world.settle()
    assert [what for what, _ in world.site.calls] == ["reboot"]
    assert world.incident(incident_id).phase is Phase.RECOVERED
    second = world.report(key="replace it", xid=64, instance_id=None)
    world.settle()
    assert world.incident(second).outcome == "repair.no_way"


def test_an_efa_failure_is_tried_once_more_and_want_of_capacity_is_not() -> None:
    for message, calls, phase in (
        ("EFA health checks did not run successfully", 2, Phase.RECOVERED),
        ("We currently do not have sufficient capacity", 1, Phase.HANDED_OVER),
    ):
        world = NodeWorld()
        world.site.next_failure = message
        incident_id = world.report(recommended="replace")
        world.settle()
        assert (len(world.site.calls), world.incident(incident_id).phase) == (calls, phase), world.rules(incident_id)


@pytest.mark.parametrize("rung", ["replace", "reboot"])
def test_a_crash_between_the_act_and_its_record_repairs_once(rung: str) -> None:
    for dies_after in (0, 1):
        world = NodeWorld()
        incident_id = world.report(recommended=rung)
        while not world.acts():
            for alarm in list(world.due):
                decision = world.work(alarm, dies_after=None if not _is_repair_next(world, alarm) else dies_after)
                assert decision is not None
            world.clock.advance(MINUTE)
            world.site.tick()
        world.settle()
        assert [what for what, _ in world.site.calls] == [rung], (dies_after, world.rules(incident_id))
        assert world.incident(incident_id).phase is Phase.RECOVERED


def _is_repair_next(world: NodeWorld, incident_id: str) -> bool:
    return world.incident(incident_id).phase is Phase.DRAINING and bool(world.site.machines[NODE].drain)


@pytest.mark.parametrize("rung", ["replace", "reboot"])
def test_a_lost_answer_repairs_once(rung: str) -> None:
    world = NodeWorld()
    world.site.lost_answer = True
    incident_id = world.report(recommended=rung)
    world.settle()
    assert [what for what, _ in world.site.calls] == [rung]
    assert world.incident(incident_id).phase is Phase.RECOVERED


def test_an_agent_that_stays_silent_ends_with_a_person_and_nothing_done() -> None:
    world = NodeWorld()
    world.site.silent = True
    incident_id = world.report(recommended="replace")
    world.settle()
    assert world.incident(incident_id).outcome == "node.unread_limit"
    assert world.site.calls == []


def test_an_order_that_expired_unheard_is_given_anew() -> None:
    world = NodeWorld()
    world.site.deaf = True
    incident_id = world.report(recommended="replace")
    world.run(30 * MINUTE)
    world.site.deaf = False
    world.settle()
    assert world.incident(incident_id).phase is Phase.RECOVERED, world.rules(incident_id)


def test_missing_rights_end_with_a_person_who_is_told_which() -> None:
    world = NodeWorld()
    world.site.down = DENIED
    incident_id = world.report(recommended="replace")
    world.settle()
    assert world.incident(incident_id).outcome == "node.blind_limit"
    assert "sagemaker:DescribeCluster" in world.announcer.notices[-1].text


def test_the_policy_bounds_what_is_done() -> None:
    for allowed, calls in ((Allowed.OFF, 0), (Allowed.TELL, 0), (Allowed.REBOOT, 1)):
        world = NodeWorld(changed(nodes={"repair": allowed}))
        world.report(xid=79)
        world.settle()
        assert len(world.site.calls) == calls
        assert len(world.announcer.notices) >= 1


EVENTS = st.one_of(
    st.tuples(st.just("report"), st.integers(0, 2), st.sampled_from([79, 64, 31, 95])),
    st.tuples(st.just("down"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("late"), st.integers(0, 2), st.integers(1, 300)),
    st.tuples(st.just("healthy"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("silent"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("deaf"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("api"), st.just(0), st.integers(0, 2)),
    st.tuples(st.just("theirs"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("person"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("jobs"), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("lost"), st.just(0), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("fails"), st.just(0), st.just(0)),
    st.tuples(st.just("time"), st.just(0), st.integers(1, 90)),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(EVENTS, min_size=3, max_size=25), st.sampled_from(NodeRecovery))
def test_nothing_that_happens_together_breaks_a_rule(events: list[tuple[str, int, int]], mode: NodeRecovery) -> None:
    """Events twice, late and contradictory, crashes, silence, refusals, people and HyperPod acting meanwhile."""
    world = NodeWorld(nodes=3)
    world.site.recovery = mode
    people: set[str] = set()
    for number, (what, index, value) in enumerate(events):
        name = f"ip-10-1-0-{index}"
        machine = world.site.machines[name]
        match what:
            case "report":
                for key in (f"r{number}", f"r{number}", f"r{index}"):
                    world.report(name, key=key, xid=value)
            case "down":
                world.report(name, f"d{number}", kind=SignalKind.NODE_STATE, fault=FaultClass.NODE_LOST)
            case "late":
                world.report(name, f"l{number}", late=value * MINUTE, xid=79)
            case "healthy" if any(name in alarm for alarm in world.due):
                world.report(name, f"h{number}", kind=SignalKind.NODE_HEALTH, fault=None, health_status="Healthy")
            case "silent":
                world.site.silent = bool(value)
            case "deaf":
                world.site.deaf = bool(value)
            case "api":
                world.site.down = (None, THROTTLED, DENIED)[value]
            case "theirs":
                world.site.theirs(name)
            case "person" if not machine.drain:
                machine.drain = "ada: bad cable"
                people.add(name)
            case "jobs" if machine.until is None and not machine.drain:
                machine.jobs = (7,) if value else ()
            case "lost":
                world.site.lost_answer = True
            case "fails":
                world.site.next_failure = "EFA health checks did not run successfully"
            case "crash":
                for one in list(world.due):
                    world.work(one, dies_after=index)
            case "time":
                world.run(value * MINUTE)
        assert all(world.site.machines[node].drain == "ada: bad cable" for node in people)
    world.site.silent = world.site.deaf = False
    world.site.down = None
    for machine in world.site.machines.values():
        machine.jobs = ()
    world.settle()
    calls = world.site.calls
    assert len([call for call in calls if call[0] == "replace"]) == len(
        {call for call in calls if call[0] == "replace"}
    )
    assert len({id(act) for act in world.acts()}) >= len(calls)
    for name in people:
        assert world.site.machines[name].drain == "ada: bad cable"
    for name, machine in world.site.machines.items():
        newest = world.store.list_for_node("pretrain", name, limit=1)
        if newest and newest[0].phase is Phase.RECOVERED and name not in people:
            assert not machine.drain
