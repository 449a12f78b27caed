"""The training side: each attempt's trainer and its monitor, in few events. A backend for `localcloud.aws.sagemaker`.

A step is no event: where a run is follows from when it last changed. Events are what changes it (the next trouble,
save, end) and what its monitor sends. The monitor writes with the one definition of the mailbox's format and does what
`rekindle.monitor` does: three bad steps in a row are reported with the first of them, a stall after its limit, a save
while the weights may be poisoned is sealed as such, a request is answered, a superseded attempt no longer saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.policy.document import DEFAULT_POLICY
from localcloud.aws.clock import Clock, Timer
from localcloud.aws.sagemaker import Phase, TrainingJob, TrainingJobs
from rekindle.monitor.loss.scaler import ScaleWatch
from rekindle.protocol.launch_orders import ENV_ATTEMPT, ResumePlan
from rekindle.protocol.mailbox import CheckpointRequest, LossState, ReplyOutcome, RunPhase
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.reports import ReportKind
from rekindle.protocol.signals import EventType
from simulation.cloud.store import MemoryObjects
from simulation.runs.monitor import SAVING, Monitor, Push, job_id_of
from simulation.runs.saves import Saves, count_strike, may_strike
from simulation.runs.truth import Attempt, Saved, TrainingSpan, TrueRun
from simulation.stories.story import Trouble

STARTING: Final = timedelta(seconds=40)
DOWNLOADING: Final = timedelta(seconds=20)
LOADING: Final = timedelta(seconds=30)
STOPPING: Final = timedelta(seconds=30)
LAUNCHING: Final = timedelta(seconds=5)
ANSWERING: Final = timedelta(seconds=5)
STALL_LIMIT: Final = timedelta(seconds=60)
ON_SLURM: Final = frozenset(
    {"node_dies", "node_sick", "node_hangs", "slurmd_dies", "suspended", "preempted", "time_limit", "node_leaves"}
)
ENDS_A_LIFE: Final = frozenset({"crash", "oom", "hang"})
SLOW_SHOWS_AFTER: Final = 24  # steps; rekindle.detectors.pace asks for 20 rows that are very slow, and for time
SLOW_RULE: Final = "the median step stays slow"
LONG_AGO: Final = timedelta(days=30)
FOREIGN_AHEAD: Final = 50  # steps that another experiment is further on
MAX_WAIT: Final = timedelta(minutes=20)  # MaxWaitTimeInSeconds leaves so much from an interruption on
FIRST_SCALE: Final = 65536.0  # torch.amp.GradScaler
CONFIRMED_AFTER: Final = 3  # bad steps in a row; rekindle.monitor.base.state.ACT_AFTER
_FAILED: Final = 'AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage "{text}"'
_OOM: Final = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
_CORRUPT: Final = "PytorchStreamReader failed reading zip archive: failed finding central directory"
_NO_ROOM: Final = "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML"


class Training:
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
        self._clock = clock
        self._jobs = jobs
        self._objects = objects
        self._run_of = run_of
        self.monitor = Monitor(clock=clock, objects=objects, push=push, seen_at=seen_at, lost=lost, torn=torn)
        self._saves = Saves(clock, objects, self.monitor)
        self._timers: dict[tuple[str, str], Timer] = {}
        self.attempts: dict[str, Attempt] = {}
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
            self._later(attempt, "life", STARTING, lambda: self._end(attempt, Phase.FAILED, _NO_ROOM))
            return
        self._later(
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
        self._freeze_stretch(attempt, moves=False)
        self._cancel_all(attempt)
        self._later(attempt, "life", STOPPING, lambda: self._end(attempt, Phase.STOPPED, None))

    # ---- a start of a Slurm job ------------------------------------------------------------------------------------

    def starts(self, attempt: Attempt) -> None:
        """Slurm has given it nodes: its processes are launched."""
        self._register(attempt)
        self._later(attempt, "life", LAUNCHING, lambda: self._load(attempt))

    def freezes(self, attempt: Attempt, step: int) -> None:
        """No step ends any more after this one; its monitor lives."""
        self._enter(attempt, step, moves=False)
        attempt.is_frozen = True
        attempt.run.falls_ill("hung", self._clock.now(), reached=step)
        self._later(attempt, "stall", STALL_LIMIT, lambda: self._stalled(attempt))

    def runs_on(self, attempt: Attempt, is_over: Callable[[], bool]) -> None:
        """Its platform has ended it, and its processes train on and save, until that is over or a fence stops them."""
        spec = attempt.run.spec
        if not attempt.stretches:  # they have not begun to train
            return
        step = (attempt.stretches[-1].base // spec.save_every + 1) * spec.save_every

        def saves(step: int) -> None:
            if is_over() or not self.monitor.may_write(attempt):
                return
            self._saves.save(attempt, step, SaveKind.PERIODIC, None)
            wait = timedelta(seconds=spec.save_every * spec.step_s)
            self._later(attempt, "unseen", wait, lambda: saves(step + spec.save_every))

        wait = timedelta(seconds=(step - attempt.stretches[-1].base) * spec.step_s)
        self._later(attempt, "unseen", wait, lambda: saves(step))

    def suspends(self, attempt: Attempt, step: int) -> None:
        """Its processes are stopped after this step, its monitor with them."""
        self._enter(attempt, step, moves=False)
        attempt.suspended_at = self._clock.now()

    def resumes(self, attempt: Attempt) -> None:
        """Its processes run on, if they are still there."""
        if attempt.suspended_at is not None and not attempt.waits_for_itself and not attempt.job.is_terminal:
            attempt.suspended_at = None
            self._enter(attempt, attempt.stretches[-1].base, moves=True)
            self._plan_next(attempt)

    def loses_processes(self, attempt: Attempt, step: int) -> None:
        """They end after this step, and its platform will start them again, in the same attempt."""
        self._cancel_all(attempt)
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
        attempt.in_vain = 0 if self._saves.has_gained(attempt) else attempt.in_vain + 1
        attempt.life += 1
        attempt.life_since = self._clock.now()
        attempt.struck = {trouble for trouble in attempt.struck if trouble.kind not in ENDS_A_LIFE}
        attempt.suspended_at, attempt.waits_for_itself, attempt.is_frozen = None, False, False
        attempt.is_poisoned, attempt.bad_update, attempt.first_bad_loss = False, None, None
        attempt.has_pushed_bad, attempt.spikes_on, attempt.collapsed_at = False, False, None
        self._loads(attempt)

    def fails(self, attempt: Attempt, text: str) -> None:
        """Its processes die."""
        if not attempt.job.is_terminal:
            self._end(attempt, Phase.FAILED, text)

    def over(self, attempt: Attempt, phase: Phase) -> None:
        """The platform has ended it."""
        self._freeze_stretch(attempt, moves=False)
        self._cancel_all(attempt)
        attempt.is_frozen = False
        run = attempt.run
        if phase is Phase.COMPLETED and not attempt.is_silent_crash:
            run.is_finished = True
            if not attempt.is_poisoned:
                run.is_well_again(self._clock.now())
        elif not run.live:
            run.falls_ill("dead", self._clock.now(), reached=attempt.step_at(self._clock.now()))
        elif run.ill is not None and run.ill.kind in ("poisoned", "hung"):
            self._leaves(run)

    def _leaves(self, run: TrueRun) -> None:
        """An attempt of a run that is ill has ended, and others live: where all those train well, so does the run."""
        if all(other.trains_since is not None and not other.is_poisoned and not other.is_frozen for other in run.live):
            other = run.live[0]
            self._is_over(other, other.step_at(self._clock.now()))

    # ---- the life of an attempt ------------------------------------------------------------------------------------

    def _register(self, attempt: Attempt) -> None:
        self.attempts[attempt.name] = attempt.run.attempts[attempt.name] = attempt
        attempt.run.is_finished = False  # one that had come to its end is trained on
        if attempt.run.spec.watch == "monitor":
            self.monitor.begin(attempt)
        if len(attempt.run.attempts) == 1:
            for step in range(1, attempt.run.spec.history + 1):
                self._saves.save(attempt, step, SaveKind.PERIODIC, None)
            for trouble in attempt.run.spec.troubles:
                if trouble.kind in ("foreign_save", "foreign_file") and trouble.step <= attempt.run.spec.history:
                    count_strike(attempt, trouble)
                    self._another_saves(attempt, trouble, ago=LONG_AGO)

    def _download(self, attempt: Attempt) -> None:
        if self._jobs.enter(attempt.name, Phase.DOWNLOADING):
            self._later(attempt, "life", DOWNLOADING, lambda: self._load(attempt))

    def _load(self, attempt: Attempt) -> None:
        if not attempt.platform.enter(attempt.name, Phase.TRAINING):
            return
        attempt.trains_since = self._clock.now()
        self._loads(attempt)

    def _loads(self, attempt: Attempt) -> None:
        attempt.loaded = self._what_it_loads(attempt)
        attempt.first_step = (attempt.loaded.step if attempt.loaded is not None else 0) + 1
        reached = attempt.stretches[-1].base if attempt.stretches else None
        changes = {"health": "unknown", "onset": None, "healed": None, "pace": 1.0} if attempt.stretches else {}
        changes |= {"life": attempt.life, "first_step": attempt.first_step}
        self._enter(
            attempt, attempt.first_step - 1, moves=False, phase=RunPhase.STARTUP, loss=LossState.NONE, **changes
        )
        if attempt.run.spec.watch == "monitor":
            self.monitor.claim(attempt)
        self.monitor.push(attempt, "Rekindle Monitor Started", {"reached": reached})
        if attempt.loaded is not None and not attempt.loaded.is_whole:
            self._later(attempt, "life", LOADING, lambda: self._end(attempt, Phase.FAILED, _output(attempt, _CORRUPT)))
            return
        self._later(attempt, "life", LOADING, lambda: self._begin(attempt))

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
        now = self._clock.now()
        self._enter(
            attempt, attempt.first_step - 1, moves=True, phase=RunPhase.TRAINING, loss=LossState.FINITE, health="ok"
        )
        if attempt.loaded is not None and attempt.loaded.is_poisoned:
            self._poison(attempt, attempt.first_step - 1)
            attempt.run.falls_ill("poisoned", now, reached=attempt.first_step - 1)
        else:
            attempt.run.is_well_again(now)
        for trouble in attempt.run.spec.troubles:  # what made an earlier attempt slow may make this one slow as well
            if trouble.kind == "slow" and trouble.step < attempt.first_step and may_strike(attempt, trouble):
                count_strike(attempt, trouble)
                self._slows(attempt, trouble, attempt.first_step - 1)
        self._plan_next(attempt)

    def _plan_next(self, attempt: Attempt) -> None:
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
        self._later(attempt, "life", wait, lambda: self._at_step(attempt, step))

    def _at_step(self, attempt: Attempt, step: int) -> None:
        run = attempt.run
        here = [trouble for trouble in run.spec.troubles if trouble.step == step and may_strike(attempt, trouble)]
        for trouble in here:
            if trouble.kind in ("torn_save", "flipped_save"):
                continue  # strikes the next save
            count_strike(attempt, trouble)
            if self._strikes(attempt, trouble, step):
                return
        self._loss_at(attempt, step, blips=any(trouble.kind == "blip" for trouble in here))
        self._pace_at(attempt, step)
        if step % run.spec.save_every == 0:
            self._saves.save(attempt, step, SaveKind.PERIODIC, None)
        if run.spec.steps is not None and step >= run.spec.steps:
            self._finish(attempt)
            return
        self._plan_next(attempt)

    def _strikes(self, attempt: Attempt, trouble: Trouble, step: int) -> bool:  # noqa: C901  one row for each kind
        """What the trouble does; True where no step ends any more for now."""
        run, now = attempt.run, self._clock.now()
        match trouble.kind:
            case "crash" | "oom":
                self._enter(attempt, step - 1, moves=False)
                if attempt.life < run.spec.restarts:
                    self._restarts_in_place(attempt, step - 1)
                    return True
                text = _OOM if trouble.kind == "oom" else trouble.text
                self._end(attempt, Phase.FAILED, _output(attempt, text))
                return True
            case "silent":
                self._enter(attempt, step - 1, moves=False)
                attempt.is_silent_crash = True
                self._end(attempt, Phase.COMPLETED, None)
                return True
            case "skips":
                self._skips(attempt, trouble, step)
            case "slow":
                self._slows(attempt, trouble, step)
            case "saves_deleted":
                self._saves.delete(run, trouble.heals)
            case "foreign_save" | "foreign_file":
                self._another_saves(attempt, trouble, ago=timedelta(0))
            case "interrupted":
                return self._is_interrupted(attempt, trouble, step - 1)
            case kind if kind in ON_SLURM:
                return self.breaks_node is not None and self.breaks_node(attempt, trouble, step - 1)
            case "rests":
                self._rests(attempt, trouble, step - 1)
                return True
            case "hang":
                self.freezes(attempt, step - 1)
                if trouble.after_s is not None:
                    is_restarted = attempt.life < run.spec.restarts
                    self._later(
                        attempt,
                        "life",
                        timedelta(seconds=trouble.after_s),
                        lambda: self._restarts_in_place(attempt, step - 1) if is_restarted else self._thaws(attempt),
                    )
                return True
            case "nan" | "quiet_nan":
                self._poison(attempt, step if trouble.kind == "quiet_nan" else step - 1, update=step)
                run.falls_ill("poisoned", now, reached=step - 1)
            case "spike":
                self._enter(attempt, step, moves=True, health="spiking", onset=step)
                self.monitor.push_loss(
                    attempt, "Rekindle Loss Spike", {"onset_step": step, "trouble": "loss_spike"}, rule=True
                )
                attempt.spikes_on = attempt.spikes_on or trouble.heals is None
                # By the service's own words one that lasts so long is trouble, whatever becomes of it.
                if trouble.heals is None or trouble.heals > DEFAULT_POLICY.loss.spike_heal_steps:
                    run.falls_ill("spiking", now, reached=step - 1)
        return False

    def _restarts_in_place(self, attempt: Attempt, step: int) -> None:
        """Its launcher (torchrun, a loop around srun, NVRx) starts all its processes again, in the same attempt."""
        self.loses_processes(attempt, step)
        if attempt.run.live == [attempt]:
            attempt.run.falls_ill("dead", self._clock.now(), reached=step)
        launching = timedelta(seconds=attempt.run.spec.relaunch_s)
        self._later(attempt, "life", launching, lambda: self.starts_again(attempt))

    def _rests(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        phase = RunPhase.EVALUATION if trouble.step % 2 else RunPhase.SAVING
        self._enter(attempt, step, moves=False, phase=phase)

        def goes_on() -> None:
            self._enter(attempt, step, moves=True, phase=RunPhase.TRAINING)
            self._plan_next(attempt)

        self._later(attempt, "life", timedelta(seconds=trouble.after_s or 0.0), goes_on)

    def _another_saves(self, attempt: Attempt, trouble: Trouble, *, ago: timedelta) -> None:
        is_sealed = trouble.kind == "foreign_save"
        self._saves.another_experiment_saves(attempt.run, trouble.step + FOREIGN_AHEAD, is_sealed=is_sealed, ago=ago)

    def _is_interrupted(self, attempt: Attempt, trouble: Trouble, step: int) -> bool:
        """Managed Spot takes its instances. Source: SageMaker developer guide, model-managed-spot-training."""
        if attempt.nodes or not attempt.platform.enter(attempt.name, Phase.INTERRUPTED):
            return False
        self.loses_processes(attempt, step)
        if trouble.after_s is None:
            self._later(attempt, "life", MAX_WAIT, lambda: self._end(attempt, Phase.MAX_WAIT_TIME_EXCEEDED, None))
        else:
            self._later(attempt, "life", timedelta(seconds=trouble.after_s), lambda: self._has_spot_again(attempt))
        return True

    def _has_spot_again(self, attempt: Attempt) -> None:
        attempt.platform.enter(attempt.name, Phase.STARTING)
        self._later(attempt, "life", STARTING, lambda: self.starts_again(attempt))

    def _skips(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        """Updates are left out, the loss is a number. What is reported is what rekindle.monitor's own watch says."""
        watch, scale = ScaleWatch(), FIRST_SCALE
        watch.see(step - 1, scale)
        for number in range(trouble.heals or 0):
            scale /= 2
            found = watch.see(step + number, scale)
            if found is not None:
                delay = timedelta(seconds=number * attempt.run.spec.step_s)
                self._later(attempt, "collapse", delay, lambda found=found: self._collapses(attempt, found.step))  # type: ignore[misc]
                return

    def _pace_at(self, attempt: Attempt, step: int) -> None:
        """Its monitor reports steps that stay slow; afterwards they may be as fast as before."""
        pace, usual_s = attempt.stretches[-1].pace, attempt.run.spec.step_s
        if attempt.slow_from is None or pace == 1.0:
            return
        if step == attempt.fast_from:
            self._enter(attempt, step, moves=True, pace=1.0)
            if attempt.run.ill is not None and attempt.run.ill.kind == "slow":
                attempt.run.is_well_again(self._clock.now())
        elif step == attempt.slow_from + SLOW_SHOWS_AFTER and attempt.first_step < attempt.slow_from:
            figures = {"step_s": usual_s * pace, "baseline_s": usual_s, "rule": SLOW_RULE}
            self.monitor.push(attempt, EventType.THROUGHPUT_DROP, figures)

    def _slows(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        attempt.slow_from = step
        attempt.fast_from = None if trouble.heals is None else step + trouble.heals
        self._enter(attempt, step, moves=True, pace=trouble.times)
        attempt.run.falls_ill("slow", self._clock.now(), reached=step)

    def _collapses(self, attempt: Attempt, first: int) -> None:
        """It learns nothing any more."""
        attempt.spikes_on, attempt.collapsed_at = True, first
        attempt.run.falls_ill("spiking", self._clock.now(), reached=first - 1)
        self._loss_at(attempt, attempt.step_at(self._clock.now()), blips=False)
        self.monitor.push_collapse(attempt, first)

    def _poison(self, attempt: Attempt, last_good_loss: int, *, update: int | None = None) -> None:
        """The weights are poisoned by `update`; the first bad loss is the one after `last_good_loss`."""
        if attempt.is_poisoned:
            return
        attempt.is_poisoned = True
        attempt.bad_update = last_good_loss if update is None else update
        attempt.first_bad_loss = last_good_loss + 1

    def _loss_at(self, attempt: Attempt, step: int, *, blips: bool) -> None:
        """Bring the loss that is seen up to the step."""
        stretch = attempt.stretches[-1]
        first_bad = attempt.first_bad_loss
        changes = _loss_seen(attempt, step, blips=blips)
        if stretch.health == "spiking" and not attempt.spikes_on and _heals_at(attempt, step):
            self._enter(attempt, step, moves=True, **(changes | {"health": "ok", "healed": step}))
            if attempt.run.ill is not None and attempt.run.ill.kind == "spiking":
                self._is_over(attempt, step)
            self.monitor.push_loss(
                attempt, "Rekindle Loss Recovered", {"healed_step": step, "onset_step": stretch.onset}, rule=False
            )
        else:
            self._enter(attempt, step, moves=True, **changes)
        if first_bad is not None and step == max(first_bad + CONFIRMED_AFTER - 1, attempt.first_step):
            self.monitor.push_bad(attempt, first_bad)

    def _stalled(self, attempt: Attempt) -> None:
        self._enter(attempt, attempt.stretches[-1].base, moves=False, phase=RunPhase.STALLED)
        limit_s = STALL_LIMIT.total_seconds()
        self.monitor.report(attempt, ReportKind.STALL, attempt.stretches[-1].base, silent_s=limit_s)
        stacks = {"0": 'File "train.py", line 1, in barrier'}
        self.monitor.push(
            attempt, "Rekindle Stall", {"phase": "training", "silent_s": limit_s, "limit_s": limit_s, "stacks": stacks}
        )

    def _thaws(self, attempt: Attempt) -> None:
        was_pushed = attempt.stretches[-1].phase is RunPhase.STALLED
        self._cancel(attempt, "stall")
        attempt.is_frozen = False
        base = attempt.stretches[-1].base
        self._enter(attempt, base, moves=True, phase=RunPhase.TRAINING)
        if attempt.is_poisoned:
            attempt.run.falls_ill("poisoned", self._clock.now(), reached=base)
        else:
            self._is_over(attempt, base)
        if was_pushed:
            self.monitor.push(attempt, "Rekindle Progress Resumed", {"silent_s": 60.0})
        self._plan_next(attempt)

    def _is_over(self, attempt: Attempt, reached: int) -> None:
        """What was wrong with it; what is wrong beside that counts from now on."""
        run, now = attempt.run, self._clock.now()
        run.is_well_again(now)
        if attempt.spikes_on:
            run.falls_ill("spiking", now, reached=reached)
        elif attempt.stretches[-1].pace > 1.0:
            run.falls_ill("slow", now, reached=reached)

    def _finish(self, attempt: Attempt) -> None:
        last = attempt.stretches[-1]
        loss = LossState.NAN if last.loss is LossState.NONE else last.loss
        self._enter(attempt, last.base, moves=False, phase=RunPhase.FINISHED, loss=loss)
        attempt.is_done = True
        if attempt.first_bad_loss is not None and attempt.first_bad_loss <= last.base:
            self.monitor.push_bad(attempt, attempt.first_bad_loss)  # at the end, however short it was
        self.monitor.push(attempt, "Rekindle Monitor Finished", {"why": "finished"})
        attempt.platform.enter(attempt.name, Phase.UPLOADING)
        wait = timedelta(seconds=attempt.run.spec.upload_s)
        self._later(attempt, "life", wait, lambda: self._end(attempt, Phase.COMPLETED, None))

    def _end(self, attempt: Attempt, phase: Phase, reason: str | None) -> None:
        self._freeze_stretch(attempt, moves=False)
        attempt.platform.enter(attempt.name, phase, failure_reason=reason)
        self.over(attempt, phase)

    # ---- saves and requests ----------------------------------------------------------------------------------------

    def asked(self, key: str, name: str) -> None:
        """A request lies in the mailbox: the attempt that it names finds it."""
        del name
        raw = self._objects.objects[key].body
        request = CheckpointRequest.from_json(raw)
        attempt = self.attempts.get(request.attempt)
        if attempt is not None and request.job_id != job_id_of(attempt):  # rekindle.monitor.mail.requests: ignored
            return
        if attempt is not None and attempt.run.spec.watch == "monitor" and attempt.is_training and not attempt.is_done:
            self._answer_soon(attempt, request, self._clock.now() + timedelta(seconds=request.deadline_s * 0.9))

    def _answer_soon(self, attempt: Attempt, request: CheckpointRequest, answer_by: datetime) -> None:
        what = f"asked {request.request_id}"
        self._later(attempt, what, ANSWERING, lambda: self._answer(attempt, request, answer_by))

    def _answer(self, attempt: Attempt, request: CheckpointRequest, answer_by: datetime) -> None:
        """A run that stands still answers once its watchdog has judged it to be stuck, or just before the deadline."""
        stretch = attempt.stretches[-1]
        if attempt.suspended_at is not None:
            self._answer_soon(attempt, request, answer_by)
            return
        is_judged = stretch.phase is RunPhase.STALLED or stretch.phase is RunPhase.STARTUP
        if not stretch.moves and not is_judged and self._clock.now() < answer_by:
            self._answer_soon(attempt, request, answer_by)
        elif not stretch.moves:
            self.monitor.reply(
                attempt, request, ReplyOutcome.CANNOT, f"the training thread is in {stretch.phase.value}", None
            )
        elif attempt.first_bad_loss is not None and attempt.step_at(self._clock.now()) >= attempt.first_bad_loss:
            why = "the loss or the gradient is not finite: a checkpoint now would keep the poisoned weights"
            self.monitor.reply(attempt, request, ReplyOutcome.CANNOT, why, None)
        else:
            self._later(attempt, f"saves {request.request_id}", SAVING, lambda: self._saved(attempt, request))

    def _saved(self, attempt: Attempt, request: CheckpointRequest) -> None:
        if not attempt.stretches[-1].moves:
            self.monitor.reply(attempt, request, ReplyOutcome.CANNOT, "the training thread stands still", None)
            return
        manifest = self._saves.save(attempt, attempt.step_at(self._clock.now()), SaveKind.EMERGENCY, request.request_id)
        outcome = ReplyOutcome.SAVED if manifest is not None else ReplyOutcome.CANNOT
        self.monitor.reply(attempt, request, outcome, "" if manifest else "the fence names another attempt", manifest)

    # ---- small parts -----------------------------------------------------------------------------------------------

    def _enter(self, attempt: Attempt, base: int, **changes: Any) -> None:
        """A new stretch from now on; what is not named stays as it was."""
        now = self._clock.now()
        if not attempt.stretches:
            attempt.stretches.append(TrainingSpan(at=now, base=base, **changes))
            return
        attempt.stretches.append(replace(attempt.stretches[-1], at=now, base=base, **changes))

    def _freeze_stretch(self, attempt: Attempt, *, moves: bool) -> None:
        if attempt.stretches and attempt.stretches[-1].moves:
            self._enter(attempt, attempt.step_at(self._clock.now()), moves=moves)

    def _later(self, attempt: Attempt, what: str, delay: timedelta, call: Callable[[], None]) -> None:
        self._cancel(attempt, what)
        self._timers[attempt.name, what] = self._clock.after(delay, call, label=f"{attempt.name} {what}")

    def _cancel(self, attempt: Attempt, what: str) -> None:
        timer = self._timers.pop((attempt.name, what), None)
        if timer is not None:
            timer.cancel()

    def _cancel_all(self, attempt: Attempt) -> None:
        for name, what in [key for key in self._timers if key[0] == attempt.name]:
            del name
            self._cancel(attempt, what)


def _output(attempt: Attempt, text: str) -> str:
    """As the platform passes on what the container, or the job's own output, says."""
    return text if attempt.run.spec.platform == "slurm" else _FAILED.format(text=text)


def _loss_seen(attempt: Attempt, step: int, *, blips: bool) -> dict[str, Any]:
    """What the step changes of the loss that its monitor shows."""
    first_bad, health = attempt.first_bad_loss, attempt.stretches[-1].health
    if first_bad is None and attempt.collapsed_at is not None:
        return {"loss": LossState.INF, "health": "non_finite", "onset": attempt.collapsed_at}
    if first_bad is not None and step >= first_bad + CONFIRMED_AFTER - 1:
        return {"loss": LossState.NAN, "health": "non_finite", "onset": first_bad}
    if not blips and (first_bad is None or step < first_bad):
        return {"loss": LossState.FINITE} | ({"health": "ok"} if health == "watch" else {})
    # One bad value is no state yet, as in rekindle.monitor.base.state.newest_loss: it is watched until it lasts.
    return {"loss": LossState.NONE} | ({"health": "watch"} if health == "ok" else {})


def _heals_at(attempt: Attempt, step: int) -> bool:
    return any(
        trouble.kind == "spike" and trouble.heals and trouble.step + trouble.heals == step
        for trouble in attempt.run.spec.troubles
    )
