"""Rekindle in Lightning (`import lightning`): one callback. Saves are `trainer.save_checkpoint`."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import CheckpointIO

from rekindle.integrations.guarded import resume_path
from rekindle.integrations.lightning_hooks import LightningHooks, WatchedWrites
from rekindle.integrations.sampler import ResumableSampler

__all__ = ["RekindleCallback", "ResumableSampler", "resume_path"]


class _Writes(WatchedWrites, CheckpointIO):
    pass


class RekindleCallback(LightningHooks, Callback):
    __doc__ = LightningHooks.__doc__
    writes = _Writes
