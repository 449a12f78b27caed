"""The monitor at work. The training thread comes in through `step` and the rest of `Monitor`; all I/O is on threads.

    training thread   step → stall mark, non-finite check, sample, (every `every` calls) agreement, save
    rekindle-watch    looks for stalls; no I/O, so that it works when everything else hangs
    rekindle-mail     fence, requests, replies, beats
    rekindle-seal     checksums, manifest
    rekindle-events, rekindle-metrics   what leaves for AWS
    rekindle-late     reads tensors, which may have to wait for the device

None of them survives a fork: in a forked child the monitor falls asleep.
"""

from __future__ import annotations

import atexit
import os
import statistics
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rekindle.detectors.nonfinite import NonFinite, classify
from rekindle.mailbox import (
    Beat,
    CheckpointReply,
    CheckpointRequest,
    LossState,
    Manifest,
    ManifestFile,
    ReplyOutcome,
    ResumePlan,
    RunPhase,
    SaveKind,
)
from rekindle.monitor.agree import Coordinator, Wish
from rekindle.monitor.aws import Clients
from rekindle.monitor.boxes import Box
from rekindle.monitor.clock import Clock
from rekindle.monitor.desk import Desk
from rekindle.monitor.identity import Identity
from rekindle.monitor.mail import Mail
from rekindle.monitor.metrics import Sample, as_number
from rekindle.monitor.outbox import EventType, Outbox
from rekindle.monitor.saving import SaveFunction, SaveJob, SaveResult, Upload, as_result
from rekindle.monitor.seal import Sealer
from rekindle.monitor.settings import Config
from rekindle.monitor.sigterm import Sigterm
from rekindle.monitor.silent import Monitor
from rekindle.monitor.stacks import capture_stacks
from rekindle.monitor.stall import StallWatch
from rekindle.monitor.trouble import Trouble, logger
from rekindle.monitor.worker import Worker

STALL_STACKS_CHARS = 24 * 1024  # a few stalled ranks' events may have to be read side by side in one Incident
DURATIONS_KEPT = 101
LATE_KEPT = 256
OVERSLEPT_S = 0.25  # a watchdog that wakes this late was not run: the process was stopped, or the host is starved
EXIT_TIMEOUT_S = 5.0  # at interpreter exit nobody wants to wait


