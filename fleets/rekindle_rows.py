"""Rekindle's rows: what its own decisions do, with and without the monitor and spares. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from chalicelib.domain.model.node_findings import FindingKind, Rung
from chalicelib.domain.model.repair import first_rung
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from fleets.answers import Answer, Case, Rules
from fleets.causes import Cause, Remedy, Symptom
from fleets.decided import PlayResult, Stages, played
from fleets.figures import (
    AGENT_POLL,
    HEALTH_AGENT,
    HUMAN,
    NCCL,
    REQUEST_POLL,
    SLURM_NODE,
    WATCHDOG_PERIOD,
    Setting,
    hang_limit_s,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekindle(Rules):
    """A policy, the default one unless another is given, on HyperPod with Slurm, node recovery automatic."""

    monitored: bool = True
    spares: int = 0
    policy: Policy = DEFAULT_POLICY
    _known: dict[tuple[Cause, Setting, bool], Answer] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def repairs_per_day(self) -> int | None:
        """Of a cluster that is one instance group."""
        return min(self.policy.budgets.max_repairs_per_day, self.policy.budgets.max_group_repairs_per_day)

    @property
    def name(self) -> str:
        """As the tables call it."""
        spares = f"{self.spares} spare{'s' * (self.spares != 1)}" if self.spares else "no spares"
        policy = "" if self.policy is DEFAULT_POLICY else f", policy {self.policy.name}"
        return f"Rekindle, {'monitor' if self.monitored else 'no monitor'}, {spares}{policy}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What this row takes for granted, beside the figures."""
        if self.monitored:
            return (
                "Decisions, waits and restarts are played through decide(), under the default policy.",
                "A hang that a node causes is pinned on it by the ranks' own reports; one that no node causes on none.",
                "A lost node shows as a hang: its silent rank is the suspect.",
            )
        return (
            "A hang ends by NCCL's time-out, and is then a crash; a lost node by Slurm's.",
            "A loss that is no number is seen by a person only.",
            "That the run is past its old step cannot be seen: a person looks after each (verify.blind_limit).",
        )

    def answer(self, case: Case) -> Answer:
        """The answer; a node that nothing names is a person's after the tries that the policy allows."""
        asked = (case.cause, case.setting, case.repaired)
        if asked not in self._known:
            self._known[asked] = self._answer(*asked)
        return self._known[asked]

    def _answer(self, cause: Cause, setting: Setting, repaired: bool) -> Answer:
        stages = Stages(
            save_s=REQUEST_POLL.value + setting.save_s,
            stop_s=setting.stop_s,
            start_s=setting.restart_s,
            step_s=setting.step_s,
        )
        shows, detect_s = self._seen(cause, setting)
        if cause.shows is Symptom.NON_FINITE and not self.monitored:
            return Answer(detect_s=HUMAN.value, down_s=setting.stop_s + setting.restart_s, by_person=True)
        names = cause.is_of_a_node and (cause.is_named or shows is Symptom.HANG)
        if cause.is_of_a_node and not names:
            return self._unnamed(shows, stages, detect_s)
        result = played(shows, stages, monitored=self.monitored, names_node=names, policy=self.policy)
        return Answer(
            detect_s=detect_s,
            down_s=result.down_s,
            excludes=result.cordons,
            rung=self._rung(cause, repaired=repaired) if result.cordons else None,
            by_platform=cause.is_named and cause.shows is not Symptom.NODE_GONE,
            pages=_looks(result),
        )

    def _seen(self, cause: Cause, setting: Setting) -> tuple[Symptom, float]:
        """As what the failure is seen, and after how long."""
        if self.monitored and cause.shows in (Symptom.HANG, Symptom.NODE_GONE):
            return Symptom.HANG, hang_limit_s(setting.step_s)
        if cause.shows is Symptom.HANG:
            seen = Symptom.NODE_CRASH if cause.is_of_a_node and cause.is_named else Symptom.CRASH
            return seen, NCCL.value + AGENT_POLL.value
        return cause.shows, {
            Symptom.CRASH: AGENT_POLL.value,
            Symptom.NODE_CRASH: HEALTH_AGENT.value,
            Symptom.NODE_GONE: SLURM_NODE.value + AGENT_POLL.value,
            Symptom.NON_FINITE: setting.step_s + WATCHDOG_PERIOD.value,
        }[cause.shows]

    def _unnamed(self, shows: Symptom, stages: Stages, detect_s: float) -> Answer:
        """Each new start fails on the same node, until decide() calls a person, who finds it."""
        result = played(shows, stages, monitored=self.monitored, dies_again=True, policy=self.policy)
        return Answer(
            detect_s=detect_s,
            down_s=result.down_s + result.restarts * detect_s + HUMAN.value + stages.start_s,
            excludes=True,
            rung=Rung.REPLACE,
            by_person=True,
            unsafe=max(0, result.restarts - self.policy.budgets.max_no_progress),
        )

    @staticmethod
    def _rung(cause: Cause, *, repaired: bool) -> Rung | None:
        """Where the ladder begins, by the project's own table; a node rebooted in the last days is replaced."""
        if cause.shows is Symptom.NODE_GONE:
            kind = FindingKind.DOWN
        elif not cause.is_named:
            kind = FindingKind.SUSPECTED
        else:
            kind = FindingKind.AGENT_REPLACE if cause.cure is Remedy.REPLACE else FindingKind.AGENT_REBOOT
        rung = first_rung(kind)
        return Rung.REPLACE if rung is Rung.REBOOT and repaired else rung


def _looks(result: PlayResult) -> int:
    """Times that a person is called to look."""
    return max(result.pages, int(not result.recovers))
