"""The shortest story that still shows the same: parts are left out one by one while the count is still there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from typing import Any, Final

from simulation.play import Break, play
from simulation.stories.story import Run, SourceFault, Story, Trouble

MAX_PLAYS: Final = 250


def shrink(story: Story, kind: str, *, broken: Break | None = None) -> Story:
    """A story from which nothing can be left out without losing the unsafe thing of this kind."""
    plays = 0
    shorter = True
    while shorter:
        shorter = False
        for candidate in _shorter(story):
            if plays >= MAX_PLAYS:
                return _cut(story, kind, broken)
            plays += 1
            if kind in play(candidate, broken=broken).kinds:
                story, shorter = candidate, True
                break
    return _cut(story, kind, broken)


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


def _cut(story: Story, kind: str, broken: Break | None) -> Story:
    """It ends soon after the unsafe thing, where that is still one then."""
    found = [unsafe.at_s for unsafe in play(story, broken=broken).unsafe if unsafe.kind == kind]
    if not found:
        return story
    cut = replace(story, length_s=float(round(min(found)) + 120))
    return cut if cut.length_s < story.length_s and kind in play(cut, broken=broken).kinds else story


def _shorter(story: Story) -> Iterator[Story]:
    """Everything that is one part less, the largest parts first."""
    for index in range(len(story.runs)):
        if len(story.runs) > 1:
            yield replace(story, runs=_without(story.runs, index))
    for index in range(len(story.actions)):
        yield replace(story, actions=_without(story.actions, index))
    for index in range(len(story.source_faults)):
        yield replace(story, source_faults=_without(story.source_faults, index))
    if story.recovery != "None":
        yield replace(story, recovery="None")
    if story.policy:
        yield replace(story, policy={})
    for index, run in enumerate(story.runs):
        for shorter in _shorter_run(run):
            yield replace(story, runs=(*story.runs[:index], shorter, *story.runs[index + 1 :]))
    for index, source_fault in enumerate(story.source_faults):
        for lesser in _simpler_fault(source_fault):
            yield replace(
                story, source_faults=(*story.source_faults[:index], lesser, *story.source_faults[index + 1 :])
            )


def _shorter_run(run: Run) -> Iterator[Run]:
    for index in range(len(run.troubles)):
        yield replace(run, troubles=_without(run.troubles, index))
    for spec in fields(run):
        value = getattr(run, spec.name)
        if spec.name not in ("name", "troubles", "platform") and spec.default is not MISSING and value != spec.default:
            yield replace(run, **{spec.name: spec.default})
    for index, trouble in enumerate(run.troubles):
        for lesser in _simpler_trouble(trouble):
            yield replace(run, troubles=(*run.troubles[:index], lesser, *run.troubles[index + 1 :]))


def _simpler_trouble(trouble: Trouble) -> Iterator[Trouble]:
    if trouble.hits > 1:
        yield replace(trouble, hits=1)
    if trouble.in_data:
        yield replace(trouble, in_data=False)
    if trouble.cure != "reboot":
        yield replace(trouble, cure="reboot")
    if trouble.text != Trouble(kind="crash", step=0).text:
        yield replace(trouble, text=Trouble(kind="crash", step=0).text)


def _simpler_fault(source_fault: SourceFault) -> Iterator[SourceFault]:
    if source_fault.share < 1.0:
        yield replace(source_fault, share=1.0)
    if source_fault.run:
        yield replace(source_fault, run="")


def _without(items: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    return items[:index] + items[index + 1 :]
