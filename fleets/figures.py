"""Every assumption of the model that is a number, with its source. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.reporting.counterfactual import HUMAN_S, NCCL_TIMEOUT_S, NODE_REPAIR_S, NODE_REPLACE_S, RESTART_S
from rekindle.doctor.stack.runs import ASSUMED_SAVE, FAILURES_PER_NODE_DAY
from rekindle.monitor.base.settings import Config

_MONITOR = Config()
_LEDGER = "the ledger's counterfactual (docs/ledger.md)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One assumption: `name` describes it in a phrase, `value` is in `unit` (empty: a plain number)."""

    name: str
    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.name}: {f'{self.value:g} {self.unit}'.rstrip()} ({self.source})"


STEP = Figure(name="a step", value=10.0, unit="s", source="assumed; only the monitor's hang limit depends on it")
SAVE = Figure(
    name="a save stops the run for",
    value=ASSUMED_SAVE.total_seconds(),
    unit="s",
    source="arXiv 2410.21680, as in `rekindle doctor`",
)
RESTART = Figure(name="a new start until it trains", value=RESTART_S, unit="s", source=_LEDGER)
STOP = Figure(name="stopping a stuck job", value=30.0, unit="s", source="slurm.conf, KillWait, its default")
HUMAN = Figure(name="a person notices and acts within", value=HUMAN_S, unit="s", source=_LEDGER)
NODE_BY_PERSON = Figure(name="a person has a node repaired in", value=NODE_REPAIR_S, unit="s", source=_LEDGER)
NCCL = Figure(
    name="NCCL's time-out ends a hang after",
    value=NCCL_TIMEOUT_S,
    unit="s",
    source="PyTorch's default for NCCL (pytorch/pytorch #110947)",
)
REBOOT = Figure(name="a reboot", value=120.0, unit="s", source="HyperPod takes 1-3 min")
REPLACE = Figure(name="a replacement until usable", value=NODE_REPLACE_S, unit="s", source="HyperPod takes 20-30 min")
HEALTH_AGENT = Figure(
    name="the health agent names a node after", value=30.0, unit="s", source="HyperPod takes 5-30 s, the longest taken"
)
DIAGNOSIS = Figure(name="auto-resume's diagnosis", value=20.0, unit="s", source="HyperPod on Slurm takes 10-30 s")
AGENT_POLL = Figure(
    name="the head node's agent sees that a job has ended after",
    value=10.0,
    unit="s",
    source="it reads Slurm every 10 s (docs/agent.md), the longest taken",
)
SLURM_NODE = Figure(
    name="Slurm gives a silent node up after", value=300.0, unit="s", source="slurm.conf, SlurmdTimeout, its default"
)
REQUEST_POLL = Figure(
    name="the monitor hears a request after",
    value=_MONITOR.poll_s,
    unit="s",
    source="rekindle.monitor, poll_s (docs/monitor.md), the longest taken",
)
HANG_FLOOR = Figure(
    name="the monitor calls a hang after 5 usual steps, at least",
    value=_MONITOR.stall_floor_s,
    unit="s",
    source="rekindle.monitor, stall_factor and stall_floor_s (docs/monitor.md)",
)
WATCHDOG_PERIOD = Figure(
    name="the monitor's watchdog looks every", value=_MONITOR.watch_s, unit="s", source="rekindle.monitor, watch_s"
)
REBOOT_LIMIT = Figure(
    name="a node that a reboot does not cure is replaced after",
    value=DEFAULT_POLICY.nodes.reboot_limit.total_seconds(),
    unit="s",
    source="policy, nodes.reboot_limit_s",
)
RATE = Figure(
    name="failures per 1000 node-days",
    value=FAILURES_PER_NODE_DAY * 1000,
    unit="",
    source="arXiv 2410.21680 (Meta), nodes of 8 GPUs",
)


def hang_limit_s(step_s: float) -> float:
    """How long after a run's last step the monitor reports a hang, at most; `step_s` is its usual step time."""
    return max(_MONITOR.stall_floor_s, _MONITOR.stall_factor * step_s) + _MONITOR.watch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One modelled run: its size, and how long saving, stopping, starting and repairing take.

    `interval_s` are productive seconds between two saves, each of which stops the run for `save_s`.
    """

    nodes: int
    gpus_per_node: int
    interval_s: float
    step_s: float = STEP.value
    save_s: float = SAVE.value
    restart_s: float = RESTART.value
    stop_s: float = STOP.value
    reboot_s: float = REBOOT.value
    replace_s: float = REPLACE.value

    @property
    def gpus(self) -> int:
        """All GPUs of the run."""
        return self.nodes * self.gpus_per_node
