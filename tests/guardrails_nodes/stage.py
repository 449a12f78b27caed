"""The nodes' world with the way in for orders, and what a node's hardware has had before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from chalicelib.domain.model.hardware_ledger import HardwareFault, MarkKind, mark
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy, overlaid
from chalicelib.services.intake.intake import Intake
from chalicelib.services.operator.orders import Orders
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
from tests.fakes.executions import RememberedExecutions
from tests.fakes.watching import FakeAlarmStore
from tests.fakes.world import FakeClusterReader, FakeMailbox, FakePolicies
from tests.services.node_world import CLUSTER, NodeWorld

NODE = "ip-10-1-0-0"
HOUR = timedelta(hours=1)
GPU = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ab"
OTHER = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ac"


def with_policy(**wire: Any) -> Policy:
    return Policy.from_wire(overlaid(DEFAULT_POLICY.to_wire(), wire))


class Yard(NodeWorld):
    """Orders go in as the API gives them."""

    def __init__(self, policy: Policy = DEFAULT_POLICY, *, nodes: int = 4, tag: str | None = None) -> None:
        super().__init__(policy, nodes=nodes)
        self.reader = FakeClusterReader()
        if tag is not None:
            self.reader.policies[CLUSTER] = tag
        common: dict[str, Any] = {"registry": self.registry, "scheduler": self.look.scheduler, "clock": self.clock}
        mailbox = FakeMailbox()
        self.intake = Intake(
            store=self.store,
            mailbox=mailbox,
            clusters=self.reader,
            executions=RememberedExecutions(),
            head_nodes=self.site,
            **common,
        )
        self.orders = Orders(
            intake=self.intake,
            policies=FakePolicies(policy),
            alarms=Alarms(alarm_store=FakeAlarmStore(), mailbox=mailbox, **common),
            head_nodes=self.site,
            **common,
        )
        self.hardware_ledgers = HardwareLedgers(ledger=self.ledger, clock=self.clock)

    def order(self, do: str = "replace", *, node: str = NODE, key: str = "k", **more: Any) -> str:
        """The node's Incident."""
        outcome = self.orders.repair_node(CLUSTER, node, do=do, who="ada", key=key, **more)
        assert outcome.incident_id is not None
        self.due[outcome.incident_id] = self.clock.now()
        return outcome.incident_id

    def told(self, incident_id: str) -> str:
        return "\n".join(f"{line.rule}: {line.text}" for line in self.store.timeline(incident_id))

    def had(self, gpu: str, *agos: timedelta) -> None:
        """Faults of a GPU on other clusters."""
        for number, ago in enumerate(agos):
            fault = HardwareFault(
                at=self.clock.now() - ago,
                incident_id=f"inc-before-{gpu[-2:]}-{number}",
                cluster="elsewhere",
                node=f"n{number}",
                instance_id=f"i-9{number:016x}",
                kind="xid_reboot",
                text="Xid 79",
            )
            self.ledger.add(mark_of(gpu), fault)


def mark_of(gpu: str) -> str:
    return mark(MarkKind.GPU, gpu)
