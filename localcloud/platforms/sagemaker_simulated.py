"""Attempts that exist only on the clock: each follows a script, and its monitor answers as a real one would.

The script sets durations and what fails at which step. Heartbeats, manifests and replies are written to the mailbox in
the shared wire format (`rekindle.protocol.mailbox`) through a real S3 client, so the service under test reads exactly
what a training container would write.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from localcloud.aws.clock import Clock
from localcloud.aws.sagemaker import Phase, TrainingJob
from localcloud.platforms.simulated_mail import SimulatedMail, loss_at
from localcloud.platforms.simulated_run import Platform, Run, Script
from localcloud.platforms.simulated_trouble import Fault, LossJudge
from rekindle.protocol.keys import KeyKind, parse_key
from rekindle.protocol.launch_orders import ENV_ATTEMPT, ENV_BUS, ENV_JOB_ID, ENV_MAILBOX, ResumePlan
from rekindle.protocol.mailbox import CheckpointRequest, LossState, ReplyOutcome, RunPhase
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.reports import ReportKind
from rekindle.protocol.wire import Place

_DONE_REASON = 'AlgorithmError: ExecuteUserScriptError:\nExitCode {code}\nErrorMessage "{text}"'


class Simulated:
    """A backend for `TrainingJobs` in virtual time. The starts of Slurm jobs run here, too, each as a training job.

    jobs: told of the phases that the attempts enter.
    script_for: chooses an attempt's script; by default the first of `scripts`, then `default`.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        jobs: Platform,
        s3: Callable[[], Any],
        events: Callable[[], Any],
        default: Script | None = None,
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self._s3 = s3
        self._mail = SimulatedMail(clock=clock, s3=s3, events=events)
        self.default = default or Script()
        self.scripts: list[Script] = []
        self.script_for: Callable[[TrainingJob], Script] = self._next_script
        self.runs: dict[str, Run] = {}

    def __getitem__(self, name: str) -> Run:
        return self.runs[name]

    # ---- the backend -----------------------------------------------------------------------------------------------

    def launch(self, job: TrainingJob) -> None:
        script = self.script_for(job)
        env = job.environment
        config = job.request.get("CheckpointConfig") or {}
        mailbox = env.get(ENV_MAILBOX) or config.get("S3Uri")
        plan = ResumePlan.from_env(env)
        first = (plan.step or 0) + 1
        run = Run(
            job=job,
            script=script,
            job_id=env.get(ENV_JOB_ID) or job.name,
            attempt_number=int(env.get(ENV_ATTEMPT) or 1),
            place=Place.parse(mailbox) if mailbox else None,
            bus=env.get(ENV_BUS),
            plan=plan,
            first_step=first,
            step=first - 1,
            judge=LossJudge(log_every=script.log_every),
        )
        self.runs[job.name] = run
        if script.lacks_capacity:
            reason = "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different "
            self._at(run, "phase", script.starting, lambda: self._end(run, Phase.FAILED, reason + "ML instance type."))
            return
        starting = timedelta(seconds=5) if job.reused_warm_pool else script.starting
        self._at(run, "phase", starting, lambda: self._download(run))
        self._at(run, "limit", job.max_runtime, lambda: self._exceed(run))

    def stop(self, job: TrainingJob) -> None:
        run = self.runs.get(job.name)
        if run is None:  # a job of an earlier life of the cloud: nothing runs, so it is stopped
            self._jobs.enter(job.name, Phase.STOPPED)
            return
        run.timers.pop("phase", None)
        if run.script.saves_on_sigterm and run.is_moving and run.phase is not RunPhase.STARTUP:
            self._clock.after(
                timedelta(0), lambda: self._mail.save(run, SaveKind.EMERGENCY, None), label="save on SIGTERM"
            )
        if not run.script.ignores_stop:
            self._halt(run)
        self._clock.after(run.script.stopping, lambda: self._stopped(run), label=f"{job.name} stopped")

    def cut_off(self, name: str) -> None:
        """Its platform has ended the attempt: no process of it is left."""
        self._halt(self.runs[name])

    # ---- what tests do to a run ------------------------------------------------------------------------------------

    def crash(self, name: str, *, exit_code: int = 1, text: str = "RuntimeError: training failed") -> None:
        """The container exits: the whole job fails, as SageMaker has it."""
        self._end(self.runs[name], Phase.FAILED, _DONE_REASON.format(code=exit_code, text=text))

    def freeze(self, name: str) -> None:
        """Stop every rank's steps; the monitor's own thread lives, sends heartbeats, and reports the stall after its
        limit.
        """
        run = self.runs[name]
        self._cancel(run, "step")
        run.phase = RunPhase.STALLED
        self._at(run, "stall", run.script.stall_limit, lambda: self._report_stall(run))

    def poison(self, name: str) -> None:
        """From now on the loss is NaN; training continues."""
        self._go_nan(self.runs[name])

    def repair(self, name: str) -> None:
        """SageMaker finds a broken GPU, replaces the instance and starts the container again from S3."""
        run = self.runs[name]
        self._halt(run)
        self._jobs.enter(name, Phase.RESTARTING)
        run.is_live = True
        run.step = run.first_step = max([*run.saved_steps, run.plan.step or 0])
        run.first_step += 1
        self._at(run, "phase", run.script.starting, lambda: self._download(run))

    # ---- the life of an attempt ------------------------------------------------------------------------------------

    def _next_script(self, job: TrainingJob) -> Script:  # noqa: ARG002  the signature of script_for
        return self.scripts.pop(0) if self.scripts else self.default

    def _download(self, run: Run) -> None:
        if self._jobs.enter(run.job.name, Phase.DOWNLOADING):
            self._at(run, "phase", run.script.downloading, lambda: self._train(run))

    def _train(self, run: Run) -> None:
        if not self._jobs.enter(run.job.name, Phase.TRAINING):
            return
        self._mail.push(run, "Rekindle Monitor Started", {})
        self._heartbeat(run)
        if run.plan.step in run.script.unloadable:
            dies = partial(self.crash, run.job.name, text=run.script.load_error)
            self._at(run, "step", run.script.startup, dies)
            return
        self._at(run, "step", run.script.startup + run.script.step, lambda: self._finish_step(run))

    def _finish_step(self, run: Run) -> None:
        run.phase = RunPhase.TRAINING
        before = run.step
        step = before + 1
        while run.plan.should_skip(step):  # a real trainer leaves the step out, number and all
            step += 1
        fault = self._fault_at(run, before, step)
        if fault is not None and fault.kind == "crash":
            self.crash(run.job.name, exit_code=fault.exit_code, text=fault.text)
            return
        if fault is not None and fault.kind == "freeze":
            run.frozen_by = fault
            self.freeze(run.job.name)
            return
        if fault is not None and fault.kind == "hardware":
            self.repair(run.job.name)
            return
        run.step = step
        if run.loss_state is not LossState.NAN:
            run.loss_state = LossState.FINITE
        if fault is not None and fault.kind == "nan":
            self._go_nan(run, fault)
        if fault is not None and fault.kind in ("spike", "diverge"):
            run.judge.bend(fault, step)
        self._judge(run, step)
        every = run.script.checkpoint_every
        pause = run.script.step
        if every is not None and step % every == 0 and run.loss_state is LossState.FINITE:
            self._mail.save(run, SaveKind.PERIODIC, None)
        if step >= run.script.steps:
            self._complete(run)
            return
        self._at(run, "step", pause, lambda: self._finish_step(run))

    def _complete(self, run: Run) -> None:
        run.phase = RunPhase.FINISHED
        self._mail.write_heartbeat(run)
        self._mail.push(run, "Rekindle Monitor Finished", {"why": "finished"})
        self._jobs.enter(run.job.name, Phase.UPLOADING)
        self._at(run, "phase", run.script.uploading, lambda: self._end(run, Phase.COMPLETED, None))

    def _exceed(self, run: Run) -> None:
        self._end(run, Phase.MAX_RUNTIME_EXCEEDED, None)

    def _stopped(self, run: Run) -> None:
        if run.script.ignores_stop:
            # The control plane says Stopped while a rank lives on: the zombie that fences exist for.
            self._jobs.enter(run.job.name, Phase.STOPPED)
            return
        self._end(run, Phase.STOPPED, None)

    def _end(self, run: Run, phase: Phase, reason: str | None) -> None:
        self._halt(run)
        self._jobs.enter(run.job.name, phase, failure_reason=reason)

    def _halt(self, run: Run) -> None:
        run.is_live = False
        for timer in run.timers.values():
            timer.cancel()
        run.timers.clear()

    def _fault_at(self, run: Run, before: int, step: int) -> Fault | None:
        """What happens as the step begins: in its data, or, for a fault of the attempt's own, since the step before."""
        for fault in run.script.faults:
            if fault.holds(step) if fault.in_data else before < fault.step <= step:
                return fault
        return None

    def _judge(self, run: Run, step: int) -> None:
        """Feed the detectors, and push their news as a real monitor does."""
        news = run.judge.judge(step)
        if news is None:
            return
        judge = run.judge
        if news == "recovered":
            detail = {"healed_step": judge.healed_step, "onset_step": judge.onset_step, "loss": loss_at(run)}
            self._mail.push(run, "Rekindle Loss Recovered", detail)
            return
        figures = {"loss": 3 * loss_at(run), "baseline": loss_at(run), "rule": "as scripted"}
        name = "Rekindle Loss Divergence" if news == "diverge" else "Rekindle Loss Spike"
        self._mail.push(run, name, {"onset_step": judge.onset_step, "trouble": "loss_spike", **figures})

    # ---- its monitor -----------------------------------------------------------------------------------------------

    def on_object_created(self, bucket: str, key: str) -> None:
        """Handle a request in a run's mailbox: its monitor finds it at the next poll, and answers."""
        parsed = parse_key(key)
        if parsed is None or parsed.kind is not KeyKind.REQUEST:
            return
        for run in list(self.runs.values()):
            mine = run.place is not None and (run.place.bucket, run.place.path) == (bucket, parsed.prefix)
            if mine and run.is_live and run.script.has_monitor and run.script.reply is not None:
                self._at(
                    run,
                    f"request {parsed.name}",
                    run.script.reply_after,
                    lambda run=run: self._answer(run, key),  # type: ignore[misc]
                )

    def _answer(self, run: Run, key: str) -> None:
        raw = self._s3().get_object(Bucket=run.bucket, Key=key)["Body"].read()
        request = CheckpointRequest.from_json(raw)
        if request.attempt != run.job.name or not self._mail.may_write(run):
            self._mail.reply(run, request, ReplyOutcome.REFUSED, "another attempt was asked")
        elif run.phase is RunPhase.STALLED or run.phase is RunPhase.STARTUP:
            self._mail.reply(run, request, ReplyOutcome.CANNOT, f"the training thread is in {run.phase.value}")
        elif run.script.reply is not ReplyOutcome.SAVED:
            self._mail.reply(run, request, run.script.reply or ReplyOutcome.CANNOT, "as scripted")
        else:
            self._cancel(run, "step")
            self._at(run, "save", run.script.save, lambda: self._saved(run, request))

    def _saved(self, run: Run, request: CheckpointRequest) -> None:
        manifest = self._mail.save(run, SaveKind.EMERGENCY, request.request_id)
        if manifest is None:
            self._mail.reply(run, request, ReplyOutcome.CANNOT, "the fence names another attempt")
        else:
            self._mail.reply(run, request, ReplyOutcome.SAVED, "", manifest)
        self._at(run, "step", run.script.step, lambda: self._finish_step(run))

    def _heartbeat(self, run: Run) -> None:
        if run.script.has_monitor:
            self._mail.write_heartbeat(run)
            self._at(run, "heartbeat", run.script.heartbeat, lambda: self._heartbeat(run))

    def _go_nan(self, run: Run, fault: Fault | None = None) -> None:
        if run.loss_state is LossState.NAN:
            return
        run.loss_state = LossState.NAN
        if fault is not None:
            self._mail.report(run, ReportKind.NON_FINITE, fault)
        self._mail.push(run, "Rekindle Non-Finite Loss", {"loss_state": LossState.NAN.value, "metric": "loss"})

    def _report_stall(self, run: Run) -> None:
        limit_s = run.script.stall_limit.total_seconds()
        if run.frozen_by is not None and run.frozen_by.rank is not None:
            self._mail.report(run, ReportKind.STALL, run.frozen_by, silent_s=limit_s)
        stacks = {"0": 'File "train.py", line 1, in barrier'}
        self._mail.push(
            run,
            "Rekindle Stall",
            {"phase": RunPhase.TRAINING.value, "silent_s": limit_s, "limit_s": limit_s, "stacks": stacks},
        )

    def _at(self, run: Run, what: str, delay: timedelta, call: Callable[[], None]) -> None:
        self._cancel(run, what)
        run.timers[what] = self._clock.after(delay, call, label=f"{run.job.name} {what}")

    @staticmethod
    def _cancel(run: Run, what: str) -> None:
        timer = run.timers.pop(what, None)
        if timer is not None:
            timer.cancel()
