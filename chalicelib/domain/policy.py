"""What the user allows. A validated document; every Decision names the version it used.

A document is JSON; a missing key takes the built-in value, an unknown key is an error (a misspelt limit must not be
silently ignored). Durations are seconds on the wire and timedelta inside.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from chalicelib.domain.errors import InvalidPolicy
from chalicelib.domain.faults import FaultClass
from chalicelib.domain.guard_rules import ApprovalRule, Window, read_approvals, read_windows
from chalicelib.domain.lemons import LemonRule
from chalicelib.domain.node_repair import Allowed, Route
from chalicelib.domain.playbooks import PLAYBOOKS, Deadline, Playbook
from chalicelib.domain.policy_readers import count, duration, durations, flag, number, rows, text, word

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits, waits and playbooks.

    name, version         which document; `version` is "builtin" or a content hash, so equal content is equal policy
    shadow                decide and tell, do nothing
    max_no_progress       attempts that gain no step before a person is called (NVRx: 3 cycles)
    max_attempts          resubmissions in one Incident whatever they gained; bounds what Unknown progress cannot
    backoff               wait before the n-th resubmission that follows one without progress; the last repeats
    capacity_backoff      the same for refusals for want of capacity or quota
    capacity_limit        how long capacity is waited for before a person is called
    checkpoint_deadline   how long a living run may take to save; `hang_deadline` when it is probably stuck
    stop_limit            how long a stop may take before a person is called (SIGTERM + 120 s + upload; aws-facts §6)
    repair_grace          how long the platform's own repair of a run is left alone (SageMaker: up to 10 restarts)
    auto_resume_grace     how long a job whose `srun --auto-resume` may be at work is left alone (HyperPod: 20-30 min
                          until the node is replaced)
    min_nodes_percent     a started-again Slurm job may run on this share of its nodes, if its own comment says so too
                          (`min_nodes=N`); 100: never smaller
    smaller_after         how long such a job waits for all its nodes before it is made smaller
    start_limit           how long a new attempt may take to its first step
    verify_blind          how long an attempt whose steps cannot be seen is watched before a person is told
    silent_limit          a new attempt that stops moving for this long during verification is hung
    look_min, look_max    bounds of the interval between two looks
    same_data_retries     how often a non-finite loss is retried on the same data before data is skipped
    skip_steps            how many steps' data are skipped the first time (PaLM: 200-500 batches)
    skip_margin_steps     how far before the onset the skipped data begin: the batch that bent the weights came first
    rewind_steps          how far before the onset of a non-finite loss the resume point must lie
    spike_heal_steps      how many steps after its onset a spike may take to heal by itself (BLOOM: about 30)
    spike_rewind_steps    how far before the onset of a spike or divergence the resume point must lie (PaLM: about 100)
    widen_factor          by how much skip, margin and rewind grow with each further roll-back of one Incident
    max_rollbacks         roll-backs before a person is called
    max_skips             how many times `skip_steps` may have been left out, over all Incidents of a Job, before a
                          person is called: each Incident has its own roll-backs, and a run may go bad for ever
    stop_without_resume_point  stop a run gone bad for which no roll-back is left, before a person is called
    stacks_wait           how long the ranks' own reports are waited for before a stuck run is stopped
    load_deaths_before_quarantine    new attempts that die on one checkpoint before it is quarantined
    corrupt_loads_before_quarantine  the same where the failure itself says that the checkpoint is corrupt, and an
                          older one exists
    large_instances       from this instance count on, RetryStrategy is set to `retry_attempts` where the user set none
    tell_open             how long an Incident without an allowed action stays open to collect its echoes
    node_repair           how far node repair may go: off, tell, reboot, replace
    repair_route          how a repair is asked for: auto, api, slurm_reason, slurm_reboot
    hma_grace             how long HyperPod's own repair is waited for before ours begins (aws-facts §12)
    drain_limit           how long jobs may stay on a cordoned node, or a repair wait for its turn
    reboot_limit          how long a reboot may take until the node is well, before the next rung
    node_settle           how long a repaired node may look untouched before that is believed: the views lag (§3.3)
    node_stuck_limit      how long a repair may stand still before a person is called (aws-facts §3.3: 60-90 min)
    deep_health_check     check a repaired instance before it gets jobs again (1 to 2 hours)
    health_check_limit    how long such a check may take
    max_nodes_in_repair_percent   share of a cluster's nodes in repair at once; one always may be
    max_repairs_per_day   repairs in one cluster within 24 h before a person is called
    max_group_in_repair_percent, max_group_repairs_per_day   the same within one instance group
    lemon_faults, lemon_window   so many faults of one piece of hardware within so long make it a lemon
    lemon_repair          what is done about one: off, tell, replace
    node_look_min, node_look_max  bounds of the interval between two looks at a node
    approvals             rows: which steps people are asked about first, how long, and what counts if nobody answers
    windows               rows: at what hours which steps are held
    breaker_incidents     Incidents that may act within `breaker_window`, over all Jobs, before everything is held until
                          a person lifts that; 0: no breaker
    breaker_percent       the same as a share of the active Jobs: it trips only when both are passed
    breaker_window        how far back they are counted
    breaker_deadline      how long a person has to lift it, before each Incident that it holds is handed over
    alert_deadline        how long a person has to agree before a run is stopped, or a node taken out, upon the word of
                          other monitoring alone; 0: nobody is asked, it is believed
    """

    name: str = "default"
    version: str = "builtin"
    shadow: bool = False
    max_no_progress: int = 3
    max_attempts: int = 10
    backoff: tuple[timedelta, ...] = (
        timedelta(seconds=0),
        timedelta(seconds=30),
        timedelta(seconds=120),
        timedelta(seconds=300),
    )
    capacity_backoff: tuple[timedelta, ...] = (
        timedelta(seconds=30),
        timedelta(seconds=60),
        timedelta(seconds=120),
        timedelta(seconds=300),
        timedelta(seconds=600),
    )
    capacity_limit: timedelta = timedelta(seconds=6 * 3600)
    checkpoint_deadline: timedelta = timedelta(seconds=300)
    hang_deadline: timedelta = timedelta(seconds=30)
    stop_limit: timedelta = timedelta(seconds=1800)
    repair_grace: timedelta = timedelta(seconds=3600)
    auto_resume_grace: timedelta = timedelta(seconds=1800)
    min_nodes_percent: float = 100.0
    smaller_after: timedelta = timedelta(seconds=1800)
    start_limit: timedelta = timedelta(seconds=3600)
    verify_blind: timedelta = timedelta(seconds=1800)
    silent_limit: timedelta = timedelta(seconds=1800)
    look_min: timedelta = timedelta(seconds=5)
    look_max: timedelta = timedelta(seconds=60)
    same_data_retries: int = 1
    skip_steps: int = 200
    skip_margin_steps: int = 10
    rewind_steps: int = 0
    spike_heal_steps: int = 30
    spike_rewind_steps: int = 100
    widen_factor: float = 1.5
    max_rollbacks: int = 3
    max_skips: int = 10
    stop_without_resume_point: bool = False
    stacks_wait: timedelta = timedelta(seconds=30)
    load_deaths_before_quarantine: int = 2
    corrupt_loads_before_quarantine: int = 1
    large_instances: int = 16
    retry_attempts: int = 30
    tell_open: timedelta = timedelta(seconds=900)
    node_repair: Allowed = Allowed.REPLACE
    repair_route: Route = Route.AUTO
    hma_grace: timedelta = timedelta(seconds=600)
    drain_limit: timedelta = timedelta(seconds=24 * 3600)
    reboot_limit: timedelta = timedelta(seconds=1200)
    node_settle: timedelta = timedelta(seconds=300)
    node_stuck_limit: timedelta = timedelta(seconds=4500)
    deep_health_check: bool = False
    health_check_limit: timedelta = timedelta(seconds=4 * 3600)
    max_nodes_in_repair_percent: float = 25.0
    max_repairs_per_day: int = 10
    max_group_in_repair_percent: float = 25.0
    max_group_repairs_per_day: int = 5
    lemon_faults: int = 3
    lemon_window: timedelta = timedelta(days=28)
    lemon_repair: LemonRule = LemonRule.REPLACE
    node_look_min: timedelta = timedelta(seconds=30)
    node_look_max: timedelta = timedelta(seconds=180)
    approvals: tuple[ApprovalRule, ...] = ()
    windows: tuple[Window, ...] = ()
    breaker_incidents: int = 20
    breaker_percent: float = 20.0
    breaker_window: timedelta = timedelta(seconds=600)
    breaker_deadline: timedelta = timedelta(seconds=4 * 3600)
    alert_deadline: timedelta = timedelta(seconds=4 * 3600)
    playbooks: tuple[Playbook, ...] = field(default=PLAYBOOKS)

    def playbook(self, fault: FaultClass) -> Playbook:
        """The row for `fault`. Total: every fault class has one."""
        return next(row for row in self.playbooks if row.fault is fault)

    def deadline(self, row: Playbook) -> timedelta:
        """How long an emergency checkpoint may take under `row`."""
        match row.deadline:
            case Deadline.SHORT:
                return self.hang_deadline
            case Deadline.FULL:
                return self.checkpoint_deadline
            case Deadline.NONE:
                return timedelta(0)

    def to_wire(self) -> dict[str, Any]:
        """The document, complete; `from_wire` gives the same Policy back."""
        wire: dict[str, Any] = {"schema": SCHEMA}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if spec.name == "playbooks":
                wire["playbooks"] = {
                    row.fault.value: {
                        "response": row.response.value,
                        "deadline": row.deadline.value,
                        "tries": row.tries,
                    }
                    for row in value
                }
            elif spec.name in ("approvals", "windows"):
                wire[spec.name] = [row.to_wire() for row in value]
            elif spec.name in _DURATIONS:
                wire[f"{spec.name}_s"] = _seconds(value)
            else:
                wire[spec.name] = value.value if isinstance(value, StrEnum) else value
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Policy:
        """Read a complete or partial document.

        Raises:
            InvalidPolicy: names the first field that is wrong, unknown or out of range.
        """
        if not isinstance(wire, Mapping):
            raise InvalidPolicy("policy", f"must be an object, not {type(wire).__name__}")
        given = dict(wire)
        schema = given.pop("schema", SCHEMA)
        if schema != SCHEMA:
            raise InvalidPolicy("schema", f"version {schema!r} is not known; this service reads {SCHEMA}")
        values: dict[str, Any] = {}
        for spec in dataclasses.fields(cls):
            key = f"{spec.name}_s" if spec.name in _DURATIONS else spec.name
            if key in given:
                values[spec.name] = _READERS[spec.name](key, given.pop(key))
        if given:
            raise InvalidPolicy(sorted(given)[0], "is not a policy field")
        policy = cls(**values)
        _check_together(policy)
        if "version" not in values:
            policy = dataclasses.replace(policy, version=content_version(policy))
        return policy


