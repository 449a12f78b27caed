"""Which tuples of rules there are: by the phase of an Incident, and as the sections of docs/rules.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.decision.rule import Rule
from chalicelib.domain.guards.guards import GUARDS, guard_shadow
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.rules.changes import AFTER_ALL, AFTER_COMMON, AFTER_PHASE
from chalicelib.domain.rules.common import COMMON, UNKNOWN, UNTOUCHED, run_misplaced
from chalicelib.domain.rules.node.beginning import BEGIN
from chalicelib.domain.rules.node.draining import DRAINING
from chalicelib.domain.rules.node.ladder import NEXT_RUNG, REPAIR
from chalicelib.domain.rules.node.node import NODE_COMMON, node_misplaced
from chalicelib.domain.rules.node.repairing import REPAIRING
from chalicelib.domain.rules.node.returning import CHECKING, RETURNING
from chalicelib.domain.rules.run.budgets import BUDGETS
from chalicelib.domain.rules.run.checkpoint_needless import NEEDLESS
from chalicelib.domain.rules.run.checkpointing import CHECKPOINTING
from chalicelib.domain.rules.run.ended import ENDED
from chalicelib.domain.rules.run.loss import ROLLING_BACK, WATCHED_LOSS
from chalicelib.domain.rules.run.new_attempt import NEW_ATTEMPT
from chalicelib.domain.rules.run.opening import OPEN, PLATFORM_REPAIRS
from chalicelib.domain.rules.run.orders import MOVE_ORDERED, ORDERED, STOP_ORDERED
from chalicelib.domain.rules.run.platform_restart import PLATFORM_RESTARTED
from chalicelib.domain.rules.run.preparing import BEFORE_ATTEMPT
from chalicelib.domain.rules.run.resubmitting import RESUBMITTING
from chalicelib.domain.rules.run.stopping import STOPPING
from chalicelib.domain.rules.run.two_live import TWO_LIVE
from chalicelib.domain.rules.run.verifying import VERIFYING
from chalicelib.domain.run.before_stop import BEFORE_STOP

Rules = tuple[Rule[[]], ...]

# What a person has ordered about a run, a start by the platform, and a second attempt that lives, come first.
FIRST: Final[Rules] = (*ORDERED, *PLATFORM_RESTARTED, *TWO_LIVE)
_OF_A_RUN: Final[Mapping[Phase, Rules]] = {
    Phase.OPEN: OPEN,
    Phase.HOLDING: OPEN,
    Phase.WATCHING: OPEN,
    Phase.CHECKPOINTING: CHECKPOINTING,
    Phase.STOPPING: STOPPING,
    Phase.RESUBMITTING: RESUBMITTING,
    Phase.VERIFYING: VERIFYING,
}
RUN_PHASES: Final = {phase: (*FIRST, *_OF_A_RUN.get(phase, (run_misplaced,))) for phase in Phase}

_OF_A_NODE: Final[Mapping[Phase, Rules]] = {
    Phase.OPEN: BEGIN,
    Phase.HOLDING: BEGIN,
    Phase.DRAINING: DRAINING,
    Phase.REPAIRING: REPAIRING,
    Phase.CHECKING: CHECKING,
    Phase.RETURNING: RETURNING,
}
NODE_PHASES: Final = {phase: (*NODE_COMMON, *_OF_A_NODE.get(phase, (node_misplaced,))) for phase in Phase}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of docs/rules.md: tuples of rules, in the order in which they are asked."""

    title: str
    about: str
    rules: Sequence[Rule[Any]]


SECTIONS: Final = (
    Section(
        title="Common to all phases",
        about="Asked first. Where one decides, the rules of the phase are not asked.",
        rules=(*UNTOUCHED, *UNKNOWN, *COMMON),
    ),
    Section(
        title="First in every phase of a run",
        about="What a person has ordered, a start by the platform, and a second attempt that lives, come before the "
        "phase's own rules.",
        rules=FIRST,
    ),
    Section(title="Open, holding and watching", about="What is wrong, and what may be done about it.", rules=OPEN),
    Section(title="Checkpointing", about="The run was asked to save.", rules=CHECKPOINTING),
    Section(title="Stopping", about="The run was asked to stop.", rules=STOPPING),
    Section(title="Resubmitting", about="One new attempt, under one name.", rules=RESUBMITTING),
    Section(
        title="Verifying",
        about="The new attempt has recovered only when it has passed the step that the old one died at.",
        rules=VERIFYING,
    ),
    Section(title="A stop that was ordered", about="See [orders](orders.md).", rules=STOP_ORDERED),
    Section(title="A move that was ordered", about="See [orders](orders.md).", rules=MOVE_ORDERED),
    Section(title="The platform repairs the attempt", about="Part of the open phases.", rules=PLATFORM_REPAIRS),
    Section(title="A bad loss is watched", about="See [playbooks](playbooks.md).", rules=WATCHED_LOSS),
    Section(title="Rolling back", about="See [playbooks](playbooks.md).", rules=ROLLING_BACK),
    Section(title="Before a stop", about="Asked before any stop that no person ordered for good.", rules=BEFORE_STOP),
    Section(title="A checkpoint that is no longer needed", about="Part of checkpointing.", rules=NEEDLESS),
    Section(title="An attempt has ended", about="Without an action of Rekindle's.", rules=ENDED),
    Section(title="Before a new attempt", about="The old attempt has ended.", rules=BEFORE_ATTEMPT),
    Section(title="Budgets", about="See [guardrails](guardrails.md).", rules=BUDGETS),
    Section(title="A new attempt", about="From which checkpoint it resumes, and how.", rules=NEW_ATTEMPT),
    Section(
        title="Changes to a decision of a run",
        about="Asked, in this order, after a rule has decided: what each of them makes of the decision.",
        rules=(*AFTER_COMMON, *AFTER_PHASE, *AFTER_ALL),
    ),
    Section(
        title="Guards",
        about="What holds a step back that a rule has decided ([guardrails](guardrails.md)).",
        rules=(guard_shadow, *GUARDS),
    ),
    Section(title="A node: common to all phases", about="See [node repair](node-repair.md).", rules=NODE_COMMON),
    Section(title="A node: open and holding", about="Whose is it, and is anything to be done?", rules=BEGIN),
    Section(title="A node: draining", about="Out of scheduling, until no job is on it.", rules=DRAINING),
    Section(title="A repair of a node", about="The next rung of the ladder is ordered.", rules=REPAIR),
    Section(title="The next rung", about="The last repair has not cured it.", rules=NEXT_RUNG),
    Section(title="A node: repairing", about="Ordered, until both views say that it is well.", rules=REPAIRING),
    Section(title="A node: checking", about="A deep health check.", rules=CHECKING),
    Section(title="A node: returning", about="Our drain is lifted.", rules=RETURNING),
    Section(
        title="Misplaced",
        about="An Incident in a phase that it cannot be in, which cannot happen.",
        rules=(run_misplaced, node_misplaced),
    ),
)
