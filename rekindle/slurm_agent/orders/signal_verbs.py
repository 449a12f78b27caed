"""The order that sends a signal to a running job."""

from __future__ import annotations

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.orders import Outcome
from rekindle.slurm_agent.orders.verbs import ENDED, OrderTry, Result, done, present, refused, stale
from rekindle.slurm_agent.slurm.commands import Commands


def signal(slurm: Commands, order_try: OrderTry) -> Result:
    """Refused rather than sent where it would be lost, or would kill what does not catch it."""
    order = order_try.order
    assert order.signal is not None, "orders.NEEDED"  # noqa: S101
    if order_try.was_begun:
        return Result(
            outcome=Outcome.FAILED,
            detail="it is not known whether the signal was sent; a second one could end the run",
        )
    found = present(slurm, order)
    if isinstance(found, Result):
        return found
    doc = found.doc
    if doc is None:
        return refused(f"slurmctld does not know job {order.slurm_job}")
    if found.lead or doc.state in ENDED:
        return stale(order, doc)
    if doc.state is not SlurmState.RUNNING:
        return refused(f"job {doc.slurm_job} is {doc.state}: a signal now would be lost")
    if doc.is_ready is False:
        return refused(f"job {doc.slurm_job} does not catch signals (yet): one now would be lost or end it")
    if doc.signal is not None and doc.signal.removeprefix("SIG") != order.signal.value:
        return refused(f"job {doc.slurm_job} traps {doc.signal}: {order.signal} would end it")
    if slurm.steps(doc.slurm_job) == 0:
        return refused(f"job {doc.slurm_job} has no running step: a signal now would be lost")
    order_try.begin()
    slurm.signal(doc.slurm_job, order.signal)
    return done(f"{order.signal} was sent to job {doc.slurm_job}; only a new checkpoint says that it was heard")
