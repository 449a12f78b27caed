"""Rekindle in Lightning (`import lightning`): one callback. Saves are `trainer.save_checkpoint`.

    from rekindle.integrations.lightning import RekindleCallback, resume_path

    rekindle = RekindleCallback(folder="checkpoints", sampler=sampler)
    trainer = Trainer(callbacks=[rekindle], use_distributed_sampler=False, ...)
    trainer.fit(model, loader, ckpt_path=resume_path())

For scripts that `import pytorch_lightning`, the same from `rekindle.integrations.pytorch_lightning`.
"""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import CheckpointIO

from rekindle.integrations.lightning_hooks import LightningHooks, WatchedWrites
from rekindle.integrations.resume import resume_path
from rekindle.integrations.sampler import ResumableSampler

__all__ = ["RekindleCallback", "ResumableSampler", "resume_path"]


class _Writes(WatchedWrites, CheckpointIO):
    pass


class RekindleCallback(LightningHooks, Callback):
    __doc__ = LightningHooks.__doc__
    writes = _Writes
