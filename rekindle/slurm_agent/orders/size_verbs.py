"""The order that lets a pending job run on fewer nodes."""

from __future__ import annotations

from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.protocol.cluster.orders import Order
from rekindle.slurm_agent.base.ports import Slurm, SlurmError
from rekindle.slurm_agent.orders.verbs import OrderTry, Result, done, present, refused, stale


def shrink(slurm: Slurm, order_try: OrderTry) -> Result:
    """Only a job that waits, is let go, and says itself that it can do with so few."""
    order = order_try.order
    assert order.nodes_min is not None, "orders.NEEDED"  # noqa: S101
    assert order.nodes_max is not None, "orders.NEEDED"  # noqa: S101
    found = present(slurm, order)
    if isinstance(found, Result):
        return found
    doc = found.doc
    if doc is None:
        return refused(f"slurmctld does not know job {order.slurm_job}")
    if found.lead:
        return stale(order, doc)
    if doc.state is not SlurmState.PENDING or doc.held:
        how = "held" if doc.held else doc.state.value
        return refused(f"job {doc.slurm_job} is {how}: only one that waits for nodes is made smaller")
    if doc.min_nodes is None or order.nodes_min < doc.min_nodes:
        least = "does not say that it can run on fewer" if doc.min_nodes is None else f"needs {doc.min_nodes} nodes"
        return refused(f"job {doc.slurm_job} {least}")
    size = slurm.size(doc.slurm_job)
    if size.low == order.nodes_min:
        return order_try.there(f"job {doc.slurm_job} asks for {size.low} nodes or more")
    if size.low < order.nodes_min or order.nodes_max < order.nodes_min:
        return refused(f"job {doc.slurm_job} asks for {size.low} nodes: that would be more, not fewer")
    if size.fixed:
        return refused(f"job {doc.slurm_job} cannot run on fewer nodes: {size.fixed}")
    order_try.begin()
    slurm.resize(doc.slurm_job, order.nodes_min, order.nodes_max)
    return done(f"job {doc.slurm_job} takes {order.nodes_min} nodes now; it asked for {size.low}")


def whole_again(slurm: Slurm, order: Order, doc: AttemptDoc) -> str:
    """Before a job is let go: the size that the order names, where it is another. What became of it, for people.

    A job that stays small is better than one that does not start, so a refusal is reported and no more.
    """
    if order.nodes_min is None:
        return ""
    try:
        if slurm.size(doc.slurm_job).low == order.nodes_min:
            return ""
        slurm.resize(doc.slurm_job, order.nodes_min, order.nodes_max or order.nodes_min)
    except SlurmError as err:
        return f"; it could not be given its {order.nodes_min} nodes back: {err}"
    return f"; it asks for its {order.nodes_min} nodes again"
