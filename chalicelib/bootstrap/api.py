"""What people and other monitoring call: the REST routes, signed alerts, Slack."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.bootstrap.recovery import RecoveryParts
from chalicelib.domain.guards.stages import stage_of

if TYPE_CHECKING:
    from chalicelib.api.hooks import Hooks
    from chalicelib.api.operations.routes import Api
    from chalicelib.api.slack import SlackHooks
    from chalicelib.services.operator.approvals import Approvals
    from chalicelib.services.operator.clusters import Clusters
    from chalicelib.services.operator.drills import Drills
    from chalicelib.services.operator.holds import Holds
    from chalicelib.services.operator.orders import Orders
    from chalicelib.services.operator.policy_documents import PolicyDocuments
    from chalicelib.services.operator.switches import Switches


class ApiParts(RecoveryParts):
    """What the API uses; api.parts.Parts says what its routes need."""

    @property
    def stage(self) -> str:
        """Which of several services in one account this is."""
        return self.settings.stage

    @cached_property
    def api(self) -> Api:
        from chalicelib.api.operations.routes import Api

        return Api(parts=self)

    @cached_property
    def orders(self) -> Orders:
        from chalicelib.services.operator.orders import Orders

        return Orders(
            intake=self.intake,
            registry=self.registry,
            scheduler=self.scheduler,
            policies=self.policies,
            alarms=self.alarms,
            clock=self.clock,
            head_nodes=self.head_nodes,
            mailbox=self.mailbox,
            stage=stage_of(self.settings.stage),
        )

    @cached_property
    def approvals(self) -> Approvals:
        from chalicelib.services.operator.approvals import Approvals

        return Approvals(store=self.store, intake=self.intake, registry=self.registry, clock=self.clock)

    @cached_property
    def switches(self) -> Switches:
        from chalicelib.services.operator.switches import Switches

        return Switches(registry=self.registry, clock=self.clock)

    @cached_property
    def holds(self) -> Holds:
        from chalicelib.services.operator.holds import Holds

        return Holds(
            store=self.store,
            registry=self.registry,
            policies=self.policies,
            clusters=self.clusters,
            clock=self.clock,
        )

    @cached_property
    def drills(self) -> Drills:
        from chalicelib.services.operator.drills import Drills

        return Drills(look=self.look, records=self.drill_records, clock=self.clock)

    @cached_property
    def slurm_clusters(self) -> Clusters:
        """Slurm clusters as people want to see them."""
        from chalicelib.services.operator.clusters import Clusters

        return Clusters(head_nodes=self.head_nodes, registry=self.registry, clock=self.clock)

    @cached_property
    def policy_documents(self) -> PolicyDocuments:
        """Policy documents, for those who edit them."""
        from chalicelib.services.operator.policy_documents import PolicyDocuments

        return PolicyDocuments(documents=self.policy_store, clock=self.clock)

    @cached_property
    def hooks(self) -> Hooks:
        """Alerts of other people's monitoring."""
        from chalicelib.api.hooks import Hooks

        return Hooks(
            book=self.written,
            marks=self.hook_marks,
            intake=self.intake,
            clock=self.clock,
            report=self.observability.record,
        )

    @cached_property
    def slack_hooks(self) -> SlackHooks:
        from chalicelib.api.slack import SlackHooks
        from chalicelib.channels.slack.groups import SlackGroups

        return SlackHooks(
            book=self.written,
            presses=self.chats,
            groups=SlackGroups(secrets=self.written, clock=self.clock),
            store=self.store,
            listings=self.listings,
            approvals=self.approvals,
            orders=self.orders,
            switches=self.switches,
            holds=self.holds,
            clock=self.clock,
            report=self.observability.record,
        )
