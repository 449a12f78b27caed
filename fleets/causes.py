"""How a failure shows itself, and what it takes to be rid of it. Data; pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Symptom(StrEnum):
    """What is seen of a failure from outside."""

    CRASH = "crash"  # the script ends with an error of its own
    NODE_CRASH = "node_crash"  # the processes end, and the platform's health agent names the node
    NODE_GONE = "node_gone"  # the scheduler loses the node, and the run with it
    HANG = "hang"  # ranks wait for one that does not answer
    NON_FINITE = "non_finite"  # the loss is no number any more


class Remedy(StrEnum):
    """The least that makes the run hold again."""

    RESTART = "restart"
    REBOOT = "reboot"  # of the node, which was named or not
    REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of failures. `source` is where the rest comes from; most of it is assumed, and says so.

    `is_named`: the health agent or the scheduler names the broken node; else at most the run's own ranks do.
    """

    name: str
    shows: Symptom
    cure: Remedy
    source: str
    is_named: bool = True

    @property
    def is_of_a_node(self) -> bool:
        """One node is broken, and the run fails again for as long as it runs on it."""
        return self.cure in (Remedy.REBOOT, Remedy.REPLACE)


_GPU: Final = "assumed: an Xid ends the CUDA context and so the process; docs/facts-sagemaker.md#health-agent"
_HOST: Final = "assumed: the host goes down at once, and the scheduler loses it"

GPU = Cause(name="GPU", shows=Symptom.NODE_CRASH, cure=Remedy.REPLACE, source=_GPU + "; replaced")
GPU_MEMORY = Cause(
    name="GPU memory",
    shows=Symptom.NODE_CRASH,
    cure=Remedy.REBOOT,
    source=_GPU + "; a reset remaps the row (Xid 63, 64, 94, 95: rekindle.signatures.xids)",
)
HOST = Cause(name="host", shows=Symptom.NODE_GONE, cure=Remedy.REPLACE, source=_HOST + "; replaced")
MAINTENANCE = Cause(
    name="maintenance", shows=Symptom.NODE_GONE, cure=Remedy.REBOOT, source=_HOST + ", unannounced; back after a reboot"
)
NETWORK = Cause(
    name="network",
    shows=Symptom.HANG,
    cure=Remedy.RESTART,
    source="assumed: a link flaps, the collective waits; it is up again at the restart (Aegis: most are not lasting)",
)
NIC = Cause(
    name="NIC",
    shows=Symptom.HANG,
    cure=Remedy.REPLACE,
    source="assumed: the adapter is dead, every collective waits for it",
)
SOFTWARE = Cause(
    name="software", shows=Symptom.CRASH, cure=Remedy.RESTART, source="assumed: it does not come again at the same step"
)
WATCHDOG = Cause(
    name="NCCL time-out", shows=Symptom.HANG, cure=Remedy.RESTART, source="a hang by its name; its cause is not known"
)
SILENT_CORRUPTION = Cause(
    name="silent corruption",
    shows=Symptom.NON_FINITE,
    cure=Remedy.RESTART,
    source="arXiv 2604.00726: bit flips give NaN, spikes or divergence; only the NaN is played",
)
FLAKY = Cause(
    name="flaky node",
    shows=Symptom.CRASH,
    cure=Remedy.REPLACE,
    is_named=False,
    source="assumed: nothing names it, and what lands on it fails again (arXiv 2605.09370: top 3 of 63 nodes)",
)
FLAKY_HANG = Cause(
    name="flaky node, hang",
    shows=Symptom.HANG,
    cure=Remedy.REPLACE,
    is_named=False,
    source="assumed: as above; its rank is the one that does not wait for the others",
)
