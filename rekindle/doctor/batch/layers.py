"""Which recovery layers may act on a batch script's job, in the order in which they do. Pure.

docs/other-layers.md has a row each: how Rekindle hears of what it does, and how long it waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rekindle.doctor.base.checks import Area, check
from rekindle.doctor.base.findings import Finding, warning
from rekindle.doctor.batch.rendezvous import restarts_of
from rekindle.doctor.batch.run import has_auto_resume
from rekindle.doctor.batch.script import Batch

HANG_RULES: Final = "HYPERPOD_HANG_RULES"
_GUIDE: Final = "SageMaker guide, sagemaker-hyperpod-resiliency-slurm-hang-detection"


def layers_of(batch: Batch) -> tuple[str, ...]:
    """One line a layer, the first to act first. What a script does not show, as a loop in another file, is left out."""
    found = []
    if restarts := restarts_of(batch):
        found.append(f"torchrun: starts its workers again in their place, up to {restarts} times; Rekindle adopts that")
    if _hang_rules(batch):
        found.append("HyperPod's hung-job detection: may cancel the job as root; Rekindle then recovers it")
    if has_auto_resume(batch):
        found.append("HyperPod's auto-resume: runs the step again on a new node; Rekindle waits 30 minutes for it")
    if not _refuses_requeue(batch):
        found.append("Slurm: requeues the job after a lost node or preemption; Rekindle adopts that start")
    found.append("Rekindle: what the others leave, and nothing beside them")
    return tuple(found)


@check("batch-hang-rules", Area.SCRIPT, _GUIDE)
def hang_rules(batch: Batch) -> Iterator[Finding]:
    """HyperPod's hung-job detection is not asked for.

    Its cancel leaves no time for a save. The monitor sees a hang itself, and saves or stops it then.
    """
    if line := _hang_rules(batch):
        yield warning(
            batch.at(line),
            f"{HANG_RULES}: HyperPod may cancel a hung job as root, without a save; Rekindle recovers it then, on a "
            "cluster with accounting. With the monitor it is needless; where it shall stay, let its rules only notify",
        )


def _hang_rules(batch: Batch) -> int:
    """The line that asks for it; 0 where none does."""
    exported = batch.option("export")
    if exported is not None and HANG_RULES in (exported.value or ""):
        return exported.line
    return batch.shell.lines.get(HANG_RULES, 0)


def _refuses_requeue(batch: Batch) -> bool:
    refused, asked = batch.option("no-requeue"), batch.option("requeue")
    return refused is not None and (asked is None or asked.line <= refused.line)
