"""How the starts that are over came to their ends: requeued, failed, or forgotten by slurmctld."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, SlurmState
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import OutputVerdict, SlurmError, SlurmUnavailable
from rekindle.slurm_agent.reading.jobs import ENDED, Job, PastStart, canceller_of
from rekindle.slurm_agent.reading.nodes import Node, Settings
from rekindle.slurm_agent.reading.options import expand
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching import history
from rekindle.slurm_agent.watching.attempt_docs import ShownJob, cancelled, clip
from rekindle.slurm_agent.watching.context import LookInputs, LookMemory, ReadingChanges

log = logging.getLogger(__name__)

SETTLED_S: Final = 60.0
WAITS_FOR_HISTORY: Final = timedelta(minutes=15)
TELLS_CANCELLER: Final = timedelta(minutes=1)  # slurmctld sends an end to slurmdbd within seconds
MAX_VANISHED: Final = 50  # looked after in one look; the others in the next


class EndedStarts:
    """Of one reading. `nodes`: as this reading has them."""

    def __init__(
        self,
        inputs: LookInputs,
        found: ReadingChanges,
        nodes: Mapping[str, Node],
        settings: Settings,
        now: datetime,
        before: LookMemory,
    ) -> None:
        self._inputs = inputs
        self._before = before
        self._found = found
        self._nodes = nodes
        self._settings = settings
        self._now = now
        self._past: dict[int, tuple[PastStart, ...]] = {}
        self._unanswered: set[int] = set()

    def close_the_earlier(self, shown: ShownJob, doc: AttemptDoc) -> None:
        """Every start before this one is over, and its document says what took its place."""
        open_ = [start for start in self._found.starts_of(doc.slurm_job) if start.restart < shown.restart]
        first = min((start.restart for start in open_), default=None)
        if first is None and shown.attempt.name not in self._found.held.docs:
            first = max(0, shown.restart - history.MAX_FORERUNNERS)
        if first is None:
            return
        by_restart = {start.restart: start for start in open_}
        for restart in range(first, shown.restart):
            before = by_restart.get(restart)
            if before is None:
                before = history.unseen_start(shown, restart, doc)
                if self._is_known(before.attempt):
                    continue
            self._close(before, shown, doc)

    def _close(self, before: AttemptDoc, shown: ShownJob, doc: AttemptDoc) -> None:
        successor = shown.base.restarted(before.restart + 1)
        lost = history.lost_nodes(before, self._nodes)
        was_seen = before.state is not SlurmState.REQUEUED
        past = self._history(before.slurm_job) if was_seen else ()
        by = history.requeued_by(before, successor, self._inputs.own_actions, lost, past)
        if not was_seen:
            by = EndedBy.AGENT if self._inputs.own_actions.has_requeued(successor.name) else EndedBy.UNKNOWN
        why = []
        if by is EndedBy.SLURM:
            why.append(history.lost_sentence(lost, self._nodes))
        if was_seen and by in (EndedBy.SLURM, EndedBy.UNKNOWN) and before.state not in ENDED:
            found = self._output(shown.job, before)
            why.append(found.text)
            before = replace(before, cause=found.cause)
        is_last = before.restart == shown.restart - 1
        at = doc.submitted_at if is_last else None  # SubmitTime is when it was put back
        closed = history.replaced(
            before, successor, at=at, by=by, lost=lost, why=" ".join(part for part in why if part), now=self._now
        )
        self._found.publish(closed)
        self._found.forget(closed)

    def _is_known(self, attempt: str) -> bool:
        shown = self._inputs.start(attempt)
        return shown is not None and shown.successor is not None

    def explained(self, job: Job, doc: AttemptDoc, before: AttemptDoc | None) -> AttemptDoc:
        """With why it failed, or how its steps ended where it did not, reported once; and who cancelled it, asked until
        accounting tells."""
        if doc.state is SlurmState.COMPLETED:
            return self._with_step_codes(job, doc, before)
        if doc.state is SlurmState.CANCELLED and doc.ended_by is EndedBy.USER:
            doc = self._with_canceller(doc, before)
        if doc.state not in history.FAILED or (before is not None and before.state in ENDED):
            if before is None or not before.detail or doc.detail:
                return doc
            return replace(doc, detail=before.detail, cause=before.cause)
        parts = [doc.detail]
        if doc.state is SlurmState.NODE_FAIL:
            parts.append(history.lost_sentence(history.lost_nodes(doc, self._nodes), self._nodes))
        found = self._output(job, doc)
        parts.append(found.text)
        return replace(doc, detail=clip(" ".join(part for part in parts if part)), cause=found.cause)

    def _with_step_codes(self, job: Job, doc: AttemptDoc, before: AttemptDoc | None) -> AttemptDoc:
        """A script may end with 0 although its training has crashed. Raises: SlurmUnavailable."""
        if before is not None and before.state is SlurmState.COMPLETED:
            return replace(
                doc,
                step_exit_code=before.step_exit_code,
                step_exit_signal=before.step_exit_signal,
                detail=doc.detail or before.detail,
                cause=doc.cause or before.cause,
            )
        code, number = self._inputs.reads.step_codes(job.job)
        doc = replace(doc, step_exit_code=code, step_exit_signal=number)
        if code is None and doc.restart < len(past := self._history(job.job)):
            doc = history.with_step_status(doc, past[doc.restart])
        if not (doc.step_exit_code or doc.step_exit_signal):
            return doc
        found = self._output(job, doc)
        return replace(doc, detail=clip(" ".join(part for part in (doc.detail, found.text) if part)), cause=found.cause)

    def _with_canceller(self, doc: AttemptDoc, before: AttemptDoc | None) -> AttemptDoc:
        """`ended_by` stays unknown for as long as accounting, which lags the end, may still tell."""
        if before is not None and before.state is SlurmState.CANCELLED and before.ended_by is not EndedBy.UNKNOWN:
            return replace(doc, cancelled_by=before.cancelled_by, ended_by=before.ended_by)
        past = self._history(doc.slurm_job)
        uid = canceller_of(past[doc.restart].word) if doc.restart < len(past) else None
        may_come = self._settings.has_history and self._now - (doc.ended_at or self._now) < TELLS_CANCELLER
        if uid is None and may_come:
            return replace(doc, ended_by=EndedBy.UNKNOWN)
        return cancelled(doc, uid, self._settings.slurm_uid)

    def _output(self, job: Job, doc: AttemptDoc) -> OutputVerdict:
        return self._inputs.files.failure(doc.attempt, (doc.stdout, expand(job.stderr, job)), job.uid, job.gid)

    def _history(self, job: int) -> tuple[PastStart, ...]:
        if job not in self._past:
            try:
                self._past[job] = self._inputs.reads.history(job, self._settings) if self._settings.has_history else ()
            except SlurmUnavailable:  # accounting that is away must not hide the job
                self._past[job] = ()
                self._unanswered.add(job)
            except SlurmError:
                self._past[job] = ()
        return self._past[job]

    def _waits_for_history(self, job: int) -> bool:
        """Accounting that is away for some minutes: it may still tell how the job ended."""
        self._history(job)
        if job not in self._unanswered:
            return False
        since = self._found.held.vanished.setdefault(job, self._before.vanished.get(job, self._now))
        if self._now - since > WAITS_FOR_HISTORY:
            return False
        self._found.problems.append(f"job {job} is gone, and sacct does not answer: how it ended is not known yet")
        return True

    # ---- jobs that are not shown any more

    def look_for_the_vanished(self, there: set[int]) -> None:
        lost = sorted({doc.slurm_job for doc in self._found.held.docs.values()} - there)
        if not lost:
            return
        settings = self._inputs.reads.settings()
        if settings.up_s < SETTLED_S:
            self._found.problems.append(
                f"slurmctld is up for {settings.up_s:.0f} s: {len(lost)} jobs are not looked for yet"
            )
            return
        for number in lost[:MAX_VANISHED]:
            try:
                self._close_the_vanished(number)
            except (Unreadable, MailboxError) as err:
                self._found.problems.append(clip(f"job {number}: {err}", 300))
            except SlurmUnavailable:
                raise
            except Exception as err:  # as in `_look_at_one`
                log.exception("job=%s", number)
                self._found.problems.append(clip(f"job {number}: internal error: {type(err).__name__}: {err}", 300))

    def _close_the_vanished(self, number: int) -> None:
        if self._inputs.reads.job(number) is not None:
            return
        starts = self._found.starts_of(number)
        if any(doc.state not in ENDED for doc in starts) and self._waits_for_history(number):
            return
        for doc in starts:
            past = () if doc.state in ENDED else self._history(number)
            closed = history.forgotten_start(doc, past, self._inputs.own_actions, self._now, self._settings.slurm_uid)
            self._found.publish(closed)
            self._found.forget(closed)
        self._found.forget_capture(number)
