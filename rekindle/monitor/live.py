"""The monitor at work. The training thread comes in through `step` and the rest of `Monitor`; all I/O is on threads.

docs/monitor.md says which there are. None of them survives a fork: in a forked child the monitor falls asleep.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rekindle.detectors.frames import phase_in, training_frames, waits_in
from rekindle.detectors.kinds import LossKind
from rekindle.detectors.pace import StragglerWatch
from rekindle.monitor import lifetime
from rekindle.monitor.accounts import Accounts
from rekindle.monitor.arguments import reason_text, seconds, step_number, timeout
from rekindle.monitor.base.compiler import hide_from_compiler
from rekindle.monitor.base.guard import guarded, must_pass
from rekindle.monitor.base.metrics import Sample
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.stacks import capture_stacks, stack_of
from rekindle.monitor.base.state import BadStretch
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.values import collect
from rekindle.monitor.base.worker import Worker, wait_until
from rekindle.monitor.emergency import Saver
from rekindle.monitor.host_readings import host_workers
from rekindle.monitor.liveness.flight import FlightRecorder
from rekindle.monitor.liveness.reporter import Reporter
from rekindle.monitor.liveness.stall import Phase, StallWatch
from rekindle.monitor.liveness.watchdog import Watchdog
from rekindle.monitor.loss.judge import Judge
from rekindle.monitor.loss.judging_rank import JudgingRank
from rekindle.monitor.loss.losses import Losses
from rekindle.monitor.mail.boxes import Box, mailbox_failed
from rekindle.monitor.mail.exchange import Exchange
from rekindle.monitor.mail.holding import Hold
from rekindle.monitor.mail.outbox import Outbox
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.saving.agreement import Agreement
from rekindle.monitor.saving.agreement_terms import Bounds, Plan, RankRequest
from rekindle.monitor.saving.resuming import counts_of
from rekindle.monitor.saving.saved import SaveFunction, SaveResult, Upload, local_path
from rekindle.monitor.silent import Monitor
from rekindle.monitor.stops.stopping import WISHES, WORD, Stopping
from rekindle.protocol.launch_orders import ResumePlan
from rekindle.protocol.lives import named
from rekindle.protocol.mailbox import RunPhase
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.reports import MAX_REPORT_STACKS_CHARS
from rekindle.protocol.signals import EventType

if TYPE_CHECKING:  # what not every process needs is imported where it is made
    from rekindle.monitor.link import ServiceLink
    from rekindle.monitor.liveness.run_phases import RunPhases
    from rekindle.monitor.saving.leading import Leader
    from rekindle.monitor.saving.negotiation import Negotiation

FINISH_TIMEOUT_S = 4.0  # also where AWS never answers
# How much longer than its time-out the end of a run takes while an emergency checkpoint has no manifest yet, or its
# answer is not written. What sends SIGTERM kills 30 s later at the earliest (torchrun, Kubernetes), SageMaker after
# 120 s. Source: torch 2.13 distributed/elastic/multiprocessing/api.py (close); Kubernetes pod lifecycle; SageMaker
# developer guide, StopTrainingJob
EMERGENCY_GRACE_S = 20.0
LATE_S = 1.0  # of it, for what other threads have yet to read or to tell the other ranks
EVENTS_S = 1.0  # of it, for the last events and metrics
QUIET_S = 1.0  # without a step, from when on it is worth looking why


class LiveMonitor(Monitor):
    """See `Monitor`. Made by `rekindle.monitor.start`."""

    def __init__(
        self,
        *,
        run: Run,
        hold: Hold,
        resume: ResumePlan,
        save: SaveFunction | None,
        saves_alone: bool,
        exchange: Callable[[], Exchange | None],
        end_collectives: Callable[[], None] | None,
        box: Box | None,
        upload: Upload | None,
        bus: str | None,
        sends_metrics: bool,
        loss_kind: LossKind,
        on_event: Callable[[str, dict[str, Any]], object] | None,
    ) -> None:
        super().__init__(resume, local_path(resume.uri, upload))
        self._run, self._hold = run, hold
        self.identity, self._clock, self._trouble = run.identity, run.clock, run.trouble
        self._state = run.state
        self._saves_alone = saves_alone
        self._ending_thread: int | None = None
        self._has_ended = False
        self._is_abandoned = False
        self._training_thread = threading.get_ident()
        self._end_collectives = end_collectives
        self._stall = StallWatch(run.config.limits(), now=run.clock.monotonic())
        self._stopping = Stopping(
            run,
            stall=self._stall,
            can_save=self._can_save,
            is_sealed=lambda: self._link is None or self._link.flush(0.0),
            write_stacks=self._tell_stacks,
        )
        self._requests = Requests(run.identity)
        self._outbox = Outbox(run, bus=bus, sends_metrics=sends_metrics, on_event=on_event)
        abandon_s = run.config.abandon_s
        self._agreement = Agreement(
            run,
            wish=self._wish,
            take=self._take_wish,
            bounds=Bounds(stuck_s=abandon_s, enter_s=abandon_s, lifeless_s=2 * abandon_s),
        )
        self._saver = Saver(
            run,
            save=save,
            saves_alone=saves_alone,
            agreement=self._agreement,
            requests=self._requests,
            outbox=self._outbox,
            settle=lambda timeout_s: self._losses.settle(timeout_s),
        )
        self._judging_rank = JudgingRank(run, news=lambda: self._judge.news, on_news=self._heartbeat_soon)
        self._judge = Judge(
            self._judging_rank,
            has_pace=run.is_first,
            outbox=self._outbox,
            on_news=self._loss_news,
            loss_kind=loss_kind,
        )
        self._losses = Losses(run, judge=self._judge, forward=self._forward, on_bad=self._on_bad)
        self._recorder = FlightRecorder(run.trouble)
        self._watchdog = Watchdog(
            run,
            stall=self._stall,
            outbox=self._outbox,
            on_stall=self._heartbeat_soon,
            busy=self._busy,
            recorder=self._recorder,
        )
        self._watcher = Worker("watch", self._watchdog.turn, run.trouble)
        self._workers = [self._watcher, *self._outbox.workers]
        self._phases: RunPhases | None = None
        self._negotiation = self._negotiate(exchange) if run.identity.world_size > 1 else None
        self._accounts = Accounts(
            run=run,
            stall=self._stall,
            losses=self._losses,
            judge=self._judge,
            judging_rank=self._judging_rank,
            outbox=self._outbox,
            hears=self._hears,
        )
        self._link: ServiceLink | None = None
        self._reporter: Reporter | None = None
        if box is not None:
            self._open(box, upload)

    def _open(self, box: Box, upload: Upload | None) -> None:
        self._reporter = self._watchdog.reporter = Reporter(
            self._run,
            box=box,
            phase=lambda: self._stall.phase.value,
            stragglers=StragglerWatch() if self._run.is_first else None,
            on_straggler=self._accounts.on_straggler,
        )
        self._workers.append(self._reporter.worker)
        if not self._run.is_first:  # one reader and writer per attempt; the others learn in `_negotiate`
            return
        from rekindle.monitor.link import ServiceLink
        from rekindle.monitor.saving.own_saves import OwnSaves

        self._link = self._saver.link = ServiceLink(
            self._run,
            box=box,
            requests=self._requests,
            accounts=self._accounts,
            own=OwnSaves(
                sum(window.to_step - window.from_step for window in self.resume.skip),
                lambda: counts_of(self.resume, box, self._local_path),
                world_size=self.identity.world_size,
            ),
            upload=upload,
            on_failed=self._saver.failed,
            is_saving=lambda: self._stall.phase is RunPhase.SAVING,
            is_stuck=lambda: self._stall.is_stalled,
            hold=self._holds,
        )
        self._link.check_resumed(self.resume.manifest_uri, self._local_path)
        self._workers += self._link.workers

    def _negotiate(self, exchange: Callable[[], Exchange | None]) -> Negotiation:
        from rekindle.monitor.liveness.ras import Ras
        from rekindle.monitor.liveness.run_phases import RunPhases
        from rekindle.monitor.saving.negotiation import Negotiation

        run, agreement = self._run, self._agreement
        self._watchdog.ras = Ras(run.identity.rank, run.identity.world_size, run.trouble)
        self._phases = RunPhases(rank=run.identity.rank, own=self._own_phase, is_quiet=self._is_quiet, clock=run.clock)
        negotiation = Negotiation(
            run,
            agreement=agreement,
            open_exchange=exchange,
            resume_step=self.resume.step,
            leader=self._leader() if run.is_first else None,
            judging_rank=self._judging_rank,
            abandoned=self._abandoned,
            is_waiting=self._is_waiting,
            phases=self._phases,
        )
        self._workers.append(negotiation.worker)
        return negotiation

    def _leader(self) -> Leader:
        from rekindle.monitor.saving.leading import Hooks, Leader

        hooks = Hooks(
            objection=self._saver.objection,
            refused=self._refused,
            completed=self._saver.completed,
            resumed_apart=self._resumed_apart,
        )
        return Leader(self._run, agreement=self._agreement, hooks=hooks, step_s=lambda: self._state.slow_step_s)

    def begin(self, *, signals: Sequence[signal.Signals], env: Mapping[str, str], takes_slurms: bool) -> None:
        """Start the threads; announce the run. signals: handled beside other handlers. env: the launcher's.

        takes_slurms: also those that Slurm sends, for a save and for this rank's stacks, where they have no handlers.
        Raises: RuntimeError where the process may have no more threads; then nothing has begun.
        """
        hide_from_compiler(self, ("step", "alive", "saved", "phase", "local_non_finite"))
        self._workers += host_workers(env, outbox=self._outbox, clock=self._clock, trouble=self._trouble)
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.fall_asleep()
            for worker in self._workers:
                worker.stop()
            raise
        may_be_asked = takes_slurms and self._reporter is not None
        self._stopping.begin(signals, WISHES if takes_slurms else (), env=env, may_be_asked=may_be_asked)
        if self._run.is_first:
            reached = self._hold.reached
            self._outbox.push(EventType.STARTED, pid=os.getpid(), resume_step=self.resume.step, reached=reached)
        atexit.register(self._at_exit)

    @property
    def signals_taken(self) -> frozenset[int]:
        return self._stopping.signals.numbers

    def follow(self, before: lifetime.ClosableMonitor) -> None:
        if isinstance(before, LiveMonitor):
            self._stopping.follow(before._stopping)

    # ---- the training thread -----------------------------------------------------------------------------------

    @guarded("step", asleep=None)
    def step(
        self,
        /,
        step: int,
        *,
        loss: object = None,
        grad_norm: object = None,
        tokens: object = None,
        work_s: float | None = None,
        **metrics: object,
    ) -> None:
        # A value that cannot be used must not keep this rank from what the ranks agree on: errors are caught apart.
        try:
            now = self._clock.monotonic()
            step_s, resumed_after_s = self._stall.stepped(now)
            self._stopping.stepped()
            collect()
            step = step_number(step)
            self._state.took(step, step_s, seconds(work_s, self._trouble), now)
            if resumed_after_s is not None:
                self._resumed(resumed_after_s)
            self._judging_rank.given(loss)
            self._losses.take(step, step_s, loss, grad_norm, tokens, metrics)
        except BaseException as err:
            if must_pass(err):
                raise
            self._inner("step", err)
        self._training_thread = threading.get_ident()
        plan = self._agreement.due()
        self._saver.stepped()
        if plan is not None:
            self._act(plan, self._state.step or 0)

    @guarded("expect", asleep=None)
    def expect(self, what: str, *, steps: int | None = None) -> None:
        length = steps if isinstance(steps, int) else None
        step = 0 if self._state.step is None else self._state.step
        self._judge.expect(step, length)
        logger.info("Expected from step %d on: %s", step, str(what)[:128])

    @guarded("scaler", asleep=None)
    def scaler(self, scaler: object) -> None:
        self._losses.scale.watch(scaler)

    @guarded("local_non_finite", asleep=None)
    def local_non_finite(self, step: int, metric: str, *, ranks: Sequence[int] | None = None) -> None:
        step, metric = step_number(step), str(metric)[:128]
        if self._losses.scale.is_on and metric.startswith("grad"):
            self._trouble.count("scaled_gradients_not_finite")  # an overflow that the scaler answers with a skip
            return
        is_known = ranks is not None and self.identity.world_size > 1
        is_alone = set(ranks or ()) == {self.identity.rank} if is_known else None
        stretch, is_first = self._state.see_own_bad(step, metric, is_alone)
        self._on_bad(step, metric, is_first, stretch)

    def _act(self, plan: Plan, step: int) -> None:
        if not plan.wish.saves:
            return
        try:
            with self._stopping.saving():
                self._saver.save_now(plan, step, self.phase(RunPhase.SAVING.value))
        finally:
            if plan.wish.stops:
                self._saver.stop()

    def _take_wish(self, wish: RankRequest) -> None:
        """All ranks that keep to the plan are at its step. Called on the training thread."""
        if wish.saves:
            self._stopping.forget_save()  # also where another rank's signal was the first to be seen
        if wish.stops:
            self._stopping.should_stop = True
        if wish is RankRequest.STOP:
            self._saver.stop()

    def _own_phase(self) -> RunPhase | None:
        """What this rank is inside of, announced or by its stack, and the others wait for; None in training, and beyond
        the phase's limit.
        """
        if self._stall.is_stalled:
            return None
        if self._stall.phase is not RunPhase.TRAINING:
            return self._stall.phase
        phase = phase_in(training_frames(stack_of(self._training_thread))) if self._is_quiet() else RunPhase.TRAINING
        return None if phase is RunPhase.TRAINING else phase

    def _is_quiet(self) -> bool:
        return self._clock.monotonic() - self._stall.marked_at > QUIET_S

    def _busy(self) -> RunPhase | None:
        """The phase that the whole run is in, though this rank's training thread is not."""
        if self._negotiation is not None and self._negotiation.is_in_save:
            return RunPhase.SAVING
        return self._own_phase() or (None if self._phases is None else self._phases.seen())

    def _is_waiting(self) -> bool:
        """Whether the training thread waits for other ranks right now."""
        return waits_in(training_frames(stack_of(self._training_thread))) is not None

    def _abandoned(self, why: str) -> None:
        """A save that cannot end was given up: the run stops here, instead of at its process group's time-out."""
        if self._is_abandoned:
            return
        self._is_abandoned = self._stopping.should_stop = True
        self._saver.stop()
        self._saver.failed(self._state.step or 0, why)
        logger.warning("The run stops: a save in which the ranks wait for each other was abandoned: %s", why)
        if self._end_collectives is not None:
            try:
                self._end_collectives()
            except Exception as err:
                self._trouble.inner("end_collectives", err)

    def _refused(self, why: str) -> None:
        self._stopping.forget_save()
        self._saver.refused(why)

    def _resumed_apart(self, why: str) -> None:
        self._saver.refuses = why
        self._trouble.once("resumed_apart", "%s", why)

    def _wish(self) -> RankRequest:
        if self._requests.superseded_by is not None:
            return RankRequest.NOTHING if self._stopping.should_stop else RankRequest.STOP
        asked = self._stopping.signals
        if asked.wants_stop and not self._stopping.should_stop:
            return RankRequest.SAVE_AND_STOP
        return RankRequest.SAVE if self._requests.has_wish or asked.wants_save else RankRequest.NOTHING

    @guarded("saved", asleep=None)
    def saved(
        self,
        path: str | os.PathLike[str],
        step: int,
        files: Sequence[str] | None = None,
        kind: str = "periodic",
        data: Mapping[str, Any] | None = None,
        took_s: float | None = None,
        by_all_ranks: bool = False,
    ) -> None:
        collect()
        measured_s, self._state.saving_s = self._state.saving_s, None
        result = SaveResult(path=path, files=files, data=data or {})
        took_s = seconds(took_s, self._trouble)
        took_s = took_s if took_s is not None else measured_s
        self._saver.saved(step_number(step), SaveKind(kind), result, took_s, by_all_ranks=by_all_ranks)

    @guarded("phase", asleep=nullcontext, failed=nullcontext)
    def phase(self, name: str) -> AbstractContextManager[None]:
        collect()
        return Phase(self._run, name, stall=self._stall, on_resumed=self._resumed)

    @guarded("alive", asleep=None)
    def alive(self) -> None:
        collect()
        self._resumed(self._stall.alive(self._clock.monotonic()))

    def _resumed(self, silent_s: float | None) -> None:
        if silent_s is not None:
            self._outbox.push_as_one_of_many(EventType.RESUMED, silent_s=round(silent_s, 3))
            logger.warning("Steps move again after %.0f s of silence", silent_s)

    @property
    @guarded("should_stop", failed=False)
    def should_stop(self) -> bool:
        collect()
        return self._stopping.tell()

    @property
    @guarded("save_failure", failed=None)
    def save_failure(self) -> str | None:
        negotiation = self._negotiation
        return negotiation.save_failure if negotiation is not None and self._saver.is_calling else None

    @property
    @guarded("superseded", failed=False)
    def superseded(self) -> bool:
        return self._requests.superseded_by is not None

    @property
    @guarded("is_silent", failed=True)
    def is_silent(self) -> bool:
        return self._is_asleep

    @guarded("health", failed=dict)
    def health(self) -> dict[str, int]:
        return self._trouble.snapshot()

    @guarded("flush", asleep=True, failed=False)
    def flush(self, timeout_s: float = 10.0) -> bool:
        until = time.monotonic() + timeout(timeout_s)
        negotiation = self._negotiation  # which is idle once no save waits for another rank's part
        if negotiation is not None and not wait_until(lambda: negotiation.is_idle, until):
            return False
        return self._link is None or self._link.flush(max(0.0, until - time.monotonic()))

    @guarded("finish", asleep=None)
    def finish(self, why: str = "finished", timeout_s: float = FINISH_TIMEOUT_S) -> None:
        self._finish(why, timeout_s)

    @guarded("finish", asleep=None)
    def _finish(self, why: str, timeout_s: float, *, is_exit: bool = False) -> None:
        """From any thread, from a signal handler too: the first call ends the run, others wait for it."""
        until = time.monotonic() + timeout(timeout_s)
        me = threading.get_ident()
        if self._ending_thread is not None:
            if self._ending_thread != me:  # else this is a signal handler inside that very call
                wait_until(lambda: self._has_ended, until)
            return
        self._ending_thread = me
        self._state.is_finished = True
        # A script's `finally` comes here with its error on the way, and one that was stopped has not done its work.
        died_of = getattr(sys, "last_type", None) if is_exit else sys.exc_info()[0]
        is_error = died_of is not None and not issubclass(died_of, SystemExit)
        self._state.died_of = died_of.__name__ if is_error and died_of is not None else ""
        self._state.is_complete = not is_exit and sys.exc_info()[0] is None and not self._stopping.should_stop
        try:
            self._end(reason_text(why), until)
        finally:
            self._stop_workers()  # where `_end` failed half-way, none may report on as if the run were alive
            self._is_asleep = True
            self._has_ended = True
            lifetime.unregister(self)
            self._stopping.end(is_exit=is_exit)  # last: a signal that comes meanwhile must not kill half-way

    def _end(self, why: str, until: float) -> None:
        atexit.unregister(self._at_exit)
        self._watcher.stop()
        grace_until = until if self._link is not None and self._link.box.is_slow else until + EMERGENCY_GRACE_S
        self._saver.ended()
        self._losses.end(min(until, time.monotonic() + LATE_S))
        if (stretch := self._state.bad_at_the_end()) is not None:
            self._tell_bad_stretch(stretch)
        if (negotiation := self._negotiation) is not None:
            began = time.monotonic()
            wait_until(lambda: not negotiation.is_writing, grace_until)  # or the others would wait for it in vain
            until = min(until + time.monotonic() - began, grace_until)
            soon = min(until, time.monotonic() + LATE_S)
            wait_until(lambda: negotiation.is_idle, grace_until if self._saver.is_under_way else soon)
            self._judging_rank.publish()
            negotiation.end()
            is_silent = self._agreement.is_silent  # stuck in its transport: it would not end
            negotiation.worker.end(0.0 if is_silent else min(until, time.monotonic() + LATE_S))
        if self._link is not None:
            self._link.end(why, self._state.step, until - EVENTS_S, grace_until)
        if self._reporter is not None:
            self._reporter.worker.end(until)
        if self._run.is_first:
            self._outbox.push(EventType.FINISHED, why=why)
        self._outbox.end(until)

    def _stop_workers(self) -> None:
        for worker in (*self._workers, self._losses.worker):
            worker.stop()

    def _at_exit(self) -> None:
        died_of = getattr(sys, "last_type", None)
        why = f"died of {died_of.__name__}" if died_of is not None else "the process exits"
        self._finish(why, FINISH_TIMEOUT_S, is_exit=True)

    def fall_asleep(self) -> None:
        """In a forked child: no threads here, and nothing to report."""
        self._is_asleep = True
        self._trouble.forked()
        self._stopping.forked()

    # ---- the other threads -------------------------------------------------------------------------------------

    def _holds(self, box: Box) -> bool:
        """Whether the run is this process's now, as far as the mailbox tells."""
        hold = self._hold
        known = hold.counts, hold.is_settled
        try:
            hold.turn(box, self._objection, self._state.slow_step_s)
        except Exception as err:  # whatever the transport does, training continues
            mailbox_failed(self._trouble, box, "looking who holds this run", err)
        if hold.lost_to is not None and known[0] and self._link is not None:
            newer = named(self.identity.attempt, hold.lost_to)
            self._link.mail.lost(newer)
            self._accounts.on_lost(newer)
        elif hold.refusal and known != (False, True):
            self._silence(hold.refusal)
        return hold.counts

    def _objection(self, since: float) -> str:
        """What this process does, for one that would hold the run; empty where it has not moved since."""
        phase = self._stall.phase
        if self._state.is_finished or self._stall.is_stalled:
            return ""
        if phase is not RunPhase.TRAINING:
            return f"is in {phase.value}"
        return f"is at step {self._state.step}" if self._stall.marked_at > since else ""

    def _silence(self, why: str) -> None:
        """The run is another process's: nothing of this one is seen from now on."""
        if self._is_asleep:
            return
        self._is_asleep = True
        logger.warning("Rekindle's monitor is silent from here on: %s", why)
        self._outbox.discard()
        self._stop_workers()
        lifetime.unregister(self)
        atexit.unregister(self._at_exit)
        self._stopping.end(is_exit=False)

    def _can_save(self) -> bool:
        """Whether an emergency save is possible at all, with this rank."""
        agrees = not self._agreement.lost or self.identity.world_size == 1 or self._saves_alone
        return agrees and not self._saver.objection() and not self.superseded

    def _tell_stacks(self) -> None:
        if self._reporter is not None:
            silent_s = self._clock.monotonic() - self._stall.marked_at
            stacks = capture_stacks(limit_chars=MAX_REPORT_STACKS_CHARS)
            self._reporter.asked(silent_s=silent_s, stacks=stacks, flight=self._recorder.read())

    def _hears(self) -> str:
        """Announced once all ranks train under a monitor: one that still starts has no handler, and would be killed."""
        reporter = self._reporter
        if self._state.step is None or reporter is None or not self._stopping.can_be_asked():
            return ""
        return WORD if reporter.have_all_greeted() else ""

    def _forward(self, sample: Sample) -> None:
        """Rank 0's values are the run's metrics; of another rank only the loss, where that rank judges it."""
        if self._run.is_first:
            if not self._judging_rank.is_mine:
                sample = replace(sample, loss=None)
            self._outbox.sample(sample)
        elif self._judging_rank.is_mine and sample.loss is not None:
            self._outbox.sample(Sample(step=sample.step, step_s=None, loss=sample.loss))

    def _on_bad(self, step: int, metric: str, is_first: bool, stretch: BadStretch | None) -> None:
        """A value of this rank is not finite. The report is evidence, at once; the event waits until it lasts."""
        if is_first and self._reporter is not None:
            self._reporter.non_finite(step, metric)
        if stretch is not None:
            self._tell_bad_stretch(stretch)
            self._loss_news()

    def _tell_bad_stretch(self, stretch: BadStretch) -> None:
        self._outbox.push_bad_stretch(stretch, is_judge=self._judging_rank.is_mine)
        if self._judging_rank.is_mine or stretch.own:  # the loss is every rank's: one of them says it
            self._losses.warn(stretch)

    def _loss_news(self) -> None:
        self._heartbeat_soon()
        if self._judging_rank.publish() and self._negotiation is not None:
            self._negotiation.worker.wake()

    def _heartbeat_soon(self) -> None:
        if self._link is not None:
            self._link.mail.heartbeat_soon()
