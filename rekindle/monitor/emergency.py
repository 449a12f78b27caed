"""A save between two steps, on the training thread; and what is handed on to be sealed and answered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rekindle.detectors.nonfinite import classify
from rekindle.mailbox import CheckpointRequest, LossState, ReplyOutcome, SaveKind
from rekindle.monitor.agreement import Agreement
from rekindle.monitor.clock import Clock
from rekindle.monitor.desk import Desk
from rekindle.monitor.office import Office
from rekindle.monitor.outbox import EventType
from rekindle.monitor.saving import LATER, SaveFunction, SaveJob, SaveResult, as_result
from rekindle.monitor.state import RunState
from rekindle.monitor.trouble import Trouble
from rekindle.monitor.voice import Voice


@dataclass(frozen=True, slots=True)
class _Deferred:
    """A save that the framework makes by itself, right after the step at which it was asked for."""

    step: int
    requests: tuple[CheckpointRequest, ...]
    began: float


class Saver:
    """`office` is rank 0's; on other ranks, and without a mailbox, it stays None."""

    def __init__(
        self,
        *,
        save: SaveFunction | None,
        is_first_rank: bool,
        agreement: Agreement,
        desk: Desk,
        state: RunState,
        clock: Clock,
        trouble: Trouble,
        voice: Voice,
    ) -> None:
        self._save = save
        self._is_first_rank = is_first_rank
        self._agreement = agreement
        self._desk = desk
        self._state = state
        self._clock = clock
        self._trouble = trouble
        self._voice = voice
        self._deferred: _Deferred | None = None
        self.office: Office | None = None
        self.refuses: str | None = None  # on all ranks alike: why nothing that is saved from now on would count

    def save_now(self, step: int, phase: AbstractContextManager[None]) -> None:
        """All ranks are here, at the same step. The questions to all ranks are the same calls on every rank."""
        requests = self._desk.take()
        if self.refuses is not None:
            self._cannot(requests, step, self.refuses)
            return
        if self._save is None:
            self._cannot(requests, step, "no save function was given to the monitor")
            return
        if self._agreement.is_any(self._state.is_poisoned):
            self._cannot(requests, step, "the loss is not finite: a checkpoint now would keep the poisoned weights")
            return
        began = self._clock.monotonic()
        failure: str | None = None
        result: SaveResult | None = None
        with phase:
            try:
                returned = self._save(step, SaveKind.EMERGENCY.value)
                if returned is LATER:
                    self._deferred = _Deferred(step, requests, began)
                elif self._is_first_rank:
                    result = as_result(returned)
            except Exception as err:  # the trainer's own function: its failure is an answer, not our death
                failure = f"the save function failed: {err!r}"
                self.failed(step, failure)
            is_failed = self._agreement.is_any(failure is not None)
        if is_failed:
            self._deferred = None
            self._cannot(requests, step, failure or "another rank failed to save")
        elif result is not None:
            self._submit(step, SaveKind.EMERGENCY, result, requests, self._clock.monotonic() - began)

    def saved(self, step: int, kind: SaveKind, result: SaveResult, took_s: float | None) -> None:
        """The trainer's own save of `step` is complete."""
        if self.refuses is not None:
            self.failed(step, self.refuses)
            return
        # One that is newer than a request, and clean, is what the request asked for.
        now_at = self._state.step
        answers = not self._state.is_poisoned and now_at is not None and step >= now_at
        requests = self._desk.take() if answers and self._desk.has_wish else ()
        if kind is SaveKind.EMERGENCY:  # the trainer's word for it: nothing asked for it here
            kind = SaveKind.PERIODIC
        deferred = self._deferred
        if deferred is not None and deferred.step == step:
            self._deferred = None
            kind, took_s = SaveKind.EMERGENCY, self._clock.monotonic() - deferred.began
            known = {request.request_id for request in requests}
            requests += tuple(request for request in deferred.requests if request.request_id not in known)
        self._submit(step, kind, result, requests, took_s)

    def failed(self, step: int, why: str) -> None:
        self._trouble.once("save_failed", "A checkpoint of step %d is not usable: %s", step, why)
        self._voice.push(EventType.SAVE_FAILED, at_step=step, why=why[:2000])

    def _cannot(self, requests: Sequence[CheckpointRequest], step: int, why: str) -> None:
        if self.office is not None:
            for request in requests:
                self.office.mail.answer(request, ReplyOutcome.CANNOT, why, step=step)

    def _submit(
        self,
        step: int,
        kind: SaveKind,
        result: SaveResult,
        requests: tuple[CheckpointRequest, ...],
        took_s: float | None,
    ) -> None:
        if self.office is None:
            return
        loss = self._state.loss
        self.office.submit(
            SaveJob(
                step=step,
                kind=kind,
                result=result,
                loss=loss if classify(loss) is LossState.FINITE else None,
                saved_at=self._clock.now(),
                took_s=took_s,
                requests=requests,
                signalled=kind is SaveKind.EMERGENCY,  # only a request or a signal leads to one
                poisoned=self._state.is_poisoned,
            )
        )
