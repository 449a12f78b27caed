"""A DeepSpeed run under Rekindle's care: ZeRO on the CPU with gloo.

    DS_ACCELERATOR=cpu torchrun --standalone --nproc-per-node 2 examples/deepspeed/train.py

The lines marked >>> are Rekindle's. The environment is that of examples/pytorch_ddp/train.py, and
REKINDLE_EXAMPLE_ZERO, the ZeRO stage (2).
"""

from __future__ import annotations

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for its accelerator when it is imported

import hashlib
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rekindle.integrations.deepspeed import Rekindle  # >>>
from rekindle.integrations.sampler import ResumableSampler  # >>>

STEPS = int(os.environ.get("REKINDLE_EXAMPLE_STEPS", "60"))
SAVE_EVERY = int(os.environ.get("REKINDLE_EXAMPLE_SAVE_EVERY", "20"))
PACE_S = float(os.environ.get("REKINDLE_EXAMPLE_PACE_S", "0"))
FOLDER = Path(os.environ.get("REKINDLE_EXAMPLE_DIR", "checkpoints"))
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {
        "stage": int(os.environ.get("REKINDLE_EXAMPLE_ZERO", "2")),
        "reduce_bucket_size": 100_000,  # by default 2 GB, which deterministic algorithms fill with zeros at each step
        "allgather_bucket_size": 100_000,
    },
    "zero_allow_untested_optimizer": True,  # torch's AdamW: DeepSpeed's own would be compiled first
    "zero_force_ds_cpu_optimizer": False,
}


def dataset() -> TensorDataset:
    """A curve with noise: 320 samples, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(320, 8, generator=generator) * 2 - 1
    y = torch.sin(3 * x).sum(dim=1, keepdim=True) + 0.1 * torch.randn(320, 1, generator=generator)
    return TensorDataset(x, y)


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # The kernels for shared memory would be compiled at the first start, which takes a minute; gloo does without.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    torch.manual_seed(1000 + dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, lr_scheduler=scheduler, config=CONFIG)
    data = dataset()

    run = Rekindle(engine, FOLDER)  # >>>
    sampler = ResumableSampler(data, batch_size=8, resume=run.monitor.resume)  # >>> was: DistributedSampler
    sampler.go_on_after(run.resume())  # >>>
    loader = DataLoader(data, batch_sampler=sampler)

    for step, (x, y) in sampler.steps(loader, STEPS):
        began = time.monotonic()
        loss = nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        run.step(step, loss=loss)  # >>> an emergency checkpoint happens in here
        if step % SAVE_EVERY == 0:
            run.save(step)  # >>> was: engine.save_checkpoint(...)
        if run.should_stop:  # >>>
            break
        time.sleep(max(0.0, PACE_S - (time.monotonic() - began)))
    run.finish()  # >>>
    digest = weights_hash(net)
    if dist.get_rank() == 0:
        print(f"{'stopped' if run.should_stop else 'finished'} at step {sampler.done}")
        print(f"weights {digest}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
