"""One reading of Slurm: what changed since the one before, as documents, news and memory.

Everything new is gathered here, and taken over by the watcher when the look was whole.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, NodesDoc, SlurmState
from rekindle.protocol.cluster.followed import MAX_FOLLOWED, FollowedDoc, followed_key
from rekindle.protocol.cluster.names import attempt_key, nodes_key, spec_key
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import News, NewsType, Reading, SlurmError, SlurmUnavailable
from rekindle.slurm_agent.copies.reads import SEVERAL
from rekindle.slurm_agent.copies.spec import take
from rekindle.slurm_agent.files.time_spent import TimeSpent
from rekindle.slurm_agent.files.workers import Hangs
from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.jobs import ENDED, Job
from rekindle.slurm_agent.reading.nodes import Node, Settings
from rekindle.slurm_agent.reading.numbers import Numbers
from rekindle.slurm_agent.reading.options import expand
from rekindle.slurm_agent.reading.run import TooMuch, Unreadable
from rekindle.slurm_agent.watching import history
from rekindle.slurm_agent.watching.attempt_docs import Shown, base_of, clip, job_news, waiting_for
from rekindle.slurm_agent.watching.context import ATTEMPT, KNOWN, NODES, LookInputs, LookMemory
from rekindle.slurm_agent.watching.known import Known, asked_for, completed, is_old, print_of, remembered, with_exclude
from rekindle.slurm_agent.watching.node_facts import facts_of, is_news, node_news
from rekindle.slurm_agent.watching.ready import is_ready
from rekindle.slurm_agent.watching.roster import FollowedJob

log = logging.getLogger(__name__)

SETTLED_S: Final = 60.0
USER_S: Final = 5.0  # what the jobs of one user may cost in one look; the others of his are looked at in the next
MAX_VANISHED: Final = 50  # looked after in one look; the others in the next
# A change of one of these is news; any other only changes the document.
TOLD: Final = ("state", "successor", "held", "nodes", "spec", "ended_by", "requeued_by", "is_known", "job_id", "policy")


class SlurmLook:
    """One reading: everything new is gathered here, and taken over by the watcher when the reading was whole."""

    def __init__(self, ways: LookInputs, held: LookMemory, now: datetime, settings: Settings) -> None:
        self._ways = ways
        self._before = held
        self._now = now
        self._settings = settings
        self._reads = ways.reads
        self._cluster = ways.cluster
        self._deeds = ways.deeds
        self._joining = ways.joining
        self.held = LookMemory(docs=dict(held.docs), known=dict(held.known), nodes=held.nodes)
        self.held.followed = held.followed
        self._numbers = Numbers(ways.cluster, ways.start, before=held.numbers, now=self.held.numbers)
        self.members: list[FollowedJob] = []
        self.arn = ""
        self._documents: dict[str, bytes] = {}
        self._news: list[News] = []
        self._memory: dict[str, bytes | None] = {}
        self._problems: list[str] = []
        self._seen_nodes: dict[str, Node] = {}
        self._fresh: Mapping[int, Mapping[str, str]] = {}  # what many jobs were asked at once
        self._steps: Mapping[str, int] | None = None
        self._past: dict[int, tuple[tuple[str, str, str], ...]] = {}

    def look(self) -> Reading:
        """Raises: SlurmError."""
        jobs = self._reads.jobs()
        self._fresh = self._joining.learn(jobs, self._settings.state_location, self._now)
        self._seen_nodes = {node.name: node for node in self._reads.nodes()}
        tracked = {doc.slurm_job: doc for doc in sorted(self.held.docs.values(), key=lambda one: one.restart)}
        try:
            self._look_at_nodes(jobs, lambda job: job.job in tracked or self._joining.said(job) is not None)
        except MailboxError as err:
            self._problems.append(clip(f"nodes: {err}", 300))
        waiting = waiting_for(jobs)
        taken: set[str] = set()
        spent = TimeSpent(USER_S)
        self._numbers.ask([job for job in jobs if self._joining.said(job)], tracked)
        self._ask_about_many([job for job in jobs if job.job in tracked or self._joining.said(job) is not None])
        for job in sorted(jobs, key=lambda one: (one.job not in self._before.later, one.job)):
            said = self._joining.said(job)
            if job.job in tracked and self._joining.is_out(job):
                self._let_out(job)
            elif said is None and job.job in tracked:
                said = remembered(tracked[job.job])
            if said is None or job.is_lump or self._is_copy_held_back(job, said):
                continue
            if spent.is_over(job.user):
                self._look_later(job)
                continue
            with spent.by(job.user):
                self._look_at_one(job, said, waiting.get(job.job, ()), taken)
        self._problems += [f"user {user}: its other jobs are looked at in the next turns" for user in spent.over()]
        self._look_for_the_vanished({job.job for job in jobs})
        self._list_what_is_followed()
        return Reading(
            documents=self._documents, news=tuple(self._news), memory=self._memory, problems=tuple(self._problems[:50])
        )

    def _is_copy_held_back(self, job: Job, said: comment.Comment) -> bool:
        """A copy that is being compared with its original, or was cancelled for a difference, is no attempt."""
        never_ran = job.restart == 0 and not job.node_list and (job.is_held or job.state in ENDED)
        return never_ran and said.attempt is not None and self._deeds.is_unproven(said.attempt)

    def _look_at_one(self, job: Job, said: comment.Comment, dependents: Sequence[int], taken: set[str]) -> None:
        """Whatever is strange about one job, even a defect of ours that only it brings out, must not hide the others.

        Raises: SlurmUnavailable, which is about all of them.
        """
        try:
            why = self._numbers.another(job, self.held.docs.values())
            if why:
                self._leave_alone(job, why)
                return
            self._look_at(job, said, dependents, taken)
        except (Unreadable, MailboxError) as err:
            self._problems.append(clip(f"job {job.job}: {err}", 300))
        except SlurmUnavailable:
            raise
        except Exception as err:
            log.exception("job=%s", job.job)
            self._problems.append(clip(f"job {job.job}: internal error: {type(err).__name__}: {err}", 300))

    def _leave_alone(self, job: Job, why: str) -> None:
        """Its name is the known job's, for the monitor on its nodes as well: it cannot be protected under it."""
        self._problems.append(clip(f"{why}; it is not protected, see FirstJobId in the guide", 300))
        for doc in [one for one in self.held.docs.values() if one.slurm_job == job.job]:
            closed = history.taken_over(doc, why, self._deeds, self._now)
            self._publish(closed)
            self._forget(closed)
        self._forget_capture(job.job)

    def _let_out(self, job: Job) -> None:
        for doc in [one for one in self.held.docs.values() if one.slurm_job == job.job]:
            self._publish(history.let_out(doc, self._now))
            self._forget(doc)
        self._forget_capture(job.job)

    def _forget_capture(self, number: int) -> None:
        self.held.known.pop(number, None)
        self._memory[f"{KNOWN}{number}"] = None

    def _look_later(self, job: Job) -> None:
        """It keeps what the last reading has shown; the next one begins with it."""
        self.held.later.add(job.job)
        if job.job in self._before.prints:
            self.held.prints[job.job] = self._before.prints[job.job]
            self.held.details[job.job] = self._before.details[job.job]
        member = self._before.members.get(job.job)
        if member is not None:
            self._keep_member(job.job, member)

    def _keep_member(self, job: int, member: FollowedJob) -> None:
        self.members.append(member)
        self.held.members[job] = member

    # ---- nodes

    def _look_at_nodes(self, jobs: tuple[Job, ...], is_ours: Callable[[Job], bool]) -> None:
        resources = self._ways.node_map.read()
        self.arn = resources.arn
        facts = facts_of(self._seen_nodes.values(), jobs, resources, is_ours)
        before, self.held.nodes = self.held.nodes, {one.name: one for one in facts}
        if before is not None and before == self.held.nodes:
            return
        doc = NodesDoc(cluster=self._cluster, seen_at=self._now, nodes=facts)
        self._documents[nodes_key(self._cluster)] = doc.to_json()
        self._memory[NODES] = json.dumps([one.to_wire() for one in facts], separators=(",", ":")).encode()
        for one in facts:
            if is_news(one, (before or {}).get(one.name), is_first=before is None):
                detail = node_news(self._cluster, one, self._now)
                self._news.append(News(type=NewsType.NODE, at=self._now, detail=detail))

    # ---- jobs

    def _look_at(self, job: Job, said: comment.Comment, dependents: Sequence[int], taken: set[str]) -> None:
        detail = self._detail(job)
        if detail is None:
            return
        known = self._capture(job, detail)
        said = completed(self._ways.owners.own(said, job), known)
        base = base_of(self._cluster, job, said, taken)
        taken.add(base.name)
        own = self.held.docs.get(base.restarted(job.restart).name)
        if own is not None and own.started_at is not None:
            job = replace(job, is_taken_down=False)  # it is this start itself that ends
        shown = Shown(
            job=job,
            base=base,
            said=said,
            detail=detail,
            has_auto_resume=known.has_auto_resume,
            spec=known.sha256,
            cannot=known.cannot,
            dependents=tuple(dependents),
        )
        shown = replace(shown, is_ready=self._is_ready(shown, self.held.docs.get(shown.attempt.name)))
        before = self.held.docs.get(shown.attempt.name)
        doc = history.now_of(self._cluster, shown, before, self._deeds, self._now)
        self._close_the_earlier(shown, doc)
        doc = self._explained(job, doc, before)
        self._publish(doc)
        self._keep_member(
            job.job,
            FollowedJob(
                job_id=said.job or base.name,
                slurm_job=job.job,
                attempt=doc.attempt,
                mailbox=doc.mailbox,
                checkpoints=doc.checkpoints,
                uid=job.uid,
                gid=job.gid,
                is_running=doc.state not in ENDED,
            ),
        )

    def _ask_about_many(self, protected: Sequence[Job]) -> None:
        """At the first reading, and after a storm of changes: one command instead of one for each."""
        changed = [job for job in protected if not job.is_lump and self._before.prints.get(job.job) != print_of(job)]
        if len(changed) > SEVERAL:
            try:
                self._fresh = {**self._fresh, **self._reads.details(changed)}
            except TooMuch:
                return  # one user's records must not keep anybody else's from being read: they are asked singly

    def _detail(self, job: Job) -> Mapping[str, str] | None:
        """None: the job went while we looked."""
        seen = print_of(job)
        detail = self._before.details.get(job.job)
        if detail is None or self._before.prints.get(job.job) != seen:
            try:
                detail = self._fresh.get(job.job) or self._reads.detail(job)
            except SlurmUnavailable:
                raise
            except SlurmError:
                return None
        self.held.prints[job.job], self.held.details[job.job] = seen, detail
        return detail

    def _capture(self, job: Job, detail: Mapping[str, str]) -> Known:
        wanted = asked_for(job, detail)
        before = self.held.known.get(job.job)
        if before is not None and before.is_final and (before.asked_for == wanted or job.state in ENDED):
            return before
        taken = take(self._reads, self._settings, job, detail)
        own = (taken.spec.options.get("exclude") or "") if taken.spec is not None else ""
        exclude = before.exclude if before is not None and before.sha256 is not None else own
        taken = with_exclude(taken, exclude)
        known = Known.of(taken, wanted, exclude, is_old=is_old(job, self._now))
        if before == known:
            return known
        body = taken.body
        if body is not None and known.sha256 is not None:
            self._documents[spec_key(self._cluster, known.sha256)] = body
        self.held.known[job.job] = known
        self._memory[f"{KNOWN}{job.job}"] = known.to_json()
        return known

    def _is_ready(self, shown: Shown, before: AttemptDoc | None) -> bool | None:
        if shown.job.state is not SlurmState.RUNNING:
            return None
        if before is not None and before.is_ready and before.state is SlurmState.RUNNING:
            return True  # a run that once caught signals goes on to do so
        if self._steps is None:
            self._steps = self._reads.steps()
        try:
            return is_ready(shown, self._steps.get(shown.job.step_key, 0), self._ways.files)
        except Hangs as err:
            self._problems.append(clip(f"job {shown.job.job}: {err}", 300))
            return None

    def _close_the_earlier(self, shown: Shown, doc: AttemptDoc) -> None:
        """Every start before this one is over, and its document says what took its place."""
        open_ = [
            one for one in self.held.docs.values() if one.slurm_job == doc.slurm_job and one.restart < shown.restart
        ]
        first = min((one.restart for one in open_), default=None)
        if first is None and shown.attempt.name not in self.held.docs:
            first = max(0, shown.restart - history.MAX_FORERUNNERS)
        if first is None:
            return
        by_restart = {one.restart: one for one in open_}
        for restart in range(first, shown.restart):
            before = by_restart.get(restart)
            if before is None:
                before = history.forerunner(shown, restart, doc)
                if self._is_told(before.attempt):
                    continue
            self._close(before, shown, doc)

    def _close(self, before: AttemptDoc, shown: Shown, doc: AttemptDoc) -> None:
        successor = shown.base.restarted(before.restart + 1)
        lost = history.lost_nodes(before, self._seen_nodes)
        was_seen = before.state is not SlurmState.REQUEUED
        past = self._history(before.slurm_job) if was_seen else ()
        by = history.requeued_by(before, successor, self._deeds, lost, past)
        if not was_seen:
            by = EndedBy.AGENT if self._deeds.has_requeued(successor.name) else EndedBy.UNKNOWN
        why = []
        if by is EndedBy.SLURM:
            why.append(history.lost_sentence(lost, self._seen_nodes))
        if was_seen and by in (EndedBy.SLURM, EndedBy.UNKNOWN) and before.state not in ENDED:
            why.append(self._output(shown.job, before))
        is_last = before.restart == shown.restart - 1
        at = doc.submitted_at if is_last else None  # SubmitTime is when it was put back
        closed = history.replaced(
            before, successor, at=at, by=by, why=" ".join(part for part in why if part), now=self._now
        )
        self._publish(closed)
        self._forget(closed)

    def _is_told(self, attempt: str) -> bool:
        told = self._ways.start(attempt)
        return told is not None and told.successor is not None

    def _explained(self, job: Job, doc: AttemptDoc, before: AttemptDoc | None) -> AttemptDoc:
        """With why it failed, reported once."""
        if doc.state not in history.FAILED or (before is not None and before.state in ENDED):
            return doc if before is None or not before.detail or doc.detail else replace(doc, detail=before.detail)
        parts = [doc.detail]
        if doc.state is SlurmState.NODE_FAIL:
            parts.append(history.lost_sentence(history.lost_nodes(doc, self._seen_nodes), self._seen_nodes))
        parts.append(self._output(job, doc))
        return replace(doc, detail=clip(" ".join(part for part in parts if part)))

    def _output(self, job: Job, doc: AttemptDoc) -> str:
        return self._ways.files.failure(doc.attempt, (doc.stdout, expand(job.stderr, job)), job.uid, job.gid)

    def _history(self, job: int) -> tuple[tuple[str, str, str], ...]:
        if job not in self._past:
            try:
                self._past[job] = self._reads.history(job, self._settings) if self._settings.has_history else ()
            except SlurmError:  # accounting that is away must not keep anybody from seeing the job
                self._past[job] = ()
        return self._past[job]

    # ---- jobs that are not shown any more

    def _look_for_the_vanished(self, there: set[int]) -> None:
        lost = sorted({doc.slurm_job for doc in self.held.docs.values()} - there)
        if not lost:
            return
        settings = self._reads.settings()
        if settings.up_s < SETTLED_S:
            self._problems.append(f"slurmctld is up for {settings.up_s:.0f} s: {len(lost)} jobs are not looked for yet")
            return
        for number in lost[:MAX_VANISHED]:
            try:
                self._close_the_vanished(number)
            except (Unreadable, MailboxError) as err:
                self._problems.append(clip(f"job {number}: {err}", 300))
            except SlurmUnavailable:
                raise
            except Exception as err:  # as in `_look_at_one`
                log.exception("job=%s", number)
                self._problems.append(clip(f"job {number}: internal error: {type(err).__name__}: {err}", 300))

    def _close_the_vanished(self, number: int) -> None:
        if self._reads.job(number) is not None:
            return
        for doc in [one for one in self.held.docs.values() if one.slurm_job == number]:
            past = () if doc.state in ENDED else self._history(number)
            closed = history.gone(doc, past, self._deeds, self._now)
            self._publish(closed)
            self._forget(closed)
        self._forget_capture(number)

    # ---- telling

    def _list_what_is_followed(self) -> None:
        """For an agent that loses its memory."""
        names = tuple(sorted(self.held.docs))[:MAX_FOLLOWED]
        if names != self.held.followed:
            self.held.followed = names
            doc = FollowedDoc(cluster=self._cluster, attempts=names)
            self._documents[followed_key(self._cluster)] = doc.to_json()

    def _publish(self, doc: AttemptDoc) -> None:
        before = self.held.docs.get(doc.attempt)
        if before is not None and replace(before, seen_at=doc.seen_at) == doc:
            return
        body = doc.to_json()
        self._ways.owners.learn((doc,))
        self.held.docs[doc.attempt] = doc
        self._documents[attempt_key(doc.attempt)] = body
        self._memory[f"{ATTEMPT}{doc.attempt}"] = body
        if before is None or any(getattr(before, name) != getattr(doc, name) for name in TOLD):
            self._news.append(job_news(doc, self._now))

    def _forget(self, doc: AttemptDoc) -> None:
        """Nothing more will be reported about it."""
        self.held.docs.pop(doc.attempt, None)
        self._memory[f"{ATTEMPT}{doc.attempt}"] = None
