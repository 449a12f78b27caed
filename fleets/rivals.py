"""Other policies' rows: published rules as far as they are published, and what is assumed where they are not. Pure.

Sources are public: AWS's documentation of HyperPod and of its training operator, nvidia-resiliency-ext 0.7, ByteRobust
(arXiv 2509.16293). Where a rule leaves something open it is assumed in that rule's favour, and
the assumption is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chalicelib.domain.model.node_findings import Rung
from fleets.answers import Answer, Case, Rules
from fleets.causes import Cause, Remedy, Symptom
from fleets.figures import DIAGNOSIS, HUMAN, NCCL, SLURM_NODE, Setting

OPERATOR_GAP_S: Final = 300.0  # Source: SageMaker guide, eks-operator-usage: samples of 10, 300 and 600 s
OPERATOR_NODE_S: Final = 94.3  # Source: the same guide's sample of a node fault's remediation
OPERATOR_RESTARTS: Final = 3  # Source: the same, numRestartBeforeFullJobRestart
OPERATOR_READ_S: Final = 1.0  # Source: package hyperpod-elastic-agent 1.1.3, log agent
LOOP_PAUSE_S: Final = 660.0  # Source: arXiv 2605.09370: median retry interval 11 min
NVRX_FACTOR: Final = 5.0  # Source: nvidia-resiliency-ext: 5 x the longest interval
NVRX_LOOK_S: Final = 5.0  # Source: the same, checked every 5 s
NVRX_RESTART_S: Final = 120.0  # Source: the same, the in-process restart's barrier time-out: an upper bound
NVRX_CYCLES: Final = 3  # Source: the same: three cycles without a checkpoint's advance, exit 93
BYTE_GPU_S: Final = 10.0  # Source: arXiv 2509.16293, inspections: GPU lost or driver hang 10 s
BYTE_LINK_S: Final = 60.0  # Source: the same, switch 60 s
BYTE_SILENT_S: Final = 600.0  # Source: the same, no RDMA traffic for 10 min is a hang
BYTE_STANDBY: Final = 10.87  # Source: the same, warm standby against requeue
BYTE_EVICTS: Final = 6  # Source: the same, over-evicts 6 to 7 machines per decision
BYTE_SAVE_SHARE: Final = 0.009  # Source: the same, a checkpoint in memory every step costs less than 0.9 %


def _person(detect_s: float, setting: Setting) -> Answer:
    """A person notices, does the right thing at once, and the first new start holds."""
    return Answer(
        detect_s=detect_s,
        down_s=HUMAN.value + setting.restart_s,
        excludes=True,
        rung=Rung.REPLACE,
        by_person=True,
    )


def _hang_s(cause: Cause) -> float:
    """Until NCCL's time-out, where the ledger has ranks wait for one that does not answer."""
    return NCCL.value if cause.shows in (Symptom.HANG, Symptom.NODE_GONE, Symptom.NODE_CRASH) else 0.0


