"""How a source of a drawn story goes wrong."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final

from simulation.stories.kinds import REFUSALS
from simulation.stories.story import Run, SourceFault

# What is on Slurm's side of the service only has a place in stories of Slurm.
DENIED: Final = ("s3_denied", "sagemaker_denied")
_REFUSALS: Final = tuple(kind for kind in REFUSALS if kind not in ("nodes_throttled", *DENIED))


def any_fault(draw: random.Random, runs: tuple[Run, ...], *, refusals: Collection[str] = _REFUSALS) -> SourceFault:
    kind = draw.choice(
        (
            "events_lost",
            "events_lost",
            "events_late",
            "events_doubled",
            "events_reordered",
            "metrics_down",
            "heartbeats_frozen",
            "heartbeats_lost",
            "heartbeats_late",
            "tables_throttled",
            "functions_throttled",
            "executions_lost",
            *refusals,
        )
    )
    from_s = float(draw.randint(240, 1600))
    to_s = from_s + draw.choice((60.0, 300.0, 900.0, 3600.0))
    run = draw.choice(("", draw.choice(runs).name))
    match kind:
        case "events_lost":
            return SourceFault(kind=kind, from_s=240.0, to_s=1e9, share=draw.choice((0.3, 1.0)))
        case "events_late" | "events_reordered":
            return SourceFault(
                kind=kind,
                from_s=240.0,
                to_s=1e9,
                share=draw.choice((0.3, 1.0)),
                by_s=draw.choice((20.0, 300.0, 3600.0)),
            )
        case "events_doubled":
            return SourceFault(
                kind=kind, from_s=0.0, to_s=1e9, share=draw.choice((0.5, 1.0)), by_s=draw.choice((1.0, 600.0, 3600.0))
            )
        case "heartbeats_frozen" | "heartbeats_lost":
            return SourceFault(kind=kind, from_s=from_s, to_s=to_s, run=run)
        case "heartbeats_late":
            return SourceFault(kind=kind, from_s=0.0, to_s=1e9, run=run, by_s=draw.choice((30.0, 120.0, 600.0)))
        case "tables_throttled" | "sagemaker_throttled":
            return SourceFault(kind=kind, from_s=from_s, to_s=to_s, share=draw.choice((0.3, 0.7, 1.0)))
        case "executions_lost":
            return SourceFault(kind=kind, from_s=from_s, to_s=from_s + 1)
        case _:
            return SourceFault(kind=kind, from_s=from_s, to_s=to_s)


def fault_on_slurm(draw: random.Random) -> SourceFault:
    kind = draw.choice(
        (
            "head_away",
            "head_away",
            "head_late",
            "nodes_hidden",
            "nodes_hidden",
            "health_false",
            "orders_doubled",
            "reports_lost",
        )
    )
    from_s = float(draw.randint(240, 1600))
    to_s = from_s + draw.choice((60.0, 300.0, 900.0, 3600.0))
    match kind:
        case "head_late":
            return SourceFault(kind=kind, from_s=from_s, to_s=to_s, by_s=draw.choice((20.0, 90.0, 150.0, 600.0)))
        case "nodes_hidden":
            return SourceFault(kind=kind, from_s=from_s, to_s=to_s, share=draw.choice((0.2, 0.5, 1.0)))
        case "reports_lost":
            return SourceFault(kind=kind, share=draw.choice((0.1, 0.3, 0.9)))
        case "orders_doubled":
            return SourceFault(kind=kind)
        case _:
            return SourceFault(kind=kind, from_s=from_s, to_s=to_s)
