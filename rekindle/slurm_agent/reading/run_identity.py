"""Which jobs are starts of one run. Pure.

Two jobs of one user are one run where they name the same Job, mailbox or checkpoint folder, wherever that is said;
where one is a link of the other's chain; or where the same script was submitted again in the same way after the other
had ended. A sweep's jobs, which are submitted side by side, are runs of their own, and so are jobs that name different
mailboxes, or different checkpoint folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from posixpath import join, normpath
from typing import Final

from rekindle.protocol.cluster.documents import OVER, SlurmState
from rekindle.protocol.cluster.orders import RunTie, Standing
from rekindle.protocol.launch_orders import ENV_CHECKPOINT_DIR, ENV_JOB_ID, ENV_MAILBOX
from rekindle.protocol.run_places import one_spelling
from rekindle.slurm_agent.reading.comment import Comment
from rekindle.slurm_agent.reading.jobs import dependencies

NEVER: Final = "DependencyNeverSatisfied"
_SINGLETON: Final = "singleton"
# Dependencies that the end of a run that failed satisfies: its next link begins by itself then.
_AFTER_FAILURE: Final = frozenset({"after", "afterany", "afternotok"})
_AFTER_SUCCESS: Final = frozenset({"after", "afterany", "afterok", "aftercorr"})
_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
# Differ from shell to shell and from job to job, whatever a script uses them for.
_OF_A_SESSION: Final = re.compile(
    r"_|PWD|OLDPWD|SHLVL|HOSTNAME|TMPDIR|RANDOM|SECONDS|SSH_.*|XDG_.*|SLURM.*|REKINDLE_.*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of one job as a start of a run.

    `says`: what it asks for, wherever that stands. `environment`: its submission's. `output` as Slurm shows it, with or
    without its own number in it. `arguments` None: not known. `job_id` and `started_at` are None where there is none.
    """

    job: int
    user: str
    name: str = ""
    folder: str = ""
    output: str = ""
    script: str | None = None
    arguments: tuple[str, ...] | None = None
    says: tuple[Comment, ...] = ()
    job_id: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    state: SlurmState = SlurmState.UNKNOWN
    is_held: bool = False
    is_protected: bool = False
    is_task: bool = False
    dependency: str = ""
    reason: str = ""
    submitted_at: datetime | None = None  # None also for a job that was requeued, which has another one then
    started_at: datetime | None = None
    ended_at: datetime | None = None

    def has_ended(self) -> bool:
        return self.state in OVER

    def within(self) -> int | None:
        """The job within which this one was submitted. sbatch hands on the variable as it finds it."""
        number = self.environment.get("SLURM_JOB_ID", "")
        return int(number) if number.isascii() and number.isdigit() and len(number) < 12 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What a job names itself by, resolved."""

    jobs: frozenset[str]
    mailboxes: frozenset[str]
    checkpoints: frozenset[str]

    @classmethod
    def of(cls, facts: RunFacts, resolved: Callable[[str], str], *, inherits: bool = False) -> RunIdentity:
        """`resolved` gives the real path of a directory. inherits: what its environment names is not its own word."""

        def places(named: Iterable[str]) -> frozenset[str]:
            whole = (uri if "://" in uri else normpath(join(facts.folder or "/", uri)) for uri in named if uri)
            return frozenset(place for uri in whole if (place := one_spelling(uri, resolved)))

        environment = {} if inherits else facts.environment
        jobs = (facts.job_id, environment.get(ENV_JOB_ID), *(said.job for said in facts.says))
        return cls(
            jobs=frozenset(job for job in jobs if job),
            mailboxes=places([environment.get(ENV_MAILBOX, ""), *(said.mailbox for said in facts.says)]),
            checkpoints=places([environment.get(ENV_CHECKPOINT_DIR, ""), *(said.checkpoints for said in facts.says)]),
        )


def same_run(old: RunFacts, other: RunFacts, resolved: Callable[[str], str]) -> RunTie | None:
    """By what `other` is another start of the run of `old`; None where it is none."""
    if old.job == other.job or not old.user == other.user != "":
        return None
    is_alike = old.script is not None and old.script == other.script
    # An evaluation that is submitted within the run has its environment, and is another job for all that.
    inherits = not (other.is_protected or is_alike)
    ours, theirs = RunIdentity.of(old, resolved), RunIdentity.of(other, resolved, inherits=inherits)
    if ours.jobs & theirs.jobs:
        return RunTie.JOB
    if ours.mailboxes & theirs.mailboxes:
        return RunTie.MAILBOX
    if ours.checkpoints & theirs.checkpoints:
        return RunTie.CHECKPOINTS
    if _differ(ours.mailboxes, theirs.mailboxes) or _differ(ours.checkpoints, theirs.checkpoints):
        return None
    if is_link(old, other) and (other.is_protected or is_alike or old.name == other.name):
        return RunTie.CHAIN
    if not is_alike or not _submitted_alike(old, other):
        return None
    return RunTie.UNSURE if None in (old.arguments, other.arguments) else RunTie.SCRIPT


def is_link(old: RunFacts, other: RunFacts) -> bool:
    """`other` was submitted within the run of `old`, or waits or waited for it as the next link of a chain does. What
    waits for success alone comes after the training, unless it was submitted within it."""
    if other.within() == old.job:
        return True
    # What a job has waited for is not shown any more. Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    asked = other.environment.get("SLURM_JOB_DEPENDENCY", "")
    for kind, number, _ in (*dependencies(other.dependency), *dependencies(asked)):
        if number == old.job and kind in _AFTER_FAILURE:
            return True
        if kind == _SINGLETON and other.name == old.name:
            return True
    return False


def standing(other: RunFacts, others: Mapping[int, RunFacts], seen: frozenset[int] = frozenset()) -> Standing | None:
    """How a start of a run stands by itself: None where it has no nodes and will get none without a person or us.

    `others`: the jobs that are known, by number.
    """
    if other.has_ended():
        return None
    if other.state is not SlurmState.PENDING:
        return Standing.HAS_NODES
    if other.is_held or other.reason.startswith(NEVER) or other.job in seen:
        return None
    met = [
        _will_be_met(other, kind, number, others, seen | {other.job})
        for kind, number, _ in dependencies(other.dependency)
    ]
    if not met:
        return Standing.WILL_RUN
    return Standing.WILL_RUN if (any(met) if "?" in other.dependency else all(met)) else None


def _will_be_met(
    waits: RunFacts, kind: str, number: int | None, others: Mapping[int, RunFacts], seen: frozenset[int]
) -> bool:
    """Whether that dependency is satisfied by what goes on by itself."""
    if kind == _SINGLETON:
        named = [job for job in others.values() if job.name == waits.name and job.user == waits.user]
        alive = [job for job in named if job.job < waits.job and not job.has_ended()]
        return all(standing(job, others, seen) is not None for job in alive)
    before = others.get(number) if number is not None else None
    if before is None:  # slurmctld has forgotten it, which it does with ends alone
        return True
    if before.has_ended():
        return kind in (_AFTER_SUCCESS if before.state is SlurmState.COMPLETED else _AFTER_FAILURE)
    return standing(before, others, seen) is not None


def _differ(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    return bool(ours and theirs) and not ours & theirs


def _submitted_alike(old: RunFacts, other: RunFacts) -> bool:
    if old.is_task or other.is_task or (old.name, old.folder) != (other.name, other.folder):
        return False
    own = re.compile(rf"%\d*[jAJ]|(?<![0-9])0*(?:{old.job}|{other.job})(?![0-9])")
    if own.sub("%j", old.output) != own.sub("%j", other.output):  # the number of either may stand in a folder's name
        return False
    if old.arguments is not None and other.arguments is not None and old.arguments != other.arguments:
        return False
    if any(old.environment.get(name) != other.environment.get(name) for name in variables_in(old.script)):
        return False
    began = other.submitted_at or other.started_at
    if old.ended_at is None:
        return other.started_at is None
    return began is None or began >= old.ended_at


def variables_in(script: str | None) -> frozenset[str]:
    """The variables that a script reads, without those of each session."""
    return frozenset(name for name in _VARIABLE.findall(script or "") if _OF_A_SESSION.fullmatch(name) is None)
