"""The monitor's settings, from arguments and the environment. A wrong one is logged and replaced by its default.

That is the opposite of the service's habit (a bad number raises there): nothing here may stop a training run.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rekindle.detectors.hang import FACTOR, HangLimit
from rekindle.protocol.cluster.cluster_name import ENV_CLUSTER_FILE
from rekindle.protocol.cluster.names import ENV_CLUSTER
from rekindle.protocol.launch_orders import (
    ENV_ATTEMPT,
    ENV_ATTEMPT_NAME,
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_URI,
    ENV_NAMES,
)
from rekindle.protocol.mailbox import RunPhase

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # torchrun, Open MPI, srun: in the order they are trusted
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
EVALUATION_S = 1800.0
SAVING_S = 900.0
# What the environment sets of `Config`. The last four are for runs of seconds, as the demo's: no user needs them.
VARIABLES = {
    "REKINDLE_HEARTBEAT_S": "heartbeat_s",
    "REKINDLE_POLL_S": "poll_s",
    "REKINDLE_STALL_FLOOR_S": "stall_floor_s",
    "REKINDLE_STALL_STARTUP_S": "stall_startup_s",
    "REKINDLE_METRICS_S": "metrics_s",
    "REKINDLE_WATCH_S": "watch_s",
    "REKINDLE_AGREE_S": "agree_s",
    "REKINDLE_ABANDON_S": "abandon_s",
}

ENV_SWITCH = "REKINDLE_MONITOR"  # "off" silences the monitor
ENV_METRICS = "REKINDLE_METRICS"  # "off" keeps CloudWatch out of it
# Further variables that the monitor and the launchers of its runs know.
_OTHERS = (ENV_ATTEMPT_NAME, ENV_CHECKPOINT_DIR, ENV_CHECKPOINT_URI, ENV_CLUSTER, ENV_SWITCH, ENV_METRICS)
KNOWN = (*ENV_NAMES, *_OTHERS, ENV_CLUSTER_FILE)


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """The REKINDLE_ variables that nothing here reads: a mistyped name among them says why a run is not watched."""
    known = {*VARIABLES, *KNOWN}
    return sorted(name for name in env if name.startswith("REKINDLE_") and name not in known)


def process_environment() -> Mapping[str, str]:
    return MappingProxyType(os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Seconds, all of them.

    heartbeat_s: how often the heartbeat is written. poll_s: how often requests and the fence are read. list_s: how
    often requests are listed where the doorbell is quiet. metrics_s: how often metrics leave. watch_s: how often the
    watchdog looks. stall_factor, stall_floor_s: see `HangLimit`. stall_startup_s: silence allowed before the first
    step, and until a step's length is known; stall_evaluation_s, stall_saving_s: in the first evaluation and save.
    agree_s: how often a rank looks for what the others want; 0: as suits what they agree through. abandon_s: a rank
    that waits so long inside a save for one that failed gives it up. judge_s: how often the loss detectors catch up.
    pace_s: how often each rank reports its pace, at least (see `reporter`). term_grace_s: how long SIGTERM is put off
    at most, for a save and the end of the loop. Source of 120: SageMaker developer guide, StopTrainingJob.
    """

    heartbeat_s: float = 15.0
    poll_s: float = 5.0
    metrics_s: float = 60.0
    watch_s: float = 1.0
    agree_s: float = 0.0
    abandon_s: float = 30.0
    judge_s: float = 0.5
    pace_s: float = 300.0
    list_s: float = 60.0
    stall_factor: float = FACTOR
    stall_floor_s: float = 60.0
    stall_startup_s: float = 1800.0
    stall_evaluation_s: float = EVALUATION_S
    stall_saving_s: float = SAVING_S
    term_grace_s: float = 120.0
    problems: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Defaults, overridden by the environment. `problems` names the variables that could not be read."""
        values: dict[str, float] = {}
        problems: list[str] = []
        for variable, name in VARIABLES.items():
            text = env.get(variable)
            if text is None:
                continue
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if math.isfinite(value) and value > 0:
                values[name] = value
            else:
                problems.append(f"{variable}={text!r}")
        if "stall_startup_s" in values:  # what takes long to start takes long to evaluate and to save
            values["stall_evaluation_s"] = max(EVALUATION_S, values["stall_startup_s"])
            values["stall_saving_s"] = max(SAVING_S, values["stall_startup_s"] / 2)
        return cls(**values, problems=tuple(problems))

    def limits(self) -> dict[RunPhase, HangLimit]:
        """A silence limit for each phase. Start-up never learns; evaluation and saving learn from the first one on."""
        factor = self.stall_factor
        return {
            RunPhase.STARTUP: HangLimit(floor_s=self.stall_startup_s),
            RunPhase.TRAINING: HangLimit(
                floor_s=self.stall_floor_s, unlearned_s=max(self.stall_startup_s, self.stall_floor_s), factor=factor
            ),
            RunPhase.EVALUATION: HangLimit(floor_s=self.stall_evaluation_s, factor=factor, window=8, warmup=0),
            RunPhase.SAVING: HangLimit(floor_s=self.stall_saving_s, factor=factor, window=8, warmup=0),
        }


def rank_from_env(env: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) as the launcher set them; (0, 1) where no launcher did."""
    rank, world = whole_from_env(env, *_RANK), whole_from_env(env, *_WORLD)
    return rank or 0, max(world or 1, (rank or 0) + 1)


def attempt_number(env: Mapping[str, str]) -> int:
    return whole_from_env(env, ENV_ATTEMPT) or 1


def host_from_env(env: Mapping[str, str]) -> str:
    """What the platform calls this host. SageMaker's own name precedes the kernel's; both are cut to 255 characters.

    Source: sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md (SM_CURRENT_HOST); Slurm, srun (SLURMD_NODENAME);
    Kubernetes has no such variable unless the manifest sets one (NODE_NAME, by the downward API).
    """
    for name in ("SM_CURRENT_HOST", "SLURMD_NODENAME", "NODE_NAME"):
        if env.get(name):
            return env[name][:255]
    return socket.gethostname()[:255]


def whole_from_env(env: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a whole number; None where none is."""
    for name in names:
        text = env.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
    return None
