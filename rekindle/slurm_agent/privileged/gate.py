"""The one way to change anything on the cluster: each change is judged by what the administrator allows now, by the
caps, and by what Slurm shows of the job or node at this moment, for every caller alike."""

from __future__ import annotations

import functools
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from rekindle.protocol.cluster.node_states import (
    NodeStanding,
    StateMeaning,
    Writer,
    held_by,
    is_ours,
    meanings_of,
    parts_of,
    standing_of,
    words_of,
    writer_of,
)
from rekindle.protocol.cluster.orders import Barred, Order, Verb
from rekindle.slurm_agent.base.ports import BarredHere, SlurmRefused, UnknownJob, UnknownNode
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.copies.script_file import never_ran_as
from rekindle.slurm_agent.privileged import allowed
from rekindle.slurm_agent.privileged.allowed import Allowed, Counted, Kind
from rekindle.slurm_agent.privileged.caps import HELD, SUBMITTED, Caps
from rekindle.slurm_agent.privileged.changes import COUNTED, VERBS, Change, ChangeKind, command
from rekindle.slurm_agent.reading import comment, text
from rekindle.slurm_agent.reading.jobs import ENDED, HELD_BY_ADMIN, Job
from rekindle.slurm_agent.reading.nodes import Node
from rekindle.slurm_agent.reading.run import Runner

