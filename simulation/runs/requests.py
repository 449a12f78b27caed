"""How a run's monitor answers when it is asked for a checkpoint."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.mailbox import CheckpointRequest, ReplyOutcome, RunPhase
from rekindle.protocol.manifests import SaveKind
from simulation.runs.monitor import SAVING, job_id_of
from simulation.runs.spans import Spans
from simulation.runs.truth import Attempt

ANSWERING: Final = timedelta(seconds=5)


class Requests:
    """Of every attempt."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._clock, self._monitor = spans.clock, spans.monitor
        self._saves, self._objects = spans.saves, spans.objects

    def asked(self, key: str, name: str) -> None:
        """A request lies in the mailbox: the attempt that it names finds it."""
        del name
        raw = self._objects.objects[key].body
        request = CheckpointRequest.from_json(raw)
        attempt = self._spans.attempts.get(request.attempt)
        if attempt is not None and request.job_id != job_id_of(attempt):  # rekindle.monitor.mail.requests: ignored
            return
        if attempt is not None and attempt.run.spec.watch == "monitor" and attempt.is_training and not attempt.is_done:
            self._answer_soon(attempt, request, self._clock.now() + timedelta(seconds=request.deadline_s * 0.9))

    def _answer_soon(self, attempt: Attempt, request: CheckpointRequest, answer_by: datetime) -> None:
        what = f"asked {request.request_id}"
        self._spans.later(attempt, what, ANSWERING, lambda: self._save_or_refuse(attempt, request, answer_by))

    def _save_or_refuse(self, attempt: Attempt, request: CheckpointRequest, answer_by: datetime) -> None:
        """A run that stands still answers once its watchdog has judged it to be stuck, or just before the deadline."""
        stretch = attempt.stretches[-1]
        if attempt.suspended_at is not None:
            self._answer_soon(attempt, request, answer_by)
            return
        is_judged = stretch.phase is RunPhase.STALLED or stretch.phase is RunPhase.STARTUP
        if not stretch.moves and not is_judged and self._clock.now() < answer_by:
            self._answer_soon(attempt, request, answer_by)
        elif not stretch.moves:
            self._monitor.reply(
                attempt, request, ReplyOutcome.CANNOT, f"the training thread is in {stretch.phase.value}", None
            )
        elif attempt.first_bad_loss is not None and attempt.step_at(self._clock.now()) >= attempt.first_bad_loss:
            why = "the loss or the gradient is not finite: a checkpoint now would keep the poisoned weights"
            self._monitor.reply(attempt, request, ReplyOutcome.CANNOT, why, None)
        else:
            self._spans.later(attempt, f"saves {request.request_id}", SAVING, lambda: self._saved(attempt, request))

    def _saved(self, attempt: Attempt, request: CheckpointRequest) -> None:
        if not attempt.stretches[-1].moves:
            self._monitor.reply(attempt, request, ReplyOutcome.CANNOT, "the training thread stands still", None)
            return
        manifest = self._saves.save(attempt, attempt.step_at(self._clock.now()), SaveKind.EMERGENCY, request.request_id)
        outcome = ReplyOutcome.SAVED if manifest is not None else ReplyOutcome.CANNOT
        self._monitor.reply(attempt, request, outcome, "" if manifest else "the fence names another attempt", manifest)
