"""A played story for a reader: Incidents with their timelines, the truth beside them, notices to people."""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from simulation.stages.world import World


def report(world: World) -> None:
    """Print it; times are seconds since the story's beginning."""

    def s(moment: datetime | None) -> str:
        return "-" if moment is None else f"{(moment - world.began_at).total_seconds():.0f}"

    closed = world.store.list_closed(limit=1000).incidents
    opened = (incident for incident, _ in world.store.list_open())
    for incident in sorted(chain(closed, opened), key=lambda incident: incident.opened_at):
        print(f"{incident.incident_id} of {incident.job_id}: {incident.phase} {incident.outcome}")
        for entry in world.store.timeline(incident.incident_id):
            text = " ".join(entry.text.split())[:140]
            print(f"  {s(entry.at):>6} {entry.phase.value:13} {entry.rule:24} {text} {' '.join(entry.actions)}")
    for run in world.runs.values():
        print(f"the truth of {run.name}:")
        for attempt in run.attempts.values():
            last = attempt.stretches[-1].base if attempt.stretches else "-"
            print(
                f"  {attempt.name}: submitted {s(attempt.job.created_at)} "
                f"by {'us' if attempt.is_ours else 'a person'}, "
                f"trained from {s(attempt.trains_since)}, steps {attempt.first_step} to {last}, "
                f"ended {s(attempt.job.ended_at)} {attempt.job.phase}"
            )
        for ill in run.ills:
            print(f"  {ill.kind} from {s(ill.since)} to {s(ill.until)}")
        bad = [f"{save.step} of {save.attempt}" for save in run.saved if not save.is_good]
        print(f"  {len(run.saved)} checkpoints; bad ones: {', '.join(bad) or 'none'}")
    for notice in world.people.notices:
        print(f"notified at {s(notice.at)} ({notice.severity}): {notice.title}: {' '.join(notice.text.split())[:140]}")
