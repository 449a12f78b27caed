"""The monitor of a run that is watched; `rekindle.monitor.start` makes it. The training thread calls the methods of
`Monitor`; all I/O is on threads of its own, which docs/monitor.md lists.

No thread survives a fork: in a forked child the monitor falls asleep.
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
from typing import TYPE_CHECKING, Any

from rekindle.detectors.pace import StragglerWatch
from rekindle.monitor import lifetime
from rekindle.monitor.accounts import Accounts
from rekindle.monitor.arguments import reason_text, seconds, step_number, timeout
from rekindle.monitor.base.guard import guarded, hide_from_compiler, must_pass
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.values import collect
from rekindle.monitor.base.worker import wait_until
from rekindle.monitor.emergency import Saver
from rekindle.monitor.launch import Launch
from rekindle.monitor.liveness.reporter import Reporter
from rekindle.monitor.liveness.stall import Phase, StallWatch
from rekindle.monitor.liveness.watchdog import Watchdog
from rekindle.monitor.loss.losses import Losses
from rekindle.monitor.mail.boxes import Box
from rekindle.monitor.mail.exchange import Exchange
from rekindle.monitor.mail.holding import Hold
from rekindle.monitor.mail.outbox import Outbox
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.saving.saved import SaveResult, Upload, local_path
from rekindle.monitor.silent import Monitor
from rekindle.monitor.stops.stopping import Stopping
from rekindle.protocol.launch_orders import ResumePlan
from rekindle.protocol.mailbox import RunPhase
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.signals import EventType

if TYPE_CHECKING:  # what not every process needs is imported where it is made
    from rekindle.monitor.link import ServiceLink
    from rekindle.monitor.saving.negotiation import Negotiation

FINISH_TIMEOUT_S = 4.0  # also where AWS never answers
# How much longer than its time-out the end of a run takes while an emergency checkpoint has no manifest yet, or its
# answer is not written. What sends SIGTERM kills 30 s later at the earliest (torchrun, Kubernetes), SageMaker after
# 120 s. Source: torch 2.13 distributed/elastic/multiprocessing/api.py (close); Kubernetes pod lifecycle; SageMaker
# developer guide, StopTrainingJob
EMERGENCY_GRACE_S = 20.0
LATE_S = 1.0  # of it, for what other threads have yet to read or to tell the other ranks
EVENTS_S = 1.0  # of it, for the last events and metrics


class LiveMonitor(Monitor):
    """See `Monitor`. Made by `rekindle.monitor.start`."""

    def __init__(
        self,
        *,
        run: Run,
        hold: Hold,
        resume: ResumePlan,
        launch: Launch,
        box: Box | None,
        exchange: Callable[[], Exchange | None],
    ) -> None:
        """box: the mailbox. exchange: opens what the ranks agree through."""
        super().__init__(resume, local_path(resume.uri, launch.upload))
        self._run, self._hold = run, hold
        self.identity, self._clock, self._trouble = run.identity, run.clock, run.trouble
        self._state = run.state
        self._ending_thread: int | None = None
        self._has_ended = False
        self._stall = StallWatch(run.config.limits(), now=run.clock.monotonic())
        self._requests = Requests(run.identity)
        self._outbox = Outbox(run, bus=launch.bus, sends_metrics=launch.sends_metrics, on_event=launch.on_event)
        self._watchdog = Watchdog(
            run,
            stall=self._stall,
            outbox=self._outbox,
            on_stall=self._heartbeat_soon,
            is_in_save=lambda: self._negotiation is not None and self._negotiation.is_in_save,
        )
        self._stopping = Stopping(
            run,
            stall=self._stall,
            can_save=lambda: self._saver.is_possible,
            is_sealed=lambda: self._link is None or self._link.flush(0.0),
        )
        self._saver = Saver(
            run,
            save=launch.save,
            ranks=launch.ranks,
            requests=self._requests,
            stopping=self._stopping,
            outbox=self._outbox,
            settle=lambda timeout_s: self._losses.settle(timeout_s),
        )
        self._agreement = self._saver.agreement
        self._losses = Losses(run, outbox=self._outbox, loss_kind=launch.judged_as, on_news=self._heartbeat_soon)
        self._judging_rank = self._losses.judging_rank
        self._workers = [self._watchdog.worker, *self._outbox.workers]
        self._negotiation = self._negotiate(exchange) if run.identity.world_size > 1 else None
        self._accounts = Accounts(run=run, stall=self._stall, losses=self._losses, outbox=self._outbox)
        self._link: ServiceLink | None = None
        self._reporter: Reporter | None = None
        if box is not None:
            self._open(box, launch.upload)

    def _open(self, box: Box, upload: Upload | None) -> None:
        self._reporter = reporter = Reporter(
            self._run,
            box=box,
            phase=lambda: self._stall.phase.value,
            stragglers=StragglerWatch() if self._run.is_first else None,
            on_straggler=self._accounts.on_straggler,
        )
        self._watchdog.reporter = self._losses.reporter = reporter
        self._workers.append(reporter.worker)
        if not self._run.is_first:  # one reader and writer per attempt; the others learn in `_negotiate`
            return
        from rekindle.monitor.link import ServiceLink

        self._link = self._saver.link = ServiceLink(
            self._run,
            box=box,
            hold=self._hold,
            requests=self._requests,
            accounts=self._accounts,
            resume=self.resume,
            resume_path=self._local_path,
            upload=upload,
            on_failed=self._saver.failed,
            on_refused=self._silence,
        )
        self._workers += self._link.workers

    def _negotiate(self, exchange: Callable[[], Exchange | None]) -> Negotiation:
        from rekindle.monitor.liveness.ras import Ras
        from rekindle.monitor.liveness.run_phases import RunPhases
        from rekindle.monitor.saving.negotiation import Negotiation

        run, watchdog = self._run, self._watchdog
        watchdog.ras = Ras(run.identity.rank, run.identity.world_size, run.trouble)
        watchdog.phases = phases = RunPhases(
            rank=run.identity.rank, own=watchdog.own_phase, is_quiet=watchdog.is_quiet, clock=run.clock
        )
        negotiation = Negotiation(
            run,
            agreement=self._agreement,
            open_exchange=exchange,
            resume_step=self.resume.step,
            leader=self._saver.leader() if run.is_first else None,
            judging_rank=self._judging_rank,
            abandoned=self._saver.abandoned,
            is_waiting=watchdog.is_waiting,
            phases=phases,
        )
        self._workers.append(negotiation.worker)
        return negotiation

    def begin(self, *, signals: Sequence[signal.Signals], env: Mapping[str, str], takes_slurms: bool) -> None:
        """Start the threads; announce the run. signals: handled beside other handlers. env: the launcher's.

        takes_slurms: also the one that Slurm sends for a save, where it has no handler.
        Raises: RuntimeError where the process may have no more threads; then nothing has begun.
        """
        hide_from_compiler(self, ("step", "alive", "saved", "phase", "local_non_finite"))
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.fall_asleep()
            for worker in self._workers:
                worker.stop()
            raise
        self._stopping.begin(signals, env=env, takes_slurms=takes_slurms)
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
        self._watchdog.training_thread = threading.get_ident()
        plan = self._agreement.due()
        self._saver.stepped()
        if plan is not None:
            self._saver.act(plan, self._state.step or 0, self.phase(RunPhase.SAVING.value))

    @guarded("expect", asleep=None)
    def expect(self, what: str, *, steps: int | None = None) -> None:
        length = steps if isinstance(steps, int) else None
        step = 0 if self._state.step is None else self._state.step
        self._losses.judge.expect(step, length)
        logger.info("Expected from step %d on: %s", step, str(what)[:128])

    @guarded("scaler", asleep=None)
    def scaler(self, scaler: object) -> None:
        self._losses.scale.watch(scaler)

    @guarded("local_non_finite", asleep=None)
    def local_non_finite(self, step: int, metric: str, *, ranks: Sequence[int] | None = None) -> None:
        self._losses.own_bad(step_number(step), str(metric)[:128], ranks)

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
        self._watchdog.worker.stop()
        grace_until = until if self._link is not None and self._link.box.is_slow else until + EMERGENCY_GRACE_S
        self._saver.ended()
        self._losses.end(min(until, time.monotonic() + LATE_S))
        if (negotiation := self._negotiation) is not None:
            until = negotiation.finish_run(until, grace_until, is_saving=self._saver.is_under_way)
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

    def _heartbeat_soon(self) -> None:
        if self._link is not None:
            self._link.mail.heartbeat_soon()
