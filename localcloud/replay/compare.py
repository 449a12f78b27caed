"""`rekindle replay --against`: two policies on the same recording, side by side. Nothing is carried out.

Both play the whole recording; then their verdicts are compared event by event, and their Incidents one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.fault_specs.faults import STANDS_UNTIL_HELPED
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.policy.document import Policy, flat
from chalicelib.domain.reporting.counterfactual import HUMAN_S, RESTART_S
from chalicelib.domain.reporting.ledger import hours, quantity_json, steps_lost
from chalicelib.domain.reporting.sums import total_of
from localcloud.replay.read import Recorded
from localcloud.replay.run import IncidentStanding, Replay, Verdict

ASSUMPTIONS: Final = (
    "What is ordered succeeds, as docs/cli.md says of every replay.",
    f"Each new start takes {RESTART_S / 60:.0f} minutes; in the replay itself it takes none.",
    f"A run that is left to a person stands still for {HUMAN_S / 60:.0f} minutes, and then takes a new start.",
    "Time counts from the onset until the Incident closes; steps that are trained again are counted apart, in steps.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlay:
    """One policy's play. `verdicts` are in the order of the events."""

    name: str
    policy: Policy
    verdicts: tuple[Verdict, ...]
    standings: tuple[IncidentStanding, ...]


def play(recorded: Sequence[Recorded], policy: Policy, *, name: str) -> PolicyPlay:
    """The whole recording under one policy."""
    replay = Replay(recorded, policy)
    verdicts = tuple(replay.verdicts())
    return PolicyPlay(name=name, policy=policy, verdicts=verdicts, standings=tuple(replay.standings()))


def compare(a: PolicyPlay, b: PolicyPlay, *, gpus: int | None = None) -> dict[str, Any]:
    """Both sides as JSON. `gpus` is taken for each run whose size the recording does not tell."""
    assumed = None if gpus is None else JobSize(gpus=Known(gpus))
    return {
        "a": a.name,
        "b": b.name,
        "policy": _policy(a, b),
        "events": len(a.verdicts),
        "malformed": [{"event": verdict.event, "why": verdict.dropped} for verdict in a.verdicts if verdict.malformed],
        "differences": _differences(a, b),
        "incidents": _incidents(a, b, assumed),
        "held": {"a": _held(a), "b": _held(b)},
        "totals": {"a": _totals(a, assumed), "b": _totals(b, assumed)},
        "in_both": _in_both(a, b, assumed),
        "assumptions": [*ASSUMPTIONS, *([f"A run of unknown size has {gpus} GPUs."] if gpus is not None else [])],
    }


def _policy(a: PolicyPlay, b: PolicyPlay) -> dict[str, Any]:
    """The fields in which the policies differ, with both values. What they are called is no difference."""
    ours, theirs = flat(a.policy.to_wire()), flat(b.policy.to_wire())
    return {
        field: {"a": ours[field], "b": theirs[field]}
        for field in ours
        if field not in ("name", "version") and ours[field] != theirs[field]
    }


def _differences(a: PolicyPlay, b: PolicyPlay) -> list[dict[str, Any]]:
    """Events whose decision differs: the rule, what was ordered, or when it looks again."""
    return [
        {"event": verdict.event, "signal": verdict.signal, "a": _decision(verdict), "b": _decision(other)}
        for verdict, other in zip(a.verdicts, b.verdicts, strict=True)
        if _decision(verdict) != _decision(other)
    ]


def _decision(verdict: Verdict) -> dict[str, Any]:
    return {
        "incident": verdict.incident,
        "fault": verdict.fault,
        "rule": verdict.rule,
        "actions": list(verdict.actions),
        "look_again_in_s": verdict.look_again_in_s,
        "dropped": verdict.dropped,
    }


def _incidents(a: PolicyPlay, b: PolicyPlay, assumed: JobSize | None) -> list[dict[str, Any]]:
    """Each Incident that either opened, by its id: the same fact opens the same one under both."""
    sides = [{standing.incident.incident_id: standing for standing in side.standings} for side in (a, b)]
    rows = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        shown = [_shown(side.get(name), assumed) for side in sides]
        there = next(side[name] for side in sides if name in side)
        rows.append(
            {
                "incident": name,
                "about": there.incident.job_id or there.incident.cluster or "",
                "differs": shown[0] != shown[1],
                "a": shown[0],
                "b": shown[1],
            }
        )
    return rows


