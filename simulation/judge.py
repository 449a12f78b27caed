"""The judge: reads the simulated truth and the service's effects on it, and counts unsafe outcomes. It reads no source
that the service reads.

Each count is one row of COUNTS. What the service could not have known yet (`MISSES_NOTHING`) is not counted; what a
source hid from it for longer is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.ports.notices import Notice, NoticeKind
from localcloud.aws.sagemaker import Phase as JobPhase
from rekindle.protocol.mailbox import RunPhase
from simulation.cluster import Cluster
from simulation.memory import Watcher
from simulation.training import CONFIRMED_AFTER, STALL_LIMIT
from simulation.truth import MISSES_NOTHING, Attempt, Ill, Saved, TrueNode, TrueRun
from simulation.world import World

COUNTS: Final[Mapping[str, str]] = {
    "two_live_attempts": "the service submitted an attempt while another one of the run was live",
    "healthy_stopped": "the service stopped an attempt that was well, or that had finished its work",
    "too_many_at_once": "the service acted on more runs within the breaker's window, or had more nodes in repair, than "
    "the policy allows",
    "node_repaired_well": "the service had a node rebooted or replaced that was well, and not condemned by HyperPod",
    "resumed_from_bad": "an attempt was submitted to resume from a checkpoint that is not whole, is another run's, or "
    "whose poison could be known",
    "good_condemned": "a checkpoint that is whole and not poisoned was marked as bad",
    "passed_over": "an attempt was submitted to resume from an older checkpoint than the newest good one",
    "rewound_silently": "an attempt of ours began far below its resume step; no person was notified in ten minutes",
    "false_recovery": "an Incident was closed as recovered while its run was not",
    "dead_unwatched": "a run was dead, hung or poisoned for ten minutes, with no open Incident and no person notified",
    "paged_for_nothing": "a person was paged about a run with which nothing had been wrong",
    "paged_again": "people were paged more than three times about one Incident",
    "budget_exceeded": "a run was submitted again, or nodes repaired within a day, beyond the policy's budget",
    "acted_while_paused": "the service stopped, submitted or repaired something a minute or more after it was paused",
    "owner_undone": "a run that its owner had stopped was submitted again",
    "service_defect": "a durable execution failed by a defect, or an event of this world could not be read",
}
UNWATCHED_AFTER: Final = timedelta(minutes=10)
PAGED_WITHIN: Final = timedelta(minutes=30)  # of trouble, an outage or a person's deed: a page has its reason
SILENCE: Final = timedelta(minutes=30)  # more until a run that only sends metrics is known to be silent
RHYTHM: Final = 3  # and this many times as long as the longest hole that its data had while it was well
MANY_PAGES: Final = 3  # of one Incident: what cannot be read, a hand-over, and one more
MANY_OUT: Final = 2  # nodes that Slurm cannot reach at once: then its network is at fault, or itself
ORDER_NOT_TAKEN: Final = "an order was not taken"  # how the notice that refuses an order is titled
REWIND_STEPS: Final = 30  # fewer are no more than a save or two apart
_ILLS_SEEN: Final = ("dead", "hung", "poisoned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsafe:
    """One thing that was unsafe."""

    kind: str
    at_s: float
    run: str
    detail: str


@dataclass(slots=True, kw_only=True)
class Figures:
    """What is measured beside the counts."""

    incidents: int = 0
    recoveries_s: list[float] = field(default_factory=list)  # from the trouble's beginning until the run trains on
    detections_s: list[float] = field(default_factory=list)  # until its Incident opens
    steps_lost: int = 0
    pages: int = 0
    submissions: int = 0


class Judge(Watcher):
    """Counts for one world; it is that world's watcher."""

    def __init__(self) -> None:
        self.unsafe: list[Unsafe] = []
        self.figures = Figures()
        self._world: World | None = None
        self._acted: list[tuple[datetime, str]] = []
        self._pages: Counter[str | None] = Counter()
        self._repaired: list[datetime] = []
        self._open: dict[str, str] = {}  # open Incidents, each with its run
        self._open_nodes: set[str] = set()  # Incidents about a node
        self._detected: set[int] = set()
        self._blind_at: dict[str, datetime] = {}  # when a run's only source was away last
        self._unconfirmed: list[tuple[TrueRun, Ill]] = []  # called recovered since the last minute, with a bad loss
        self._disturbed_at: datetime | None = None  # when anything last kept the service from seeing or acting

    def over(self, world: World) -> Judge:
        """Watch this world."""
        self._world = world
        world.watcher = self
        return self

    @property
    def world(self) -> World:
        """The world. `over` is called first."""
        assert self._world is not None  # noqa: S101
        return self._world

    @property
    def _now(self) -> datetime:
        return self.world.clock.now()

    def _count(self, kind: str, run: str, detail: str) -> None:
        at_s = (self._now - self.world.began_at).total_seconds()
        self.unsafe.append(Unsafe(kind=kind, at_s=round(at_s, 1), run=run, detail=detail))

    # ---- what the service does -------------------------------------------------------------------------------------

    def _judge_pause(self, what: str, name: str, decided_at: datetime | None = None) -> None:
        """An order that was on its way when it was paused is carried out."""
        paused_at = self.world.paused_at
        if paused_at is not None and (decided_at or self._now) - paused_at >= MISSES_NOTHING:
            self._count("acted_while_paused", name, what)

    def stops(self, attempt: Attempt) -> None:
        """See Watcher."""
        job, run = attempt.job, attempt.run
        if job.is_terminal or job.phase is JobPhase.STOPPING or run.owner_stopped or attempt.is_on_bad_node:
            return
        if any(self._just_mended(node) for node in attempt.nodes):
            return
        if attempt.trains_since is None and any(one is not attempt for one in run.live):
            return  # it has not begun, and another one goes on
        self.acts(run, self._now)
        self._judge_pause(f"{attempt.name} was stopped", run.name)
        if run.is_ordered:
            return
        ill = run.ill
        if attempt.is_done and (ill is None or ill.kind not in ("poisoned", "spiking")):
            self._count("healthy_stopped", run.name, f"{attempt.name} had finished, and was {job.phase}")
        elif ill is None and not self._just_healed(run):
            self._count("healthy_stopped", run.name, f"{attempt.name} was well, and {job.phase}")
        elif ill is not None and ill.kind == "dead" and not self._is_of_a_loop(attempt):
            self._count("healthy_stopped", run.name, f"{attempt.name} was on its way, {job.phase}")

    def _is_of_a_loop(self, attempt: Attempt) -> bool:
        """Slurm restarted it without Rekindle and the run's budget is spent: nothing is saved any more, or the trainer
        begins at the same step each time, whatever is saved.
        """
        fruitless, _ = self._fruitless(attempt)
        spent = max(fruitless, self._began_anew(attempt))
        return not attempt.is_ours and spent >= self.world.policy.budgets.max_no_progress

    @staticmethod
    def _began_anew(attempt: Attempt) -> int:
        """The attempts in a row before it that trained, and began no further on than the one before them."""
        trained = [one for one in attempt.run.attempts.values() if one is not attempt and one.trains_since is not None]
        count = 0
        for before, now in zip(reversed(trained[:-1]), reversed(trained[1:]), strict=True):
            if now.first_step > before.first_step:
                break
            count += 1
        return count

    def _just_healed(self, run: TrueRun) -> bool:
        until = run.ills[-1].until if run.ills else None
        return until is not None and self._now - until < MISSES_NOTHING

    def _is_shown(self, attempt: Attempt) -> bool:
        """False of a Slurm job that asks for no protection, while no heartbeat of it can be read."""
        if attempt.is_tagged or attempt.run.spec.platform != "slurm":
            return True
        if attempt.run.spec.watch != "monitor" or attempt.trains_since is None:
            return False
        seen_at = self.world.lies.seen_at(attempt.run.name, self._now)
        return seen_at is not None and seen_at - attempt.trains_since >= MISSES_NOTHING

    def submitted(self, attempt: Attempt) -> None:
        """See Watcher."""
        run = attempt.run
        self.figures.submissions += 1
        if run.spec.platform != "slurm":  # there an order comes first
            self.acts(run, self._now)
        others = [one.name for one in run.live if one is not attempt and self._is_shown(one)]
        # A start that waited in the queue as its owner cancelled the recovery: the answer says that it is left there.
        ordered_at, cancelled_at = attempt.ordered_at, run.cancelled_at
        is_left = ordered_at is not None and cancelled_at is not None and ordered_at <= cancelled_at
        if others and not is_left:
            self._count(
                "two_live_attempts", run.name, f"{attempt.name} was submitted while {', '.join(others)} was live"
            )
        stopped_at = run.owner_stopped_at
        if stopped_at is not None and any(
            one.is_by_hand and timedelta(0) <= stopped_at - one.job.created_at < MISSES_NOTHING
            for one in run.attempts.values()
        ):
            stopped_at = None  # what a person submitted and stopped within a minute may be two people's
        if stopped_at is not None and stopped_at < (attempt.ordered_at or self._now):
            self._count("owner_undone", run.name, f"{attempt.name} was submitted after its owner had stopped the run")
        self._judge_resume_point(attempt, is_alone=not others)
        self._judge_pause(f"{attempt.name} was submitted", run.name, attempt.ordered_at)
        attempt.is_persons, run.is_ordered = run.is_ordered, False
        if not attempt.is_persons:
            self._judge_budget(attempt)

    def acts(self, run: TrueRun, at: datetime) -> None:
        """See Watcher."""
        policy = self.world.policy
        if run.is_ordered:  # what people order is theirs, however much of it
            return
        self._acted.append((at, run.name))
        since = at - policy.breaker.window
        acted = {name for moment, name in self._acted if since < moment <= at}
        active = sum(not one.is_finished for one in self.world.runs.values())
        limit = policy.breaker.incidents
        if limit and len(acted) > limit and len(acted) * 100 > policy.breaker.percent * active:
            self._count("too_many_at_once", run.name, f"{len(acted)} runs within the window; {limit} are allowed")

    def repairs(self, node: TrueNode, how: str) -> None:
        """See Watcher."""
        cluster, policy = self.world.cluster, self.world.policy
        if cluster is None:
            return
        self._repaired.append(self._now)
        self._judge_pause(f"a {how}", node.name)
        is_condemned = node.condemned or node.is_acquittal_lost
        if not (node.is_broken or is_condemned or self._is_out_alone(node) or self._just_mended(node)):
            self._count("node_repaired_well", node.name, f"{how} of a node with which nothing was wrong")
        others = [one.name for one in cluster.nodes.values() if one.in_our_repair and one is not node]
        room = self._room(cluster)
        if len(others) >= room:
            self._count("too_many_at_once", node.name, f"{len(others)} nodes are in repair; {room} are allowed")
        today = [at for at in self._repaired if self._now - at < timedelta(days=1)]
        if len(today) > policy.budgets.max_repairs_per_day:
            self._count("budget_exceeded", node.name, f"{len(today)} repairs within a day")

    def _room(self, cluster: Cluster) -> int:
        return max(1, int(len(cluster.nodes) * self.world.policy.budgets.max_nodes_in_repair_percent / 100))

    def _just_mended(self, node: TrueNode) -> bool:
        ends = [at for at in (node.mended_at, node.condemned_until) if at is not None]
        return any(self._now - at < MISSES_NOTHING for at in ends)

    def _is_out_alone(self, node: TrueNode) -> bool:
        """Slurm has not reached it for a while, and only few: no job can run on such a node until it is rebooted."""
        cluster, since = self.world.cluster, node.unreachable_since
        if cluster is None or since is None or self._now - since <= MISSES_NOTHING:
            return False
        out = sum(one.unreachable_since is not None for one in cluster.nodes.values())
        return out < MANY_OUT or out <= self._room(cluster)

    def _judge_resume_point(self, attempt: Attempt, *, is_alone: bool) -> None:
        run, root = attempt.run, attempt.plan.uri
        saved = run.saved_at_root(root)
        if root is not None and saved is None:
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is none of the run's")
            return
        if saved is not None and not saved.is_whole:
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is not whole")
            return
        if (
            saved is not None
            and saved.is_poisoned
            and self._poison_could_be_known(run, attempt, saved.root, saved.step)
        ):
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is poisoned")
            return
        if is_alone:  # where two live, what the other has saved meanwhile is no measure
            self._judge_progress(attempt, saved.step if saved is not None else 0)

    def _poison_could_be_known(self, run: TrueRun, attempt: Attempt, root: str, step: int) -> bool:
        """It was sealed as poisoned, or is no older than a bad update that showed, or has shown it once loaded."""
        saved = run.saved_at_root(root)
        if saved is not None and saved.looks_poisoned:
            return True
        if run.spec.watch == "metrics":  # CloudWatch takes no loss that is no number, and nothing else is sent
            return False
        for one in run.attempts.values():
            if one is attempt or one.first_bad_loss is None or not one.stretches:
                continue
            if not one.is_ours and not one.is_tagged:
                continue  # submitted by hand, outside our care: what it does with a checkpoint is nothing we look at
            # Three bad losses, of which the last was shown: not if the attempt ended at that very step.
            has_shown = one.stretches[-1].base >= one.first_bad_loss + (2 if one.is_live else 3)
            if not has_shown:
                continue
            loaded_it = one.loaded is not None and one.loaded.root == root
            wrote_it = saved is not None and saved.attempt == one.name and step >= one.first_bad_loss - 1
            if loaded_it or wrote_it:
                return True
        return False

    def _judge_progress(self, attempt: Attempt, step: int) -> None:
        run = attempt.run
        # Going back before a spike, or before the scale of the gradients collapsed, is what is wanted.
        bent = any(one.kind in ("spike", "skips") for one in run.spec.troubles)
        marked = any(one.first_bad_loss is not None for one in run.attempts.values())
        best = run.best(by=self._now - MISSES_NOTHING)
        reached = run.furthest
        self.figures.steps_lost += max(0, reached - step)
        if best is None or bent or step >= best.step:
            return
        if marked:  # a poisoned run goes back before its onset; two saves may lie between, of which one is in doubt
            if best.step - step > 2 * run.spec.save_every:
                self._count("passed_over", run.name, f"{attempt.name} goes on from {step}; {best.step} is good")
            return
        self._count("passed_over", run.name, f"{attempt.name} goes on from {step}; {best.step} is good")

    def _judge_budget(self, attempt: Attempt) -> None:
        run = attempt.run
        fruitless, memory = self._fruitless(attempt)
        if fruitless >= self.world.policy.budgets.max_no_progress + 1:
            self._count("budget_exceeded", run.name, f"{attempt.name} after {fruitless} attempts that gained nothing")
        if memory >= 3:
            self._count("budget_exceeded", run.name, f"{attempt.name} after {memory} deaths for want of memory")

    def _was_shown(self, attempt: Attempt) -> bool:
        """One of its heartbeats could be read around its end, when it is weighed, or something that it has saved."""
        seen_at = self.world.lies.seen_at(attempt.run.name, (attempt.job.ended_at or self._now) + MISSES_NOTHING)
        has_saved = any(item.attempt == attempt.name for item in attempt.run.saved)
        return has_saved or attempt.trains_since is None or (seen_at is not None and seen_at >= attempt.trains_since)

    def _fruitless(self, attempt: Attempt) -> tuple[int, int]:
        """(our consecutive attempts before this one that trained, ended and left no good checkpoint beyond all earlier
        ones; consecutive out-of-memory deaths).
        """
        run, fruitless, memory = attempt.run, 0, 0
        best = 0
        for one in run.attempts.values():
            if one is attempt:
                break
            reached = max((item.step for item in run.saved if item.attempt == one.name and item.is_good), default=0)
            gained = reached > best
            best = max(best, reached)
            memory = 0 if one.is_persons or one.is_by_hand else memory
            is_oom = "out of memory" in (one.job.failure_reason or "")
            memory = memory + 1 if is_oom and not (gained and one.is_ours) else int(is_oom)
            if one.trains_since is None or not self._was_shown(one):
                continue
            fruitless = 0 if gained or one.is_persons or not one.is_ours else fruitless + 1
        return fruitless, memory

    def condemned(self, root: str) -> None:
        """See Watcher."""
        for run in self.world.runs.values():
            saved = run.saved_at_root(root)
            if saved is not None and saved.is_good and not self._looks_poisoned(run, saved):
                self._count("good_condemned", run.name, f"{root} is whole and not poisoned")

    @staticmethod
    def _looks_poisoned(run: TrueRun, saved: Saved) -> bool:
        """An attempt loaded it and was not finite from its first step on. Whether the weights are poisoned or that
        step's update goes bad each time looks the same in every source, and only one of them may be tried again.
        """
        return any(
            one.loaded is saved and one.first_bad_loss is not None and one.first_bad_loss <= one.first_step
            for one in run.attempts.values()
        )

    def notified(self, notice: Notice) -> None:
        """See Watcher."""
        run = self.world.run_of_job(notice.job_id)
        if notice.severity is Severity.INFO or notice.kind is NoticeKind.CHANGE:
            return
        if run is not None and run.ill is not None:
            run.ill.is_notified = True
        if run is not None and notice.title.endswith(ORDER_NOT_TAKEN) and run.stopped_before_order_at is not None:
            run.owner_stopped_at, run.is_ordered = run.stopped_before_order_at, False
        if notice.severity is not Severity.PAGE:
            return
        self.figures.pages += 1
        if notice.approval_id:  # each question is about another step, and is asked once
            return
        self._pages[notice.incident_id] += 1
        if self._pages[notice.incident_id] == MANY_PAGES + 1:
            self._count("paged_again", run.name if run is not None else "", notice.title)
        if run is None or run.ill is not None:
            return
        ended = [ill.until for ill in run.ills if ill.until is not None]
        recent = [at for at in (*ended, self._disturbed_at) if at is not None and self._now - at < PAGED_WITHIN]
        if recent or run.owner_stopped or run.owner_took_it or self._is_disturbed(run):
            return
        self._count("paged_for_nothing", run.name, notice.title)

    def _is_disturbed(self, run: TrueRun) -> bool:
        """Something is as people should know it: an outage of ours, no capacity, a trainer that does as it likes."""
        if self.world.lies.outage_until() is not None or run.spec.plan != "obeyed" or run.refused:
            return True
        return any(one.kind in ("spike", "torn_save", "flipped_save", "blip", "saves_deleted") for one in run.struck)

    def recorded(self, before: Incident | None, after: Incident) -> None:
        """See Watcher."""
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
        if after.is_open:
            return
        self._open.pop(after.incident_id, None)
        if after.phase is Phase.RECOVERED and (before is None or before.is_open):
            self._judge_recovery(run)

    def _judge_recovery(self, run: TrueRun) -> None:
        ill = run.ill
        if run.owner_stopped or (run.is_finished and ill is None) or len(run.live) > 1:
            return
        if ill is not None and ill.kind == "poisoned" and run.spec.watch == "metrics":
            return  # as in `minute`: no source shows it
        if ill is not None and ill.kind == "spiking":
            if self._now - ill.since <= MISSES_NOTHING + self._shows_after(run, ill):
                return
            self._unconfirmed.append((run, ill))  # the closing notice, which follows, may say so
            return
        if ill is not None and ill.is_notified and not self._has_confirmed(run):
            return  # a person has it; what is over may be another trouble
        if ill is not None and self._now - ill.since > MISSES_NOTHING + self._shows_after(run, ill):
            self._count("false_recovery", run.name, f"it is {ill.kind}")
            return
        moving = [one for one in run.live if one.stretches and one.stretches[-1].phase is RunPhase.TRAINING]
        if ill is None and run.live and not moving and not any(one.is_done for one in run.live):
            self._count("false_recovery", run.name, "no attempt makes steps")

    def _has_confirmed(self, run: TrueRun) -> bool:
        """Of an attempt that lives, three losses in a row were not finite, or it does not train."""
        return any(
            one.first_bad_loss is None or one.step_at(self._now) >= one.first_bad_loss + CONFIRMED_AFTER - 1
            for one in run.live
        )

    def _has_shown(self, run: TrueRun) -> bool:
        """A loss that is not finite has been, of an attempt that lives."""
        poisoned = [one for one in run.live if one.first_bad_loss is not None]
        return any(one.step_at(self._now) >= (one.first_bad_loss or 0) for one in poisoned)

    @staticmethod
    def _shows_after(run: TrueRun, ill: Ill) -> timedelta:
        """How long its own monitor needs before it can say so: a stall its limit, a bad loss three steps of it. Until
        then the run's heartbeat is that of a healthy run.
        """
        match ill.kind:
            case "hung":
                return STALL_LIMIT
            case "poisoned":
                return CONFIRMED_AFTER * timedelta(seconds=run.spec.step_s)
            case _:
                return timedelta(0)

    def _judge_rewinds(self, run: TrueRun) -> None:
        """Count runs that begin far behind their plan without a notification. Skips runs that a person has taken over:
        cancelling while the new attempt starts leaves it as it is, and its first steps are no longer watched.
        """
        if run.owner_took_it:
            return
        for one in run.live:
            began_at, resume_step = one.trains_since, one.plan.step or 0
            if not one.is_ours or began_at is None or one.is_counted or one.first_step - 1 > resume_step - REWIND_STEPS:
                continue
            began_at = max(began_at, self._disturbed_at or began_at)
            was_notified = any(
                notice.at >= one.trains_since and notice.severity is not Severity.INFO
                for notice in self.world.people.notices
                if self.world.run_of_job(notice.job_id) is run and one.trains_since is not None
            )
            if self._now - began_at > UNWATCHED_AFTER + MISSES_NOTHING and not was_notified:
                one.is_counted = True
                self._count(
                    "rewound_silently", run.name, f"{one.name} began at {one.first_step}, not after {resume_step}"
                )

    def minute(self) -> None:
        """See Watcher."""
        if self.world.lies.outage_until() is not None or self.world.paused_at is not None:
            self._disturbed_at = self._now
        self._judge_spikes()
        watched = set(self._open.values())
        for run in self.world.runs.values():
            self._judge_rewinds(run)
            ill = run.ill
            if ill is None or ill.kind not in _ILLS_SEEN or ill.is_counted or ill.is_notified:
                continue
            if run.owner_stopped or run.is_finished or run.name in watched or self._waits_for_a_node(run):
                continue
            if run.owner_took_it and (ill.kind != "dead" or run.is_unprotected):
                continue
            if ill.kind == "poisoned" and run.spec.watch == "metrics":
                continue  # CloudWatch takes no loss that is no number: no source shows it
            if ill.kind == "poisoned" and not self._has_shown(run):
                continue  # weights are seen by the loss that is computed from them, and none has been yet
            if ill.kind == "hung" and run.spec.watch == "metrics" and self.world.lies.is_away("cloudwatch"):
                self._blind_at[run.name] = self._now  # its only source is away, and nothing else shows a hang
            since = max(ill.turned_at, self._disturbed_at or ill.since, self._blind_at.get(run.name, ill.since))
            tells_by_silence = ill.kind == "hung" and run.spec.watch == "metrics"
            silence = max(SILENCE, RHYTHM * self.world.longest_hole(run)) if tells_by_silence else timedelta(0)
            if self._now - since > UNWATCHED_AFTER + MISSES_NOTHING + silence:
                ill.is_counted = True
                self._count("dead_unwatched", run.name, f"{ill.kind} since {self._age(ill):.0f} s")

    def _judge_spikes(self) -> None:
        """Of runs called recovered a minute ago at most: their loss is bad, and no person knows."""
        for run, ill in self._unconfirmed:
            if run.ill is ill and not ill.is_notified and not run.owner_stopped:
                self._count("false_recovery", run.name, f"it is {ill.kind}")
        self._unconfirmed.clear()

    def _waits_for_a_node(self, run: TrueRun) -> bool:
        """Slurm has put it back into its queue by itself, and an Incident is open about a node that it waits for."""
        return bool(self._open_nodes) and not run.live and self.world.waits_in_queue(run)

    def _age(self, ill: Ill) -> float:
        return (self._now - ill.since).total_seconds()

    def close(self) -> None:
        """The story is over."""
        for run in self.world.runs.values():
            for ill in run.ills:
                if ill.until is not None:
                    self.figures.recoveries_s.append((ill.until - ill.since).total_seconds())
        for defect in self.world.defects:
            self._count("service_defect", "", defect[:300])
