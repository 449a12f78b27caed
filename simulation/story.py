"""A story: the runs of an account, what truly happens to them, what people do, and how what is seen goes wrong.

Only data. A story is played again from its JSON; the seed decides nothing but how it was made and how its shares fall.
Times are seconds since the story's beginning.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What truly goes wrong with a run at a step.

    kind      crash; oom; hang; nan (this step's update poisons the weights, and its loss is NaN); quiet_nan (this
              step's update poisons the weights, and the first NaN is the next step's loss); blip (this step's loss
              is NaN and its update is left out); spike; torn_save (the next checkpoint lacks bytes); flipped_save
              (the next checkpoint's weights are poisoned and nothing shows it)
    hits      how many attempts it strikes, as each comes to that step
    after_s   hang: moves again after so long; None: never
    heals     spike: steps until the loss is as before; None: never
    in_data   nan: it is spared by leaving the step's data out
    text      crash: what the container says
    """

    kind: str
    step: int
    hits: int = 1
    after_s: float | None = None
    heals: int | None = None
    in_data: bool = False
    text: str = "RuntimeError: training failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run that asks for protection.

    steps         after which it is done; None: it trains on to the story's end
    upload_s      how long its platform uploads the model afterwards
    plan          obeyed; latest (its trainer loads its own newest checkpoint whatever its plan); nothing (it begins
                  at step 0)
    watch         monitor (beside the trainer, with a mailbox), metrics (the job's own loss and step, no monitor, and
                  checkpoints without manifests)
    refusals      how many of its later submissions find no capacity
    skew_s        how far the clock of its host is off
    """

    name: str = "lm"
    step_s: float = 10.0
    save_every: int = 30
    steps: int | None = None
    upload_s: float = 60.0
    plan: str = "obeyed"
    watch: str = "monitor"
    refusals: int = 0
    skew_s: float = 0.0
    instances: int = 4
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """How one source goes wrong from `from_s` to `to_s`. What each kind does stands in `lies.py`.

    run: the run that it is about, empty for all of them. share: of what is struck, from 0 to 1. by_s: by how much.
    """

    kind: str
    from_s: float = 0.0
    to_s: float = 1e9
    run: str = ""
    share: float = 1.0
    by_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What a person does, `delay_s` after `when` first holds of the run.

    what    resubmit (as the launch script does it: the same mailbox, a new name), stop (the live attempt, in the
            console), order_stop (of Rekindle), cancel (the open Incident)
    when    start; dead (no attempt lives); incident (one has opened); or a phase of the run's Incident
    tagged  resubmit: job (a copy of the old job, all our tags with it), policy (as the run was first submitted), none
    """

    what: str
    when: str
    delay_s: float = 0.0
    run: str = "lm"
    tagged: str = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is played. `policy`: what differs from the built-in policy, as in a policy document."""

    seed: int
    runs: tuple[Run, ...] = (Run(),)
    lies: tuple[Lie, ...] = ()
    deeds: tuple[Deed, ...] = ()
    length_s: float = 4 * 3600.0
    policy: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Without what is as by default."""
        return json.dumps(_lean(self), indent=1, sort_keys=False)

    @classmethod
    def from_json(cls, text: str) -> Story:
        """Raises: ValueError, TypeError for what is no story."""
        body = json.loads(text)
        if not isinstance(body, dict):
            raise TypeError("a story is an object")
        runs = tuple(
            Run(**{**one, "troubles": tuple(Trouble(**each) for each in one.get("troubles", ()))})
            for one in body.pop("runs", ({},))
        )
        lies = tuple(Lie(**one) for one in body.pop("lies", ()))
        deeds = tuple(Deed(**one) for one in body.pop("deeds", ()))
        return cls(runs=runs, lies=lies, deeds=deeds, **body)


def _lean(item: Any) -> Any:
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        kept = {}
        for spec in dataclasses.fields(item):
            value = getattr(item, spec.name)
            if value != spec.default and value not in ((), {}):
                kept[spec.name] = _lean(value)
        return kept
    if isinstance(item, tuple):
        return [_lean(one) for one in item]
    return dict(item) if isinstance(item, Mapping) else item
