"""What the people of a story do: to their runs, by hand, and by orders and answers to the service."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.incident import Phase
from localcloud.aws.sagemaker import Phase as JobPhase
from simulation.runs.truth import TrueRun
from simulation.slurm.site import NAME as SLURM_CLUSTER
from simulation.stages.beside import other_tags
from simulation.stages.world import World
from simulation.stories.story import PersonAction


class Persons:
    """Each of a story's actions is done once, a while after its moment, and no two at one instant."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._actions: list[PersonAction] = list(world.story.actions)
        self._under_way = 0  # actions whose moment has come
        self._taken: set[datetime] = set()
        world.moment, world.are_people_busy = self.moment, self.are_busy

    def are_busy(self, now_s: float) -> bool:
        """An action's moment has come, or may come yet."""
        return bool(self._under_way or (self._actions and now_s < 600))

    def moment(self, when: str, run: TrueRun | None) -> None:
        for action in [
            expected
            for expected in self._actions
            if expected.when == when and (run is None or expected.run == run.name)
        ]:
            self._actions.remove(action)
            self._under_way += 1
            at = self._world.clock.now() + timedelta(seconds=action.delay_s)
            while at in self._taken:  # of two at one instant no source shows which came first
                at += timedelta(seconds=1)
            self._taken.add(at)
            self._world.sim.after(
                at - self._world.clock.now(),
                lambda action=action: self._do(action),  # type: ignore[misc]
                label=f"a person: {action.what}",
            )

    def _do(self, action: PersonAction) -> None:
        self._under_way -= 1
        self._world.quiet_since = None
        run = self._world.runs.get(action.run)
        if run is None:  # a shrunk story may have lost it
            return
        match action.what:
            case "retry":
                run.owner_took_it, run.owner_stopped_at = True, None
                self._world.submit(run.spec, f"{run.name}-byhand-{len(run.attempts)}", tags=self._world.tags(run.spec))
            case "hang_cancel" | "requeue" if self._world.cluster is not None:
                self._world.cluster.others_act(run, action.what)
            case "resubmit" if not run.live and not self._world.waits_in_queue(run):
                self._resubmit(action, run)
            case "stop":
                self._stop(run)
            case "order_reboot":
                self._order_reboot(action, run)
            case "order_stop" | "order_save_stop" | "order_resubmit":
                with suppress(RecoveryError):  # then the order was not taken, which is what its giver sees
                    self._order(action, run)
            case "pause" | "unpause":
                self._world.registry.set_paused(action.what == "pause", who="ada", now=self._world.clock.now())
                self._world.paused_at = self._world.clock.now() if action.what == "pause" else None
            case "cancel":
                self._cancel(run)
            case "approve" | "deny":
                self._answer_approval(action, run)
            case "time_limit":
                self._time_is_over(run)

    def _resubmit(self, action: PersonAction, run: TrueRun) -> None:
        """The owner starts the run again by hand, with the tags that the action names."""
        tags = {} if action.tagged == "none" else self._world.tags(run.spec)
        if action.tagged == "job":
            tags["rekindle:job"] = run.first_name
        if action.tagged == "other_stage":
            tags |= other_tags(self._world.stages)
        run.owner_took_it = True
        if action.tagged != "none":
            run.owner_stopped_at = None  # in our care again, by its tags
        # Only SageMaker's tags tell of stages: a cluster's agent reports to one, whatever a job's comment says.
        is_elsewhere = action.tagged == "other_stage" and run.spec.platform != "slurm"
        run.is_another_stages = is_elsewhere and self._world.beside is not None
        run.is_unprotected = action.tagged == "none" or (is_elsewhere and self._world.beside is None)
        self._world.submit(run.spec, f"{run.name}-byhand-{len(run.attempts)}", tags=tags)

    def _cancel(self, run: TrueRun) -> None:
        for incident, _ in list(self._world.store.list_open()):
            if self._world.run_of_job(incident.job_id) is run:
                run.owner_took_it, run.cancelled_at = True, self._world.clock.now()
                is_stopping = any(attempt.job.phase is JobPhase.STOPPING for attempt in run.live)
                if is_stopping or (run.live and incident.phase is Phase.STOPPING):
                    run.stopped_by_hand = ()
                    run.owner_stopped_at = (
                        self._world.clock.now()
                    )  # the answer says that it is left stopping, or ordered to
                elif run.live and incident.order is not None:
                    # An order to stop it is taken back before it was carried out.
                    run.owner_stopped_at = run.stop_ordered_at = None
                self._world.orders.cancel(incident.incident_id, who="ada", key=f"cancel-{incident.incident_id}")

    def _order(self, action: PersonAction, run: TrueRun) -> None:
        key = f"{action.what}-{run.name}-{action.delay_s:g}"
        if action.what in ("order_stop", "order_save_stop"):
            self._world.orders.stop(self._job_of(run), who="ada", key=key, checkpoint=action.what == "order_save_stop")
            if run.is_another_stages and not any(attempt.is_ours for attempt in run.live):
                return  # that has the run now, and takes no order of this one
            run.owner_stopped_at, run.stop_orders = self._world.clock.now(), run.stop_orders + 1
            run.stopped_job, run.stop_ordered_at = self._job_of(run), self._world.clock.now()
            run.is_well_again(self._world.clock.now())
        else:
            run.stop_orders = 0
            self._world.orders.resubmit(self._job_of(run), who="ada", key=key, from_step=None, skip=())
            run.stopped_before_order_at, run.resubmission_ordered_at = run.owner_stopped_at, self._world.clock.now()
            run.owner_stopped_at, run.is_ordered = None, True

    def _answer_approval(self, action: PersonAction, run: TrueRun) -> None:
        """The newest question about the run, whatever has become of it since."""
        about = [
            notice
            for notice in self._world.people.notices
            if notice.approval_id and self._world.run_of_job(notice.job_id) is run
        ]
        if about:
            newest = about[-1]
            key, incident_id = f"{action.what}-{action.delay_s:g}", newest.incident_id or ""
            with suppress(RecoveryError):  # refused, and why: what its giver reads
                self._world.approvals.answer(incident_id, newest.approval_id, answer=action.what, who="ada", key=key)
                if action.what == "deny":
                    run.denied_at = self._world.clock.now()

    def _time_is_over(self, run: TrueRun) -> None:
        """The platform ends what runs, at its time limit."""
        if self._world.cluster is not None and run.spec.platform == "slurm":
            self._world.cluster.times_out(run)
            return
        for attempt in run.live:
            if attempt.job.phase is JobPhase.STOPPING and not run.is_stop_ordered:
                run.owner_stopped_at = None  # the limit stops it as well: nothing shows that a person had before
            if self._world.jobs.enter(attempt.name, JobPhase.MAX_RUNTIME_EXCEEDED):
                self._world.training.over(attempt, JobPhase.MAX_RUNTIME_EXCEEDED)

    def _order_reboot(self, action: PersonAction, run: TrueRun) -> None:
        """Of the node of the run's first rank; nothing where no attempt of it runs on a node."""
        nodes = [node for attempt in run.live for node in attempt.nodes]
        if not nodes or self._world.cluster is None:
            return
        with suppress(RecoveryError):
            key = f"{action.what}-{run.name}-{action.delay_s:g}"
            self._world.orders.repair_node(SLURM_CLUSTER, nodes[0].name, do="reboot", who="ada", key=key)
            nodes[0].is_ordered = True

    def _job_of(self, run: TrueRun) -> str:
        """The Job that the service's own list has for the run: its newest attempt's."""
        owners = (self._world.registry.job_of_attempt(name) for name in reversed(run.attempts))
        return next((owner for owner in owners if owner is not None), run.first_name)

    def _stop(self, run: TrueRun) -> None:
        """In the console, or with scancel."""
        if self._world.cluster is not None and run.spec.platform == "slurm":
            self._world.cluster.cancel(run)
        run.stopped_by_hand = tuple(attempt.name for attempt in run.live)
        for attempt in run.live:
            if attempt.job.phase is not JobPhase.STOPPING:  # else the platform does not show who wanted it first
                run.owner_stopped_at = self._world.clock.now()
                self._world.jobs.stop_training_job({"TrainingJobName": attempt.name})
        if run.owner_stopped:
            run.is_well_again(self._world.clock.now())
