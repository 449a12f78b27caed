"""Nodes as a real slurmctld and its administrator mean them: what is a fault, left alone, or given back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from chalicelib.domain.faults.slurm_states import fault_of_node
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.node_states import NodeStanding, parts_of, standing_of
from rekindle.protocol.cluster.orders import Order, Outcome, Repair, Verb
from rekindle.protocol.signals import FaultClass
from rekindle.slurm_agent.orders.node_verbs import NodeVerbs
from rekindle.slurm_agent.orders.verbs import OrderTry, Result
from tests.agent_slurm import node_words
from tests.slurm.lab.install import Installation
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_numbers_slurm import HeadNode

pytestmark = pytest.mark.versions
GPUS_LOST = "gres/gpu count reported lower than configured (1 < 2)"


class Site:
    """A lab, the agent's own commands, and orders about nodes."""

    def __init__(self, lab: SlurmLab) -> None:
        self.lab = lab
        self.slurm = HeadNode(lab, {}).commands
        self.hands = NodeVerbs(self.slurm)

    def node(self, name: str) -> NodeFacts:
        found = self.slurm.node(name)
        assert found is not None
        return found.facts

    def fault(self, name: str) -> FaultClass | None:
        facts = self.node(name)
        return fault_of_node(facts.state, facts.flags, facts.reason)

    def standing(self, name: str) -> NodeStanding:
        facts = self.node(name)
        return standing_of(facts.state, facts.flags, facts.reason)

    def obey(self, verb: Verb, node: str, repair: Repair | None = None) -> Result:
        now = datetime.now(UTC)
        order = Order(
            token="t",
            verb=verb,
            cluster="lab",
            issued_at=now,
            expires_at=now,
            node=node,
            repair=repair,
            incident_id="inc-1",
        )
        does = {
            Verb.DRAIN: self.hands.drain,
            Verb.RESUME: self.hands.resume,
            Verb.MARK: self.hands.mark,
            Verb.REBOOT: self.hands.reboot,
        }
        return does[verb](OrderTry(order=order, begun_at=None, tried_at=None, now=now, begin=lambda: None))

    def update(self, node: str, *changes: str) -> None:
        self.lab.run("scontrol", "update", f"nodename={node}", *changes)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with SlurmLab(nodes=("n1", "n2", "n3", "n4"), gpus=2, extra_conf=["RebootProgram=/bin/true"]) as lab:
        yield Site(lab)


def test_the_words_of_this_version_are_those_that_were_recorded() -> None:
    install = Installation.find()
    asked = node_words.ask(install)
    recorded = node_words.recorded("{}.{:02}".format(*install.version()))
    kinds = ("bases", "flags", "reasons")
    assert [asked[kind] for kind in kinds] == [recorded[kind] for kind in kinds]


def test_lost_gpus_are_a_finding_with_slurms_own_reason_and_the_node_is_given_back_when_they_are_there(
    site: Site,
) -> None:
    site.lab.kill_node("n1")
    site.lab.set_gpus(1)
    site.lab.start_node("n1")
    site.lab.wait(lambda: site.fault("n1") is FaultClass.NODE_HARDWARE, "slurmctld to miss a GPU")
    assert site.node("n1").reason == GPUS_LOST
    assert site.obey(Verb.DRAIN, "n1").outcome is Outcome.DONE
    assert site.node("n1").reason.startswith("rekindle:inc-1")
    assert GPUS_LOST in site.node("n1").reason, "Slurm's own reason stays beside ours"
    refused = site.obey(Verb.RESUME, "n1")
    assert (refused.outcome, "slurmctld keeps it out" in refused.detail) == (Outcome.REFUSED, True)

    site.lab.kill_node("n1")
    site.lab.set_gpus(2)
    site.lab.start_node("n1")
    site.lab.wait(lambda: "invalid_reg" not in site.node("n1").flags, "all GPUs to be registered")
    assert site.obey(Verb.RESUME, "n1").outcome is Outcome.DONE
    site.lab.wait(lambda: site.standing("n1") is NodeStanding.IN_SERVICE, "the node to be in service")
    assert site.node("n1").reason == "", "no version keeps our reason on a node that works"


def test_an_administrators_word_is_never_overridden_and_does_not_outlive_his_resume(site: Site) -> None:
    for state in ("drain", "down"):
        site.update("n2", f"state={state}", "reason=bob: bad fan")
        assert site.fault("n2") is None
        for verb, repair in ((Verb.MARK, Repair.REPLACE), (Verb.REBOOT, None), (Verb.RESUME, None)):
            answer = site.obey(verb, "n2", repair)
            assert (answer.outcome, "bob: bad fan" in answer.detail) == (Outcome.REFUSED, True), answer
        assert site.obey(Verb.DRAIN, "n2").outcome is Outcome.ALREADY
        assert site.node("n2").reason == "bob: bad fan"
        site.update("n2", "state=resume")

    site.lab.wait(lambda: site.standing("n2") is NodeStanding.IN_SERVICE, "the node to be in service")
    site.lab.kill_node("n2")
    site.lab.wait(lambda: site.fault("n2") is FaultClass.NODE_LOST, "Slurm to miss it")
    assert site.node("n2").reason.endswith("Not responding")
    site.lab.start_node("n2")


def test_a_node_in_maintenance_may_go_down(site: Site) -> None:
    site.lab.run(
        *("scontrol", "create", "reservation", "reservationname=work", "starttime=now", "duration=60"),
        *("users=root", "nodes=n3", "flags=maint,ignore_jobs"),
    )
    site.lab.wait(lambda: "maintenance" in site.node("n3").flags, "the reservation to begin")
    site.lab.kill_node("n3")
    site.lab.wait(lambda: site.node("n3").state == "down", "Slurm to set it down")
    assert (site.fault("n3"), site.standing("n3")) == (None, NodeStanding.AWAY)
    refused = site.obey(Verb.REBOOT, "n3")
    assert (refused.outcome, "on purpose" in refused.detail) == (Outcome.REFUSED, True)


def test_a_reboot_of_ours_is_ours_to_give_back(site: Site) -> None:
    assert site.obey(Verb.DRAIN, "n4").outcome is Outcome.DONE
    assert site.obey(Verb.REBOOT, "n4").outcome is Outcome.DONE
    site.lab.wait(lambda: "reboot_issued" in site.node("n4").flags, "Slurm to reboot it")
    # slurmctld adds a part in between where a busy machine is slow to answer.
    parts = [part for part in parts_of(site.node("n4").reason) if part != "Not responding"]
    assert parts[:2] == ["rekindle:inc-1", "reboot issued"]
    assert site.fault("n4") is None
    assert site.obey(Verb.REBOOT, "n4").outcome is Outcome.ALREADY
