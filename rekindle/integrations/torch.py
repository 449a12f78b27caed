"""Rekindle in a plain PyTorch loop: one process, DDP, or FSDP2. docs/integrations.md has the lines of a script."""

from __future__ import annotations

from rekindle.integrations.folder_save import write_folder
from rekindle.integrations.local import LocalWatch
from rekindle.integrations.rng import restore_rng, rng_state
from rekindle.integrations.sampler import ResumableSampler
from rekindle.integrations.snapshots import (
    load_dcp,
    load_file,
    load_rng,
    save_dcp,
    save_file,
    save_rng,
    wait_for_dcp,
    write_file,
)
from rekindle.integrations.torch_ranks import all_done, all_ready, finish, start

__all__ = [
    "start",
    "finish",
    "ResumableSampler",
    "LocalWatch",
    "save_file",
    "load_file",
    "save_dcp",
    "load_dcp",
    "wait_for_dcp",
    "save_rng",
    "load_rng",
    "rng_state",
    "restore_rng",
    "write_file",
    "all_done",
    "all_ready",
    "write_folder",
]
