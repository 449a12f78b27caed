"""What each kind of trouble in a story does to the attempt that it strikes; `Training` calls it at the step."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.policy.document import DEFAULT_POLICY
from localcloud.aws.sagemaker import Phase
from rekindle.protocol.mailbox import RunPhase
from simulation.runs.spans import output_of
from simulation.runs.training import STARTING, Training
from simulation.runs.truth import Attempt
from simulation.stories.story import Trouble

ON_SLURM: Final = frozenset(
    {"node_dies", "node_sick", "node_hangs", "slurmd_dies", "suspended", "preempted", "time_limit", "node_leaves"}
)
MAX_WAIT: Final = timedelta(minutes=20)  # MaxWaitTimeInSeconds leaves so much from an interruption on
_OOM: Final = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


class Strikes:
    """Carries out the troubles of all attempts of a simulated world."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._clock, self._monitor = training.clock, training.monitor
        self._saves, self._course = training.saves, training.course
        training.strike = self.strike

    def strike(self, attempt: Attempt, trouble: Trouble, step: int) -> bool:  # noqa: C901  one row for each kind
        """What the trouble does; True where no step ends any more for now."""
        run, now = attempt.run, self._clock.now()
        match trouble.kind:
            case "crash" | "oom":
                self._training.enter(attempt, step - 1, moves=False)
                if attempt.life < run.spec.restarts:
                    self._restarts_in_place(attempt, step - 1)
                    return True
                text = _OOM if trouble.kind == "oom" else trouble.text
                self._training.end(attempt, Phase.FAILED, output_of(attempt, text))
                return True
            case "silent":
                self._training.enter(attempt, step - 1, moves=False)
                attempt.is_silent_crash = True
                self._training.end(attempt, Phase.COMPLETED, None)
                return True
            case "skips":
                self._course.skips(attempt, trouble, step)
            case "slow":
                self._course.slows(attempt, trouble, step)
            case "saves_deleted":
                self._saves.delete(run, trouble.heals)
            case "foreign_save" | "foreign_file":
                self._training.another_saves(attempt, trouble, ago=timedelta(0))
            case "interrupted":
                return self._is_interrupted(attempt, trouble, step - 1)
            case kind if kind in ON_SLURM:
                return self._training.breaks_node is not None and self._training.breaks_node(attempt, trouble, step - 1)
            case "rests":
                self._rests(attempt, trouble, step - 1)
                return True
            case "hang":
                self._hangs(attempt, trouble, step - 1)
                return True
            case "nan" | "quiet_nan":
                self._course.poison(attempt, step if trouble.kind == "quiet_nan" else step - 1, update=step)
                run.falls_ill("poisoned", now, reached=step - 1)
            case "spike":
                self._spikes(attempt, trouble, step)
        return False

    def _hangs(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        """It stands still after `step`; for good, or until its launcher starts it again, or it goes on by itself."""
        self._training.freezes(attempt, step)
        if trouble.after_s is None:
            return
        is_restarted = attempt.life < attempt.run.spec.restarts

        def ends() -> None:
            if is_restarted:
                self._restarts_in_place(attempt, step)
            else:
                self._training.thaws(attempt)

        self._training.later(attempt, "life", timedelta(seconds=trouble.after_s), ends)

    def _spikes(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        self._training.enter(attempt, step, moves=True, health="spiking", onset=step)
        self._monitor.push_loss(
            attempt, "Rekindle Loss Spike", {"onset_step": step, "trouble": "loss_spike"}, rule=True
        )
        attempt.spikes_on = attempt.spikes_on or trouble.heals is None
        # By the service's own limit a spike that lasts so long is trouble, whatever becomes of it.
        if trouble.heals is None or trouble.heals > DEFAULT_POLICY.loss.spike_heal_steps:
            attempt.run.falls_ill("spiking", self._clock.now(), reached=step - 1)

    def _restarts_in_place(self, attempt: Attempt, step: int) -> None:
        """Its launcher (torchrun, a loop around srun, NVRx) starts all its processes again, in the same attempt."""
        self._training.loses_processes(attempt, step)
        if attempt.run.live == [attempt]:
            attempt.run.falls_ill("dead", self._clock.now(), reached=step)
        launching = timedelta(seconds=attempt.run.spec.relaunch_s)
        self._training.later(attempt, "life", launching, lambda: self._training.starts_again(attempt))

    def _rests(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        phase = RunPhase.EVALUATION if trouble.step % 2 else RunPhase.SAVING
        self._training.enter(attempt, step, moves=False, phase=phase)

        def goes_on() -> None:
            self._training.enter(attempt, step, moves=True, phase=RunPhase.TRAINING)
            self._training.plan_next(attempt)

        self._training.later(attempt, "life", timedelta(seconds=trouble.after_s or 0.0), goes_on)

    def _is_interrupted(self, attempt: Attempt, trouble: Trouble, step: int) -> bool:
        """Managed Spot takes its instances. Source: SageMaker developer guide, model-managed-spot-training."""
        if attempt.nodes or not attempt.platform.enter(attempt.name, Phase.INTERRUPTED):
            return False
        self._training.loses_processes(attempt, step)
        if trouble.after_s is None:
            self._training.later(
                attempt, "life", MAX_WAIT, lambda: self._training.end(attempt, Phase.MAX_WAIT_TIME_EXCEEDED, None)
            )
        else:
            self._training.later(
                attempt, "life", timedelta(seconds=trouble.after_s), lambda: self._has_spot_again(attempt)
            )
        return True

    def _has_spot_again(self, attempt: Attempt) -> None:
        attempt.platform.enter(attempt.name, Phase.STARTING)
        self._training.later(attempt, "life", STARTING, lambda: self._training.starts_again(attempt))
