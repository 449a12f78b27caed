"""An order carried out: look at Slurm, run what is needed, say what became of it.

Each verb looks first whether what it wants is there already. That look is also how an order is settled whose agent was
killed between the command and the answer (`was_begun`): what is there then counts as done by us, and only what is not
there is run. So an order may come as often as it likes.

| verb    | taken for done where                                    | else, if begun and not known             |
|---------|---------------------------------------------------------|------------------------------------------|
| signal  | cannot be seen                                          | FAILED: a second one might end the job   |
| cancel  | the start is over, and so is the Slurm job              | scancel again                            |
| hold    | the job waits, held (or has ended)                      | requeuehold again                        |
| requeue | the new start is in the queue unheld, runs, or has run  | the steps that are missing               |
| submit  | a job's comment carries the new attempt's name, and it  | sbatch, unless this agent was away long; |
|         | is not held, or is the same job and was let go          | one that waits held is compared again    |
| shrink  | the job asks for just that many nodes                   | set again                                |
| exclude | the job's list is the one that is wanted                | set again                                |
| drain   | the node is out of service, by us or by others          | drain again                              |
| resume  | the node is in service                                  | resume again, where the reason is ours   |
| mark    | state fail and exactly that reason                      | mark again                               |
| reboot  | a reboot is asked for or under way, or it booted since  | asked for again                          |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import OVER, AttemptDoc, SlurmState
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.orders import Barred, Order, Outcome, Sibling
from rekindle.protocol.cluster.queue_place import QueueLoss, losses_text
from rekindle.protocol.cluster.same_job import why_different
from rekindle.slurm_agent.base.ports import Repointed
from rekindle.slurm_agent.slurm.commands import Commands

SOON_S: Final = 1.0
MAX_NAMED: Final = 5  # differences, in one sentence

ENDED: Final = OVER
ACTIVE: Final = frozenset(
    {SlurmState.RUNNING, SlurmState.SUSPENDED, SlurmState.CONFIGURING, SlurmState.STOPPED}
)  # it has nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an order came to."""

    outcome: Outcome
    detail: str = ""
    slurm_job: int | None = None
    sibling: Sibling | None = None
    is_held_by_user: bool = False
    barred: Barred | None = None
    queue_losses: tuple[QueueLoss, ...] = ()


class OrderNotReady(Exception):
    """Nothing was run, because something must happen first; the text says what. Look again after `after_s`."""

    def __init__(self, why: str, after_s: float = SOON_S) -> None:
        super().__init__(why)
        self.after_s = after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTry:
    """One try at an order. `begin` writes down that a command is about to run: before each first one, every time."""

    order: Order
    begun_at: datetime | None
    tried_at: datetime | None
    now: datetime
    begin: Callable[[], None] = field(compare=False)

    @property
    def was_begun(self) -> bool:
        """A command may have been run in an earlier try."""
        return self.begun_at is not None

    def there(self, detail: str, slurm_job: int | None = None) -> Result:
        """What was wanted is so: by us if we had begun, else before us."""
        outcome = Outcome.DONE if self.was_begun else Outcome.ALREADY
        return Result(outcome=outcome, detail=detail, slurm_job=slurm_job)

    def failed_or_refused(self, detail: str) -> Result:
        """It is not so and will not be."""
        outcome = Outcome.FAILED if self.was_begun else Outcome.REFUSED
        return Result(outcome=outcome, detail=detail)


def done(detail: str, slurm_job: int | None = None) -> Result:
    return Result(outcome=Outcome.DONE, detail=detail, slurm_job=slurm_job)


def started(detail: str, losses: tuple[QueueLoss, ...], slurm_job: int | None = None) -> Result:
    """A new start was made, with what it has lost in the queue."""
    words = losses_text(losses)
    whole = f"{detail}; {words}" if words else detail
    return Result(outcome=Outcome.DONE, detail=whole, slurm_job=slurm_job, queue_losses=losses)


def refused(detail: str) -> Result:
    return Result(outcome=Outcome.REFUSED, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedJob:
    """The Slurm job an order is about: None where it is not known any more. `lead` is how many starts it is ahead."""

    doc: AttemptDoc | None
    lead: int = 0


def present(slurm: Commands, order: Order) -> OrderedJob | Result:
    """The job now, or a refusal: it is another attempt's, or another job has its number.

    Raises: SlurmError, OrderNotReady for a state that is not known.
    """
    assert order.slurm_job is not None, "orders.NEEDED"  # noqa: S101
    assert order.attempt is not None, "orders.NEEDED"  # noqa: S101
    doc = slurm.job(order.slurm_job)
    if doc is None:
        return OrderedJob(doc=None)
    if doc.state is SlurmState.UNKNOWN:
        raise OrderNotReady(f"job {order.slurm_job} is in a state that is not known", after_s=10.0)
    named, now = parse_attempt(order.attempt), parse_attempt(doc.attempt)
    if named.base != now.base:
        return refused(f"job {order.slurm_job} is {doc.attempt}, not {order.attempt}")
    known = slurm.start(order.attempt)
    if known is not None:
        why = why_different(known, user=doc.user, restart=doc.restart, submitted_at=doc.submitted_at)
        if why:
            return refused(why)
    if now.restart < named.restart:
        return refused(f"there is no {order.attempt} yet: job {order.slurm_job} is {doc.attempt}")
    return OrderedJob(doc=doc, lead=now.restart - named.restart)


def stale(order: Order, doc: AttemptDoc) -> Result:
    return refused(f"stale: {order.attempt} is over, job {doc.slurm_job} is {doc.attempt} ({doc.state})")


def secrets_words(names: Sequence[str]) -> str:
    return f"; not with the value that the original had: {', '.join(names[:MAX_NAMED])}" if names else ""


def waiting_words(moved: Repointed) -> str:
    said = (
        (moved.changed, "{count} jobs wait for it now: {jobs}"),
        (moved.left, "{count} jobs of other users, which wait for the start before, are left as they are: {jobs}"),
    )
    return "".join(
        "; " + text.format(count=len(jobs), jobs=", ".join(map(str, jobs[:20]))) for jobs, text in said if jobs
    )


def sentence(found: tuple[str, ...]) -> str:
    """What differs, for people."""
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return "; ".join(found[:MAX_NAMED]) + more
