"""Notices to people: a page without a reason, too many about one Incident."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.action import Severity
from chalicelib.ports.notices import Notice, NoticeKind
from simulation.judging.excuses import UNWATCHED_AFTER
from simulation.judging.knowable import (
    shows_its_end,
)
from simulation.judging.scene import Part, Scene
from simulation.runs.truth import Attempt, TrueRun

PAGED_WITHIN: Final = timedelta(minutes=30)  # of trouble, an outage or a person's action: a page has its reason
MANY_PAGES: Final = 3  # of one Incident: what cannot be read, a hand-over, and one more
ORDER_NOT_TAKEN: Final = "an order was not taken"  # how the notice that refuses an order is titled
_STRANGE: Final = ("spike", "torn_save", "flipped_save", "blip", "saves_deleted")


class Pages(Part):
    """What people are told."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._pages: Counter[str | None] = Counter()
        self._strange: dict[str, tuple[tuple[int, int], datetime | None]] = {}  # of a run: see `note_strange`

    def notified(self, notice: Notice) -> None:
        run = self._world.run_of_job(notice.job_id)
        if notice.severity is Severity.INFO or notice.kind is NoticeKind.CHANGE:
            return
        if run is not None:
            self._scene.reckoning.told(run)
        if run is not None and run.ill is not None:
            run.ill.is_notified = True
        if run is not None and notice.title.endswith(ORDER_NOT_TAKEN):
            self._take_back_order(run)
        if notice.severity is Severity.PAGE:
            self._scene.figures.pages += 1
            if not notice.approval_id:  # each question is about another step, and is asked once
                self._judge_page(notice, run)

    def _take_back_order(self, run: TrueRun) -> None:
        """The person's order that the service has just refused never was."""
        if run.stopped_before_order_at is not None:
            run.owner_stopped_at, run.is_ordered = run.stopped_before_order_at, False
        elif run.is_stop_ordered:
            run.stop_orders -= 1  # another one may stand: the refused one came while it was carried out
            run.owner_stopped_at = run.owner_stopped_at if run.is_stop_ordered else None

    def _judge_page(self, notice: Notice, run: TrueRun | None) -> None:
        self._pages[notice.incident_id] += 1
        if self._pages[notice.incident_id] == MANY_PAGES + 1:
            self._count("paged_again", run.name if run is not None else "", notice.title)
        if run is not None and run.ill is None:
            self._judge_reason(notice, run)

    def _judge_reason(self, notice: Notice, run: TrueRun) -> None:
        """Count a page about a run that is well, and of which nothing has given a reason lately."""
        link = self._link_that_goes_on(run)
        since = link.trains_since if link is not None else None  # then the trouble before it is no reason
        ended = [ill.until for ill in run.ills if ill.until is not None and (since is None or ill.since >= since)]
        recent = [at for at in (*ended, self._scene.disturbed_at) if at is not None and self._now - at < PAGED_WITHIN]
        if recent or run.owner_stopped or run.owner_took_it or self._is_disturbed(run):
            return
        if run.is_ordered and not run.live:  # the answer to an order that cannot be carried out
            return
        if run.is_finished and not shows_its_end(run, self._world.source_faults, self._now):
            return  # that it completed proves no finish (domain/run/ending.py)
        self._count("paged_for_nothing", run.name, notice.title)

    def _link_that_goes_on(self, run: TrueRun) -> Attempt | None:
        """The next link of its chain, which trains, as the head node shows."""
        head_is_late = self._world.source_faults.head_is_away() or self._world.source_faults.head_late() > timedelta(0)
        links = (attempt for attempt in run.live if attempt.is_link and attempt.trains_since is not None)
        return None if head_is_late else next(links, None)

    def _is_disturbed(self, run: TrueRun) -> bool:
        """Something is, or within ten minutes has become, as people should know it: an outage of ours, processes that
        are stopped, no capacity, a start from a bad save or of a trainer that does as it likes.
        """
        if self._world.source_faults.outage_until() is not None:
            return True
        if any(attempt.suspended_at is not None for attempt in run.live):
            return True
        if any(node.condemned for attempt in run.live for node in attempt.nodes):
            return True  # HyperPod wants it rebooted; that this is false, no source shows
        self.note_strange(run)
        _, at = self._strange.get(run.name, ((0, 0), None))
        shown = self._world.source_faults.seen_at(run.name, self._now)
        return at is not None and (self._now - at < UNWATCHED_AFTER or shown is None or shown - at < UNWATCHED_AFTER)

    def note_strange(self, run: TrueRun) -> None:
        """When the newest trouble with the loss or a save struck; after one, or with a trainer that does as it likes,
        when the newest attempt came.
        """
        struck = sum(count for trouble, count in run.struck.items() if trouble.kind in _STRANGE)
        is_strange = struck > 0 or run.spec.plan != "obeyed" or run.refused > 0
        state = (struck + run.refused, len(run.attempts) if is_strange else 0)
        before, _ = self._strange.get(run.name, ((0, 0), None))
        if state != before:
            self._strange[run.name] = (state, self._now)
