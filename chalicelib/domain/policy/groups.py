"""The groups of a policy document: every setting once, with its default, range, unit, and lines for people.

The reference and the JSON Schema are written from these declarations (`python -m infra.site`). A field without
`declared` is a constant, given with its reason: rules read it as they read a setting, no document gives it, and
`dataclasses.replace` gives another one to a test. A Policy with other constants does not survive its document.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from chalicelib.domain.model.hardware_ledger import SuspectRule
from chalicelib.domain.model.repair import Allowed, Route
from chalicelib.domain.policy.fields import Rows, declared
from chalicelib.domain.policy.guard_rules import ApprovalRule
from chalicelib.domain.policy.kinds import DAY_S, Count, Flag, Number, OneOf, Seconds, SecondsList, words_of


def _durations(*seconds: float) -> tuple[timedelta, ...]:
    return tuple(timedelta(seconds=each) for each in seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How much may be tried before a person is called."""

    max_no_progress: int = declared(  # NVIDIA Resiliency Extension gives up after three restarts without progress
        3,
        Count(1, 20, "attempts"),
        "attempts in a row that gain no step before a person is called",
        whom="those for whom a start is dear, or who know that theirs often fail",
    )
    max_attempts: int = declared(
        10,
        Count(1, 100, "attempts"),
        "resubmissions in one Incident, whatever they gained; bounds unknown progress",
        whom="those who leave runs unattended for days, or will not",
    )
    max_restarts_per_day: int = declared(
        24,
        Count(1, 1000, "restarts"),
        "restarts of one Job within 24 hours, over all its Incidents and whatever each gained, before a person is "
        "called instead of one more, as at half of them within one hour; at half of either a warning",
        whom="those whose runs are interrupted every hour, or for whom a start is dear",
    )
    max_rollbacks: int = declared(
        3,
        Count(1, 20, "rollbacks"),
        "rollbacks in one Incident before a person is called",
        whom="researchers who want to look at a bad loss sooner, or later",
    )
    max_nodes_in_repair_percent: float = declared(
        25.0,
        Number(0, 100, "percent"),
        "share of a cluster's nodes, and of an instance group's, in repair at once, rounded down; one always may be",
        whom="cluster operators, by how many nodes their runs can miss",
    )
    max_repairs_per_day: int = declared(
        10,
        Count(1, 1000, "repairs"),
        "repairs in one cluster within 24 hours before a person is called instead of one more",
        whom="operators of clusters of hundreds of nodes",
    )
    max_group_repairs_per_day: int = declared(  # AWS's investigation kit escalates after five replacements in a day
        5,
        Count(1, 1000, "repairs"),
        "repairs in one instance group within 24 hours before a person is called instead of one more",
        whom="operators of clusters of hundreds of nodes",
    )
    # New attempts that die on one checkpoint before it is quarantined: the second tells it from a coincidence. Where
    # the failure itself says that the checkpoint is corrupt, the first is enough.
    load_deaths_before_quarantine: int = 2
    corrupt_loads_before_quarantine: int = 1
    # How many times `loss.skip_steps` may have been left out, over all Incidents of a Job, before a person is called
    # instead of one more rollback: with the built-in 200 steps, 2,000.
    max_skips: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a recovery waits at each of its steps."""

    checkpoint_deadline: timedelta = declared(
        timedelta(minutes=5),
        Seconds(1, DAY_S),
        "how long a living run may take to save",
        whom="those whose checkpoint takes more than a few minutes to write",
    )
    hang_deadline: timedelta = declared(
        timedelta(seconds=30),
        Seconds(1, DAY_S),
        "the same for a run that is probably stuck",
        whom="those whose trainer can still save while a collective hangs",
    )
    stop_limit: timedelta = declared(  # SageMaker: SIGTERM, 120 s later SIGKILL, then the upload of what was written
        timedelta(minutes=30),
        Seconds(1, DAY_S),
        "how long a stop may take before a person is called (SIGTERM, 120 s, SIGKILL, upload); what cannot be read for "
        "so long is paged once, then waited for until `resubmission.capacity_limit_s`",
        whom="those whose job uploads large output when it stops",
    )
    auto_resume_grace: timedelta = declared(  # HyperPod replaces a node within 20 to 30 minutes
        timedelta(minutes=30),
        Seconds(0, DAY_S),
        "how long a Slurm job whose step is gone is left to its own `srun --auto-resume`, and a node to HyperPod's own "
        "recovery",
        whom="those who start steps with `--auto-resume`, and do not want to wait so long for it",
    )
    start_limit: timedelta = declared(
        timedelta(hours=1),
        Seconds(1, 7 * DAY_S),
        "how long a new attempt may take to its first step",
        whom="those whose model takes long to load or compile",
    )
    silent_limit: timedelta = declared(
        timedelta(minutes=30),
        Seconds(1, DAY_S),
        "a new attempt that stands still for so long is hung",
        whom="those whose steps, evaluations or saves take longer",
    )
    look_max: timedelta = declared(
        timedelta(minutes=1),
        Seconds(1, 3600),
        "longest interval between two observations of a run; three times that for a node",
        whom="those who want a decision sooner, at the price of more calls to AWS",
    )
    tell_open: timedelta = declared(
        timedelta(minutes=15),
        Seconds(0, DAY_S),
        "how long an Incident about which nothing may be done stays open: what repeats meanwhile is not told again",
        whom="those who want fewer notices about the same trouble",
    )
    # How long the platform's own repair of a run is left alone. SageMaker repairs a cluster up to ten times, some
    # minutes each (Amazon SageMaker Developer Guide, "Cluster repair").
    repair_grace: timedelta = timedelta(hours=1)
    # How long an attempt whose steps cannot be seen is watched before a person is notified.
    verify_blind: timedelta = timedelta(minutes=30)

    @property
    def look_min(self) -> timedelta:
        """Shortest interval between two observations of a run: five seconds by default, never under one.

        The durable engine waits whole seconds, at least one.
        """
        return max(timedelta(seconds=1), self.look_max / 12)

    @property
    def stacks_wait(self) -> timedelta:
        """How long the ranks' own reports are waited for before a stuck run is stopped: 30 seconds by default.

        The ranks write them within seconds, so five is the least.
        """
        return max(timedelta(seconds=5), self.look_max / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resubmission:
    """How a new attempt is submitted."""

    backoff: tuple[timedelta, ...] = declared(
        _durations(0, 30, 120, 300),
        SecondsList(Seconds(0, DAY_S)),
        "wait before the n-th resubmission that follows one without progress; the last repeats",
        whom="those whose storage or license server needs time between two starts",
    )
    capacity_limit: timedelta = declared(
        timedelta(hours=6),
        Seconds(60, 30 * DAY_S),
        "how long capacity is waited for before a person is called",
        whom="those without reserved capacity, who may wait for days",
    )
    min_nodes_percent: float = declared(
        100.0,
        Number(1, 100, "percent"),
        "a started-again Slurm job may run on this share of its nodes, if its own comment says `min_nodes=N` too "
        "([slurm-playbooks.md](slurm-playbooks.md)); 100: never smaller",
        whom="those whose trainer can resume on fewer nodes",
    )
    repoint_others: bool = declared(
        False,
        Flag(),
        "also jobs of other users that wait for a Slurm job (`--dependency`) wait for its next start; otherwise only "
        "its own user's are changed",
        whom="teams whose members wait for each other's runs",
    )
    # Waits after a refusal for lack of capacity or quota; the last repeats.
    capacity_backoff: tuple[timedelta, ...] = _durations(30, 60, 120, 300, 600)
    # From so many instances on, a training job without a RetryStrategy gets SageMaker's own, for internal errors only.
    # Source of the number of retries: RetryStrategy.MaximumRetryAttempts, at most 30 (botocore).
    large_instances: int = 16
    retry_attempts: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is done about a loss that is not finite, spikes or diverges: how far back, and which data are left out."""

    skip_steps: int = declared(
        200,
        Count(1, 1_000_000, "steps"),
        "how many steps' data the first skip leaves out (PaLM left out 200 to 500 batches)",
        whom="researchers, by the size of a batch",
    )
    skip_margin_steps: int = declared(
        10,
        Count(0, 100_000, "steps"),
        "how far before the onset the skip begins: the batch that bent the weights came before the loss showed it",
        whom="those who log the loss rarely: their logging interval",
    )
    spike_heal_steps: int = declared(
        30,
        Count(1, 1_000_000, "steps"),
        "how many steps after its onset a spike may take to heal before anything is done (BLOOM: about 30)",
        whom="researchers whose spikes heal by themselves, sooner or later than that",
    )
    spike_rewind_steps: int = declared(
        100,
        Count(0, 1_000_000, "steps"),
        "how far before the onset of a spike or divergence the resume point must lie at least (PaLM: about 100)",
        whom="researchers, by how early their weights go bad",
    )
    stop_without_resume_point: bool = declared(
        False,
        Flag(),
        "stop a run gone bad that no rollback can help before a person is called; else it is left running",
        whom="those who would rather free the nodes than keep such a run",
    )
    # A non-finite loss is tried once more on the same data: a broken machine does not need its data skipped.
    same_data_retries: int = 1
    # By how much skip, margin and rewind grow with each further rollback that skips data.
    widen_factor: float = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How far the repair of nodes goes, and how long its steps may take."""

    repair: Allowed = declared(
        Allowed.REPLACE,
        OneOf(words_of(Allowed)),
        "how far the repair of a node may go ([node-repair.md](node-repair.md))",
        whom="cluster operators who begin carefully, or repair by hand",
    )
    route: Route = declared(
        Route.AUTO,
        OneOf(words_of(Route)),
        "how a repair is asked for; `auto` is HyperPod's API, on plain Slurm its own reboot",
        whom="operators who want repairs to pass through Slurm",
    )
    hma_grace: timedelta = declared(  # Source: docs/facts-sagemaker.md#durations
        timedelta(minutes=10),
        Seconds(0, DAY_S),
        "how long HyperPod's health agent gets to repair what it sees itself, before we do",
        whom="operators who trust the agent more, or less",
    )
    drain_limit: timedelta = declared(
        timedelta(days=1),
        Seconds(60, 30 * DAY_S),
        "how long jobs may stay on a cordoned node, or a repair wait for its turn, before a person is called",
        whom="operators whose jobs run for longer than a day",
    )
    reboot_limit: timedelta = declared(
        timedelta(minutes=20),
        Seconds(60, DAY_S),
        "how long a rebooted node may take until it is well, before it is replaced",
        whom="operators whose nodes mount or check for long when they boot",
    )
    settle: timedelta = declared(  # Source: docs/facts-sagemaker.md#node-states
        timedelta(minutes=5),
        Seconds(0, 3600),
        "how long a repaired node may look untouched before that is believed: HyperPod's view and Slurm's lag each "
        "other",
        whom="operators of a cluster whose views lag more, or less, than five minutes",
    )
    deep_health_check: timedelta = declared(
        timedelta(0),
        Seconds(0, DAY_S),
        "how long a start after a fault of hardware waits at most for a deep health check of the nodes that it died on "
        "(of a training job's instances: `EnableInfraCheck`); a repaired instance is checked, too, before it gets jobs "
        "again; 0: nothing is checked",
        whom="operators who would rather wait than get a bad node back",
    )
    suspect_repair: SuspectRule = declared(
        SuspectRule.REPLACE,
        OneOf(words_of(SuspectRule)),
        "what is done about suspect hardware ([hardware.md](hardware.md)): nothing, a notification, or a replacement "
        "instead of a reboot",
        whom="operators who return hardware themselves",
    )
    reboot_drained_after: timedelta = declared(
        timedelta(0),
        Seconds(0, 7 * DAY_S),
        "after how long a node is rebooted that Slurm itself has drained for a defect (`Kill task failed`), or on "
        "which it cannot end a job; 0: never, it is its administrator's",
        whom="operators who would reboot such nodes by hand",
    )
    # How long a repair may stand still before a person is called.
    # Source: docs/facts-sagemaker.md#durations, several attempts.
    stuck_limit: timedelta = timedelta(minutes=75)
    # How long a deep health check may take before a person is called: DCGM level 4 takes 45 to 90 minutes, all of them
    # about two hours (Amazon SageMaker Developer Guide, "Deep health checks").
    health_check_limit: timedelta = timedelta(hours=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvals:
    """What people are asked about before it is done."""

    rules: tuple[ApprovalRule, ...] = declared(
        (),
        Rows(ApprovalRule),
        "which steps people are asked about; the first row that applies counts",
        whom="those who want to agree to a step before it is done",
    )
    alert_deadline: timedelta = declared(
        timedelta(hours=4),
        Seconds(0, 7 * DAY_S),
        "how long a person has to agree before a run is stopped, or a node taken out, upon an alert of other "
        "monitoring alone; without an answer it is not done; 0: the alert is believed",
        whom="those whose own monitoring is to be believed without a person",
    )
    others_deadline: timedelta = declared(
        timedelta(hours=4),
        Seconds(0, 7 * DAY_S),
        "how long a person has to agree before a node is taken out on which jobs run that never asked for protection; "
        "without an answer it is not done; 0: it is done without asking",
        whom="operators of clusters that several teams share",
    )
    max_loss: timedelta = declared(
        timedelta(hours=1),
        Seconds(0, 30 * DAY_S),
        "how much training a new start may throw away, from where the run had come to back to its resume point, before "
        "a person is asked; without an answer within four hours it is not started; 0: never asks",
        whom="those whose checkpoints are more than an hour apart, or for whom a run that goes on matters more",
    )
    loss_deadline: timedelta = timedelta(hours=4)  # as the others


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """When everything is held, because too many Incidents act at once."""

    incidents: int = declared(
        20,
        Count(0, 100_000, "Incidents"),
        "how many Incidents may act within ten minutes, over all Jobs, before everything is held until a person lifts "
        "that; 0: no breaker",
        whom="operators, by the size of the fleet",
    )
    percent: float = declared(
        20.0,
        Number(0, 100, "percent"),
        "the same as a share of the active Jobs: the breaker trips only when both are passed",
        whom="operators, by the size of the fleet",
    )
    window: timedelta = timedelta(minutes=10)  # how far back they are counted
    # How long a person has to lift it before each Incident that it holds is handed over.
    deadline: timedelta = timedelta(hours=4)
