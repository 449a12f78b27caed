"""How long a Job's own earlier recoveries took, stage by stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median

from chalicelib.domain.drills.catalogue import Figures
from chalicelib.domain.model.incident import Phase, TimelineEntry
from chalicelib.domain.model.known import Known, Maybe, Unknown


def measured(timelines: Sequence[Sequence[TimelineEntry]]) -> Figures:
    """The median of each stage over earlier Incidents of the Job."""
    saves, stops, starts = [], [], []
    for entries in timelines:
        saves += _spans(entries, Phase.CHECKPOINTING, ended_by="checkpoint.saved")
        stops += _spans(entries, Phase.STOPPING)
        starts += _starts(entries)
    return Figures(
        save_s=_middle(saves, "no earlier recovery of this Job has saved a checkpoint"),
        stop_s=_middle(stops, "no earlier recovery has stopped this Job"),
        start_s=_middle(starts, "no earlier recovery has started this Job"),
        recoveries=sum(1 for entries in timelines if entries),
    )


def _spans(entries: Sequence[TimelineEntry], phase: Phase, *, ended_by: str | None = None) -> list[float]:
    """How long each stay in `phase` took; with `ended_by` only those that this rule ended."""
    spans: list[float] = []
    began: datetime | None = None
    for entry in entries:
        if entry.phase is phase:
            began = began or entry.at
        elif began is not None:
            if ended_by in (None, entry.rule):
                spans.append((entry.at - began).total_seconds())
            began = None
    return spans


def _starts(entries: Sequence[TimelineEntry]) -> list[float]:
    """From the order that started an attempt to the first observation that saw it train."""
    spans: list[float] = []
    ordered_at: datetime | None = None
    for entry in entries:
        if "ResubmitJob" in entry.actions:
            ordered_at = ordered_at or entry.at
            continue
        seen = entry.facts.get("attempt")
        trains = isinstance(seen, dict) and seen.get("status") == "running"
        if ordered_at is not None and trains and entry.phase in (Phase.VERIFYING, Phase.RECOVERED):
            spans.append((entry.at - ordered_at).total_seconds())
            ordered_at = None
    return spans


def _middle(values: Sequence[float], why: str) -> Maybe[float]:
    return Known(float(median(values))) if values else Unknown(why)
