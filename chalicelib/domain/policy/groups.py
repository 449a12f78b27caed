"""The groups of a policy document: every field once, with its default, range, unit and one line for people.

docs/policy.md is written from these lines (`python -m infra.policy_docs`).
docs/facts-sagemaker.md lists what is known of AWS.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from chalicelib.domain.model.hardware_ledger import SuspectRule
from chalicelib.domain.model.repair import Allowed, Route
from chalicelib.domain.policy.fields import (
    DAY_S,
    Count,
    Flag,
    Number,
    OneOf,
    Rows,
    Seconds,
    SecondsList,
    declared,
    words_of,
)
from chalicelib.domain.policy.guard_rules import ApprovalRule


def _durations(*seconds: float) -> tuple[timedelta, ...]:
    return tuple(timedelta(seconds=one) for one in seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How much may be tried before a person is called."""

    max_no_progress: int = declared(  # Source: NVRx, 3 cycles
        3, Count(1, 20, "attempts"), "attempts in a row that gain no step before a person is called"
    )
    max_attempts: int = declared(
        10, Count(1, 100, "attempts"), "resubmissions in one Incident, whatever they gained; bounds unknown progress"
    )
    max_rollbacks: int = declared(3, Count(1, 20, "rollbacks"), "rollbacks in one Incident before a person is called")
    max_skips: int = declared(
        10,
        Count(1, 10_000, "skips"),
        "how many times `loss.skip_steps` may have been left out, over all Incidents of a Job, before a person is "
        "called instead of one more rollback",
    )
    load_deaths_before_quarantine: int = declared(
        2, Count(1, 10, "attempts"), "new attempts that die on one checkpoint before it is quarantined"
    )
    corrupt_loads_before_quarantine: int = declared(
        1,
        Count(1, 10, "attempts"),
        "the same where the failure itself says that the checkpoint is corrupt, and an older one exists",
    )
    max_nodes_in_repair_percent: float = declared(
        25.0,
        Number(0, 100, "percent"),
        "share of a cluster's nodes in repair at once, rounded down; one always may be",
    )
    max_repairs_per_day: int = declared(
        10,
        Count(1, 1000, "repairs"),
        "repairs in one cluster within 24 hours before a person is called instead of one more",
    )
    max_group_in_repair_percent: float = declared(
        25.0,
        Number(0, 100, "percent"),
        "share of an instance group's nodes in repair at once, rounded down; one always may be",
    )
    max_group_repairs_per_day: int = declared(
        5,
        Count(1, 1000, "repairs"),
        "repairs in one instance group within 24 hours before a person is called instead of one more "
        "(AWS's own kit: five replacements in 24 hours)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a recovery waits at each of its steps."""

    checkpoint_deadline: timedelta = declared(
        timedelta(minutes=5), Seconds(1, DAY_S), "how long a living run may take to save"
    )
    hang_deadline: timedelta = declared(
        timedelta(seconds=30), Seconds(1, DAY_S), "the same for a run that is probably stuck"
    )
    stacks_wait: timedelta = declared(
        timedelta(seconds=30),
        Seconds(0, 3600),
        "how long the ranks' own reports are waited for before a stuck run is stopped",
    )
    stop_limit: timedelta = declared(  # SIGTERM, and 120 s to end
        timedelta(minutes=30),
        Seconds(1, DAY_S),
        "how long a stop may take before a person is called (SIGTERM, 120 s, SIGKILL, upload); what cannot be read for "
        "so long is paged once, then waited for until `resubmission.capacity_limit_s`",
    )
    repair_grace: timedelta = declared(
        timedelta(hours=1),
        Seconds(0, DAY_S),
        "how long the platform's own repair of a run is left alone (SageMaker: up to 10 restarts)",
    )
    auto_resume_grace: timedelta = declared(  # HyperPod: 20 to 30 minutes until the node is replaced
        timedelta(minutes=30),
        Seconds(0, DAY_S),
        "how long a Slurm job whose step is gone is left to its own `srun --auto-resume`, and a node to HyperPod's own "
        "recovery",
    )
    start_limit: timedelta = declared(
        timedelta(hours=1), Seconds(1, 7 * DAY_S), "how long a new attempt may take to its first step"
    )
    verify_blind: timedelta = declared(
        timedelta(minutes=30),
        Seconds(1, DAY_S),
        "how long an attempt whose steps cannot be seen is watched before a person is notified",
    )
    silent_limit: timedelta = declared(
        timedelta(minutes=30), Seconds(1, DAY_S), "a new attempt that stands still for so long is hung"
    )
    look_min: timedelta = declared(  # the durable engine waits whole seconds, at least one
        timedelta(seconds=5), Seconds(1, 3600), "shortest interval between two observations of a run"
    )
    look_max: timedelta = declared(
        timedelta(minutes=1), Seconds(1, 3600), "longest interval between two observations of a run"
    )
    tell_open: timedelta = declared(
        timedelta(minutes=15),
        Seconds(0, DAY_S),
        "how long an Incident about which nothing may be done stays open to collect its echoes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resubmission:
    """How a new attempt is submitted."""

    backoff: tuple[timedelta, ...] = declared(
        _durations(0, 30, 120, 300),
        SecondsList(Seconds(0, DAY_S)),
        "wait before the n-th resubmission that follows one without progress; the last repeats",
    )
    capacity_backoff: tuple[timedelta, ...] = declared(
        _durations(30, 60, 120, 300, 600),
        SecondsList(Seconds(1, DAY_S)),
        "the same after a refusal for lack of capacity or quota",
    )
    capacity_limit: timedelta = declared(
        timedelta(hours=6), Seconds(60, 30 * DAY_S), "how long capacity is waited for before a person is called"
    )
    min_nodes_percent: float = declared(
        100.0,
        Number(1, 100, "percent"),
        "a started-again Slurm job may run on this share of its nodes, if its own comment says `min_nodes=N` too "
        "([slurm-playbooks.md](slurm-playbooks.md)); 100: never smaller",
    )
    smaller_after: timedelta = declared(
        timedelta(minutes=30),
        Seconds(60, 30 * DAY_S),
        "how long such a job waits for all its nodes first; choose it below `timing.start_limit_s`",
    )
    large_instances: int = declared(
        16,
        Count(1, 10_000, "instances"),
        "from this instance count on, `retry_attempts` is set for a training job where the user set none",
    )
    retry_attempts: int = declared(  # Source: RetryStrategy.MaximumRetryAttempts, botocore
        30, Count(1, 30, "attempts"), "SageMaker's own RetryStrategy of such a job"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is done about a loss that is not finite, spikes or diverges: how far back, and which data are left out."""

    same_data_retries: int = declared(
        1,
        Count(0, 10, "attempts"),
        "how often a non-finite loss is retried on the same data before data is skipped",
    )
    skip_steps: int = declared(
        200,
        Count(1, 1_000_000, "steps"),
        "how many steps' data the first skip leaves out (PaLM left out 200 to 500 batches)",
    )
    skip_margin_steps: int = declared(
        10,
        Count(0, 100_000, "steps"),
        "how far before the onset the skip begins: the batch that bent the weights came before the loss showed it",
    )
    rewind_steps: int = declared(
        0,
        Count(0, 1_000_000, "steps"),
        "how far before the onset of a non-finite loss the resume point must lie at least; 0 is just before",
    )
    spike_heal_steps: int = declared(
        30,
        Count(1, 1_000_000, "steps"),
        "how many steps after its onset a spike may take to heal before anything is done (BLOOM: about 30)",
    )
    spike_rewind_steps: int = declared(
        100,
        Count(0, 1_000_000, "steps"),
        "how far before the onset of a spike or divergence the resume point must lie at least (PaLM: about 100)",
    )
    widen_factor: float = declared(
        1.5,
        Number(1, 10, "times"),
        "by how much skip, margin and rewind grow with each further rollback that skips data",
    )
    stop_without_resume_point: bool = declared(
        False,
        Flag(),
        "stop a run gone bad that no rollback can help before a person is called; else it is left running",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How far the repair of nodes goes, and how long its steps may take."""

    repair: Allowed = declared(
        Allowed.REPLACE,
        OneOf(words_of(Allowed)),
        "how far the repair of a node may go ([node-repair.md](node-repair.md))",
    )
    route: Route = declared(
        Route.AUTO,
        OneOf(words_of(Route)),
        "how a repair is asked for; `auto` is HyperPod's API, on plain Slurm its own reboot",
    )
    hma_grace: timedelta = declared(  # Source: docs/facts-sagemaker.md#durations
        timedelta(minutes=10),
        Seconds(0, DAY_S),
        "how long HyperPod's health agent gets to repair what it sees itself, before we do",
    )
    drain_limit: timedelta = declared(
        timedelta(days=1),
        Seconds(60, 30 * DAY_S),
        "how long jobs may stay on a cordoned node, or a repair wait for its turn, before a person is called",
    )
    reboot_limit: timedelta = declared(
        timedelta(minutes=20),
        Seconds(60, DAY_S),
        "how long a rebooted node may take until it is well, before it is replaced",
    )
    settle: timedelta = declared(  # Source: docs/facts-sagemaker.md#node-states
        timedelta(minutes=5),
        Seconds(0, 3600),
        "how long a repaired node may look untouched before that is believed: HyperPod's view and Slurm's lag each "
        "other",
    )
    stuck_limit: timedelta = declared(  # Source: docs/facts-sagemaker.md#durations, several attempts
        timedelta(minutes=75), Seconds(60, DAY_S), "how long a repair may stand still before a person is called"
    )
    deep_health_check: bool = declared(
        False, Flag(), "check a repaired instance for one to two hours before it gets jobs again"
    )
    health_check_limit: timedelta = declared(
        timedelta(hours=4), Seconds(60, DAY_S), "how long such a check may take before a person is called"
    )
    suspect_faults: int = declared(
        3,
        Count(2, 100, "Incidents"),
        "faults of one piece of hardware, each an Incident, that make it suspect ([hardware.md](hardware.md))",
    )
    suspect_window: timedelta = declared(timedelta(days=28), Seconds(3600, 90 * DAY_S), "how far back they count")
    suspect_repair: SuspectRule = declared(
        SuspectRule.REPLACE,
        OneOf(words_of(SuspectRule)),
        "what is done about suspect hardware: nothing, a notification, or a replacement instead of a reboot",
    )
    look_min: timedelta = declared(
        timedelta(seconds=30), Seconds(1, 3600), "shortest interval between two observations of a node"
    )
    look_max: timedelta = declared(
        timedelta(minutes=3),
        Seconds(1, 3600),
        "longest interval between two observations of a node; five times that after two hours",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvals:
    """What people are asked about before it is done."""

    rules: tuple[ApprovalRule, ...] = declared(
        (), Rows(ApprovalRule), "which steps people are asked about; the first row that applies counts"
    )
    alert_deadline: timedelta = declared(
        timedelta(hours=4),
        Seconds(0, 7 * DAY_S),
        "how long a person has to agree before a run is stopped, or a node taken out, upon an alert of other "
        "monitoring alone; without an answer it is not done; 0: the alert is believed",
    )
    others_deadline: timedelta = declared(
        timedelta(hours=4),
        Seconds(0, 7 * DAY_S),
        "how long a person has to agree before a node is taken out on which jobs run that never asked for protection; "
        "without an answer it is not done; 0: it is done without asking",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """When everything is held, because too many Incidents act at once."""

    incidents: int = declared(
        20,
        Count(0, 100_000, "Incidents"),
        "how many Incidents may act within `window_s`, over all Jobs, before everything is held until a person lifts "
        "that; 0: no breaker",
    )
    percent: float = declared(
        20.0,
        Number(0, 100, "percent"),
        "the same as a share of the active Jobs: the breaker trips only when both are passed",
    )
    window: timedelta = declared(timedelta(minutes=10), Seconds(60, DAY_S), "how far back they are counted")
    deadline: timedelta = declared(
        timedelta(hours=4),
        Seconds(60, 7 * DAY_S),
        "how long a person has to lift it before each Incident that it holds is handed over",
    )
