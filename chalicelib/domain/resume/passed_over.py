"""What a new start throws away: the training between where the run has come to and where it would resume. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Final

from chalicelib.domain.faults.poison import died_at_most
from chalicelib.domain.model.evidence import FORENSIC
from chalicelib.domain.model.incident import Incident, best_step
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import CheckpointView, Observation

NEWEST: Final = 10  # saves by which the usual interval is known: the older ones are read sparsely
NAMED: Final = 5  # saves that are passed over, each with its reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """`steps` are trained again, in `time`. `saves` are the sealed ones beyond the resume point, each with its reason.

    `usual_steps` lie between two saves, None where that is not known.
    """

    steps: int
    time: Maybe[timedelta]
    saves: tuple[str, ...]
    usual_steps: int | None

    @property
    def is_unusual(self) -> bool:
        """More than a crash between two saves explains."""
        return bool(self.steps) and (self.usual_steps is not None and self.steps > self.usual_steps)

    @property
    def text(self) -> str:
        """One sentence for people, or two."""
        hours = f" (about {_span(self.time.value)})" if isinstance(self.time, Known) else ""
        named = "; ".join(self.saves[:NAMED])
        more = f"; and {len(self.saves) - NAMED} more" if len(self.saves) > NAMED else ""
        saves = f" Passed over: {named}{more}." if self.saves else ""
        return f"{self.steps} steps{hours} are trained again.{saves}"


def passed_over(incident: Incident, seen: Observation, resume_step: Maybe[int]) -> Maybe[PassedOver]:
    """What a start at `resume_step` throws away; Unknown where the run's furthest step, or that one, is.

    What a run made of a bad loss is worth nothing: it counts up to its onset. Where nothing tells how far the attempt
    came, what the run has ever saved does.
    """
    attempt = seen.attempt.value if isinstance(seen.attempt, Known) else None
    checkpoints = seen.checkpoints.value if isinstance(seen.checkpoints, Known) else ()
    reached = died_at_most(incident, attempt) if attempt is not None else Unknown("the attempt cannot be read")
    furthest = best_step(incident.target_step, reached)
    if not isinstance(reached, Known):
        furthest = best_step(furthest, seen.record.best_before, seen.record.furthest_saved)
    if not isinstance(resume_step, Known):
        return resume_step
    if not isinstance(furthest, Known):
        return furthest
    steps = max(furthest.value - resume_step.value, 0)
    own = [item for item in checkpoints if item.manifest and not item.fenced and item.kind != FORENSIC]
    beyond = {item.step: item for item in own if resume_step.value < item.step <= furthest.value}
    pace = (attempt.step_s if attempt is not None else None) or _pace(own)
    return Known(
        PassedOver(
            steps=steps,
            time=Known(timedelta(seconds=steps * pace)) if pace else Unknown("how long a step takes is not known"),
            saves=tuple(f"step {step}: {_why(item)}" for step, item in sorted(beyond.items(), reverse=True)),
            usual_steps=_usual(own),
        )
    )


def _why(item: CheckpointView) -> str:
    if item.problems:
        return item.problems[0]
    return "its loss could not be read" if item.loss_unread else "not allowed after this fault"


def _usual(saves: Sequence[CheckpointView]) -> int | None:
    from statistics import median  # loaded where a start passes over something, which few do

    newest = sorted({item.step for item in saves}, reverse=True)[:NEWEST]
    gaps = [later - earlier for later, earlier in pairwise(newest)]
    return int(median(gaps)) if len(gaps) > 1 else None


def _pace(saves: Sequence[CheckpointView]) -> float | None:
    """Seconds a step by the times of the saves: what stood still between two of them counts less than most do."""
    from statistics import median

    newest = sorted({item.step: item for item in saves}.items())[-NEWEST:]
    gaps = [
        (b - a, (later.saved_at - earlier.saved_at).total_seconds()) for (a, earlier), (b, later) in pairwise(newest)
    ]
    pace = median(took / steps for steps, took in gaps) if gaps else 0.0
    return pace if pace > 0 else None


def _span(time: timedelta) -> str:
    minutes = time.total_seconds() / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes"
