"""Every fault, and the sets that rules ask about. A fault that has no row is missing in FAULTS: a test says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.domain.fault_specs.crashes import CRASHES
from chalicelib.domain.fault_specs.loss import LOSS
from chalicelib.domain.fault_specs.nodes import NODES
from chalicelib.domain.fault_specs.pace import PACE
from chalicelib.domain.fault_specs.people import PEOPLE
from chalicelib.domain.fault_specs.spec import FaultSpec, Trait
from rekindle.protocol.signals import FaultClass

_ORDER: Final = {fault: number for number, fault in enumerate(FaultClass)}
# In the order of FaultClass, which is that of the documentation.
FAULTS: Final[tuple[FaultSpec, ...]] = tuple(
    sorted((*NODES, *CRASHES, *PACE, *LOSS, *PEOPLE), key=lambda spec: _ORDER[spec.fault])
)
# When several Signals disagree, the lower rank names the fault.
# Source: DESIGN §5 and peers §4; a poisoned model outranks a stall: a checkpoint of it must not be resumed from.
FAULT_RANK: Final[Mapping[FaultClass, int]] = {spec.fault: spec.rank for spec in FAULTS}


def faults_with(trait: Trait) -> frozenset[FaultClass]:
    """The faults that have this trait."""
    return frozenset(spec.fault for spec in FAULTS if trait in spec.traits)


LOSS_FAULTS: Final = faults_with(Trait.BENDS_THE_LOSS)
POISONS: Final = faults_with(Trait.POISONS)
DEADLY: Final = faults_with(Trait.DEADLY)
HEALABLE: Final = faults_with(Trait.HEALABLE)