def _waits_s(cause: Cause) -> float:
    """Until the run has ended, where only the time-outs of NCCL and of Slurm end it."""
    return {Symptom.HANG: NCCL.value, Symptom.NODE_GONE: SLURM_NODE.value}.get(cause.shows, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutAndPerson(Rules):
    """The ledger's counterfactual."""

    name: str = "time-out and a person"
    spares: int = 0
    assumptions: tuple[str, ...] = (
        f"NCCL's time-out ({NCCL.value / 60:g} min) ends a hang and a lost node, then a person notices within "
        f"{HUMAN.value / 60:g} min, does the right thing at once, and the first new start holds "
        "(docs/ledger.md#the-counterfactual).",
    )

    def answer(self, case: Case) -> Answer:
        return _person(_hang_s(case.cause), case.setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoResume(Rules):
    """HyperPod on Slurm, `srun --auto-resume=1`, and nothing else."""

    name: str = "HyperPod auto-resume alone"
    spares: int = 0
    assumptions: tuple[str, ...] = (
        "It resumes after a process's end with a hardware cause; the node is replaced, never rebooted, and waited for "
        "(SageMaker guide, sagemaker-hyperpod-resiliency-slurm-auto-resume).",
        f"NCCL's time-out ({NCCL.value / 60:g} min) ends a hang; hung-job detection, which a job must ask for, is not "
        "played.",
        "Everything else is a person's, as above: a script's own error, a hang without a hardware cause, NaN.",
        "Its diagnosis finds every broken node that the health agent or Slurm names.",
    )

    def answer(self, case: Case) -> Answer:
        cause, setting = case.cause, case.setting
        if not (cause.is_of_a_node and cause.is_named):
            return _person(_waits_s(cause), setting)
        return Answer(
            detect_s=_waits_s(cause) + DIAGNOSIS.value,
            down_s=setting.restart_s,
            excludes=True,
            rung=Rung.REPLACE,
            by_platform=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLogRules(Rules):
    """The HyperPod training operator's log rules, on EKS."""

    name: str = "training operator's log rules"
    spares: int = 0
    assumptions: tuple[str, ...] = (
        f"No line for {OPERATOR_GAP_S:g} s is a hang; an end is seen within {OPERATOR_READ_S:g} s; a new start of the "
        f"processes takes {OPERATOR_NODE_S:g} s (the guide's sample), that of a spare as well.",
        "A lost node shows as a hang. NaN never matches the documented pattern and shows as one, too; it resumes from "
        "the newest checkpoint.",
        f"After {OPERATOR_RESTARTS} restarts without gain a person is called. The health agent replaces what it names.",
        "False alarms of a fixed limit (evaluation, slow saves) are not played: in its favour.",
    )

    def answer(self, case: Case) -> Answer:
        cause, setting = case.cause, case.setting
        if case.tries >= OPERATOR_RESTARTS:
            return _person(0.0, setting)
        waits = cause.shows in (Symptom.HANG, Symptom.NODE_GONE, Symptom.NON_FINITE)
        return Answer(
            detect_s=OPERATOR_GAP_S if waits else OPERATOR_READ_S,
            down_s=min(setting.restart_s, OPERATOR_NODE_S),
            goes_back=False,
            excludes=cause.is_named,
            rung=Rung.REPLACE if cause.cure is Remedy.REPLACE else Rung.REBOOT,
            by_platform=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAlways(Rules):
    """A loop around the script, or a requeue of the scheduler, without a word on nodes or data."""

    name: str = "automatic requeue"
    spares: int = 0
    assumptions: tuple[str, ...] = (
        f"NCCL's time-out ({NCCL.value / 60:g} min) ends a hang; it starts again after {LOOP_PAUSE_S:g} s (the median "
        "of arXiv 2605.09370), on the same nodes, from the newest checkpoint.",
        f"What has not held for {HUMAN.value / 60:g} min a person repairs.",
        "A NaN ends nothing, so only a person sees it.",
    )

    def answer(self, case: Case) -> Answer:
        cause, setting = case.cause, case.setting
        if cause.shows is Symptom.NON_FINITE:
            return _person(HUMAN.value, setting)
        if case.since_s > HUMAN.value:
            return Answer(detect_s=0.0, down_s=setting.restart_s, excludes=True, rung=Rung.REPLACE, by_person=True)
        return Answer(
            detect_s=_waits_s(cause) if case.tries == 0 else 0.0,
            down_s=LOOP_PAUSE_S + setting.restart_s,
            goes_back=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvrx(Rules):
    """nvidia-resiliency-ext 0.7: in-job restarts with hot spares."""

    spares: int = 0
    name: str = "NVRx 0.7"
    assumptions: tuple[str, ...] = (
        f"The hang limit is set to {NVRX_FACTOR:g} x the longest step (there is none by default), looked at every "
        f"{NVRX_LOOK_S:g} s; an in-job start takes {NVRX_RESTART_S:g} s at most.",
        "Its health check before a start finds every node that the health agent or the scheduler names.",
        "It replaces no node: a person has one repaired within 90 minutes, and is called for each.",
        f"{NVRX_CYCLES} cycles without gain end with exit 93, and a person. It does not look at the loss.",
    )

    def answer(self, case: Case) -> Answer:
        cause, setting = case.cause, case.setting
        if cause.shows is Symptom.NON_FINITE:
            return _person(HUMAN.value, setting)
        if case.tries >= NVRX_CYCLES:
            return _person(0.0, setting)
        waits = cause.shows in (Symptom.HANG, Symptom.NODE_GONE)
        leaves = cause.is_of_a_node and cause.is_named
        return Answer(
            detect_s=NVRX_FACTOR * setting.step_s + NVRX_LOOK_S if waits else NVRX_LOOK_S,
            down_s=min(setting.restart_s, NVRX_RESTART_S),
            excludes=leaves,
            pages=int(leaves),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRobust(Rules):
    """ByteRobust as published, on ByteDance's own clusters."""

    spares: int = 0
    name: str = "ByteRobust (as published)"
    assumptions: tuple[str, ...] = (
        f"A checkpoint in memory at every step, for {BYTE_SAVE_SHARE:.1%} of the time: nothing is trained again, but "
        f"after a NaN. A start from warm standby is {BYTE_STANDBY:g} x faster than a requeue, always: in its favour.",
        f"Named faults are found in {BYTE_GPU_S:g} to {BYTE_LINK_S:g} s, silent hangs in {BYTE_SILENT_S:g} s; a "
        f"decision by stacks takes out {BYTE_EVICTS} well machines beside the broken one (6 to 7: the lower).",
        "Its cluster replaces what was taken out as HyperPod does. It is not available on AWS.",
    )

    @property
    def save_share(self) -> float | None:
        return BYTE_SAVE_SHARE

    def answer(self, case: Case) -> Answer:
        cause, setting = case.cause, case.setting
        by_stacks = cause.shows is Symptom.HANG
        detect_s = {
            Symptom.CRASH: BYTE_GPU_S,
            Symptom.NODE_CRASH: BYTE_GPU_S,
            Symptom.NODE_GONE: BYTE_LINK_S,
            Symptom.HANG: BYTE_LINK_S if cause.is_named and cause.is_of_a_node else BYTE_SILENT_S,
            Symptom.NON_FINITE: setting.step_s,
        }[cause.shows]
        return Answer(
            detect_s=detect_s,
            down_s=setting.restart_s / BYTE_STANDBY,
            keeps_all=cause.shows is not Symptom.NON_FINITE,
            excludes=cause.is_named or by_stacks or case.tries > 0,
            rung=Rung.REPLACE,
            by_platform=True,
            over_evicts=BYTE_EVICTS if by_stacks or (case.tries > 0 and not cause.is_named) else 0,
        )