_T = TypeVar("_T")
# Until a requeued job is eligible: cred_expire and a second more. Source: slurm job_mgr.c; slurm.conf(5), AuthInfo.
REQUEUE_WAITS: Final = timedelta(seconds=130)
_ORDERED: Final[Mapping[Verb, Counted]] = {
    Verb.DRAIN: Counted.DRAINED,
    Verb.REBOOT: Counted.REBOOTED,
    Verb.MARK: Counted.MARKED,
    Verb.REQUEUE: Counted.STARTED,
    Verb.SUBMIT: Counted.STARTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What Slurm shows of a job."""

    job: Job
    about: Mapping[Kind, str]
    is_out: bool
    begins_at: datetime | None  # where that is later than a requeue alone makes it wait


class Gate:
    """`path`: the administrator's file, read anew each time. `is_leaving`: only what gives back is done, in every mode.
    For one thread at a time."""

    def __init__(
        self,
        *,
        runner: Runner,
        reads: CopyReads,
        caps: Caps,
        path: str,
        is_hyperpod: Callable[[], bool] = lambda: False,
        is_leaving: bool = False,
    ) -> None:
        self._runner = runner
        self._reads = reads
        self._caps = caps
        self._path = path
        self._is_hyperpod = is_hyperpod
        self._is_leaving = is_leaving

    def problems(self) -> tuple[str, ...]:
        """What people are told of the file, one line each."""
        found = self._allowed()
        return (found.problem,) if found.problem else ("observe: orders are not carried out",) * found.observes

    def observes(self) -> bool:
        return self._allowed().observes

    def check(self, order: Order) -> None:
        """Before the first command of an order. Raises: BarredHere; SlurmError."""
        about: Mapping[Kind, str] = {Kind.NODES: order.node} if order.node is not None else {}
        if order.slurm_job is not None and order.node is None:
            subject = self._subject(order.slurm_job)
            about = subject.about if subject is not None else {}
        found = self._allowed()
        self._judge(found, frozenset({order.verb}), about)
        if (counted := _ORDERED.get(order.verb)) is not None:
            self._capped(found, counted)
        if found.observes:
            raise BarredHere(f"observe: {order.verb} would have been carried out", Barred.OBSERVED)

    def make(self, change: Change) -> None:
        """Raises: BarredHere and other SlurmError."""
        found, verbs = self._allowed(), VERBS[change.kind]
        if change.node is not None:
            self._check_node(change, self._node(change.node))
            key, gives_back = "", self._is_leaving and change.kind is ChangeKind.RESUME
            about: Mapping[Kind, str] = {Kind.NODES: change.node}
        else:
            assert change.job is not None, "changes.NEEDED"  # noqa: S101
            subject = self._subject(change.job, change.policy)
            if subject is None:
                raise UnknownJob(f"slurmctld does not know job {change.job}")
            key = subject.job.step_key if subject.job.is_array_task and not subject.job.is_lump else str(change.job)
            about = {**subject.about, Kind.QOS: change.qos} if change.qos else subject.about
            gives_back = self._gives_back(change, subject.job)
            self._check_job(change, subject, gives_back=gives_back)
            if change.kind is ChangeKind.REQUEUE_HELD:
                verbs = frozenset({Verb.REQUEUE if subject.job.state in ENDED else Verb.HOLD})
        if not gives_back:
            self._judge(found, verbs, about)
        if not self._is_leaving and found.observes:
            raise BarredHere("observe: nothing is changed", Barred.OBSERVED)
        self._count(found, change, gives_back=gives_back)
        self._runner.change(command(change, key))
        if change.kind is ChangeKind.RELEASE and change.job is not None:  # who holds it from now on, we do not
            job = change.job
            self._countable(lambda: self._caps.note(job, ""))

    def copy(self, job: int) -> None:
        """A copy was submitted, held. Raises: BarredHere, where it is such that it may not be; then it is cancelled."""
        self._countable(lambda: self._caps.note(job, SUBMITTED))
        subject = self._subject(job)
        if subject is None:
            return
        try:
            self._judge(self._allowed(), frozenset({Verb.SUBMIT}), subject.about)
        except BarredHere:
            self._runner.change(["scancel", str(job)])
            raise

    def may_submit(self, user: str, options: Mapping[str, str | None]) -> None:
        """Raises: BarredHere."""
        names = {Kind.PARTITIONS: "partition", Kind.ACCOUNTS: "account", Kind.QOS: "qos"}
        about = {kind: word for kind, name in names.items() if (word := options.get(name))} | {Kind.USERS: user}
        found = self._allowed()
        self._judge(found, frozenset({Verb.SUBMIT}), about)
        if self._is_leaving or found.observes:
            raise BarredHere("observe: nothing is submitted", Barred.OBSERVED)
        self._capped(found, Counted.STARTED)
        self._countable(lambda: self._caps.count(Counted.STARTED))

    # ---- parts

    def _gives_back(self, change: Change, job: Job) -> bool:
        """What was held or submitted here is given back, whatever the file says by now."""
        if change.kind is ChangeKind.RELEASE:
            return self._is_leaving or self._noted(job.job) == HELD
        return change.kind in (ChangeKind.CANCEL, ChangeKind.CANCEL_WAITING) and never_ran_as(job) is not None

    def _was_given_a_time(self, subject: Subject) -> bool:
        """Since our hold. One that had come by then may seem late where slurmctld's clock was set back."""
        held_at = self._countable(lambda: self._caps.noted_at(subject.job.job))
        return subject.begins_at is not None and subject.begins_at.timestamp() > held_at

    def _noted(self, job: int) -> str:
        return self._countable(lambda: self._caps.noted(job))

    def _allowed(self) -> Allowed:
        return allowed.read(self._path)

    def _judge(self, found: Allowed, verbs: frozenset[Verb], about: Mapping[Kind, str]) -> None:
        if why := found.refusal(verbs, about, is_hyperpod=self._is_hyperpod()):
            raise BarredHere(why, Barred.NOT_ALLOWED_HERE)

    def _capped(self, found: Allowed, counted: Counted) -> None:
        if why := self._countable(lambda: self._caps.over(counted, found.caps)):
            raise BarredHere(why, Barred.OVER_A_CAP)

    def _count(self, found: Allowed, change: Change, *, gives_back: bool) -> None:
        """Before the command: a release of what was submitted here was counted as that."""
        job, counted = change.job or 0, COUNTED.get(change.kind)
        if change.kind in (ChangeKind.HOLD, ChangeKind.REQUEUE_HELD):
            self._countable(lambda: self._caps.note(job, HELD))
        if change.kind is ChangeKind.RELEASE and self._noted(job) == SUBMITTED:
            counted = None
        if counted is not None and not gives_back:
            self._capped(found, counted)
            self._countable(lambda: self._caps.count(counted))

    def _countable(self, work: Callable[[], _T]) -> _T:
        """Nothing is changed that cannot be counted. Raises: BarredHere."""
        try:
            return work()
        except (OSError, ValueError) as err:
            why = f"what was done here cannot be counted, so nothing is done: {err}"
            raise BarredHere(why[:300], Barred.OVER_A_CAP) from err

    def _subject(self, number: int, policy: str = "default") -> Subject | None:
        job = self._reads.job(number)
        if job is None:
            return None
        try:
            shown = self._reads.detail(job)
        except UnknownJob:
            return None
        words = (job.comment, text.value(shown.get("AdminComment")), text.value(shown.get("Extra")))
        asked = next(filter(None, map(comment.parse, words)), None)
        about = {
            Kind.PARTITIONS: job.partition,
            Kind.ACCOUNTS: text.value(shown.get("Account")),
            Kind.QOS: text.value(shown.get("QOS")),
            Kind.USERS: job.user,
            Kind.POLICIES: asked.policy if asked is not None else policy,
        }
        is_out = comment.says_out(shown) or comment.is_out_word(job.comment)
        begins, submitted = text.moment(shown.get("EligibleTime")), text.moment(shown.get("SubmitTime"))
        begins_later = begins is not None and submitted is not None and begins - submitted > REQUEUE_WAITS
        return Subject(job=job, about=about, is_out=is_out, begins_at=begins if begins_later else None)

    def _check_job(self, change: Change, subject: Subject, *, gives_back: bool) -> None:
        number = subject.job.job
        if subject.is_out and not gives_back and change.kind is not ChangeKind.RELEASE:
            raise SlurmRefused(f"job {number} was taken out of Rekindle's protection")
        if change.kind is ChangeKind.START and self._was_given_a_time(subject):
            raise SlurmRefused(f"job {number} was given a time to begin at")
        is_held_release = change.kind is ChangeKind.RELEASE and subject.job.is_held
        if is_held_release and self._reads.why_waiting(number) == HELD_BY_ADMIN:
            raise SlurmRefused(f"job {number} is held by an administrator")
        if change.for_job is not None:
            other = self._subject(change.for_job)
            is_others = other is None or (other.job.user != subject.job.user and not change.of_others)
            if is_others or not subject.job.dependency:
                raise SlurmRefused(f"job {number} does not wait for job {change.for_job}")

    def _node(self, name: str) -> Node:
        found = self._reads.node(name)
        if found is None:
            raise UnknownNode(f"Slurm knows no node {name}")
        return found

    def _check_node(self, change: Change, node: Node) -> None:
        """As if no one had looked before."""
        name, says = node.name, meanings_of(words_of(node.state, node.flags))
        is_out = not says.isdisjoint({StateMeaning.DRAINED, StateMeaning.FAILING, StateMeaning.DOWN})
        if change.kind is ChangeKind.RESUME and not is_own(node):
            raise SlurmRefused(f"{name} was not taken out by us: {node.reason or 'no reason given'}")
        if (
            change.kind is not ChangeKind.RESUME
            and standing_of(node.state, node.flags, node.reason) is NodeStanding.AWAY
        ):
            raise SlurmRefused(f"{name} is away on purpose: {'+'.join((node.state, *node.flags))}")
        if change.kind is not ChangeKind.RESUME and held_by(node.state, node.flags, node.reason) is not None:
            raise SlurmRefused(f"{name} was taken out by someone else: {node.reason}")
        if change.kind is ChangeKind.MARK and not (is_out and is_own(node)):
            raise SlurmRefused(f"{name} is not drained by us")
        if change.kind is ChangeKind.MARK and self._reads.jobs_on(name):
            raise SlurmRefused(f"jobs are on {name}")


def is_own(node: Node) -> bool:
    """We wrote its reason: not a person, in our words. After Slurm has added its own, only the words tell."""
    parts = parts_of(node.reason)
    is_newest = bool(parts) and writer_of(parts[-1]) is Writer.US
    return is_ours(node.reason) and not (is_newest and node.reason_by not in ("", "root", _own_name()))


@functools.cache
def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""
