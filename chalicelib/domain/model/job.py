"""Jobs and their Attempts, as the registry keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.incident import SkipWindow
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.cluster.names import undeclared_job_ids
from rekindle.protocol.run_places import one_spelling


class AlarmMode(StrEnum):
    """Which CloudWatch alarms the service keeps for a Job."""

    NONE = "none"
    JOB = "job"  # its own: hang, non-finite, throughput
    SHARED = "shared"  # one alarm over all such Jobs, one contributor each


# A first step may be the resume step or the next one; a few more are lost by trainers that count by another rule.
FAR_BELOW_STEPS: Final = 10
# The fields that are learned while an attempt runs and as it ends; the others say how it was submitted.
_PROGRESS: Final = (
    "status",
    "first_step",
    "last_step",
    "ended_at",
    "superseded_at",
    "began",
    "died_before_step",
)
PLAN_IGNORED: Final = "verify.plan_ignored"  # the outcome of an Incident whose attempt ignored its resume plan
DEFAULT_HANG_MINUTES = 15  # above the evaluation pauses and checkpoint uploads of most runs; a Job may set its own
MIN_HANG_MINUTES = 5
MAX_METRIC_NAME = 255  # characters
MAX_HANG_MINUTES = 1440  # Source: CloudWatch user guide: an alarm evaluates at most one day of one-minute periods


def is_metric_name(text: str) -> bool:
    """True for a name that CloudWatch takes. One that it refuses would fail a whole GetMetricData call, and with it
    the metrics of all Jobs in it.

    Source: botocore, sagemaker and cloudwatch, MetricName (1 to 255); "MetricName must not contain Non-ASCII
    characters", github.com/hashicorp/terraform/issues/29681; API_Dimension for the blank ones.
    """
    return 1 <= len(text) <= MAX_METRIC_NAME and text.isascii() and text.isprintable() and not text.isspace()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan(Record):
    """How a Job is watched from outside.

    `loss`, `step`, `grad_norm` are names of the platform job's own metrics (MetricDefinitions), for a Job whose script
    cannot be changed; all empty for a Job with a monitor, which needs no names. `hang_minutes` is how long its metric
    may be silent before its hang alarm rings. `alarms_state` says what has come of `alarms`: empty (to be done),
    `made:<for which attempt>`, `refused:<why>`.
    """

    loss: str = ""
    step: str = ""
    grad_norm: str = ""
    alarms: AlarmMode = AlarmMode.NONE
    hang_minutes: int = DEFAULT_HANG_MINUTES
    alarms_state: str = ""

    @property
    def has_own_metrics(self) -> bool:
        """The Job is watched by its platform job's own metrics."""
        return bool(self.loss or self.step or self.grad_norm)


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run trains and meets the service: equal for two runs that may be one.

    `mailbox` is kept in one spelling; empty where the run has none.
    """

    platform: str
    cluster: str
    mailbox: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "mailbox", one_spelling(self.mailbox) or self.mailbox.rstrip("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSave(Record):
    """The furthest step for which a manifest of `attempt` was seen."""

    attempt: str
    step: int

    def is_older_than(self, attempt: str, step: int) -> bool:
        """Whether a save of that attempt and step takes its place."""
        return attempt != self.attempt or step > self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Record):
    """A protected run, the same `job_id` across every Attempt.

    `platform` names what its attempts run on (model/platform.py), `cluster` which cluster of it; empty: none.
    `mailbox` is the prefix (`s3://bucket/prefix`) under which the run's monitor and the service meet; empty where the
    run has none. `checkpoints` is the URI under which its checkpoints appear; empty where only the mailbox is known.
    `limits` are what cannot be done for it, one sentence each, and `size` how big it is, as found at registration.
    `active` is False once the run has completed or was given up: the sweep no longer looks at it. `halted_by` is who
    ordered it to be stopped for good; empty otherwise, and again once a new attempt starts. `ended_at` is when its last
    attempt ended, or when it was found to be over where that is not known; None while it is active. `version` fences
    changes of the current attempt. `newest_save` was seen to be sealed, whatever has become of it since.
    """

    job_id: str
    name: str
    platform: str
    policy_name: str
    created_at: datetime
    current_attempt: str
    attempt_number: int
    attempt_started_at: datetime
    cluster: str = ""
    mailbox: str = ""
    checkpoints: str = ""
    active: bool = True
    open_incident: str | None = None
    version: int = 0
    watch: WatchPlan = WatchPlan()
    limits: tuple[str, ...] = ()
    halted_by: str = ""
    size: JobSize = field(default_factory=JobSize)
    ended_at: datetime | None = None
    newest_save: NewestSave | None = None

    @property
    def place(self) -> RunPlace:
        return RunPlace(self.platform, self.cluster, self.mailbox)

    def is_named(self, job_id: str, *, attempt: str) -> bool:
        """Whether a message of that attempt which names `job_id` is this Job's. An attempt that was started by hand may
        have been given no id: its monitor then makes one (`undeclared_job_ids`).
        """
        return job_id == self.job_id or job_id in undeclared_job_ids(attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Record):
    """One submission of a Job. `incident_id` names the Incident that submitted it; None for the first.

    `went_back`: it resumed below the furthest step on purpose (an order, a poisoned run). `began`:
    the platform has run its script, and not only waited for capacity; False also while that is not known. `left_out`
    and `left_nodes` are its order's (ResubmitJob). `died_before_step`: it failed, and its last heartbeat, shortly
    before, showed no step.
    """

    job_id: str
    number: int
    name: str
    submitted_at: datetime
    incident_id: str | None = None
    resume_step: Maybe[int] = Unknown("the first attempt")
    went_back: bool = False
    skips: tuple[SkipWindow, ...] = ()
    status: str = ""
    first_step: Maybe[int] = Unknown("no step seen")
    last_step: Maybe[int] = Unknown("no step seen")
    ended_at: datetime | None = None
    superseded_at: datetime | None = None
    began: bool = False
    left_out: tuple[str, ...] = ()
    left_nodes: tuple[str, ...] = ()
    died_before_step: bool = False

    def updated(self, newer: Attempt) -> Attempt:
        """With the progress and end that `newer` knows; what it does not know, and how it was submitted, stay."""
        return replace(self, **newer.known_progress())

    def known_progress(self) -> dict[str, Any]:
        """What is known of its progress and end, by field name."""
        values = {name: getattr(self, name) for name in _PROGRESS}
        return {name: value for name, value in values.items() if value and not isinstance(value, Unknown)}


def is_far_below(first_step: Maybe[int], resume_step: Maybe[int]) -> bool:
    """Whether the attempt is known to have begun far below its resume step."""
    if not isinstance(first_step, Known) or not isinstance(resume_step, Known):
        return False
    return first_step.value < resume_step.value - FAR_BELOW_STEPS
