"""What a protected job says, also after another tool has overwritten its comment.

HyperPod's cluster agent and job-submit plug-ins write comments of their own. Which Job and attempt a job is was written
once, and does not change: it is taken from what is followed, and of a submission of ours that is not followed yet from
the path of its script, which slurmctld shows as `Command` and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, JobSpec
from rekindle.protocol.cluster.names import first_attempt, parse_attempt
from rekindle.slurm_agent.copies.script_file import attempt_of
from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.sizes import MIN_NODES
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.owners import Owners

MAX_KEPT: Final = 5_000
_NOTHING: Final = comment.Comment()


class Protection:
    """`start`: see `Watch`. `spec`: see `Watch`. For two threads."""

    def __init__(
        self,
        cluster: str,
        joining: Joining,
        owners: Owners,
        *,
        start: Callable[[str], AttemptDoc | None],
        spec: Callable[[str], JobSpec | None],
    ) -> None:
        self._cluster = cluster
        self._joining = joining
        self._owners = owners
        self._start = start
        self._spec = spec
        self._kept: dict[str, comment.Comment] = {}  # by attempt

    def of(self, job: Job, before: AttemptDoc | None, kept: str) -> comment.Comment | None:
        """What the job asks for; None where it is not protected. before: its newest start that is followed. kept: the
        last comment of its own that asked for protection, "" where none is known.

        Raises: SlurmUnavailable where that is unknown now.
        """
        if self._joining.is_out(job):
            return None
        own = comment.parse(job.comment)
        if before is not None:
            asked = own or self._joining.asked_later(job) or comment.parse(kept) or self._kept_of(before)
            is_silent = own is None or own.job is None
            attempt = parse_attempt(before.attempt).restarted(0).name
            return replace(asked, attempt=attempt, job=before.job_id if is_silent else asked.job)
        found = own or self._joining.asked(job)
        if found is not None and found.attempt is not None:
            return found
        named = self._submitted_as(job)
        if named is None:
            return found
        asked = found or self._asked_at_first(named) or _NOTHING
        first = parse_attempt(named).base.partition("-")[0]
        return replace(asked, attempt=named, job=asked.job or first_attempt(self._cluster, int(first)).name)

    def _kept_of(self, doc: AttemptDoc) -> comment.Comment:
        """What it asked for when it was captured: where this agent has not seen that itself."""
        if doc.attempt not in self._kept:
            spec = self._spec(doc.spec) if doc.spec is not None else None
            asked = comment.parse((spec.options.get("comment") or "") if spec is not None else "")
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[doc.attempt] = asked or remembered(doc)
        return self._kept[doc.attempt]

    def _submitted_as(self, job: Job) -> str | None:
        """The attempt that a submission of ours is; only a Job of its own user counts."""
        named = attempt_of(job.command)
        if named is None or job.is_lump or not parse_attempt(named).base.partition("-")[0].isdigit():
            return None
        return self._owners.own(replace(_NOTHING, attempt=named), job).attempt

    def _asked_at_first(self, named: str) -> comment.Comment | None:
        number = int(parse_attempt(named).base.partition("-")[0])
        first = self._start(first_attempt(self._cluster, number).name)
        return None if first is None else self._kept_of(first)


def remembered(doc: AttemptDoc) -> comment.Comment:
    """A job stays protected when its comment is changed: the Job is registered."""
    return comment.Comment(
        policy=doc.policy,
        job=doc.job_id,
        attempt=parse_attempt(doc.attempt).restarted(0).name,
        mailbox=doc.mailbox,
        checkpoints=doc.checkpoints,
        signal=doc.signal,
        others=() if doc.min_nodes is None else ((MIN_NODES, str(doc.min_nodes)),),
    )
