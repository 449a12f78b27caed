"""A story: the runs of an account, what truly happens to them, what people do, and how what is seen goes wrong.

Only data. A story is played again from its JSON; the seed decides nothing but how it was made and how its shares fall.
Times are seconds since the story's beginning.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from chalicelib.domain.model.incident import Phase

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What truly goes wrong with a run at a step.

    kind      crash; oom; hang; nan (this step's update poisons the weights, and its loss is NaN); quiet_nan (this
              step's update poisons the weights, and the first NaN is the next step's loss); blip (this step's loss
              is NaN and its update is left out); spike; torn_save (the next checkpoint lacks bytes); flipped_save
              (the next checkpoint's weights are poisoned and nothing shows it); skips (for `heals` steps
              in a row the gradient scaler of fp16 leaves the update out); saves_deleted (the newest `heals`
              checkpoints, or all, are deleted with what seals them); slow (a step takes `times` as long from there
              on, `heals` steps long); on Slurm also node_dies (the machine of its
              first node is off), node_sick (its hardware fails whatever runs on it), node_hangs (what runs on it
              stands still, and its ranks are mute), suspended (its processes are stopped for `after_s`), preempted
              (another job has its nodes for `after_s`), time_limit (Slurm ends the job) and node_leaves (AWS announces
              that the instance of its first node is taken away `after_s` later, and takes it; the node comes back);
              interrupted (of a training job on managed Spot: its instances are taken, and it starts again `after_s`
              later from what it has saved; None: no capacity until MaxWaitTimeInSeconds is over); foreign_save
              (another experiment saves under the same root, further on, or with step 0 did so a month ago: sealed by
              its own monitor) and foreign_file (the same without a monitor: a plain file)
    hits      how many attempts it strikes, as each comes to that step
    after_s   hang, suspended, interrupted: moves again after so long; None: never. preempted, node_leaves: see there
    heals     spike, slow: steps until it is as before; None: never. skips, saves_deleted: how many; None: all
    times     slow: by how much
    in_data   nan: it is spared by leaving the step's data out
    text      crash: what the container says
    cure      node_…: reboot or replace, whichever repairs the node
    """

    kind: str
    step: int
    hits: int = 1
    after_s: float | None = None
    heals: int | None = None
    in_data: bool = False
    text: str = "RuntimeError: training failed"
    cure: str = "reboot"
    times: float = 2.0


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
    instances     of the training job, or nodes of the Slurm job
    ranks         on each of them
    platform      sagemaker (a training job) or slurm (on the story's HyperPod cluster)
    history       so many checkpoints of its, one a step, lie there before it begins, and it resumes from the newest
    requeue       slurm: the job may be requeued
    auto_resume   slurm: its srun has HyperPod's --auto-resume: where a node breaks under it, HyperPod replaces the node
                  and runs the step again, in the same start of the job
    in_array      slurm: its job is a task of a job array. All jobs of a cluster are of one user and have one name
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
    ranks: int = 1
    platform: str = "sagemaker"
    requeue: bool = True
    auto_resume: bool = False
    in_array: bool = False
    history: int = 0
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFault:
    """How one source goes wrong from `from_s` to `to_s`. What each kind does stands in `source_faults.py`.

    run: the run that it is about, empty for all of them. share: of what is struck, from 0 to 1. by_s: by how much.
    """

    kind: str
    from_s: float = 0.0
    to_s: float = 1e9
    run: str = ""
    share: float = 1.0
    by_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAction:
    """What a person does, `delay_s` after `when` first holds of the run.

    what    resubmit (as the launch script does it: the same mailbox, a new name), stop (the live attempt, in the
            console), order_stop, order_save_stop (with a checkpoint first), order_resubmit, order_reboot (Slurm: the
            node of its first rank), all of Rekindle, cancel (the open Incident), pause and unpause (Rekindle itself),
            approve and deny (the newest question of the run's newest Incident, open or not), time_limit (no person's:
            the platform ends the live attempt at its time limit)
    when    start; dead (no attempt lives); incident (one has opened); asked (a person is asked to approve a step); or
            a phase of the run's Incident
    tagged  resubmit: job (a copy of the old job, all our tags with it), policy (as the run was first submitted),
            other_stage (the same, but the tag names another stage of Rekindle), none
    """

    what: str
    when: str
    delay_s: float = 0.0
    run: str = "lm"
    tagged: str = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is played. `policy`: what differs from the built-in policy, as in a policy document.

    nodes, recovery: of the cluster that its runs on Slurm share; HyperPod's NodeRecovery, None or Automatic.
    """

    seed: int
    runs: tuple[Run, ...] = (Run(),)
    source_faults: tuple[SourceFault, ...] = ()
    actions: tuple[PersonAction, ...] = ()
    length_s: float = 4 * 3600.0
    nodes: int = 8
    recovery: str = "None"
    policy: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Without what is as by default."""
        return json.dumps(_lean(self), indent=1, sort_keys=False)

    @classmethod
    def from_json(cls, text: str) -> Story:
        """Raises: ValueError that names the field, for what is no story."""
        return _read(cls, json.loads(text), "story")


# The closed vocabularies; those of source faults are in `source_faults.KINDS`.
_WORDS: Final[Mapping[tuple[type, str], frozenset[str]]] = {
    (Trouble, "kind"): frozenset(
        {
            "crash",
            "oom",
            "hang",
            "nan",
            "quiet_nan",
            "blip",
            "spike",
            "torn_save",
            "flipped_save",
            "skips",
            "saves_deleted",
            "slow",
            "node_dies",
            "node_sick",
            "node_hangs",
            "suspended",
            "preempted",
            "time_limit",
            "node_leaves",
            "interrupted",
            "foreign_save",
            "foreign_file",
        }
    ),
    (Trouble, "cure"): frozenset({"reboot", "replace"}),
    (Run, "platform"): frozenset({"sagemaker", "slurm"}),
    (Story, "recovery"): frozenset({"None", "Automatic"}),
    (Run, "plan"): frozenset({"obeyed", "latest", "nothing"}),
    (Run, "watch"): frozenset({"monitor", "metrics"}),
    (PersonAction, "what"): frozenset(
        {
            "resubmit",
            "stop",
            "order_stop",
            "order_save_stop",
            "order_resubmit",
            "order_reboot",
            "cancel",
            "pause",
            "unpause",
            "approve",
            "deny",
            "time_limit",
        }
    ),
    (PersonAction, "when"): frozenset({"start", "dead", "incident", "asked", *Phase}),
    (PersonAction, "tagged"): frozenset({"job", "policy", "other_stage", "none"}),
}
_PARTS: Final[Mapping[tuple[type, str], type]] = {
    (Run, "troubles"): Trouble,
    (Story, "runs"): Run,
    (Story, "source_faults"): SourceFault,
    (Story, "actions"): PersonAction,
}


def _read(made: type[_T], body: object, where: str) -> _T:
    """Raises: ValueError that names the field."""
    if not isinstance(body, dict):
        raise ValueError(f"{where}: must be an object")  # noqa: TRY004 - of a file, not of a call
    hints = get_type_hints(made)
    values: dict[str, Any] = {}
    for name, value in body.items():
        at, part = f"{where}.{name}", _PARTS.get((made, name))
        if name not in hints:
            raise ValueError(f"{at}: there is no such field")
        if part is not None:
            if not isinstance(value, list):
                raise ValueError(f"{at}: must be a list")
            values[name] = tuple(_read(part, one, f"{at}[{index}]") for index, one in enumerate(value))
            continue
        allowed = get_args(hints[name]) or (get_origin(hints[name]) or hints[name],)
        if name == "policy":
            allowed = (dict,)
        if float in allowed:
            allowed = (*allowed, int)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise ValueError(f"{at}: {value!r} is of the wrong type")
        words = _WORDS.get((made, name))
        if words is not None and value not in words:
            raise ValueError(f"{at}: {value!r} is none of {', '.join(sorted(words))}")
        values[name] = value
    try:
        return made(**values)
    except TypeError as err:  # a field without a default is missing
        raise ValueError(f"{where}: {err}") from err


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
