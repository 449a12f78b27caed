"""From a raw event to an Incident, and what recovers a run: observations, Actions, the minute sweep."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.bootstrap.reporting import ReportingParts

if TYPE_CHECKING:
    from chalicelib.ingress import Ingress
    from chalicelib.services.intake.intake import Intake
    from chalicelib.services.observe.nodes import Nodes
    from chalicelib.services.observe.observer import Observer
    from chalicelib.services.perform.perform import ActionExecutor
    from chalicelib.services.sweep.sweep import Sweep


class RecoveryParts(ReportingParts):
    """What the event handlers, `recover` and `sweep` use."""

    @cached_property
    def intake(self) -> Intake:
        from chalicelib.services.intake.intake import Intake

        return Intake(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clusters=self.clusters,
            executions=self.executions,
            clock=self.clock,
            head_nodes=self.head_nodes,
            announcer=self.announcer,
        )

    @cached_property
    def ingress(self) -> Ingress:
        from chalicelib.ingress import Ingress

        return Ingress(
            intake=self.intake,
            alarms=self.alarms,
            clusters=self.clusters,
            quarantine=self.quarantine,
            clock=self.clock,
            report=self.observability.record,
            account=self.settings.account,
        )

    sweep_readers = 8  # fewer than a client's ten connections; the sweep's time goes into waiting (docs/sweep.md)

    @cached_property
    def nodes(self) -> Nodes:
        """Nodes of Slurm clusters, and HyperPod's instances behind them."""
        from chalicelib.services.observe.nodes import Nodes

        return Nodes(
            head_nodes=self.head_nodes,
            cluster_nodes=self.cluster_nodes,
            store=self.store,
            clock=self.clock,
            hardware_ledgers=self.hardware_ledgers,
        )

    @cached_property
    def look(self) -> Observer:
        from chalicelib.services.observe.observer import Observer

        return Observer(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            policies=self.policies,
            clock=self.clock,
            head_nodes=self.head_nodes,
            nodes=self.nodes,
        )

    @cached_property
    def perform(self) -> ActionExecutor:
        from chalicelib.services.perform.perform import ActionExecutor

        return ActionExecutor(
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            announcer=self.announcer,
            clock=self.clock,
            head_nodes=self.head_nodes,
            intake=self.intake,
            nodes=self.nodes,
            changes=self.announcer,
            region=self.settings.region,
        )

    @cached_property
    def sweep(self) -> Sweep:
        from chalicelib.services.sweep.clusters import SweepClusters
        from chalicelib.services.sweep.job_check import JobCheck
        from chalicelib.services.sweep.sweep import Sweep
        from chalicelib.services.sweep.unheard import UnheardAttempts

        unheard = UnheardAttempts(registry=self.registry, scheduler=self.scheduler, clock=self.clock)
        return Sweep(
            store=self.store,
            registry=self.registry,
            listing=self.training_jobs,
            check=JobCheck(
                store=self.store,
                registry=self.registry,
                scheduler=self.scheduler,
                mailbox=self.mailbox,
                saves=self.saves,
                clock=self.clock,
            ),
            metrics=self.metrics,
            marks=self.marks,
            alarms=self.alarms,
            executions=self.executions,
            intake=self.intake,
            clock=self.clock,
            clusters=SweepClusters(
                head_nodes=self.head_nodes,
                intake=self.intake,
                clock=self.clock,
                hardware_ledgers=self.hardware_ledgers,
                unheard=unheard,
            ),
            unheard=unheard,
            metrics_every=self.settings.sweep_metrics_minutes,
            readers=self.sweep_readers,
        )
