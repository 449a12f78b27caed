"""A person orders a node repaired: it is done, and it is on the record who wanted it; and what no order can break."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidRequest, UnknownEntity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.node import GroupRole, InstanceState
from chalicelib.domain.model.signal import SignalKind
from chalicelib.services.reporting.outcome import OutcomeKind
from rekindle.protocol.signals import FaultClass
from tests.guardrails_nodes.stage import HOUR, NODE, Yard, with_policy
from tests.services.node_world import CLUSTER


def test_an_order_is_authority_enough_for_a_cluster_without_a_policy() -> None:
    yard = Yard()
    old = yard.site.machines[NODE].instance_id
    incident_id = yard.order("replace", why="the fan is loud")
    yard.settle()
    incident = yard.incident(incident_id)
    assert incident.phase is Phase.RECOVERED, yard.told(incident_id)
    assert incident.policy_name == "default"
    assert incident.fault is FaultClass.OPERATOR_ORDER
    assert yard.site.calls == [("replace", old)]
    assert yard.site.machines[NODE].drain == ""
    assert "a replacement was ordered by ada (the fan is loud)" in yard.told(incident_id)
    assert "node.cordon" in yard.rules(incident_id)


def test_an_ordered_reboot_keeps_the_instance() -> None:
    yard = Yard(tag="default")
    old = yard.site.machines[NODE].instance_id
    incident_id = yard.order("reboot", node=old)  # the instance's id names the node as well
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.RECOVERED, yard.told(incident_id)
    assert yard.site.calls == [("reboot", old)]


def test_a_policy_that_leaves_nodes_alone_does_not_bind_whoever_orders() -> None:
    for allowed in ("off", "tell", "reboot"):
        yard = Yard(with_policy(nodes={"repair": allowed}))
        incident_id = yard.order("replace")
        yard.settle()
        assert yard.incident(incident_id).phase is Phase.RECOVERED, yard.told(incident_id)


def test_the_same_order_twice_is_one_order_and_one_repair() -> None:
    yard = Yard()
    incident_id = yard.order("replace")
    again = yard.orders.repair_node(CLUSTER, NODE, do="replace", who="ada", key="k")
    assert (again.what, again.incident_id) == (OutcomeKind.DUPLICATE, incident_id)
    yard.settle()
    assert len(yard.site.calls) == 1


def test_an_order_joins_the_incident_that_is_open_and_goes_beyond_it() -> None:
    """A reboot is under way for an Xid; the person wants the machine gone."""
    yard = Yard()
    incident_id = yard.report(xid=79, first_response="reboot")
    yard.run(timedelta(minutes=2))
    assert [what for what, _ in yard.site.calls] == ["reboot"]
    assert yard.order("replace") == incident_id
    yard.settle()
    assert [what for what, _ in yard.site.calls] == ["reboot", "replace"]
    assert yard.incident(incident_id).phase is Phase.RECOVERED, yard.told(incident_id)


def test_a_milder_order_than_what_is_under_way_is_met_by_it() -> None:
    yard = Yard()
    incident_id = yard.report(recommended="replace")
    yard.run(timedelta(minutes=2))
    yard.order("reboot")
    yard.settle()
    assert [what for what, _ in yard.site.calls] == ["replace"]
    assert yard.incident(incident_id).phase is Phase.RECOVERED


def test_an_ordered_reboot_that_does_not_help_is_a_persons() -> None:
    """Nobody ordered the volumes to be lost, and nothing that was found asks for that."""
    yard = Yard()
    yard.site.machines["ip-10-1-0-0"].mapped = ""
    incident_id = yard.order("reboot")
    yard.run(timedelta(minutes=1))
    machine = yard.site.machines[NODE]
    assert machine.until is not None
    machine.until = yard.clock.now() + 48 * HOUR  # it never comes back
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.HANDED_OVER
    assert [what for what, _ in yard.site.calls] == ["reboot"]


# ---- what no order can break -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_no_job_on_it_is_ever_killed(force: bool) -> None:
    """The site itself fails the test where a node is repaired with a job on it."""
    yard = Yard()
    yard.site.machines[NODE].jobs = (41,)
    incident_id = yard.order("replace", force=force)
    yard.run(23 * HOUR)
    assert yard.site.calls == []
    assert yard.incident(incident_id).phase is Phase.DRAINING
    yard.site.machines[NODE].jobs = ()
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.RECOVERED, yard.told(incident_id)


def test_a_job_that_never_leaves_is_told_to_a_person_and_lives() -> None:
    yard = Yard()
    yard.site.machines[NODE].jobs = (41,)
    incident_id = yard.order("replace", force=True)
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.HANDED_OVER
    assert yard.rules(incident_id)[-1] == "drain.limit"
    assert yard.site.machines[NODE].jobs == (41,)
    assert yard.site.calls == []
    assert yard.announcer.notices[-1].severity is Severity.PAGE


def test_a_controller_is_never_touched_however_it_is_forced() -> None:
    yard = Yard()
    yard.site.role = GroupRole.CONTROLLER
    incident_id = yard.order("replace", force=True)
    yard.settle()
    assert yard.rules(incident_id)[-1] == "node.controller"
    assert yard.site.calls == []
    assert yard.site.machines[NODE].drain == ""


def test_what_others_are_doing_is_left_to_them() -> None:
    yard = Yard()
    yard.site.theirs(NODE)
    incident_id = yard.order("replace", force=True)
    yard.settle()
    assert yard.site.calls == []
    assert yard.rules(incident_id)[-1] == "node.theirs_done"


def test_somebody_elses_drain_is_neither_lifted_nor_used() -> None:
    yard = Yard()
    yard.site.machines[NODE].drain = "bob debugs"
    incident_id = yard.order("reboot", force=True)
    yard.settle()
    assert yard.rules(incident_id)[-1] == "node.held_by_other"
    assert "Resume it in Slurm, and order again." in yard.told(incident_id)
    assert yard.site.machines[NODE].drain == "bob debugs"


def test_the_share_of_the_group_holds_an_order_back_and_says_so_unless_it_is_forced() -> None:
    yard = Yard(with_policy(budgets={"max_nodes_in_repair_percent": 25}), nodes=12)  # three of them, one of a group
    for name in list(yard.site.machines)[6:]:
        yard.site.machines[name].group = "other"
    yard.site.machines["ip-10-1-0-1"].jobs = (7,)
    yard.report("ip-10-1-0-1", xid=79, first_response="reboot")  # drains, and takes the group's only place
    yard.run(timedelta(minutes=5))
    held = yard.order("replace")
    forced = yard.order("replace", node="ip-10-1-0-2", key="k2", force=True)
    yard.run(HOUR)
    assert yard.incident(held).phase is Phase.HOLDING
    assert "node.group_full" in yard.rules(held)
    assert yard.incident(forced).phase is Phase.RECOVERED, yard.told(forced)
    yard.site.machines["ip-10-1-0-1"].jobs = ()
    yard.settle()
    assert yard.incident(held).phase is Phase.RECOVERED, yard.told(held)


def test_a_group_that_was_repaired_often_today_is_a_persons() -> None:
    yard = Yard(with_policy(budgets={"max_repairs_per_day": 100, "max_group_repairs_per_day": 2}), nodes=6)
    for number in (1, 2):
        yard.order("reboot", node=f"ip-10-1-0-{number}", key=f"k{number}")
        yard.run(HOUR)
    third = yard.order("reboot")
    yard.run(HOUR)
    assert yard.incident(third).phase is Phase.HANDED_OVER
    assert yard.rules(third)[-1] == "node.day_limit"
    forced = yard.order("reboot", key="again", force=True)
    yard.settle()
    assert yard.incident(forced).phase is Phase.RECOVERED


def test_a_pause_holds_an_order_and_shadow_mode_only_tells_it() -> None:
    yard = Yard()
    yard.registry.set_paused(True, who="eve", now=yard.clock.now())
    incident_id = yard.order("replace", force=True)
    yard.run(HOUR)
    assert yard.site.calls == []
    assert yard.site.orders == {}
    yard.registry.set_paused(False, who="eve", now=yard.clock.now())
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.RECOVERED
    shadowed = Yard(with_policy(shadow=True))
    told = shadowed.order("replace", force=True)
    shadowed.settle()
    assert shadowed.rules(told)[-1] == "guard.shadow"
    assert (shadowed.site.calls, shadowed.site.orders) == ([], {})


def test_a_cancel_ends_it_before_anything_is_lost() -> None:
    yard = Yard()
    yard.site.machines[NODE].jobs = (41,)
    incident_id = yard.order("replace")
    yard.run(HOUR)
    yard.orders.cancel(incident_id, who="bob", key="c")
    yard.due[incident_id] = yard.clock.now()
    yard.settle()
    assert yard.incident(incident_id).outcome == "order.cancel"
    assert yard.site.calls == []


# ---- refused at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "node", "do", "problem", "field"),
    [
        (CLUSTER, NODE, "scrap", InvalidRequest, "do"),
        (CLUSTER, "a b", "reboot", InvalidRequest, "node"),
        (CLUSTER, "../x", "reboot", InvalidRequest, "node"),
        ("a/b", NODE, "reboot", InvalidRequest, "cluster"),
        ("nowhere", NODE, "reboot", UnknownEntity, None),
        (CLUSTER, "ip-10-9-9-9", "reboot", UnknownEntity, None),
        (CLUSTER, "i-0123456789abcdef0", "reboot", UnknownEntity, None),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(
    cluster: str, node: str, do: str, problem: type[Exception], field: str | None
) -> None:
    yard = Yard()
    with pytest.raises(problem) as refused:
        yard.orders.repair_node(cluster, node, do=do, who="ada", key="k")
    if field is not None:
        assert refused.value.field == field  # type: ignore[attr-defined]
    assert list(yard.store.list_open()) == []


def test_nothing_replaces_machines_of_plain_slurm_and_a_silent_agent_is_waited_for() -> None:
    yard = Yard()
    yard.site.is_plain = True
    with pytest.raises(InvalidRequest) as refused:
        yard.order("replace")
    assert refused.value.field == "do"
    yard.site.silent = True
    with pytest.raises(DependencyUnavailable):
        yard.order("reboot")
    assert list(yard.store.list_open()) == []


def test_a_broken_order_changes_nothing() -> None:
    """A Signal of the kind, from wherever, without a rung that exists."""
    yard = Yard()
    incident_id = yard.report(kind=SignalKind.ORDER_NODE, fault=FaultClass.OPERATOR_ORDER, do="scrap", who="eve")
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.STOPPED
    assert (yard.site.calls, yard.site.machines[NODE].state) == ([], InstanceState.RUNNING)
