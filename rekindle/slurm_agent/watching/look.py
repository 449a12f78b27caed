"""One reading of Slurm: what changed since the one before, as documents, news and memory.

Everything new is gathered here, and taken over by the watcher when the look was whole.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from rekindle.protocol.cluster.documents import (
    MAX_FOLLOWED,
    AttemptDoc,
    FollowedDoc,
    NodesDoc,
    SlurmState,
    followed_key,
)
from rekindle.protocol.cluster.names import nodes_key
from rekindle.protocol.run_places import RunPlaces
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import Reading, SlurmError, SlurmUnavailable
from rekindle.slurm_agent.copies.reads import SEVERAL
from rekindle.slurm_agent.copies.script_file import never_ran_as
from rekindle.slurm_agent.files.time_spent import TimeSpent
from rekindle.slurm_agent.files.workers import Hangs
from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.jobs import ENDED, Job
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.numbers import Numbers
from rekindle.slurm_agent.reading.run import TooMuch, Unreadable
from rekindle.slurm_agent.watching import history
from rekindle.slurm_agent.watching.attempt_docs import ShownJob, base_of, clip, waiting_for
from rekindle.slurm_agent.watching.captures import JobCapture, asked_for, change_key, completed, is_old
from rekindle.slurm_agent.watching.context import KNOWN, NODES, LookInputs, LookMemory, ReadingChanges
from rekindle.slurm_agent.watching.endings import EndedStarts
from rekindle.slurm_agent.watching.followed_jobs import FollowedJob
from rekindle.slurm_agent.watching.node_facts import facts_of, is_news, node_news
from rekindle.slurm_agent.watching.signal_readiness import is_ready

log = logging.getLogger(__name__)

USER_S: Final = 5.0  # what the jobs of one user may cost in one look; the others of his are looked at in the next


class SlurmLook:
    """One reading: everything new is gathered here, and taken over by the watcher when the reading was whole."""

    def __init__(self, inputs: LookInputs, held: LookMemory, now: datetime, settings: Settings) -> None:
        self._inputs = inputs
        self._before = held
        self._now = now
        self._settings = settings
        self._reads = inputs.reads
        self._cluster = inputs.cluster
        self._joining = inputs.joining
        self.held = LookMemory(docs=dict(held.docs), known=dict(held.known), nodes=held.nodes)
        self.held.followed = held.followed
        self._numbers = Numbers(inputs.cluster, inputs.start, before=held.numbers, now=self.held.numbers)
        self.members: list[FollowedJob] = []
        self.arn = ""
        self._found = ReadingChanges(self.held, inputs.owners, now)
        self._fresh: Mapping[int, Mapping[str, str]] = {}  # what many jobs were asked at once
        self._steps: Mapping[str, int] | None = None
        self._many_since: float | None = None  # when many had been read, by time.monotonic

    def look(self) -> Reading:
        """Raises: SlurmError."""
        jobs = self._reads.jobs()
        self._fresh = self._joining.learn(jobs, self._inputs.captures.state(self._settings), self._now)
        self._nodes = {node.name: node for node in self._reads.nodes()}
        self._endings = EndedStarts(self._inputs, self._found, self._nodes, self._settings, self._now, self._before)
        tracked = {doc.slurm_job: doc for doc in sorted(self.held.docs.values(), key=lambda doc: doc.restart)}
        asked = self._asked_by(jobs, tracked)
        try:
            self._look_at_nodes(jobs, lambda job: job.job in tracked or job.job in asked)
        except MailboxError as err:
            self._found.problems.append(clip(f"nodes: {err}", 300))
        waiting = waiting_for(jobs)
        taken: set[str] = set()
        spent = TimeSpent(USER_S)
        self._numbers.ask([job for job in jobs if job.job in asked], tracked)
        self._ask_about_many([job for job in jobs if job.job in tracked or job.job in asked])
        for job in sorted(jobs, key=lambda job: (job.job not in self._before.later, job.job)):
            if job.job in tracked and self._joining.is_out(job):
                self._note_unprotected(job)
            asks = asked.get(job.job)
            if asks is None or job.is_lump or self._is_copy_held_back(job, asks):
                continue
            if self._is_late_copy(job, asks):
                continue
            if spent.is_over(job.user):
                self._look_later(job)
                continue
            with spent.by(job.user):
                self._look_at_one(job, asks, waiting.get(job.job, ()), taken)
        self._found.problems += [
            f"user {user}: its other jobs are looked at in the next turns" for user in spent.over()
        ]
        self._endings.look_for_the_vanished({job.job for job in jobs})
        self._list_what_is_followed()
        return self._found.reading()

    def _asked_by(self, jobs: Iterable[Job], tracked: Mapping[int, AttemptDoc]) -> dict[int, comment.Comment]:
        """What each protected job asks for, by its number."""
        found = {}
        for job in jobs:
            known = self.held.known.get(job.job)
            try:
                asked = self._inputs.protection.of(job, tracked.get(job.job), known.comment if known else "")
            except Unreadable as err:
                self._found.problems.append(clip(f"job {job.job}: {err}", 300))
                continue
            if asked is not None:
                found[job.job] = asked
        return found

    def _is_copy_held_back(self, job: Job, asked: comment.Comment) -> bool:
        """A copy that is being compared with its original, or was cancelled for a difference, is no attempt."""
        never_ran = job.restart == 0 and not job.node_list and (job.is_held or job.state in ENDED)
        return never_ran and asked.attempt is not None and self._inputs.own_actions.is_unproven(asked.attempt)

    def _is_late_copy(self, job: Job, asked: comment.Comment) -> bool:
        """slurmctld has made it after sbatch had given up, and the order was carried out by another copy."""
        if asked.attempt is None or never_ran_as(job) != asked.attempt:
            return False
        is_late_copy = self._inputs.own_actions.copy_of(asked.attempt) not in (None, job.job)
        if is_late_copy and job.state is SlurmState.PENDING:
            self.held.late_copies.add(job.job)
        return is_late_copy

    def _look_at_one(self, job: Job, asked: comment.Comment, dependents: Sequence[int], taken: set[str]) -> None:
        """Whatever is strange about one job, even a defect of ours that only it brings out, must not hide the others.

        Raises: SlurmUnavailable, which is about all of them.
        """
        try:
            why = self._numbers.another(job, self.held.docs.values())
            if why:
                self._leave_alone(job, why)
                return
            self._look_at(job, asked, dependents, taken)
        except (Unreadable, MailboxError) as err:
            self._found.problems.append(clip(f"job {job.job}: {err}", 300))
        except SlurmUnavailable:
            raise
        except Exception as err:
            log.exception("job=%s", job.job)
            self._found.problems.append(clip(f"job {job.job}: internal error: {type(err).__name__}: {err}", 300))

    def _leave_alone(self, job: Job, why: str) -> None:
        """Its name is the known job's, for the monitor on its nodes as well: it cannot be protected under it."""
        self._found.problems.append(clip(f"{why}; it is not protected, see FirstJobId in the guide", 300))
        for doc in self._found.starts_of(job.job):
            closed = history.taken_over(doc, why, self._inputs.own_actions, self._now)
            self._found.publish(closed)
            self._found.forget(closed)
        self._found.forget_capture(job.job)

    def _note_unprotected(self, job: Job) -> None:
        """One that waits because we hold it is let go first: its owner may not be allowed to."""
        docs = self._found.starts_of(job.job)
        for doc in docs:
            self._found.publish(history.unprotected(doc, self._now))
        if job.is_held and any(self._inputs.own_actions.holds(doc.attempt) for doc in docs):
            self.held.to_release.add(job.job)
            return
        for doc in docs:
            self._found.forget(doc)
        self._found.forget_capture(job.job)

    def _look_later(self, job: Job) -> None:
        """It keeps what the last reading has shown; the next one begins with it."""
        self.held.later.add(job.job)
        if job.job in self._before.change_keys:
            self.held.change_keys[job.job] = self._before.change_keys[job.job]
            self.held.details[job.job] = self._before.details[job.job]
        member = self._before.members.get(job.job)
        if member is not None:
            self._keep_member(job.job, member)

    def _keep_member(self, job: int, member: FollowedJob) -> None:
        self.members.append(member)
        self.held.members[job] = member

    # ---- nodes

    def _look_at_nodes(self, jobs: tuple[Job, ...], is_ours: Callable[[Job], bool]) -> None:
        resources = self._inputs.node_map.read()
        self.arn = resources.arn
        facts = facts_of(self._nodes.values(), jobs, resources, is_ours, self._now)
        before, self.held.nodes = self.held.nodes, {node.name: node for node in facts}
        if before is not None and before == self.held.nodes:
            return
        doc = NodesDoc(cluster=self._cluster, seen_at=self._now, nodes=facts)
        self._found.documents[nodes_key(self._cluster)] = doc.to_json()
        self._found.memory[NODES] = json.dumps([node.to_wire() for node in facts], separators=(",", ":")).encode()
        for node in facts:
            if is_news(node, (before or {}).get(node.name), is_first=before is None):
                self._found.node_news(node_news(self._cluster, node, self._now))

    # ---- jobs

    def _look_at(self, job: Job, asked: comment.Comment, dependents: Sequence[int], taken: set[str]) -> None:
        detail = self._detail(job)
        if detail is None:
            return
        known = self._capture(job, asked, detail)
        asked = completed(self._inputs.owners.own(asked, job), known)
        base = base_of(self._cluster, job, asked, taken)
        taken.add(base.name)
        own = self.held.docs.get(base.restarted(job.restart).name)
        if own is not None and own.started_at is not None:
            job = replace(job, is_taken_down=False)  # it is this start itself that ends
        shown = ShownJob(
            job=job,
            base=base,
            asked=asked,
            detail=detail,
            has_auto_resume=known.has_auto_resume,
            spec=known.spec,
            cannot=known.cannot,
            places=self._places(job, asked, own),
            dependents=tuple(dependents),
        )
        shown = replace(shown, is_ready=self._is_ready(shown, self.held.docs.get(shown.attempt.name)))
        before = self.held.docs.get(shown.attempt.name)
        doc = history.now_of(self._cluster, shown, before, self._inputs.own_actions, self._now)
        self._endings.close_the_earlier(shown, doc)
        doc = self._endings.explained(job, doc, before)
        self._found.publish(doc)
        self._keep_member(
            job.job,
            FollowedJob(
                job_id=asked.job or base.name,
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
        changed = [
            job for job in protected if not job.is_lump and self._before.change_keys.get(job.job) != change_key(job)
        ]
        unread = [job for job in changed if job.job not in self._fresh]
        if len(unread) > SEVERAL:
            with suppress(TooMuch):  # one user's records must not keep other users' from being read: asked singly
                self._fresh = {**self._fresh, **self._reads.details(unread)}
        if len(changed) > SEVERAL:
            self._many_since = time.monotonic()

    def _detail(self, job: Job) -> Mapping[str, str] | None:
        """None: the job went while we looked."""
        seen = change_key(job)
        detail = self._before.details.get(job.job)
        if detail is None or self._before.change_keys.get(job.job) != seen:
            try:
                detail = self._fresh.get(job.job) or self._reads.detail(job)
            except SlurmUnavailable:
                raise
            except SlurmError:
                return None
        self.held.change_keys[job.job], self.held.details[job.job] = seen, detail
        return detail

    def _capture(self, job: Job, asked: comment.Comment, detail: Mapping[str, str]) -> JobCapture:
        if comment.parse(job.comment) is None:  # a copy must say what this one does, wherever that stands
            # Without the attempt's name, which is known later: the capture must stay the same.
            job = replace(job, comment=comment.text_of(replace(asked, attempt=None)))
        wanted = asked_for(job, detail)
        before = self.held.known.get(job.job)
        if before is not None and before.is_final and (before.asked_for == wanted or job.state in ENDED):
            return before
        exclude = before.exclude if before is not None and before.spec is not None else None
        found = self._inputs.captures.capture(job, detail, self._settings, exclude, self._many_since)
        known = JobCapture.of(found, wanted, asked=job.comment, is_old=is_old(job, self._reads.now()))
        if before == known:
            return known
        self.held.known[job.job] = known
        self._found.memory[f"{KNOWN}{job.job}"] = known.to_json()
        return known

    def _places(self, job: Job, asked: comment.Comment, own: AttemptDoc | None) -> RunPlaces:
        """Where a start has found them: a link that is moved while it runs leads elsewhere for the next one alone."""
        is_known = own is not None and (own.mailbox, own.checkpoints) == (asked.mailbox, asked.checkpoints)
        if own is not None and own.started_at is not None and own.places is not None and is_known:
            return own.places
        return RunPlaces.of(asked.mailbox, asked.checkpoints, partial(self._real, job))

    def _real(self, job: Job, path: str) -> str:
        """The real path of a directory, as its user finds it, asked for once; as it is named where none is told.
        Before anything is started it is asked for again (`Siblings`)."""
        key = job.user, path
        real = self._before.real_paths.get(key) or self.held.real_paths.get(key)
        if real is None:
            try:
                real = self._inputs.files.resolved_folder(job.user, path, job.uid, job.gid)[0]
            except OSError:  # it does not answer, or may not be looked at
                real = path
        self.held.real_paths[key] = real
        return real

    def _is_ready(self, shown: ShownJob, before: AttemptDoc | None) -> bool | None:
        if shown.job.state is not SlurmState.RUNNING:
            return None
        if before is not None and before.is_ready and before.state is SlurmState.RUNNING:
            return True  # a run that once caught signals keeps doing so
        if self._steps is None:
            self._steps = self._reads.steps()
        try:
            return is_ready(shown, self._steps.get(shown.job.step_key, 0), self._inputs.files)
        except Hangs as err:
            self._found.problems.append(clip(f"job {shown.job.job}: {err}", 300))
            return None

    # ---- telling

    def _list_what_is_followed(self) -> None:
        """For an agent that loses its memory."""
        names = tuple(sorted(self.held.docs))[:MAX_FOLLOWED]
        if names != self.held.followed:
            self.held.followed = names
            doc = FollowedDoc(cluster=self._cluster, attempts=names)
            self._found.documents[followed_key(self._cluster)] = doc.to_json()
