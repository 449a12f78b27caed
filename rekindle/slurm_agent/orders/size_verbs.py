"""Orders that change the number of nodes of a pending job: fewer, or its full size again."""

from __future__ import annotations

from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.protocol.cluster.orders import Order
from rekindle.slurm_agent.base.ports import SlurmError
from rekindle.slurm_agent.orders.verbs import OrderTry, Result, done, present, refused, stale
from rekindle.slurm_agent.slurm.commands import Commands


def shrink(slurm: Commands, order_try: OrderTry) -> Result:
    """Let a pending job run on fewer nodes: `nodes_min` to `nodes_max` of the order.

    Refused unless the job is pending, not held, and was submitted with a minimum that allows so few nodes.
    """
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
        state = "held" if doc.held else doc.state.value
        return refused(f"job {doc.slurm_job} is {state}: only one that waits for nodes is made smaller")
    if doc.min_nodes is None or order.nodes_min < doc.min_nodes:
        problem = "does not say that it can run on fewer" if doc.min_nodes is None else f"needs {doc.min_nodes} nodes"
        return refused(f"job {doc.slurm_job} {problem}")
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


def restore_size(slurm: Commands, order: Order, doc: AttemptDoc) -> str:
    """Give a held job the size that the order names, before it is released. Returns a note for people, or "".

    A job that stays small is better than one that does not start, so Slurm's refusal is only reported in the note.
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