class LiveMonitor(Monitor):
    """See `Monitor`. Made by `rekindle.monitor.start`."""

    def __init__(
        self,
        *,
        identity: Identity,
        resume: ResumePlan,
        config: Config,
        save: SaveFunction | None,
        coordinator: Coordinator,
        box: Box | None,
        upload: Upload | None,
        bus: str | None,
        sends_metrics: bool,
        clients: Clients,
        clock: Clock,
    ) -> None:
        super().__init__(resume, _local_path(resume.uri, upload))
        self.identity = identity
        self._config = config
        self._save = save
        self._coordinator = coordinator
        self._every = max(1, coordinator.every)
        self._clock = clock
        self._trouble = Trouble()
        self._is_asleep = False
        self._should_stop = False
        self._is_finished = False
        self._sigterm = Sigterm()
        self._calls = 0
        self._first_step: int | None = None
        self._step: int | None = None
        self._loss: float | None = None
        self._nonfinite = NonFinite()
        self._durations: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self._late: deque[tuple[int, object, Sample]] = deque(maxlen=LATE_KEPT)
        self._stall = StallWatch(config.limits(), now=clock.monotonic())
        self._watch_due = clock.monotonic()
        self._settled = threading.Condition()
        self._desk = Desk(job_id=identity.job_id, attempt=identity.attempt, attempt_number=identity.attempt_number)
        self._outbox = Outbox(
            clients=clients,
            clock=clock,
            trouble=self._trouble,
            bus=bus,
            sends_metrics=sends_metrics and identity.rank == 0,
            dimensions={"JobId": identity.job_id},
            metrics_s=config.metrics_s,
        )
        self._watcher = Worker("watch", self._watch_turn, self._trouble)
        self._events = Worker("events", self._outbox.turn_events, self._trouble)
        self._metrics = Worker("metrics", self._metrics_turn, self._trouble)
        self._later = Worker("late", self._late_turn, self._trouble)
        self._has_later = False
        self._mail: Mail | None = None
        self._sealer: Sealer | None = None
        self._workers = [self._watcher, self._events, self._metrics]
        if box is not None and identity.rank == 0:  # one reader and writer per attempt; the others learn in `_agree`
            self._open(box, clients, upload)

    def _open(self, box: Box, clients: Clients, upload: Upload | None) -> None:
        self._mail = mail = Mail(
            box=box,
            desk=self._desk,
            clock=self._clock,
            trouble=self._trouble,
            config=self._config,
            job_id=self.identity.job_id,
            attempt=self.identity.attempt,
            beat=self._beat,
            position=self._position,
            on_superseded=self._on_superseded,
            on_reply=self._on_reply,
        )
        self._mailer = Worker("mail", self._mail_turn, self._trouble)
        mail.wakes(self._mailer.wake)
        self._workers.append(self._mailer)
        self._sealer = Sealer(
            box=box,
            mail=mail,
            desk=self._desk,
            clients=clients,
            clock=self._clock,
            trouble=self._trouble,
            manifest_of=self._manifest,
            upload=upload,
            on_failed=self._on_save_failed,
        )
        self._sealing = Worker("seal", self._seal_turn, self._trouble)
        self._workers.append(self._sealing)

    def begin(self, *, handle_sigterm: bool) -> None:
        """Start the threads; say hello."""
        if handle_sigterm and not self._sigterm.install():
            self._trouble.once("sigterm", "SIGTERM can only be handled from the main thread; it is left alone")
        for worker in self._workers:
            worker.start()
        if self.identity.rank == 0:
            self._push(EventType.STARTED, pid=os.getpid(), resume_step=self.resume.step)
        _on_fork(self)
        atexit.register(self._at_exit)

    # ---- the training thread -----------------------------------------------------------------------------------

    def step(
        self,
        step: int,
        *,
        loss: object = None,
        grad_norm: object = None,
        tokens: object = None,
        **metrics: object,
    ) -> None:
        if self._is_asleep:
            return
        try:
            step_s, resumed_after_s = self._stall.stepped(self._clock.monotonic())
            self._step = step = int(step)
            if self._first_step is None:
                self._first_step = step
            if step_s is not None:
                self._durations.append(step_s)
            if resumed_after_s is not None:
                self._resumed(resumed_after_s)
            extra = {name: _slim(value) for name, value in metrics.items()} if metrics else None
            sample = Sample(
                step=step, step_s=step_s, loss=loss, grad_norm=_slim(grad_norm), tokens=_slim(tokens), extra=extra
            )
            self._take_loss(step, loss, sample)
            self._calls += 1
            if self._calls % self._every == 0:
                self._agree(step)
        except Exception as err:  # the guard of the promise: nothing of ours is raised into training
            self._trouble.inner("step", err)

    def _take_loss(self, step: int, loss: object, sample: Sample) -> None:
        if loss is not None and not isinstance(loss, int | float) and not type(loss).__module__.startswith("numpy"):
            self._late.append((step, _slim(loss), sample))
            if not self._has_later:
                self._has_later = True
                self._workers.append(self._later)
                self._later.start()
            self._later.wake()
            return
        if loss is not None:
            self._see_loss(step, float(loss))  # type: ignore[arg-type]  # a number or a NumPy scalar, see above
        self._outbox.sample(sample)

    def _see_loss(self, step: int, loss: float) -> None:
        self._loss = loss
        state = self._nonfinite.update(loss)
        if state is not None:
            self._push(EventType.NON_FINITE, at_step=step, loss_state=state.value, metric="loss")
            if self._mail is not None:
                self._mail.beat_soon()

    def _agree(self, step: int) -> None:
        try:
            agreed = Wish(self._coordinator.highest(self._wish()))
            if agreed is Wish.NOTHING:
                return
            if agreed is not Wish.SAVE:
                self._should_stop = True
            if agreed is not Wish.STOP:
                self._save_now(step)
        except Exception as err:  # a broken collective: asking again could hang the ranks that still work
            self._every = sys.maxsize
            self._trouble.once(
                "coordinator", "The ranks can no longer agree on saves (%r); none will be asked for", err
            )

    def _wish(self) -> Wish:
        if self._desk.superseded_by is not None:
            return Wish.NOTHING if self._should_stop else Wish.STOP
        if self._sigterm.is_received and not self._should_stop:
            return Wish.SAVE_AND_STOP
        return Wish.SAVE if self._desk.has_wish else Wish.NOTHING

    def _save_now(self, step: int) -> None:
        """All ranks are here, at the same step. The three agreements below are the same calls on every rank."""
        requests = self._desk.take()
        if self._save is None:
            self._cannot(requests, step, "no save function was given to the monitor")
            return
        if self._coordinator.highest(int(self._nonfinite.is_poisoned)):
            self._cannot(requests, step, "the loss is not finite: a checkpoint now would keep the poisoned weights")
            return
        began = self._clock.monotonic()
        failure: str | None = None
        result: SaveResult | None = None
        with self.phase(RunPhase.SAVING):
            try:
                returned = self._save(step, SaveKind.EMERGENCY.value)
                result = as_result(returned) if self.identity.rank == 0 else None
            except Exception as err:  # the trainer's own function: its failure is an answer, not our death
                failure = f"the save function failed: {err!r}"
                self._on_save_failed(step, failure)
            is_failed = self._coordinator.highest(int(failure is not None))
        if is_failed:
            self._cannot(requests, step, failure or "another rank failed to save")
        elif result is not None:
            self._submit(step, SaveKind.EMERGENCY, result, requests, self._clock.monotonic() - began)

    def _cannot(self, requests: Sequence[CheckpointRequest], step: int, why: str) -> None:
        if self._mail is not None:
            for request in requests:
                self._mail.answer(request, ReplyOutcome.CANNOT, why, step=step)

    def _submit(
        self, step: int, kind: SaveKind, result: SaveResult, requests: tuple[CheckpointRequest, ...], took_s: float
    ) -> None:
        if self._sealer is None:
            return
        loss = self._loss if classify(self._loss) is LossState.FINITE else None
        self._sealer.submit(
            SaveJob(
                step=step,
                kind=kind,
                result=result,
                loss=loss,
                saved_at=self._clock.now(),
                took_s=took_s,
                requests=requests,
            )
        )
        self._sealing.wake()

    def saved(
        self,
        path: str | os.PathLike[str],
        step: int,
        files: Sequence[str] | None = None,
        kind: str = "periodic",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        if self._is_asleep or self.identity.rank != 0:
            return
        try:
            result = SaveResult(path=path, files=files, data=data or {})
            # A save that is newer than the request, and clean, is what the request asked for.
            answers = not self._nonfinite.is_poisoned and self._step is not None and step >= self._step
            requests = self._desk.take() if answers and self._desk.has_wish else ()
            self._submit(int(step), SaveKind(kind), result, requests, 0.0)
        except Exception as err:
            self._trouble.inner("saved", err)

    def phase(self, name: str) -> AbstractContextManager[None]:
        return _Phase(self, name)

    def alive(self) -> None:
        if not self._is_asleep:
            self._resumed(self._stall.alive(self._clock.monotonic()))

    def enter_phase(self, phase: RunPhase) -> tuple[RunPhase, float]:
        """Used by `phase`."""
        now = self._clock.monotonic()
        before = self._stall.phase
        self._resumed(self._stall.enter(phase, now))
        return before, now

    def leave_phase(self, phase: RunPhase, before: RunPhase, entered_at: float) -> None:
        """Used by `phase`."""
        self._resumed(self._stall.leave(phase, before, entered_at, self._clock.monotonic()))

    def _resumed(self, silent_s: float | None) -> None:
        if silent_s is not None:
            self._push(EventType.RESUMED, silent_s=round(silent_s, 3))
            logger.warning("Steps move again after %.0f s of silence", silent_s)

    @property
    def should_stop(self) -> bool:
        return self._should_stop

    @property
    def superseded(self) -> bool:
        return self._desk.superseded_by is not None

    @property
    def is_silent(self) -> bool:
        return self._is_asleep

    def health(self) -> dict[str, int]:
        return self._trouble.snapshot()

    def flush(self, timeout_s: float = 10.0) -> bool:
        def is_done() -> bool:
            sealed = self._sealer is None or self._sealer.is_idle
            return sealed and (self._mail is None or self._mail.has_written_all)

        with self._settled:
            return self._settled.wait_for(is_done, timeout_s)

    def finish(self, why: str = "finished", timeout_s: float = 10.0) -> None:
        if self._is_asleep or self._is_finished:
            return
        self._is_finished = True
        try:
            self._end(why, time.monotonic() + timeout_s)
        except Exception as err:
            self._trouble.inner("finish", err)
        self._is_asleep = True

    def _end(self, why: str, until: float) -> None:
        atexit.unregister(self._at_exit)
        self._sigterm.restore()
        self._watcher.stop()
        if self._has_later:
            self._later.stop()
            self._later.join(until - time.monotonic())
        if self._sealer is not None:
            self._sealing.stop()
            self._sealing.join(until - time.monotonic())
        if self._mail is not None:
            for request in self._desk.owed():
                self._mail.answer(request, ReplyOutcome.CANNOT, f"the run ended: {why}", step=self._step)
            self._mailer.stop()
            self._mailer.join(until - time.monotonic())
        if self.identity.rank == 0:
            self._push(EventType.FINISHED, why=why)
        self._events.stop()
        self._metrics.stop()
        for worker in (self._events, self._metrics):
            worker.join(until - time.monotonic())

    def _at_exit(self) -> None:
        died_of = getattr(sys, "last_type", None)
        self.finish(f"died of {died_of.__name__}" if died_of is not None else "the process exits", EXIT_TIMEOUT_S)

    def fall_asleep(self) -> None:
        """In a forked child: no threads here, and nothing to say."""
        self._is_asleep = True

    # ---- the other threads -------------------------------------------------------------------------------------

    def _watch_turn(self) -> float:
        now = self._clock.monotonic()
        overslept_s = now - self._watch_due
        if overslept_s > max(OVERSLEPT_S, self._config.watch_s):
            self._stall.excuse(overslept_s)
        stall = self._stall.look(now)
        if stall is not None and not self._is_finished:
            logger.warning(
                "No step for %.0f s in %s, above the learned limit of %.0f s",
                stall.silent_s,
                stall.phase,
                stall.limit_s,
            )
            self._push(
                EventType.STALL,
                phase=stall.phase.value,
                silent_s=round(stall.silent_s, 3),
                limit_s=round(stall.limit_s, 3),
                stacks={str(self.identity.rank): capture_stacks(limit_chars=STALL_STACKS_CHARS)},
            )
            if self._mail is not None:
                self._mail.beat_soon()
        self._watch_due = now + self._config.watch_s
        return self._config.watch_s

    def _mail_turn(self) -> float:
        if self._mail is None:
            return self._config.poll_s
        wait_s = self._mail.turn(is_last=self._mailer.is_stopping)
        self._notify()
        return wait_s

    def _seal_turn(self) -> float:
        wait_s = self._sealer.turn() if self._sealer is not None else self._config.poll_s
        self._notify()
        return wait_s

    def _metrics_turn(self) -> float:
        return self._outbox.turn_metrics(is_last=self._metrics.is_stopping)

    def _late_turn(self) -> float:
        while self._late:
            step, loss, sample = self._late.popleft()
            number = as_number(loss)  # may wait for the device, on this thread only
            if number is None:
                self._trouble.once("unreadable_loss", "The loss of step %d is not a number: %r", step, type(loss))
            else:
                self._see_loss(step, number)
            self._outbox.sample(
                Sample(
                    step=step,
                    step_s=sample.step_s,
                    loss=number,
                    grad_norm=sample.grad_norm,
                    tokens=sample.tokens,
                    extra=sample.extra,
                )
            )
        return 3600.0

    def _notify(self) -> None:
        with self._settled:
            self._settled.notify_all()

    # ---- what is said ------------------------------------------------------------------------------------------

    def _push(self, detail_type: EventType, *, at_step: int | None = None, **more: Any) -> None:
        at = self._clock.now()
        detail = {
            "v": 1,
            "job_id": self.identity.job_id,
            "attempt": self.identity.attempt,
            "attempt_number": self.identity.attempt_number,
            "rank": self.identity.rank,
            "world_size": self.identity.world_size,
            "step": at_step if at_step is not None else self._step,
            "at": at.isoformat(),
        }
        self._outbox.push(detail_type, detail | more, at)
        self._events.wake()

    def _on_reply(self, reply: CheckpointReply) -> None:
        self._push(EventType.REPLY, at_step=reply.step, reply={"v": 1, **reply.to_wire()})

    def _on_save_failed(self, step: int, why: str) -> None:
        self._trouble.once("save_failed", "A checkpoint of step %d is not usable: %s", step, why)
        self._push(EventType.SAVE_FAILED, at_step=step, why=why[:2000])

    def _on_superseded(self, by: str | None) -> None:
        if by is None:
            logger.warning("This attempt may save again: the fence names it now")
            self._outbox.unmute_metrics()
            return
        logger.warning("This attempt was superseded by %s: its checkpoints no longer count, the run should end", by)
        self._outbox.mute_metrics()
        self._push(EventType.FINISHED, why=f"superseded by {by}")

    def _beat(self) -> Beat:
        durations = list(self._durations)
        loss = self._loss
        state = classify(loss)
        phase = self._stall.phase
        if self._stall.is_stalled:
            phase = RunPhase.STALLED
        if self._is_finished:
            phase = RunPhase.FINISHED
        return Beat(
            job_id=self.identity.job_id,
            attempt=self.identity.attempt,
            attempt_number=self.identity.attempt_number,
            step=self._step,
            first_step=self._first_step,
            loss=loss if state is LossState.FINITE else None,
            loss_state=state,
            phase=phase,
            step_s_median=statistics.median(durations) if durations else None,
            rank=self.identity.rank,
            world_size=self.identity.world_size,
            at=self._clock.now(),
        )

    def _position(self) -> str:
        silent_s = self._clock.monotonic() - self._stall.marked_at
        where = "before the first step" if self._step is None else f"after step {self._step}"
        return f"the training thread did not get to a save in time: in {self._stall.phase}, {silent_s:.1f} s {where}"

    def _manifest(self, job: SaveJob, root: str, files: tuple[ManifestFile, ...]) -> Manifest:
        return Manifest(
            job_id=self.identity.job_id,
            attempt=self.identity.attempt,
            attempt_number=self.identity.attempt_number,
            step=job.step,
            kind=job.kind,
            request_id=job.requests[0].request_id if job.requests else None,
            root=root,
            files=files,
            world_size=self.identity.world_size,
            data=job.result.data,
            loss=job.loss,
            saved_at=job.saved_at,
        )


class _Phase(AbstractContextManager[None]):
    """Never raises, not even for a phase that does not exist: that one is told once and changes nothing."""

    def __init__(self, monitor: LiveMonitor, name: str) -> None:
        self._monitor = monitor
        self._name = name
        self._entered: tuple[RunPhase, RunPhase, float] | None = None

    def __enter__(self) -> None:
        if self._monitor.is_silent:
            return
        try:
            phase = RunPhase(self._name)
            if phase in (RunPhase.EVALUATION, RunPhase.SAVING):
                self._entered = (phase, *self._monitor.enter_phase(phase))
            else:
                logger.warning("There is no phase %r to enter: only evaluation and saving", self._name)
        except Exception as err:
            logger.warning("There is no phase %r to enter: %r", self._name, err)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is not None:
            phase, before, entered_at = self._entered
            self._monitor.leave_phase(phase, before, entered_at)


def _slim(value: object) -> object:
    """A tensor without its graph: a queue must not keep a step's activations alive."""
    if value is None or isinstance(value, int | float):
        return value
    detach: Callable[[], object] | None = getattr(value, "detach", None)
    return detach() if callable(detach) else value


def _local_path(uri: str | None, upload: Upload | None) -> str | None:
    if uri is None:
        return None
    if upload is not None and (local := upload.to_local(uri)) is not None:
        return local
    return None if uri.startswith("s3://") else uri.removeprefix("file://")


def _on_fork(monitor: LiveMonitor) -> None:
    reference = weakref.ref(monitor)

    def in_child() -> None:
        living = reference()
        if living is not None:
            living.fall_asleep()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
