"""The judge: reads the simulated truth and the service's effects on it, and counts unsafe outcomes. It reads no source
that the service reads.

Each count is one row of COUNTS. What the service could not have known yet (`MISSES_NOTHING`) is not counted; what a
source hid from it for longer is.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.node import is_in_service
from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.rules.run.opening import OTHER_CLOCK, SAME_CLOCK
from chalicelib.ports.notices import Notice, NoticeKind
from localcloud.aws.sagemaker import Phase as JobPhase
from rekindle.protocol.mailbox import RunPhase
from rekindle.protocol.signals import FaultClass
from simulation.judging.bill import NOT_WORKING, Bill, Reckoning
from simulation.judging.counts import Figures, Unsafe
from simulation.judging.excuses import TOLD_BY, UNWATCHED_AFTER, Expiring, Minute
from simulation.judging.knowable import (
    began_over,
    fruitless_attempts,
    has_collapsed,
    has_confirmed,
    is_shown,
    is_unseen,
    lives_shown_in_vain,
    looks_broken,
    looks_its_own,
    looks_poisoned,
    poison_could_be_known,
    shown_late,
    shown_until,
    shows_after,
    shows_its_end,
    without_gain,
)
from simulation.runs.memory import Watcher
from simulation.runs.truth import MISSES_NOTHING, ActiveTrouble, Attempt, Saved, TrueNode, TrueRun
from simulation.slurm.cluster import SICK, Cluster
from simulation.stages.world import World

PAGED_WITHIN: Final = timedelta(minutes=30)  # of trouble, an outage or a person's action: a page has its reason
SILENCE: Final = timedelta(minutes=30)  # more until a run that only sends metrics is known to be silent
RHYTHM: Final = 3  # and this many times as long as the longest hole that its data had while it was well
MANY_PAGES: Final = 3  # of one Incident: what cannot be read, a hand-over, and one more
MANY_OUT: Final = 2  # nodes that Slurm cannot reach at once: then its network is at fault, or itself
ORDER_NOT_TAKEN: Final = "an order was not taken"  # how the notice that refuses an order is titled
MANY_ON_ONE: Final = 3  # deaths of ours on one broken node: after the second one it is to be left out
MINUTE: Final = timedelta(minutes=1)
REWIND_STEPS: Final = 30  # fewer are no more than a save or two apart
FAR_OFF: Final = timedelta(hours=1)  # an end that is announced for later than this is no hurry
_GO_BACK: Final = (Response.ROLL_BACK, Response.WATCH_THEN_ROLL_BACK)
_STRANGE: Final = ("spike", "torn_save", "flipped_save", "blip", "saves_deleted")
_ILLS_SEEN: Final = ("dead", "hung", "poisoned")
_TRAINS: Final = (RunPhase.TRAINING, RunPhase.EVALUATION, RunPhase.SAVING)  # a run that rests between steps is well


class Judge(Watcher):
    """Counts for one world; it is that world's watcher."""

    def __init__(self) -> None:
        self.unsafe: list[Unsafe] = []
        self.figures = Figures()
        self.bill = Bill()
        self._world: World | None = None
        self._reckoning: Reckoning | None = None
        self._excuses = Expiring()
        self._acted: list[tuple[datetime, str, bool]] = []  # when, which run, by another stage
        self._pages: Counter[str | None] = Counter()
        self._repaired: list[datetime] = []
        self._open: dict[str, str] = {}  # open Incidents, each with its run
        self._open_nodes: set[str] = set()  # Incidents about a node
        self._detected: set[int] = set()
        self._blind_at: dict[str, datetime] = {}  # when a run's only source was away last
        self._called_bad: set[str] = set()  # attempts that were left to a person because of what they had loaded
        self._waits: dict[str, tuple[TrueRun, datetime]] = {}  # Incidents, and since when each wants a new attempt
        self._stops_begun: dict[str, datetime | None] = {}  # when a stop of a run's newest attempt was decided last
        self._looping: dict[str, datetime] = {}  # attempts that gain nothing, and since when beyond the budget
        self._unconfirmed: list[
            tuple[TrueRun, ActiveTrouble]
        ] = []  # called recovered since the last minute, with a bad loss
        self._strange: dict[str, tuple[tuple[int, int], datetime | None]] = {}  # of a run: see `_note_strange`
        self._current_since: dict[tuple[str, str], datetime] = {}  # by Job and attempt: since when it is the Job's
        self._spares: dict[str, int] = {}  # by attempt: how many well nodes it could have had
        self._disturbed_at: datetime | None = None  # when anything last kept the service from seeing or acting

    def over(self, world: World) -> Judge:
        """Watch this world."""
        self._world, self._reckoning = world, Reckoning(world)
        world.watcher = self
        return self

    @property
    def world(self) -> World:
        """The world. `over` is called first."""
        assert self._world is not None  # noqa: S101
        return self._world

    @property
    def reckoning(self) -> Reckoning:
        """Of the world's bill. `over` is called first."""
        assert self._reckoning is not None  # noqa: S101
        return self._reckoning

    @property
    def _now(self) -> datetime:
        return self.world.clock.now()

    def _count(self, kind: str, run: str, detail: str) -> None:
        at_s = (self._now - self.world.began_at).total_seconds()
        self.unsafe.append(Unsafe(kind=kind, at_s=round(at_s, 1), run=run, detail=detail))

    # ---- what the service does -------------------------------------------------------------------------------------

    def _judge_pause(self, what: str, name: str, decided_at: datetime | None = None) -> None:
        """An order that was on its way when it was paused is carried out."""
        run = self.world.runs.get(name)
        if run is not None and run.is_another_stages:  # which is not paused
            return
        paused_at = self.world.paused_at
        if paused_at is not None and (decided_at or self._now) - paused_at >= MISSES_NOTHING:
            self._count("acted_while_paused", name, what)

    def stops(self, attempt: Attempt) -> None:
        job, run = attempt.job, attempt.run
        if job.is_terminal or job.phase is JobPhase.STOPPING or run.owner_stopped or self._is_stop_ordered(attempt):
            return
        self.reckoning.stops(attempt)
        gives_way = self._gives_way(attempt)
        if attempt.waits_for_itself and run.ill is None and not (run.is_ordered or gives_way):
            self._count("healthy_stopped", run.name, f"{attempt.name} is started again by its own platform")
        is_node_bad = attempt.is_on_bad_node or any(self._just_repaired(node) for node in attempt.nodes)
        if gives_way:
            return
        if not is_node_bad and any(node.is_ordered for node in attempt.nodes):
            run.is_ordered = True  # it makes room for the repair, and starts elsewhere
        self.acts(run, self._now)
        self._judge_pause(f"{attempt.name} was stopped", run.name)
        if run.is_ordered:
            return
        self._judge_denial(run, f"{attempt.name} was stopped")
        if not is_node_bad:
            self._judge_health(attempt)

    def _is_stop_ordered(self, attempt: Attempt) -> bool:
        """A person has ordered its Job stopped while it lived. That they have started the run again since, as another
        Job, does not take the order back.
        """
        run, at = attempt.run, attempt.run.stop_ordered_at
        if at is None or not run.is_stop_ordered or attempt.job.created_at > at:
            return False
        owner: str | None = self.world.registry.job_of_attempt(attempt.name)
        return owner == run.stopped_job

    def _judge_health(self, attempt: Attempt) -> None:
        """Count a stop of an attempt that was well, that had finished its work, or that was on its way."""
        run, ill = attempt.run, attempt.run.ill
        if ill is not None and ill.kind == "slow" and not self._restarts_what_is_slow:
            ill = None
        if ill is None and self._is_ill_itself(attempt) and (attempt.is_poisoned or not attempt.is_done):
            return
        if ill is None and not attempt.is_done and any(node.is_announced(self._now) for node in attempt.nodes):
            self._judge_notice(attempt)
        elif attempt.is_done and (ill is None or ill.kind not in ("poisoned", "spiking")):
            self._count("healthy_stopped", run.name, f"{attempt.name} had finished, and was {attempt.job.phase}")
        elif ill is None and not self._just_healed(run):
            self._count("healthy_stopped", run.name, f"{attempt.name} was well, and {attempt.job.phase}")
        elif (
            ill is not None and ill.kind == "dead" and not (self._is_of_a_loop(attempt) or self._just_changed(attempt))
        ):
            self._count("healthy_stopped", run.name, f"{attempt.name} was on its way, {attempt.job.phase}")

    def _is_ill_itself(self, attempt: Attempt) -> bool:
        """While another one of the run trains well beside it."""
        is_slow = bool(attempt.stretches) and attempt.stretches[-1].pace > 1.0
        return attempt.is_frozen or attempt.is_poisoned or (is_slow and self._restarts_what_is_slow)

    def _just_changed(self, attempt: Attempt) -> bool:
        """Its launcher has just ended processes that were ill, and has launched no others yet, or others of which no
        heartbeat can be read yet: no source shows it.
        """
        lost_at, ill = attempt.suspended_at, attempt.run.ill
        if attempt.life_since is not None and not attempt.waits_for_itself:
            seen_at = self.world.source_faults.seen_at(attempt.run.name, self._now)
            return seen_at is None or seen_at < attempt.life_since
        if not attempt.waits_for_itself or lost_at is None or ill is None:
            return False
        return ill.since < lost_at and self._now - lost_at < MISSES_NOTHING

    def _gives_way(self, attempt: Attempt) -> bool:
        """It has not trained yet, and another attempt continues in its place; or it is a start of ours whose order was
        under way as a person started the run, and that has trained for less than a minute or could not be reached.
        """
        others = [other for other in attempt.run.attempts.values() if other is not attempt]
        if self._could_not_be_called_back(attempt):
            return True
        if attempt.is_ours and any(other.is_by_hand and self._came_beside(attempt, other) for other in others):
            return True
        if attempt.trains_since is not None:
            has_just_begun = attempt.is_ours and self._now - attempt.trains_since < MISSES_NOTHING
            return has_just_begun and any(other.is_by_hand and self._seems_live(other) for other in others)
        return any(other.is_live or (other.is_by_hand and self._seems_live(other)) for other in others)

    def _came_beside(self, attempt: Attempt, other: Attempt) -> bool:
        """The owner has started `other` while `attempt` lived, and it lives: the later one is the owner's wish."""
        return other.job.created_at > attempt.job.created_at and self._seems_live(other)

    def _seems_live(self, attempt: Attempt) -> bool:
        return attempt.is_live or self._now - (attempt.job.ended_at or self._now) < MISSES_NOTHING

    def _could_not_be_called_back(self, attempt: Attempt) -> bool:
        """It is ours, and was ordered before anything showed that a person was about to start the run, which lives; and
        the head node has been away since.
        """
        ordered_at = attempt.ordered_at or attempt.job.created_at
        others = (other for other in attempt.run.attempts.values() if other.is_by_hand and other.is_live)
        was_under_way = any(other.job.created_at + MISSES_NOTHING >= ordered_at for other in others)
        return attempt.is_ours and was_under_way and self.world.source_faults.was_away(attempt.job.created_at)

    def _judge_notice(self, attempt: Attempt) -> None:
        """A node that is announced to leave later leaves the time for a save of the run's own."""
        run = attempt.run
        leaving = [node for node in attempt.nodes if node.is_announced(self._now)]
        ends_at = min(node.leaves_at for node in leaving if node.leaves_at is not None)
        known_since = min(node.announced_at for node in leaving if node.announced_at is not None)
        between = timedelta(seconds=run.spec.save_every * run.spec.step_s) + MISSES_NOTHING
        has_saved = any(save.is_whole and save.at >= known_since for save in run.saved if save.attempt == attempt.name)
        has_room = ends_at - self._now > 2 * between + FAR_OFF
        if has_room and not has_saved and attempt.step_at(self._now) - attempt.first_step >= REWIND_STEPS // 2:
            left_s = (ends_at - self._now).total_seconds()
            why = f"{attempt.name} was well, its node stays for {left_s:.0f} s, and nothing was saved since the notice"
            self._count("healthy_stopped", run.name, why)

    def _judge_denial(self, run: TrueRun, what: str) -> None:
        """A person was asked about it and did not allow it; what is wrong with the run is still the same."""
        ill, denied_at = run.ill, run.denied_at
        if denied_at is None or run.owner_took_it:
            return
        if ill is not None and ill.since <= denied_at and ill.became_at <= denied_at:
            self._count("owner_undone", run.name, f"{what}, which a person had not allowed")

    @property
    def _restarts_what_is_slow(self) -> bool:
        return self.world.policy.playbook(FaultClass.THROUGHPUT_DROP).response is not Response.TELL

    def _is_of_a_loop(self, attempt: Attempt) -> bool:
        """Slurm restarted it without Rekindle and the run's budget is spent: nothing is saved any more, or the trainer
        begins at the same step each time, whatever is saved.
        """
        in_vain, _ = fruitless_attempts(attempt, self.world.source_faults, self._now)
        spent = max(in_vain, began_over(attempt), without_gain(attempt))
        return not attempt.is_ours and spent >= self.world.policy.budgets.max_no_progress

    def _just_healed(self, run: TrueRun) -> bool:
        until = run.ills[-1].until if run.ills else None
        return until is not None and shown_until(run, self.world.source_faults, self._now) - until < MISSES_NOTHING

    def submitted(self, attempt: Attempt) -> None:
        run = attempt.run
        self.figures.submissions += 1
        if self.world.cluster is not None:
            own = sum(not (node.is_broken or self._just_repaired(node)) for node in attempt.nodes)
            self._spares[attempt.name] = self._idle_nodes(self.world.cluster) + own
        if run.spec.platform != "slurm":  # there an order comes first
            self.acts(run, self._now)
        others = [
            other.name
            for other in run.live
            if other is not attempt and is_shown(other, self.world.source_faults, self._now)
        ]
        # A start that waited in the queue as its owner cancelled the recovery: the answer says that it is left there.
        ordered_at, cancelled_at = attempt.ordered_at, run.cancelled_at
        is_left = ordered_at is not None and cancelled_at is not None and ordered_at <= cancelled_at
        if others and not is_left and not self._could_not_be_called_back(attempt):
            self._count(
                "two_live_attempts", run.name, f"{attempt.name} was submitted while {', '.join(others)} was live"
            )
        stopped_at = self._stopped_for_certain_at(run)
        if stopped_at is not None and stopped_at < (attempt.ordered_at or self._now):
            self._count("owner_undone", run.name, f"{attempt.name} was submitted after its owner had stopped the run")
        self._judge_resume_point(attempt, is_alone=not others)
        self._judge_pause(f"{attempt.name} was submitted", run.name, attempt.ordered_at)
        if not run.is_ordered:
            self._judge_denial(run, f"{attempt.name} was submitted")
        attempt.is_persons, run.is_ordered = run.is_ordered, False
        if not attempt.is_persons:
            self._judge_budget(attempt)

    def _stopped_for_certain_at(self, run: TrueRun) -> datetime | None:
        """When its owner stopped the run, None where that stop may be meant for something else."""
        stopped_at = run.owner_stopped_at
        if stopped_at is None or self._trains_another_submission(run, stopped_at):
            return None
        begun_at = self._stops_begun.get(run.name)
        is_crossed = begun_at is not None and timedelta(0) <= stopped_at - begun_at < MISSES_NOTHING
        if is_crossed and run.spec.platform != "slurm":
            return None  # SageMaker does not say who stopped a job, and the service's own stop was on its way
        if run.stopped_job not in ("", run.name):
            return None  # a second start of its owner's is a Job of its own, and its stop says nothing of the first
        by_hand = (stopped_at - attempt.job.created_at for attempt in run.attempts.values() if attempt.is_by_hand)
        if any(timedelta(0) <= after < MISSES_NOTHING for after in by_hand):
            return None  # what a person submitted and stopped within a minute may be two people's
        if run.resubmission_ordered_at is not None:
            # Whose stop it is that follows an order to resubmit at once two clocks do not show.
            apart = OTHER_CLOCK if run.spec.platform == "slurm" else SAME_CLOCK
            if timedelta(0) <= stopped_at - run.resubmission_ordered_at <= apart:
                return None
        return stopped_at

    def _trains_another_submission(self, run: TrueRun, stopped_at: datetime) -> bool:
        """What its owner had submitted as well waited in the queue as the order to stop came, which names another Job;
        it has trained since: the order is not about it.
        """
        return bool(run.stopped_job) and any(
            attempt.is_by_hand
            and attempt.trains_since is not None
            and attempt.job.created_at < stopped_at < attempt.trains_since
            and self.world.registry.job_of_attempt(attempt.name) != run.stopped_job
            for attempt in run.attempts.values()
        )

    def acts(self, run: TrueRun, at: datetime) -> None:
        policy = self.world.policy
        if run.is_ordered:  # what people order is theirs, however much of it
            return
        stage = run.is_another_stages  # each has a breaker of its own
        self._acted.append((at, run.name, stage))
        since = at - policy.breaker.window
        acted = {name for moment, name, by in self._acted if since < moment <= at and by is stage}
        active = sum(not other.is_finished and other.is_another_stages is stage for other in self.world.runs.values())
        limit = policy.breaker.incidents
        if limit and len(acted) > limit and len(acted) * 100 > policy.breaker.percent * active:
            self._count("too_many_at_once", run.name, f"{len(acted)} runs within the window; {limit} are allowed")

    def repairs(self, node: TrueNode, how: str) -> None:
        cluster, policy = self.world.cluster, self.world.policy
        if cluster is None:
            return
        self._repaired.append(self._now)
        self._judge_pause(f"a {how}", node.name)
        is_condemned = node.condemned or node.is_acquittal_lost or node.is_announced(self._now)
        is_ordered, node.is_ordered = node.is_ordered, False
        is_out = node.is_broken or node.runs_unseen or self._is_out_alone(node)
        if not (is_ordered or is_out or is_condemned or self._just_repaired(node)):
            self._count("node_repaired_well", node.name, f"{how} of a node with which nothing was wrong")
        others = [other.name for other in cluster.nodes.values() if other.in_our_repair and other is not node]
        room = self._room(cluster)
        if len(others) >= room:
            self._count("too_many_at_once", node.name, f"{len(others)} nodes are in repair; {room} are allowed")
        today = [at for at in self._repaired if self._now - at < timedelta(days=1)]
        if len(today) > policy.budgets.max_repairs_per_day:
            self._count("budget_exceeded", node.name, f"{len(today)} repairs within a day")

    def _room(self, cluster: Cluster) -> int:
        return max(1, int(len(cluster.nodes) * self.world.policy.budgets.max_nodes_in_repair_percent / 100))

    def _just_repaired(self, node: TrueNode) -> bool:
        late = self.world.source_faults.head_late()
        shown = [at + late for at in (node.repaired_at, node.reachable_since) if at is not None]
        ends = [*shown, node.condemned_until] if node.condemned_until is not None else shown
        return any(self._now - at < MISSES_NOTHING for at in ends)

    def _is_out_alone(self, node: TrueNode) -> bool:
        """Slurm has not reached it for a while, and only few: no job can run on such a node until it is rebooted."""
        cluster, since = self.world.cluster, node.unreachable_since
        if cluster is None or since is None or self._now - since <= MISSES_NOTHING:
            return False
        out = sum(other.unreachable_since is not None for other in cluster.nodes.values())
        return out < MANY_OUT or out <= self._room(cluster)

    def _judge_resume_point(self, attempt: Attempt, *, is_alone: bool) -> None:
        run, root = attempt.run, attempt.plan.uri
        saved = run.saved_at_root(root)
        if root is not None and saved is None:
            if looks_its_own(run, root, self.world.source_faults, self._now):
                return
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is none of the run's")
            return
        if saved is not None and not saved.is_whole:
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is not whole")
            return
        if (
            saved is not None
            and saved.is_poisoned
            and poison_could_be_known(attempt, saved.root, saved.step, self.world.source_faults, self._now)
        ):
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is poisoned")
            return
        if saved is not None and saved.is_spiking and self._is_spike_known(run, saved):
            self._count("resumed_in_spike", run.name, f"{attempt.name} shall load {root}, saved within a spike")
        if is_alone:  # where two live, what the other has saved meanwhile is no measure
            self._judge_progress(attempt, saved.step if saved is not None else 0)

    def _is_spike_known(self, run: TrueRun, saved: Saved) -> bool:
        """Its own report could arrive, and the policy's answer to a rise of the loss is to go back before it."""
        wrote = run.attempts.get(saved.attempt)
        goes_back = self.world.policy.playbook(FaultClass.LOSS_SPIKE).response in _GO_BACK
        is_old = wrote is not None and saved.at - (wrote.trains_since or saved.at) > MISSES_NOTHING
        told = self.world.source_faults.told_until(self._now)
        has_arrived = told is not None and told >= saved.at
        return goes_back and is_old and run.spec.watch == "monitor" and has_arrived

    def _judge_progress(self, attempt: Attempt, step: int) -> None:
        run = attempt.run
        # Going back before a spike, or before the scale of the gradients collapsed, is what is wanted.
        bent = any(trouble.kind in ("spike", "skips") for trouble in run.spec.troubles)
        marked = any(other.first_bad_loss is not None for other in run.attempts.values())
        best = run.best(by=self._now - MISSES_NOTHING)
        while best is not None and looks_broken(run, best):  # two that loaded it died before a step: an older one tells
            best = run.best(before_step=best.step, by=self._now - MISSES_NOTHING)
        reached = run.furthest
        self.figures.steps_lost += max(0, reached - step)
        if best is None or bent or step >= best.step:
            return
        if marked:  # a poisoned run goes back before its onset; two saves may lie between, of which one is in doubt
            if best.step - step > 2 * run.spec.save_every:
                self._count("passed_over", run.name, f"{attempt.name} continues from {step}; {best.step} is good")
            return
        self._count("passed_over", run.name, f"{attempt.name} continues from {step}; {best.step} is good")

    def _judge_budget(self, attempt: Attempt) -> None:
        run = attempt.run
        in_vain, memory = fruitless_attempts(attempt, self.world.source_faults, self._now)
        if in_vain >= self.world.policy.budgets.max_no_progress + 1:
            self._count("budget_exceeded", run.name, f"{attempt.name} after {in_vain} attempts that gained nothing")
        if memory >= 3:
            self._count("budget_exceeded", run.name, f"{attempt.name} after {memory} deaths for lack of memory")

    def condemned(self, root: str) -> None:
        for run in self.world.runs.values():
            saved = run.saved_at_root(root)
            if saved is not None and saved.is_good and not (looks_poisoned(run, saved) or looks_broken(run, saved)):
                self._count("good_condemned", run.name, f"{root} is whole and not poisoned")

    def notified(self, notice: Notice) -> None:
        run = self.world.run_of_job(notice.job_id)
        if notice.severity is Severity.INFO or notice.kind is NoticeKind.CHANGE:
            return
        if run is not None:
            self.reckoning.told(run)
        if run is not None and run.ill is not None:
            run.ill.is_notified = True
        if run is not None and notice.title.endswith(ORDER_NOT_TAKEN):
            self._take_back_order(run)
        if notice.severity is Severity.PAGE:
            self.figures.pages += 1
            if not notice.approval_id:  # each question is about another step, and is asked once
                self._judge_page(notice, run)

    def _take_back_order(self, run: TrueRun) -> None:
        """The person's order that the service has just refused never was."""
        if run.stopped_before_order_at is not None:
            run.owner_stopped_at, run.is_ordered = run.stopped_before_order_at, False
        elif run.is_stop_ordered:
            run.stop_orders -= 1  # another one may stand: the refused one came while it was carried out
            run.owner_stopped_at = run.owner_stopped_at if run.is_stop_ordered else None

    def _judge_page(self, notice: Notice, run: TrueRun | None) -> None:
        self._pages[notice.incident_id] += 1
        if self._pages[notice.incident_id] == MANY_PAGES + 1:
            self._count("paged_again", run.name if run is not None else "", notice.title)
        if run is not None and run.ill is None:
            self._judge_reason(notice, run)

    def _judge_reason(self, notice: Notice, run: TrueRun) -> None:
        """Count a page about a run that is well, and of which nothing has given a reason lately."""
        link = self._link_that_goes_on(run)
        since = link.trains_since if link is not None else None  # then the trouble before it is no reason
        ended = [ill.until for ill in run.ills if ill.until is not None and (since is None or ill.since >= since)]
        recent = [at for at in (*ended, self._disturbed_at) if at is not None and self._now - at < PAGED_WITHIN]
        if recent or run.owner_stopped or run.owner_took_it or self._is_disturbed(run):
            return
        if run.is_ordered and not run.live:  # the answer to an order that cannot be carried out
            return
        if run.is_finished and not shows_its_end(run, self.world.source_faults, self._now):
            return  # that it completed proves no finish (domain/run/ending.py)
        self._count("paged_for_nothing", run.name, notice.title)

    def _link_that_goes_on(self, run: TrueRun) -> Attempt | None:
        """The next link of its chain, which trains, as the head node shows."""
        head_is_late = self.world.source_faults.head_is_away() or self.world.source_faults.head_late() > timedelta(0)
        links = (attempt for attempt in run.live if attempt.is_link and attempt.trains_since is not None)
        return None if head_is_late else next(links, None)

    def _is_disturbed(self, run: TrueRun) -> bool:
        """Something is, or within ten minutes has become, as people should know it: an outage of ours, processes that
        are stopped, no capacity, a start from a bad save or of a trainer that does as it likes.
        """
        if self.world.source_faults.outage_until() is not None:
            return True
        if any(attempt.suspended_at is not None for attempt in run.live):
            return True
        if any(node.condemned for attempt in run.live for node in attempt.nodes):
            return True  # HyperPod wants it rebooted; that this is false, no source shows
        self._note_strange(run)
        _, at = self._strange.get(run.name, ((0, 0), None))
        shown = self.world.source_faults.seen_at(run.name, self._now)
        return at is not None and (self._now - at < UNWATCHED_AFTER or shown is None or shown - at < UNWATCHED_AFTER)

    def _note_strange(self, run: TrueRun) -> None:
        """When the newest trouble with the loss or a save struck; after one, or with a trainer that does as it likes,
        when the newest attempt came.
        """
        struck = sum(count for trouble, count in run.struck.items() if trouble.kind in _STRANGE)
        is_strange = struck > 0 or run.spec.plan != "obeyed" or run.refused > 0
        state = (struck + run.refused, len(run.attempts) if is_strange else 0)
        before, _ = self._strange.get(run.name, ((0, 0), None))
        if state != before:
            self._strange[run.name] = (state, self._now)

    def recorded(self, before: Incident | None, after: Incident) -> None:
        run = self.world.run_of_job(after.job_id)
        self.figures.incidents += before is None
        if after.node is not None:
            (self._open_nodes.add if after.is_open else self._open_nodes.discard)(after.incident_id)
        if run is None:
            return
        if before is None:
            self._open[after.incident_id] = run.name
            ill = run.ill
            if ill is not None and id(ill) not in self._detected:
                self._detected.add(id(ill))
                self.figures.detections_s.append((self._now - ill.since).total_seconds())
        self._stops_begun[run.name] = after.halt.stop_begun_at
        if any(approval.is_pending for approval in after.approvals):
            self._waits.pop(after.incident_id, None)  # a person was asked, who may take their time
        elif after.phase is Phase.RESUBMITTING:
            self._waits.setdefault(after.incident_id, (run, self._now))
        if not after.is_open:
            self._closed(run, after, is_new=before is None or before.is_open)

    def _closed(self, run: TrueRun, after: Incident, *, is_new: bool) -> None:
        self._open.pop(after.incident_id, None)
        self._waits.pop(after.incident_id, None)
        is_stopping = any(attempt.job.phase is JobPhase.STOPPING for attempt in run.live)
        if after.phase is Phase.HANDED_OVER and after.order is not None and run.live and not is_stopping:
            run.is_not_stopped_after_all(self._now)  # people are paged that the order is not carried out
        if after.phase is Phase.HANDED_OVER:
            self._judge_nodes(run)
        if after.phase is Phase.HANDED_OVER and after.is_poisoned and after.attempt is not None:
            self._called_bad.add(after.attempt)
        if after.phase is Phase.RECOVERED and is_new:
            self._judge_recovery(run, after)

    def _judge_recovery(self, run: TrueRun, incident: Incident) -> None:
        """Count an Incident that closes as recovered while its run is not."""
        if run.owner_stopped or len(run.live) > 1:
            return
        if run.ill is not None:
            self._judge_ill_as_recovered(run, run.ill, incident)
        elif run.live and not run.is_finished and not self._makes_steps(run):
            self._count("false_recovery", run.name, "no attempt makes steps")

    def _makes_steps(self, run: TrueRun) -> bool:
        """An attempt trains, or evaluates or saves between its steps, or has made all its steps."""
        is_training = any(
            attempt.trains_since is not None and attempt.stretches and attempt.stretches[-1].phase in _TRAINS
            for attempt in run.live
        )
        return is_training or any(attempt.is_done for attempt in run.attempts.values())

    def _judge_ill_as_recovered(self, run: TrueRun, ill: ActiveTrouble, incident: Incident) -> None:
        if ill.kind == "slow" and incident.fault is not FaultClass.THROUGHPUT_DROP:
            return  # it is over what it was about
        if run.spec.watch == "metrics" and (ill.kind == "poisoned" or has_collapsed(run)):
            return  # no source shows it (`excuses.shows_no_loss`)
        patience = MISSES_NOTHING + shows_after(run, ill)
        if ill.kind == "spiking":
            if self._now - shown_late(run, self.world.source_faults, self._now) - ill.since > patience:
                self._unconfirmed.append((run, ill))  # the closing notice, which follows, may say so
        elif ill.is_notified and not has_confirmed(run, self._now):
            return  # a person has it; what is over may be another trouble
        elif self._now - ill.turned_at > patience:
            if self._disturbed_at is not None and self._now - self._disturbed_at <= MISSES_NOTHING:
                self._unconfirmed.append((run, ill))  # what waited for the end of the outage arrives in these moments
            else:
                self._count("false_recovery", run.name, f"it is {ill.kind}")

    def _judge_rewinds(self, run: TrueRun) -> None:
        """Count runs that begin far behind their plan without a notification. Skips runs that a person has taken over:
        cancelling while the new attempt starts leaves it as it is, and its first steps are no longer watched.
        """
        if run.owner_took_it:
            return
        for attempt in run.live:
            began_at, resume_step = attempt.trains_since, attempt.plan.step or 0
            if (
                not attempt.is_ours
                or began_at is None
                or attempt.is_counted
                or attempt.first_step - 1 > resume_step - REWIND_STEPS
            ):
                continue
            began_at = max(began_at, self._disturbed_at or began_at)
            was_notified = any(
                notice.at >= attempt.trains_since and notice.severity is not Severity.INFO
                for notice in self.world.people.notices
                if self.world.run_of_job(notice.job_id) is run and attempt.trains_since is not None
            )
            if self._now - began_at > UNWATCHED_AFTER + MISSES_NOTHING and not was_notified:
                attempt.is_counted = True
                self._count(
                    "rewound_silently",
                    run.name,
                    f"{attempt.name} began at {attempt.first_step}, not after {resume_step}",
                )

    def _judge_waits(self) -> None:
        """Count Incidents that want a new attempt for longer than the policy waits for one. What is told later than it
        is decided (TOLD_BY), and the time of an outage, are no part of it.
        """
        limit = self.world.policy.resubmission.capacity_limit + TOLD_BY
        for incident_id, (run, since) in list(self._waits.items()):
            if run.ill is None or run.owner_stopped:
                del self._waits[incident_id]
            elif self._now - max(since, self._disturbed_at or since) > limit:
                del self._waits[incident_id]
                self._count("waited_on", run.name, f"it has been {run.ill.kind} for {self._age(run.ill):.0f} s")

    def _judge_superseded(self, run: TrueRun) -> None:
        """Count an attempt that saves beside the later one that its Job has now, once, where the fence could be
        written.
        """
        registry = self.world.registry
        for name in run.attempts if len(run.attempts) > 1 else ():
            owner = registry.job_of_attempt(name)
            if owner is not None:
                self._current_since.setdefault((owner, registry.get(owner).current_attempt), self._now)
        for save in run.saved:
            wrote = run.attempts.get(save.attempt)
            if self._now - save.at > MINUTE or wrote is None or wrote.is_counted or run.spec.watch != "monitor":
                continue
            owner = registry.job_of_attempt(wrote.name)
            current = run.attempts.get(registry.get(owner).current_attempt) if owner is not None else None
            is_later = current is not None and current.job.created_at > wrote.job.created_at
            since = current.trains_since if current is not None and is_later else None
            if current is None or owner is None or since is None:
                continue
            since = max(since, self._current_since[owner, current.name], self._disturbed_at or since)
            if save.at - since > UNWATCHED_AFTER:
                wrote.is_counted = True
                self._count("superseded_saves", run.name, f"{wrote.name} saved step {save.step}")

    def _judge_nodes(self, run: TrueRun) -> None:
        """Count a run that is left to people on a node that breaks each of its starts, ours among them."""
        cluster = self.world.cluster
        if cluster is None or run.ill is None or run.ill.kind not in NOT_WORKING or run.owner_took_it:
            return
        if run.spec.plan != "obeyed" or self._open_nodes:  # then another node is held to be the bad one, or it as well
            return
        broken = [node for node in cluster.nodes.values() if node.is_broken]
        if len(broken) == 1 and broken[0].broken_since is not None:  # by halves, two look like none
            self._judge_starts_on(broken[0], broken[0].broken_since, run, self._idle_nodes(cluster))

    def _judge_starts_on(self, node: TrueNode, since: datetime, run: TrueRun, idle: int) -> None:
        starts = [
            attempt
            for attempt in run.attempts.values()
            if (attempt.job.ended_at or self._now) >= since and attempt.nodes
        ]
        ours = [attempt for attempt in starts if attempt.is_ours and attempt.job.failure_reason == SICK]
        is_everywhere = all(node in attempt.nodes for attempt in starts)
        # It could have been left out of one of the later starts: a run that was between two attempts as this one was
        # given up has left no spares.
        spares = min(idle, max((self._spares.get(attempt.name, 0) for attempt in ours[MANY_ON_ONE - 1 :]), default=0))
        beside_it = max(run.spec.instances // 2, 1) - 1  # well ones that are left out with it
        if len(ours) >= MANY_ON_ONE and is_everywhere and spares - beside_it >= run.spec.instances:
            self._count("kept_on_bad_node", run.name, f"{len(starts)} starts on {node.name}, {spares} idle")

    def _idle_nodes(self, cluster: Cluster) -> int:
        """How many well nodes nothing runs on, without those that are back for less than a minute."""
        busy = {node.name for other in self.world.runs.values() for attempt in other.live for node in attempt.nodes}
        return sum(
            facts.state == "idle"
            and is_in_service(facts)
            and name not in busy
            and not (cluster.nodes[name].is_broken or self._just_repaired(cluster.nodes[name]))
            for name, facts in cluster.model.node_facts.items()
        )

    def _judge_loops(self, run: TrueRun) -> None:
        """Count a launcher that starts a run again in its place in vain, beyond the budget, while no person knows."""
        limit = max(self.world.policy.budgets.max_no_progress, 2)
        for attempt in run.live:
            in_vain = lives_shown_in_vain(attempt, self.world.source_faults, self._now)
            if in_vain <= limit or run.owner_took_it or run.owner_stopped:
                self._looping.pop(attempt.name, None)
                continue
            since = self._looping.setdefault(attempt.name, self._now)
            since = max(since, self._disturbed_at or since)
            if self._now - since > UNWATCHED_AFTER + MISSES_NOTHING and not attempt.is_counted:
                attempt.is_counted = True
                if not self.reckoning.was_told_since(run, attempt.trains_since):
                    self._count("looped_silently", run.name, f"{attempt.name} has had {attempt.life + 1} lives")

    def minute(self) -> None:
        if self.world.source_faults.outage_until() is not None or self.world.paused_at is not None:
            self._disturbed_at = self._now
        self._judge_spikes()
        self.reckoning.minute()
        minute = Minute(
            world=self.world,
            now=self._now,
            open_runs=set(self._open.values()),
            has_open_node=bool(self._open_nodes),
            called_bad=self._called_bad,
        )
        self._judge_waits()
        for run in self.world.runs.values():
            self._judge_rewinds(run)
            self._judge_loops(run)
            self._judge_superseded(run)
            self._note_strange(run)
            self._judge_chain(run)
            ill = run.ill
            if ill is None or ill.kind not in _ILLS_SEEN or ill.is_counted or ill.is_notified:
                continue
            excused = self._excuses.covering(minute, run, ill)
            self.reckoning.bill.excused_min[excused or "none"] += 1
            if excused is None:
                self._judge_unwatched(run, ill)

    def _judge_chain(self, run: TrueRun) -> None:
        """Count a link that trains beside a start of ours, once."""
        training = [attempt for attempt in run.live if attempt.trains_since is not None and not attempt.is_done]
        links = [attempt for attempt in training if attempt.is_link and not attempt.is_counted]
        ours = next((attempt for attempt in training if attempt.is_ours), None)
        if links and ours is not None and ours is not links[0]:
            links[0].is_counted = True
            self._count("chain_trained_twice", run.name, f"{ours.name} and {links[0].name}")

    def _judge_unwatched(self, run: TrueRun, ill: ActiveTrouble) -> None:
        """Count a run without a working watch, once it could have been noticed for long enough."""
        is_blind = ill.kind != "dead" and is_unseen(run, self.world.source_faults, self._now)
        if is_blind or self.world.is_unheard(run, "ListTrainingJobs"):
            self._blind_at[run.name] = self._now
        since = max(ill.turned_at, self._disturbed_at or ill.since, self._blind_at.get(run.name, ill.since))
        tells_by_silence = ill.kind == "hung" and run.spec.watch == "metrics"
        silence = max(SILENCE, RHYTHM * self.world.longest_hole(run)) if tells_by_silence else timedelta(0)
        if self._now - since > UNWATCHED_AFTER + MISSES_NOTHING + silence:
            ill.is_counted = True
            self._count("dead_unwatched", run.name, f"{ill.kind} since {self._age(ill):.0f} s")

    def _judge_spikes(self) -> None:
        """Of runs called recovered a minute ago at most: it is bad, and neither a person nor an Incident knows."""
        watched = set(self._open.values())
        for run, ill in self._unconfirmed:
            is_known = ill.is_notified or (ill.kind != "spiking" and run.name in watched)
            if run.ill is ill and not is_known and not run.owner_stopped:
                self._count("false_recovery", run.name, f"it is {ill.kind}")
        self._unconfirmed.clear()

    def _judge_what_waits(self, run: TrueRun) -> None:
        """Count links that wait for what a start of ours has taken the place of, as an attempt of the same Job."""
        cluster, registry = self.world.cluster, self.world.registry
        if cluster is None or not run.is_finished:
            return
        completed = [attempt for attempt in run.attempts.values() if attempt.is_ours and attempt.is_done]
        done = {registry.job_of_attempt(attempt.name) for attempt in completed}
        for job in cluster.waits_in_vain(run):
            if not job.dependency.startswith("afterok"):  # what waits for a failure is not wanted any more
                continue
            if done & {registry.job_of_attempt(name) for name in cluster.waited_for(job)}:
                self._count("chain_left_waiting", run.name, f"job {job.slurm_job} waits with {job.dependency}")

    def _age(self, ill: ActiveTrouble) -> float:
        return (self._now - ill.since).total_seconds()

    def close(self) -> None:
        """The story is over."""
        for run in self.world.runs.values():
            for ill in run.ills:
                if ill.until is not None:
                    self.figures.recoveries_s.append((ill.until - ill.since).total_seconds())
            self._judge_what_waits(run)
        for defect in self.world.defects:
            self._count("service_defect", "", defect[:300])
        self.bill = self.reckoning.close(pages=self.figures.pages, incidents=self.figures.incidents)
