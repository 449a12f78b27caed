"""Imported by the nursery for torch: what the ranks would otherwise import one by one, for seconds."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
from torch.testing._internal.distributed import fake_pg

import rekindle.integrations.torch

torch.use_deterministic_algorithms(mode=True)  # imports torch's compiler
__all__ = ["fake_pg", "rekindle", "torch"]
