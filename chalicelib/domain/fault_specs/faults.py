"""Every fault, and the sets that rules ask about. A fault that has no row is missing in FAULTS: a test says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.domain.fault_specs.crashes import CRASHES
from chalicelib.domain.fault_specs.loss import LOSS
from chalicelib.domain.fault_specs.nodes import NODES
from chalicelib.domain.fault_specs.pace import PACE
from chalicelib.domain.fault_specs.people import PEOPLE
from chalicelib.domain.fault_specs.spec import Cause, Claim, FaultSpec, Meanwhile
from rekindle.protocol.signals import FaultClass

_ORDER: Final = {fault: number for number, fault in enumerate(FaultClass)}
# In the order of FaultClass, which is that of the documentation.
FAULTS: Final[tuple[FaultSpec, ...]] = tuple(
    sorted((*NODES, *CRASHES, *PACE, *LOSS, *PEOPLE), key=lambda spec: _ORDER[spec.fault])
)
# When several Signals disagree, the lower rank names the fault.
# A poisoned model outranks a stall: a checkpoint of it must not be resumed from.
FAULT_RANK: Final[Mapping[FaultClass, int]] = {spec.fault: spec.rank for spec in FAULTS}


def _meanwhile(*kinds: Meanwhile) -> frozenset[FaultClass]:
    return frozenset(spec.fault for spec in FAULTS if spec.meanwhile in kinds)


def _caused_by(*causes: Cause) -> frozenset[FaultClass]:
    return frozenset(spec.fault for spec in FAULTS if spec.cause in causes)


def _claimed_by(claim: Claim) -> frozenset[FaultClass]:
    return frozenset(spec.fault for spec in FAULTS if claim in spec.claims)


DEADLY: Final = _meanwhile(Meanwhile.DEAD)
# A run whose steps move does not have it any more. A broken node is broken even while steps move.
HEALABLE: Final = _meanwhile(Meanwhile.DEAD, Meanwhile.STANDS)
STANDS: Final = _meanwhile(Meanwhile.STANDS)
RUNS_ON: Final = _meanwhile(Meanwhile.RUNS_ON, Meanwhile.SLOW)
SLOW: Final = _meanwhile(Meanwhile.SLOW)
LOSS_FAULTS: Final = _meanwhile(Meanwhile.BAD_LOSS)
# Steps from the onset on are worth nothing.
POISONS: Final = _meanwhile(Meanwhile.BAD_LOSS, Meanwhile.NOT_FINITE)
# What one start of its processes shows: after the next one it may be no more.
OF_ITS_PROCESSES: Final = STANDS | SLOW | POISONS
NODE_FAULTS: Final = _caused_by(Cause.NODE)
MAY_BE_THE_CHECKPOINT: Final = _caused_by(Cause.MAY_BE_THE_CHECKPOINT)
# Reported of a dead attempt, and perhaps only after it was accounted for, it takes the blame from its checkpoint.
NOT_THE_CHECKPOINT: Final = _caused_by(Cause.NODE, Cause.CAPACITY, Cause.SURROUNDINGS)
# Gone once the platform has repaired the run and its steps move.
HEALED_BY_REPAIR: Final = HEALABLE | _caused_by(Cause.NODE, Cause.CAPACITY)
CLAIMED_BY_ALERTS: Final = _claimed_by(Claim.ALERT)
CLAIMED_BY_LOGS: Final = _claimed_by(Claim.LOG)
EXPLAINS_NO_END: Final = frozenset(spec.fault for spec in FAULTS if not spec.explains_an_end)
RENAMES_NO_RETRY: Final = frozenset(spec.fault for spec in FAULTS if not spec.renames_a_retry)
WAITED_OUT: Final = frozenset(spec.fault for spec in FAULTS if spec.is_waited_out)
