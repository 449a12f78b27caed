"""From an order's verb to what is done about it."""

from __future__ import annotations

import logging

from rekindle.compat import assert_never
from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.orders import Order, Verb
from rekindle.slurm_agent.base.ports import OwnActions, SlurmError
from rekindle.slurm_agent.orders.job_verbs import JobVerbs
from rekindle.slurm_agent.orders.node_verbs import NodeVerbs
from rekindle.slurm_agent.orders.signal_verbs import signal
from rekindle.slurm_agent.orders.size_verbs import shrink
from rekindle.slurm_agent.orders.specs import StoredSpecs
from rekindle.slurm_agent.orders.verbs import OrderNotReady, OrderTry, Result
from rekindle.slurm_agent.publishing.loops import Watch
from rekindle.slurm_agent.reading.jobs import REQUEUED_HELD, spaced_reason
from rekindle.slurm_agent.slurm.commands import Commands

log = logging.getLogger(__name__)


class OrderDispatcher:
    """Carries out one try at an order. Raises: SlurmError, OrderNotReady."""

    def __init__(
        self, *, slurm: Commands, specs: StoredSpecs, reread: Watch, own_actions: OwnActions | None = None
    ) -> None:
        self._slurm = slurm
        self._jobs = JobVerbs(slurm, specs, own_actions)
        self._nodes = NodeVerbs(slurm)
        self._reread = reread

    def check(self, order: Order) -> None:
        self._slurm.check(order)

    def carry_out(self, order_try: OrderTry) -> Result:  # noqa: RET503  one case for each verb; assert_never
        match order_try.order.verb:
            case Verb.SIGNAL:
                return signal(self._slurm, order_try)
            case Verb.CANCEL:
                return self._jobs.cancel(order_try)
            case Verb.HOLD:
                return self._jobs.hold(order_try)
            case Verb.REQUEUE:
                return self._jobs.requeue(order_try)
            case Verb.SUBMIT:
                return self._jobs.submit(order_try)
            case Verb.SHRINK:
                return shrink(self._slurm, order_try)
            case Verb.EXCLUDE:
                return self._jobs.exclude(order_try)
            case Verb.DRAIN:
                return self._nodes.drain(order_try)
            case Verb.RESUME:
                return self._nodes.resume(order_try)
            case Verb.MARK:
                return self._nodes.mark(order_try)
            case Verb.REBOOT:
                return self._nodes.reboot(order_try)
        assert_never(order_try.order.verb)

    def release_and_cancel(self) -> tuple[str, ...]:
        """Let go what wants no protection any more and waits because we hold it, and cancel the copies that are one too
        many. What did not work, one line each."""
        problems = []
        for number in self._slurm.held_unprotected():
            try:
                if self._slurm.is_held_by_admin(number):
                    continue
                self._slurm.release_unprotected(number)
                self._reread.wake()
                log.info("slurm_job=%d let_go=it wants no protection any more", number)
            except SlurmError as err:
                problems.append(f"job {number} wants no protection any more, and is still held by us: {err}")
        for number in self._slurm.late_copies():
            try:
                self._slurm.cancel_copy(number)
                self._reread.wake()
                log.info("slurm_job=%d cancelled=its order was carried out by another copy", number)
            except SlurmError as err:
                problems.append(f"job {number} is a copy too many, and still waits: {err}")
        return tuple(problems)

    def refusals_of_copies(self) -> tuple[str, ...]:
        return self._slurm.refusals_of_copies()

    def has_forgotten(self, order: Order) -> bool:
        """slurmctld came back with a state from before it let this order's new start go, as of the last reading. A hold
        by a person has a reason of its own.
        """
        doc = self._slurm.start(order.new_attempt or "")
        if doc is None or doc.state is not SlurmState.PENDING or not doc.held:
            return False
        return spaced_reason(doc.reason).startswith(REQUEUED_HELD)

    def let_go_again(self, order_try: OrderTry) -> None:
        """What does not work now is found again by the next reading."""
        number = order_try.order.slurm_job
        try:
            result = self._jobs.requeue(order_try)
        except (OrderNotReady, SlurmError) as err:
            log.warning("slurm_job=%s let_go_again=%s", number, err)
            return
        log.info("slurm_job=%s let_go_again=%s detail=%s", number, result.outcome, result.detail)
        self._reread.wake()