def content_version(policy: Policy) -> str:
    """A short hash of what the policy says, whatever it is called."""
    body = policy.to_wire()
    body.pop("version")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return "sha-" + hashlib.sha256(text.encode()).hexdigest()[:12]


def _seconds(value: timedelta | tuple[timedelta, ...]) -> float | list[float]:
    if isinstance(value, tuple):
        return [item.total_seconds() for item in value]
    return value.total_seconds()


def _check_together(policy: Policy) -> None:
    if policy.look_min > policy.look_max:
        raise InvalidPolicy("look_min_s", "must not exceed look_max_s")
    if policy.node_look_min > policy.node_look_max:
        raise InvalidPolicy("node_look_min_s", "must not exceed node_look_max_s")
    if policy.hang_deadline > policy.checkpoint_deadline:
        raise InvalidPolicy("hang_deadline_s", "must not exceed checkpoint_deadline_s")


_DAY_S = 86400.0
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "name": text,
    "version": text,
    "shadow": flag,
    "max_no_progress": count(1, 20),
    "max_attempts": count(1, 100),
    "backoff": durations(0, _DAY_S),
    "capacity_backoff": durations(1, _DAY_S),
    "capacity_limit": duration(60, 30 * _DAY_S),
    "checkpoint_deadline": duration(1, _DAY_S),
    "hang_deadline": duration(1, _DAY_S),
    "stop_limit": duration(1, _DAY_S),
    "repair_grace": duration(0, _DAY_S),
    "auto_resume_grace": duration(0, _DAY_S),
    "min_nodes_percent": number(1, 100),
    "smaller_after": duration(60, 30 * _DAY_S),
    "start_limit": duration(1, 7 * _DAY_S),
    "verify_blind": duration(1, _DAY_S),
    "silent_limit": duration(1, _DAY_S),
    "look_min": duration(1, 3600),  # the durable engine waits whole seconds, at least one
    "look_max": duration(1, 3600),
    "same_data_retries": count(0, 10),
    "skip_steps": count(1, 1_000_000),
    "skip_margin_steps": count(0, 100_000),
    "rewind_steps": count(0, 1_000_000),
    "spike_heal_steps": count(1, 1_000_000),
    "spike_rewind_steps": count(0, 1_000_000),
    "widen_factor": number(1, 10),
    "max_rollbacks": count(1, 20),
    "max_skips": count(1, 10_000),
    "stop_without_resume_point": flag,
    "stacks_wait": duration(0, 3600),
    "load_deaths_before_quarantine": count(1, 10),
    "corrupt_loads_before_quarantine": count(1, 10),
    "large_instances": count(1, 10_000),
    "retry_attempts": count(1, 30),  # RetryStrategy.MaximumRetryAttempts, botocore
    "tell_open": duration(0, _DAY_S),
    "node_repair": word(Allowed),
    "repair_route": word(Route),
    "hma_grace": duration(0, _DAY_S),
    "drain_limit": duration(60, 30 * _DAY_S),
    "reboot_limit": duration(60, _DAY_S),
    "node_settle": duration(0, 3600),
    "node_stuck_limit": duration(60, _DAY_S),
    "deep_health_check": flag,
    "health_check_limit": duration(60, _DAY_S),
    "max_nodes_in_repair_percent": number(0, 100),
    "max_repairs_per_day": count(1, 1000),
    "max_group_in_repair_percent": number(0, 100),
    "max_group_repairs_per_day": count(1, 1000),
    "lemon_faults": count(2, 100),
    "lemon_window": duration(3600, 90 * _DAY_S),
    "lemon_repair": word(LemonRule),
    "node_look_min": duration(1, 3600),
    "node_look_max": duration(1, 3600),
    "approvals": read_approvals,
    "windows": read_windows,
    "breaker_incidents": count(0, 100_000),
    "breaker_percent": number(0, 100),
    "breaker_window": duration(60, _DAY_S),
    "breaker_deadline": duration(60, 7 * _DAY_S),
    "alert_deadline": duration(0, 7 * _DAY_S),
    "playbooks": rows,
}
_DURATIONS = frozenset(
    {
        "backoff",
        "capacity_backoff",
        "capacity_limit",
        "checkpoint_deadline",
        "hang_deadline",
        "stop_limit",
        "repair_grace",
        "auto_resume_grace",
        "smaller_after",
        "start_limit",
        "verify_blind",
        "silent_limit",
        "stacks_wait",
        "look_min",
        "look_max",
        "tell_open",
        "hma_grace",
        "drain_limit",
        "reboot_limit",
        "node_settle",
        "node_stuck_limit",
        "health_check_limit",
        "lemon_window",
        "node_look_min",
        "node_look_max",
        "breaker_window",
        "breaker_deadline",
        "alert_deadline",
    }
)

DEFAULT_POLICY = Policy()