def _shown(standing: IncidentStanding | None, assumed: JobSize | None) -> dict[str, Any] | None:
    if standing is None:
        return None
    incident = standing.incident
    return {
        "fault": incident.fault.value,
        "phase": incident.phase.value,
        "rule": standing.rule,
        "actions": dict(standing.actions),
        "rules": dict(standing.rules),
        "held": sorted({hold.guard.value for hold in incident.holds}),
        "starts": len(incident.account.restarts),
        "steps_lost": quantity_json(steps_lost(incident)),
        "lost_s": quantity_json(estimated_s(incident)),
        "gpu_hours": quantity_json(_gpu_hours(standing, assumed)),
    }


def estimated_s(incident: Incident) -> Maybe[float]:
    """How long the run stands still, as far as a replay can tell. ASSUMPTIONS say what is taken for granted."""
    account = incident.account
    if incident.job_id is None:
        return Unknown("it is about no run")
    if incident.closed_at is None:
        return Unknown("the recording ends before it closes")
    begun = account.onset_at.value if isinstance(account.onset_at, Known) else account.looked_at
    if begun is None:
        return Unknown("no observation yet")
    starts = len(account.restarts)
    if not starts and incident.fault not in STANDS_UNTIL_HELPED:
        return (
            Known(0.0) if incident.phase is Phase.RECOVERED else Unknown("the run continues, and how well is not known")
        )
    seconds = max(0.0, (incident.closed_at - begun).total_seconds()) + starts * RESTART_S
    if incident.phase is Phase.RECOVERED:
        return Known(seconds)
    if incident.phase is Phase.STOPPED:
        return Unknown("it was closed without a recovery: what the run does then is not known")
    return Known(seconds + HUMAN_S + RESTART_S)


def _gpu_hours(standing: IncidentStanding, assumed: JobSize | None) -> Maybe[float]:
    size = standing.size
    if isinstance(size.gpus, Unknown) and assumed is not None:
        size = assumed
    return hours(estimated_s(standing.incident), size.gpus)


def _held(side: PolicyPlay) -> dict[str, int]:
    """Which guards held something back, and in how many Incidents."""
    held = Counter(
        guard for standing in side.standings for guard in {hold.guard.value for hold in standing.incident.holds}
    )
    return dict(sorted(held.items()))


def _totals(side: PolicyPlay, assumed: JobSize | None) -> dict[str, Any]:
    phases = Counter(standing.incident.phase.value for standing in side.standings)
    ordered = Counter[str]()
    for standing in side.standings:
        ordered.update(dict(standing.actions))
    return {
        "incidents": dict(sorted(phases.items())),
        "actions": dict(sorted(ordered.items())),
        "starts": sum(len(standing.incident.account.restarts) for standing in side.standings),
        "steps_lost": total_of([steps_lost(standing.incident) for standing in side.standings]),
        "lost_s": total_of([estimated_s(standing.incident) for standing in side.standings]),
        "gpu_hours": total_of([_gpu_hours(standing, assumed) for standing in side.standings]),
        "unknown": _unknown([_gpu_hours(standing, assumed) for standing in side.standings]),
    }


def _unknown(quantities: Sequence[Maybe[float]]) -> dict[str, int]:
    """Why GPU-hours are not known, and of how many Incidents, the commonest reason first."""
    return dict(Counter(quantity.why for quantity in quantities if isinstance(quantity, Unknown)).most_common())


def _in_both(a: PolicyPlay, b: PolicyPlay, assumed: JobSize | None) -> dict[str, Any]:
    """GPU-hours of the Incidents for which they are known under both: only these two sums compare like with like."""
    ours, theirs = (
        {standing.incident.incident_id: _gpu_hours(standing, assumed) for standing in side.standings} for side in (a, b)
    )
    pairs = [(ours[name], theirs[name]) for name in ours if name in theirs]
    known = [(ours.value, other.value) for ours, other in pairs if isinstance(ours, Known) and isinstance(other, Known)]
    return {
        "incidents": len(known),
        "left_out": len({*ours, *theirs}) - len(known),
        "a": round(sum(ours for ours, _ in known), 3),
        "b": round(sum(other for _, other in known), 3),
    }
