"""Known findings that are not fixed yet, each with the shortest story that shows it (`open_findings.json`).

A finding accounts for an unsafe outcome of any story that holds all of the finding's parts. A second fault behind it is
therefore found only once the first is fixed and its row is removed. A row whose story no longer shows it must be
removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulation.play import play
from simulation.stories.story import Story

WHERE: Final = Path(__file__).with_name("open_findings.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One that is open. `summary` is what is seen, in a sentence; `parts` what it needs of a story (`parts_of`)."""

    kind: str
    parts: frozenset[str]
    summary: str
    story: Story

    def explains(self, kind: str, story: Story) -> bool:
        """An unsafe thing of this kind in that story may be this finding."""
        return kind == self.kind and self.parts <= parts_of(story)


def parts_of(story: Story) -> frozenset[str]:
    """What a story is made of: troubles, source faults, actions of people, and how its runs differ from the usual."""
    parts = {f"source fault {source_fault.kind}" for source_fault in story.source_faults}
    parts |= {f"action {action.what}" for action in story.actions}
    for run in story.runs:
        parts |= {f"trouble {trouble.kind}" for trouble in run.troubles}
        parts |= {f"plan {run.plan}"} if run.plan != "obeyed" else set()
        parts |= {f"watch {run.watch}"} if run.watch != "monitor" else set()
        parts |= {"ends"} if run.steps is not None else set()
        parts |= {f"platform {run.platform}"} if run.platform != "sagemaker" else set()
        parts |= {"long history"} if run.history else set()
        parts |= {"array"} if run.in_array else set()
        parts |= {"auto-resume"} if run.auto_resume else set()
        parts |= {"no requeue"} if not run.requeue else set()
        parts |= {"no capacity"} if run.refusals else set()
    if len(story.runs) > 1:
        parts.add("several runs")
    if story.recovery != "None":
        parts.add("NodeRecovery")
    return frozenset(parts)


def open_findings() -> tuple[Finding, ...]:
    """The rows of the file."""
    rows = json.loads(WHERE.read_text()) if WHERE.exists() else []
    return tuple(
        Finding(
            kind=row["kind"],
            parts=frozenset(row["parts"]),
            summary=row["summary"],
            story=Story.from_json(json.dumps(row["story"])),
        )
        for row in rows
    )


def still_open(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those whose story still shows them."""
    return tuple(finding for finding in findings if finding.kind in play(finding.story).kinds)


def keep(findings: Iterable[Finding], path: Path = WHERE) -> None:
    """Write the rows."""
    rows = [
        {
            "kind": finding.kind,
            "parts": sorted(finding.parts),
            "summary": finding.summary,
            "story": json.loads(finding.story.to_json()),
        }
        for finding in findings
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n")


def explanation(kind: str, story: Story, findings: Iterable[Finding]) -> Finding | None:
    """The open finding that explains it, None for something new."""
    return next((finding for finding in findings if finding.explains(kind, story)), None)
