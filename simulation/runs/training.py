"""The training side: each attempt's trainer and its monitor, in few events. A backend for `localcloud.aws.sagemaker`.

A step is no event: where a run is follows from when it last changed. Events are what changes it (the next trouble,
save, end) and what its monitor sends. The monitor writes with the one definition of the mailbox's format and does what
`rekindle.monitor` does: three bad steps in a row are reported with the first of them, a stall after its limit, a save
while the weights may be poisoned is sealed as such, a request is answered, a superseded attempt no longer saves.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from localcloud.aws.clock import Clock
from localcloud.aws.sagemaker import Phase, TrainingJob, TrainingJobs
from rekindle.protocol.launch_orders import ENV_ATTEMPT, ResumePlan
from rekindle.protocol.mailbox import LossState, RunPhase
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.reports import ReportKind
from simulation.cloud.store import MemoryObjects
from simulation.runs.course import CONFIRMED_AFTER, SLOW_SHOWS_AFTER, Course
from simulation.runs.monitor import Monitor, Push
from simulation.runs.requests import Requests
from simulation.runs.saves import count_strike, may_strike
from simulation.runs.spans import Spans, output_of
from simulation.runs.truth import Attempt, Saved, TrueRun
from simulation.stories.story import Trouble

DOWNLOADING: Final = timedelta(seconds=20)
LOADING: Final = timedelta(seconds=30)
STOPPING: Final = timedelta(seconds=30)
LAUNCHING: Final = timedelta(seconds=5)
STARTING: Final = timedelta(seconds=40)
FOREIGN_AHEAD: Final = 50  # steps that another experiment is further on
STALL_LIMIT: Final = timedelta(seconds=60)
ENDS_A_LIFE: Final = frozenset({"crash", "oom", "hang"})
LONG_AGO: Final = timedelta(days=30)
_CORRUPT: Final = "PytorchStreamReader failed reading zip archive: failed finding central directory"
_NO_ROOM: Final = "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML"


class Training(Spans):
    """All attempts of all runs. `run_of` finds whose run a new training job is."""

    def __init__(
        self,
        *,
        clock: Clock,
        jobs: TrainingJobs,
        objects: MemoryObjects,
        push: Push,
        run_of: Callable[[TrainingJob], TrueRun | None],
        seen_at: Callable[[str, datetime], datetime | None],
        lost: Callable[[str, str, int], bool],
        torn: Callable[[str], bool],
    ) -> None:
        monitor = Monitor(clock=clock, objects=objects, push=push, seen_at=seen_at, lost=lost, torn=torn)
        super().__init__(clock, objects, monitor)
        self._jobs = jobs
        self._run_of = run_of
        self.course = Course(self)
        self.requests = Requests(self)
        # (attempt, trouble, step) -> no step ends any more for now. Set by what strikes (`strikes`).
        self.strike: Callable[[Attempt, Trouble, int], bool] = lambda *_: False
        self.is_ours = False  # set while the service's own client submits
        # (attempt, trouble, last step) -> no step ends any more: a node below it breaks. Set where there are nodes.
        self.breaks_node: Callable[[Attempt, Trouble, int], bool] | None = None

    # ---- the backend -----------------------------------------------------------------------------------------------

    def launch(self, job: TrainingJob) -> None:
        run = self._run_of(job)
        if run is None:
            return
        attempt = Attempt(
            job=job,
            platform=self._jobs,
            run=run,
            number=int(job.environment.get(ENV_ATTEMPT) or 1),
            plan=ResumePlan.from_env(job.environment),
            is_ours=self.is_ours,
            is_by_hand=not self.is_ours,
            is_tagged=any(str(tag["Key"]).startswith("rekindle:") for tag in job.request.get("Tags") or ()),
        )
        self._register(attempt)
        if len(run.attempts) > 1 and run.refused < run.spec.refusals and self.is_ours:
            run.refused += 1
            self.later(attempt, "life", STARTING, lambda: self.end(attempt, Phase.FAILED, _NO_ROOM))
            return
        self.later(
            attempt,
            "life",
            STARTING if not job.reused_warm_pool else timedelta(seconds=5),
            lambda: self._download(attempt),
        )

    def stop(self, job: TrainingJob) -> None:
        attempt = self.attempts.get(job.name)
        if attempt is None:
            self._jobs.enter(job.name, Phase.STOPPED)
            return
        self.freeze_stretch(attempt, moves=False)
        self.cancel_all(attempt)
        self.later(attempt, "life", STOPPING, lambda: self.end(attempt, Phase.STOPPED, None))

    # ---- a start of a Slurm job ------------------------------------------------------------------------------------

    def starts(self, attempt: Attempt) -> None:
        """Slurm has given it nodes: its processes are launched."""
        self._register(attempt)
        self.later(attempt, "life", LAUNCHING, lambda: self._load(attempt))

    def freezes(self, attempt: Attempt, step: int) -> None:
        """No step ends any more after this one; its monitor lives."""
        self.enter(attempt, step, moves=False)
        attempt.is_frozen = True
        attempt.run.falls_ill("hung", self.clock.now(), reached=step)
        self.later(attempt, "stall", STALL_LIMIT, lambda: self._stalled(attempt))

    def runs_on(self, attempt: Attempt, is_over: Callable[[], bool]) -> None:
        """Its platform has ended it, and its processes train on and save, until that is over or a fence stops them."""
        spec = attempt.run.spec
        if not attempt.stretches:  # they have not begun to train
            return
        step = (attempt.stretches[-1].base // spec.save_every + 1) * spec.save_every

        def saves(step: int) -> None:
            if is_over() or not self.monitor.may_write(attempt):
                return
            self.saves.save(attempt, step, SaveKind.PERIODIC, None)
            wait = timedelta(seconds=spec.save_every * spec.step_s)
            self.later(attempt, "unseen", wait, lambda: saves(step + spec.save_every))

        wait = timedelta(seconds=(step - attempt.stretches[-1].base) * spec.step_s)
        self.later(attempt, "unseen", wait, lambda: saves(step))

    def suspends(self, attempt: Attempt, step: int) -> None:
        """Its processes are stopped after this step, its monitor with them."""
        self.enter(attempt, step, moves=False, is_mute=True)
        attempt.suspended_at = self.clock.now()

    def resumes(self, attempt: Attempt) -> None:
        """Its processes run on, if they are still there."""
        if attempt.suspended_at is not None and not attempt.waits_for_itself and not attempt.job.is_terminal:
            attempt.suspended_at = None
            self.enter(attempt, attempt.stretches[-1].base, moves=True)
            self.plan_next(attempt)

    def loses_processes(self, attempt: Attempt, step: int) -> None:
        """They end after this step, and its platform will start them again, in the same attempt."""
        self.cancel_all(attempt)
        self.suspends(attempt, step)
        attempt.waits_for_itself = True

    def starts_again(self, attempt: Attempt) -> None:
        """Its platform launches its processes once more: they load what rekindle.monitor.saving.resuming settles on,
        the newest that this attempt has sealed, or what its plan names.
        """
        if not attempt.waits_for_itself or attempt.job.is_terminal:
            return
        if not (attempt.is_training or attempt.platform.enter(attempt.name, Phase.TRAINING)):
            return
        attempt.in_vain = 0 if self.saves.has_gained(attempt) else attempt.in_vain + 1
        attempt.life += 1
        attempt.life_since = self.clock.now()
        attempt.struck = {trouble for trouble in attempt.struck if trouble.kind not in ENDS_A_LIFE}
        attempt.suspended_at, attempt.waits_for_itself, attempt.is_frozen = None, False, False
        attempt.is_poisoned, attempt.bad_update, attempt.first_bad_loss = False, None, None
        attempt.has_pushed_bad, attempt.spikes_on, attempt.collapsed_at = False, False, None
        self._loads(attempt)

    def fails(self, attempt: Attempt, text: str) -> None:
        """Its processes die."""
        if not attempt.job.is_terminal:
            self.end(attempt, Phase.FAILED, text)

    def over(self, attempt: Attempt, phase: Phase) -> None:
        """The platform has ended it."""
        self.freeze_stretch(attempt, moves=False)
        self.cancel_all(attempt)
        attempt.is_frozen = False
        run = attempt.run
        if phase is Phase.FAILED and run.owner_stopped_at is not None and run.owner_stopped_at == run.cancelled_at:
            run.owner_stopped_at = None  # the stop under way at the cancellation was not carried out: this is news
        if phase is Phase.COMPLETED and not attempt.is_silent_crash:
            run.is_finished = True
            if not attempt.is_poisoned:
                run.is_well_again(self.clock.now())
        elif not run.live:
            run.falls_ill("dead", self.clock.now(), reached=attempt.step_at(self.clock.now()))
        elif run.ill is not None and run.ill.kind in ("poisoned", "hung"):
            self._leaves(run)

    def _leaves(self, run: TrueRun) -> None:
        """An attempt of a run that is ill has ended, and others live: where all those train well, so does the run."""
        if all(other.trains_since is not None and not other.is_poisoned and not other.is_frozen for other in run.live):
            other = run.live[0]
            self.gets_over(other, other.step_at(self.clock.now()))

    # ---- the life of an attempt ------------------------------------------------------------------------------------

    def _register(self, attempt: Attempt) -> None:
        self.attempts[attempt.name] = attempt.run.attempts[attempt.name] = attempt
        attempt.run.is_finished = False  # one that had come to its end is trained on
        if attempt.run.spec.watch == "monitor":
            self.monitor.begin(attempt)
        if len(attempt.run.attempts) == 1:
            for step in range(1, attempt.run.spec.history + 1):
                self.saves.save(attempt, step, SaveKind.PERIODIC, None)
            for trouble in attempt.run.spec.troubles:
                if trouble.kind in ("foreign_save", "foreign_file") and trouble.step <= attempt.run.spec.history:
                    count_strike(attempt, trouble)
                    self.another_saves(attempt, trouble, ago=LONG_AGO)

    def another_saves(self, attempt: Attempt, trouble: Trouble, *, ago: timedelta) -> None:
        is_sealed = trouble.kind == "foreign_save"
        self.saves.another_experiment_saves(attempt.run, trouble.step + FOREIGN_AHEAD, is_sealed=is_sealed, ago=ago)

    def _download(self, attempt: Attempt) -> None:
        if self._jobs.enter(attempt.name, Phase.DOWNLOADING):
            self.later(attempt, "life", DOWNLOADING, lambda: self._load(attempt))

    def _load(self, attempt: Attempt) -> None:
        if not attempt.platform.enter(attempt.name, Phase.TRAINING):
            return
        attempt.trains_since = self.clock.now()
        self._loads(attempt)

    def _loads(self, attempt: Attempt) -> None:
        attempt.loaded = self._what_it_loads(attempt)
        attempt.first_step = (attempt.loaded.step if attempt.loaded is not None else 0) + 1
        reached = attempt.stretches[-1].base if attempt.stretches else None
        changes = {"health": "unknown", "onset": None, "healed": None, "pace": 1.0} if attempt.stretches else {}
        changes |= {"life": attempt.life, "first_step": attempt.first_step}
        self.enter(attempt, attempt.first_step - 1, moves=False, phase=RunPhase.STARTUP, loss=LossState.NONE, **changes)
        if attempt.run.spec.watch == "monitor":
            self.monitor.claim(attempt)
        self.monitor.push(attempt, "Rekindle Monitor Started", {"reached": reached})
        if attempt.loaded is not None and not attempt.loaded.is_whole:
            self.later(attempt, "life", LOADING, lambda: self.end(attempt, Phase.FAILED, output_of(attempt, _CORRUPT)))
            return
        self.later(attempt, "life", LOADING, lambda: self._begin(attempt))

    def _what_it_loads(self, attempt: Attempt) -> Saved | None:
        run = attempt.run
        if run.spec.plan == "nothing":
            return None
        sealed = [
            save for save in run.saved if save.attempt == attempt.name and save.is_whole and not save.looks_poisoned
        ]
        if sealed and run.spec.plan == "obeyed" and run.spec.watch == "monitor":  # a launcher has restarted it
            return max(sealed, key=lambda save: (save.step, save.at))
        if run.spec.plan == "obeyed" and (attempt.plan.uri is not None or attempt.is_ours):
            return run.saved_at_root(attempt.plan.uri)
        newest = [save for save in run.saved if save.attempt in run.attempts]
        return max(newest, key=lambda save: (save.step, save.at), default=None)

    def _begin(self, attempt: Attempt) -> None:
        now = self.clock.now()
        self.enter(
            attempt, attempt.first_step - 1, moves=True, phase=RunPhase.TRAINING, loss=LossState.FINITE, health="ok"
        )
        if attempt.loaded is not None and attempt.loaded.is_poisoned:
            self.course.poison(attempt, attempt.first_step - 1)
            attempt.run.falls_ill("poisoned", now, reached=attempt.first_step - 1)
        else:
            attempt.run.is_well_again(now)
        for trouble in attempt.run.spec.troubles:  # what made an earlier attempt slow may make this one slow as well
            if trouble.kind == "slow" and trouble.step < attempt.first_step and may_strike(attempt, trouble):
                count_strike(attempt, trouble)
                self.course.slows(attempt, trouble, attempt.first_step - 1)
        self.plan_next(attempt)

    def plan_next(self, attempt: Attempt) -> None:
        """Wait for the next step at which anything changes."""
        spec, stretch = attempt.run.spec, attempt.stretches[-1]
        base = stretch.base
        wanted = [(base // spec.save_every + 1) * spec.save_every]
        wanted += [trouble.step for trouble in spec.troubles if trouble.step > base and may_strike(attempt, trouble)]
        wanted += [
            trouble.step + trouble.heals
            for trouble in spec.troubles
            if trouble.kind == "spike" and trouble.heals is not None and trouble.step + trouble.heals > base
        ]
        if attempt.slow_from is not None:
            wanted += [attempt.slow_from + SLOW_SHOWS_AFTER, attempt.fast_from or 0]
        if attempt.first_bad_loss is not None:
            wanted += [attempt.first_bad_loss, attempt.first_bad_loss + CONFIRMED_AFTER - 1]
        wanted += [trouble.step + 1 for trouble in spec.troubles if trouble.kind == "blip"]
        if spec.steps is not None:
            wanted.append(spec.steps)
        step = min(step for step in wanted if step > base)
        wait = timedelta(seconds=(step - base) * spec.step_s * stretch.pace)
        self.later(attempt, "life", wait, lambda: self._at_step(attempt, step))

    def _at_step(self, attempt: Attempt, step: int) -> None:
        run = attempt.run
        here = [trouble for trouble in run.spec.troubles if trouble.step == step and may_strike(attempt, trouble)]
        for trouble in here:
            if trouble.kind in ("torn_save", "flipped_save"):
                continue  # strikes the next save
            count_strike(attempt, trouble)
            if self.strike(attempt, trouble, step):
                return
        self.course.loss_at(attempt, step, blips=any(trouble.kind == "blip" for trouble in here))
        self.course.pace_at(attempt, step)
        if step % run.spec.save_every == 0:
            self.saves.save(attempt, step, SaveKind.PERIODIC, None)
        if run.spec.steps is not None and step >= run.spec.steps:
            self._finish(attempt)
            return
        self.plan_next(attempt)

    def _stalled(self, attempt: Attempt) -> None:
        self.enter(attempt, attempt.stretches[-1].base, moves=False, phase=RunPhase.STALLED)
        limit_s = STALL_LIMIT.total_seconds()
        self.monitor.report(attempt, ReportKind.STALL, attempt.stretches[-1].base, silent_s=limit_s)
        stacks = {"0": 'File "train.py", line 1, in barrier'}
        self.monitor.push(
            attempt, "Rekindle Stall", {"phase": "training", "silent_s": limit_s, "limit_s": limit_s, "stacks": stacks}
        )

    def thaws(self, attempt: Attempt) -> None:
        was_pushed = attempt.stretches[-1].phase is RunPhase.STALLED
        self.cancel(attempt, "stall")
        attempt.is_frozen = False
        base = attempt.stretches[-1].base
        self.enter(attempt, base, moves=True, phase=RunPhase.TRAINING)
        if attempt.is_poisoned:
            attempt.run.falls_ill("poisoned", self.clock.now(), reached=base)
        else:
            self.gets_over(attempt, base)
        if was_pushed:
            self.monitor.push(attempt, "Rekindle Progress Resumed", {"silent_s": 60.0})
        self.plan_next(attempt)

    def _finish(self, attempt: Attempt) -> None:
        last = attempt.stretches[-1]
        loss = LossState.NAN if last.loss is LossState.NONE else last.loss
        self.enter(attempt, last.base, moves=False, phase=RunPhase.FINISHED, loss=loss)
        attempt.is_done = True
        if attempt.first_bad_loss is not None and attempt.first_bad_loss <= last.base:
            self.monitor.push_bad(attempt, attempt.first_bad_loss)  # at the end, however short it was
        self.monitor.push(attempt, "Rekindle Monitor Finished", {"why": "finished"})
        attempt.platform.enter(attempt.name, Phase.UPLOADING)
        wait = timedelta(seconds=attempt.run.spec.upload_s)
        self.later(attempt, "life", wait, lambda: self.end(attempt, Phase.COMPLETED, None))

    def end(self, attempt: Attempt, phase: Phase, reason: str | None) -> None:
        self.freeze_stretch(attempt, moves=False)
        attempt.platform.enter(attempt.name, phase, failure_reason=reason)
        self.over(attempt, phase)
