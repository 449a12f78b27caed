"""What the watcher remembers of a job between looks, and across restarts of the agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.protocol.cluster.orders import Signal
from rekindle.protocol.launch_orders import ENV_CHECKPOINT_DIR, ENV_CHECKPOINT_URI, ENV_MAILBOX
from rekindle.slurm_agent.copies.spec import MAY_COME
from rekindle.slurm_agent.privileged.submissions import Capture
from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.jobs import ENDED, Job, plain_dependency

VERSION: Final = 4
# slurmctld writes its state some seconds after a submission; until then a script's arguments cannot be told.
SETTLES: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCapture:
    """A job's capture, without the spec itself. `asked_for` changes when the job's own options do.

    `signal` is what the script wants to be sent before its time limit (`#SBATCH --signal`): it saves on that. `comment`
    is what its comment asks for, or asked for before another tool has overwritten it.
    """

    spec: str | None  # its name, see copies/kept.py
    cannot: tuple[str, ...]
    has_auto_resume: bool | None
    exclude: str
    asked_for: str
    mailbox: str
    checkpoints: str
    signal: str | None
    signal_batch: bool
    is_final: bool
    comment: str = ""

    @classmethod
    def of(cls, found: Capture, asked_for: str, *, asked: str, is_old: bool) -> JobCapture:
        """asked: the comment to keep. is_old: what is missing now will not come any more, and is reported."""
        taken = found.taken
        is_final = taken.is_final or is_old
        facts = taken.facts
        warned = facts.warned if facts is not None and facts.warned in set(Signal) else None
        environment = {**(taken.spec.environment if taken.spec is not None else {}), **(facts.places if facts else {})}
        return cls(
            spec=found.name if is_final else None,
            cannot=tuple(reason for reason in taken.cannot if is_final or reason not in MAY_COME),
            has_auto_resume=facts.has_auto_resume if facts is not None else None,
            exclude=found.exclude,
            asked_for=asked_for,
            mailbox=_place(environment.get(ENV_MAILBOX)),
            checkpoints=_place(environment.get(ENV_CHECKPOINT_URI) or environment.get(ENV_CHECKPOINT_DIR)),
            signal=warned,
            signal_batch=warned is not None and facts is not None and facts.warned_batch,
            is_final=is_final,
            comment=asked,
        )

    def to_json(self) -> bytes:
        return json.dumps({"v": VERSION} | asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> JobCapture | None:
        """None for what another version of this agent kept: it is captured again."""
        try:
            found: Any = json.loads(raw)
            if not isinstance(found, dict) or found.pop("v", None) != VERSION:
                return None
            return cls(**{**found, "cannot": tuple(found["cannot"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _place(given: str | None) -> str:
    return given if given and len(given) <= 2048 and given.isprintable() else ""


def asked_for(job: Job, detail: Mapping[str, str]) -> str:
    """What a user or operator may change of a job that matters to a resubmission. Excluded nodes are not in it: those
    that we add must not become part of what the user asked for."""
    keys = ("Account", "QOS", "Reservation", "Features", "Licenses", "Nice", "OverSubscribe", "ReqNodeList")
    own = (job.name, job.partition, job.limit_s, job.may_requeue, job.comment, plain_dependency(job.dependency))
    return json.dumps([*own, *(detail.get(key) for key in keys)])


def is_old(job: Job, now: datetime) -> bool:
    """Whether slurmctld has written down all that it will about the job's submission. now: by its own host's clock."""
    return job.submitted is None or now - job.submitted > SETTLES


def change_key(job: Job) -> tuple[object, ...]:
    """What must change before a job is looked at more closely. A pending job's expected start and priority are left
    out: the scheduler moves them at every pass."""
    return (
        job.restart,
        job.word,
        job.reason,
        job.node_list,
        job.ends if job.state in ENDED else None,
        job.limit_s,
        job.may_requeue,
        job.partition,
        job.dependency,
        job.comment,
        job.name,
        job.is_held,
        job.is_taken_down,
    )


def completed(asked: comment.Comment, known: JobCapture) -> comment.Comment:
    """What the comment leaves open, as the submission's environment and the script say it."""
    is_silent = asked.signal is None
    return replace(
        asked,
        mailbox=asked.mailbox or known.mailbox,
        checkpoints=asked.checkpoints or known.checkpoints,
        signal=known.signal if is_silent else asked.signal,
        signal_batch=known.signal_batch if is_silent else asked.signal_batch,
    )
