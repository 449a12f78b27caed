"""A story: the runs of an account, what truly happens to them, what people do, and how what is seen goes wrong.

Only data. A story is played again from its JSON; the seed decides nothing but how it was made and how its shares fall.
Times are seconds since the story's beginning. Its words, each with what it stands for, are the tables of `kinds`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from rekindle.protocol.bounds import OneOf
from rekindle.protocol.codec import read, write
from rekindle.protocol.wire import MailboxError
from simulation.stories import kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What truly goes wrong with a run at a step.

    hits      how many attempts it strikes, as each comes to that step
    after_s   rests: how long. hang, suspended, interrupted: moves again after so long; None: never. preempted,
              node_leaves, slurmd_dies: see there
    heals     spike, slow: steps until it is as before; None: never. skips, saves_deleted: how many; None: all
    times     slow: by how much
    in_data   nan: it is spared by leaving the step's data out
    text      crash: what the container says
    cure      node_…: whichever repairs the node
    """

    kind: Annotated[str, OneOf(tuple(kinds.TROUBLES))]
    step: int
    hits: int = 1
    after_s: float | None = None
    heals: int | None = None
    in_data: bool = False
    text: str = "RuntimeError: training failed"
    cure: Annotated[str, OneOf(tuple(kinds.CURES))] = "reboot"
    times: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run that asks for protection.

    steps         after which it is done; None: it trains on to the story's end
    upload_s      how long its platform uploads the model afterwards
    refusals      how many of its later submissions find no capacity
    skew_s        how far the clock of its host is off
    instances     of the training job, or nodes of the Slurm job
    ranks         on each of them
    history       so many checkpoints of its, one a step, are there before it begins, and it resumes from the newest
    keeps         how many of its newest checkpoints its trainer leaves; None: all
    own_folder    each attempt saves to a folder of its own, outside of the mailbox and beside those before it
    place         the run in whose mailbox it trains and saves: a sweep with one checkpoint_s3_uri; empty: its own
    restarts      so many crashes of an attempt are answered by its launcher, which starts all its processes again in
                  the same attempt; and hangs that end after a while, too
    relaunch_s    how long that takes, from the end of the processes before
    requeue       slurm: the job may be requeued
    auto_resume   slurm: its srun has HyperPod's --auto-resume: where a node breaks under it, HyperPod replaces the node
                  and runs the step again, in the same start of the job
    chain, links  slurm: so many jobs, one after the other, of which each trains on from the newest checkpoint
    in_array      slurm: its job is a task of a job array. All jobs of a cluster are of one user, and those
                  without a chain have one name
    """

    name: str = "lm"
    step_s: float = 10.0
    save_every: int = 30
    steps: int | None = None
    upload_s: float = 60.0
    plan: Annotated[str, OneOf(tuple(kinds.PLANS))] = "obeyed"
    watch: Annotated[str, OneOf(tuple(kinds.WATCHES))] = "monitor"
    refusals: int = 0
    skew_s: float = 0.0
    instances: int = 4
    ranks: int = 1
    keeps: int | None = None
    own_folder: bool = False
    place: str = ""
    restarts: int = 0
    relaunch_s: float = 5.0
    platform: Annotated[str, OneOf(tuple(kinds.PLATFORMS))] = "sagemaker"
    requeue: bool = True
    auto_resume: bool = False
    in_array: bool = False
    chain: Annotated[str, OneOf(tuple(kinds.CHAINS))] = ""
    links: int = 2
    history: int = 0
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFault:
    """How one source goes wrong from `from_s` to `to_s`.

    run: the run that it is about, empty for all of them. share: of what is struck, from 0 to 1. by_s: by how much.
    """

    kind: Annotated[str, OneOf(tuple(kinds.SOURCE_FAULTS))]
    from_s: float = 0.0
    to_s: float = 1e9
    run: str = ""
    share: float = 1.0
    by_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAction:
    """What a person does, `delay_s` after `when` first holds of the run. `tagged`: of what is submitted again."""

    what: Annotated[str, OneOf(tuple(kinds.ACTIONS))]
    when: Annotated[str, OneOf(tuple(kinds.MOMENTS))]
    delay_s: float = 0.0
    run: str = "lm"
    tagged: Annotated[str, OneOf(tuple(kinds.TAGS))] = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is played. `policy`: what differs from the built-in policy, as in a policy document.

    nodes, recovery: of the cluster that its runs on Slurm share; HyperPod's NodeRecovery.
    """

    seed: int
    runs: tuple[Run, ...] = (Run(),)
    source_faults: tuple[SourceFault, ...] = ()
    actions: tuple[PersonAction, ...] = ()
    length_s: float = 4 * 3600.0
    nodes: int = 8
    recovery: Annotated[str, OneOf(tuple(kinds.RECOVERIES))] = "None"
    policy: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Without what is as by default."""
        return json.dumps(write(Story, self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Story:
        """Raises: ValueError that names the field, for what is no story."""
        try:
            story: Story = read(Story, json.loads(text))
        except MailboxError as err:
            raise err.within("story") from None
        return story
