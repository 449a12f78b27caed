"""One rank of a run under an integration, for the tests: `python integration.py FRAMEWORK`.

SPEC (JSON in the environment): steps; pace_s (until a file `hurry` is in HOME_FOLDER); save_every (0: never);
accumulate; full (a rank, and the first step and the number of steps in which its disk takes no file above full_kb,
until `hurry` too); width (of the network); catches (whether the script catches what its own saves raise); odd
(DeepSpeed: a rank whose state cannot be saved); lie (what the framework's own save function does instead: see `lying`);
fsdp (Accelerate, the Trainer: the type of its state dicts); zero (DeepSpeed's stage, within those two as well); saves
(Lightning: whether there is a ModelCheckpoint); attaches (the Trainer). The limit is the kernel's, RLIMIT_FSIZE: a
write beyond it fails as on a full disk.

Each rank appends what it sees to `rank-<rank>.jsonl` in HOME_FOLDER.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for its accelerator when it is imported

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

SPEC = json.loads(os.environ.get("SPEC", "{}"))
HOME = Path(os.environ["HOME_FOLDER"])
FOLDER = HOME / "checkpoints"
RANK = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
STEPS = int(SPEC.get("steps", 12))
SAVE_EVERY = int(SPEC.get("save_every", 0))
ACCUMULATE = int(SPEC.get("accumulate", 1))
PACE_S = float(SPEC.get("pace_s", 0.0))
FULL = SPEC.get("full")  # [rank, first step, number of steps]
WIDTH = int(SPEC.get("width", 128))
FULL_KB = int(SPEC.get("full_kb", 8))  # what its largest file may have then


def note(what: str, **more: Any) -> None:
    with (HOME / f"rank-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps({"what": what, **more}) + "\n")


def before_step_ends(step: int) -> None:
    """Called in each step, before anything is saved in it."""
    if not (HOME / "hurry").exists():
        time.sleep(PACE_S)
    if FULL is None or FULL[0] != RANK:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    is_full = FULL[1] <= step < FULL[1] + FULL[2] and not (HOME / "hurry").exists()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * FULL_KB if is_full else hard, hard))


def own_save(save: Any, step: int) -> None:
    if not SAVE_EVERY or step % SAVE_EVERY:
        return
    try:
        save(step)
        note("saved", step=step)
    except Exception as err:
        note("save failed", step=step, kind=type(err).__name__, why=str(err))
        if not SPEC.get("catches"):
            raise


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(320, 64, generator=generator) * 2 - 1
    y = torch.sin(3 * x).sum(dim=1, keepdim=True) + 0.1 * torch.randn(320, 1, generator=generator)
    return TensorDataset(x, y)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Dropout(0.1), nn.Linear(WIDTH, 1))


def weights_of(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        value = getattr(value, "full_tensor", lambda value=value: value)()
        digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def shard(accelerator: Any, state_dict_type: str) -> None:
    """FSDP2, which Accelerate itself chooses where there is an accelerator only."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType

    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, state_dict_type=state_dict_type, cpu_ram_efficient_loading=False
    )
    accelerator.state.distributed_type = DistributedType.FSDP
    Accelerator.distributed_type = property(lambda _: DistributedType.FSDP)  # type: ignore[assignment]
    Accelerator.is_fsdp2 = property(lambda _: True)  # type: ignore[assignment]


def zero() -> dict[str, Any]:
    """DeepSpeed's configuration. Made before the process group, which would compile kernels for shared memory first."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": ACCUMULATE,
        "zero_optimization": {
            "stage": int(SPEC.get("zero", 2)),
            "reduce_bucket_size": 100_000,
            "allgather_bucket_size": 100_000,
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def harmed(files: list[Path], lie: str) -> list[str]:
    """`half`: the largest file is cut; `lost`: the smallest is not there; `none`: of them all. Returns which."""
    by_size = sorted(files, key=lambda path: path.stat().st_size)
    chosen = {"half": by_size[-1:], "lost": by_size[:1], "none": by_size}.get(lie, [])
    for path in chosen:
        if lie == "half":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.unlink()
    return [path.name for path in chosen]


def lying(owner: Any, name: str, model_of: Any, place_of: Any) -> None:
    """Have the framework's own save function `owner.name` lie, on the last rank, about its own files.

    With `NaN` they are whole, and all ranks' weights are lost. model_of, place_of: from the function's arguments.
    """
    lie, save = SPEC.get("lie"), getattr(owner, name)
    if lie is None:
        return

    def saves(*args: Any, **more: Any) -> Any:
        weights = [weight.detach() for weight in model_of(*args).parameters()] if lie == "NaN" else []
        before = [weight.clone() for weight in weights]
        for weight in weights:
            weight.fill_(float("nan"))
        returned = save(*args, **more)
        for weight, kept in zip(weights, before, strict=True):
            weight.copy_(kept)
        place, world = Path(place_of(*args, **more)), int(os.environ.get("WORLD_SIZE", "1"))
        files = [path for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file()]
        own = re.compile(rf"_(?:rank_)?{RANK}[_.]" if world > 1 else r"optim|model|states|\.ckpt$")
        if world - 1 == RANK:
            written = [path for path in files if own.search(path.name)]
            note("lied", files=harmed(written, lie) or [path.name for path in written])
        return returned

    setattr(owner, name, saves)


def accelerate() -> None:
    from accelerate import Accelerator, DataLoaderConfiguration, DeepSpeedPlugin

    from rekindle.integrations.accelerate import Rekindle

    lying(Accelerator, "save_state", lambda self, *_: self._models[0], lambda _, place, *__: place)
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    engine = {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=zero())} if SPEC.get("zero") else {}
    where: dict[str, Any] = engine or {"cpu": True}
    accelerator = Accelerator(dataloader_config=config, gradient_accumulation_steps=ACCUMULATE, **where)
    if SPEC.get("fsdp"):
        shard(accelerator, SPEC["fsdp"])
    model = network()
    torch.manual_seed(1000 + accelerator.process_index)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run = Rekindle(accelerator, FOLDER)
    run.resume()
    step = 0
    for step, (x, y) in run.steps(loader, STEPS):
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        before_step_ends(step)
        run.step(step, loss=loss)
        own_save(run.save, step)
        if run.should_stop:
            break
    run.finish()
    note("ended", step=step, weights=weights_of(accelerator.unwrap_model(model)))
    accelerator.end_training()


def deepspeed() -> None:
    import deepspeed
    import torch.distributed as dist

    from rekindle.integrations.deepspeed import Rekindle
    from rekindle.integrations.sampler import ResumableSampler

    config = zero()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    net = network()
    torch.manual_seed(1000 + dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    lying(type(engine), "save_checkpoint", lambda self, *_: self.module, lambda _, place, **__: place)
    run = Rekindle(engine, FOLDER)
    if SPEC.get("odd") == RANK:
        run.client_state["checkpoint_parallel_dimensions"] = 1  # DeepSpeed's own key: it raises in the middle of a save
    sampler = ResumableSampler(data(), batch_size=8, accumulate=ACCUMULATE, resume=run.monitor.resume)
    sampler.go_on_after(run.resume())
    for step, (x, y) in sampler.steps(DataLoader(data(), batch_sampler=sampler), STEPS):
        loss = nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        before_step_ends(step)
        run.step(step, loss=loss)
        own_save(run.save, step)
        if run.should_stop:
            break
    run.finish()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        note("ended", step=sampler.done, weights=weights_of(net))
    dist.destroy_process_group()


class Sequences(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) * (index % 4 + 1) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def hf() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from rekindle.integrations.hf import RekindleCallback

    class Each(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            before_step_ends(state.global_step + 1)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            note("on_save", step=state.global_step)

    def newest(trainer: Any, *_: Any) -> Path:
        return Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"

    lying(Trainer, "_save_checkpoint", lambda self, *_: self.model, newest)
    torch.manual_seed(0)
    size = {"vocab_size": 64, "n_positions": 16, "n_embd": WIDTH // 4, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=str(FOLDER),
        max_steps=STEPS,
        save_strategy="steps" if SAVE_EVERY else "no",
        save_steps=SAVE_EVERY or 500,
        gradient_accumulation_steps=ACCUMULATE,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        use_cpu=not SPEC.get("zero"),  # with it, DeepSpeed is left out
        seed=0,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        **({"deepspeed": zero()} if SPEC.get("zero") else {}),
        **SPEC.get("arguments", {}),
    )
    callback = RekindleCallback()
    callbacks = [callback, Each()]
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Sequences(), eval_dataset=Sequences(), callbacks=callbacks
    )
    if SPEC.get("fsdp"):
        shard(trainer.accelerator, SPEC["fsdp"])
        trainer.is_fsdp_enabled = True
    if SPEC.get("attaches", True):
        callback.attach(trainer)
    try:
        trainer.train(resume_from_checkpoint=callback.resume_path)
    except Exception as err:
        note("save failed", step=trainer.state.global_step, kind=type(err).__name__, why=str(err))
        raise
    note("ended", step=trainer.state.global_step, weights=weights_of(model))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def lightning() -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rekindle.integrations.lightning import RekindleCallback, resume_path
    from rekindle.integrations.sampler import ResumableSampler

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            before_step_ends(self.trainer.global_step + 1)
            x, y = batch
            return nn.functional.mse_loss(self.net(x), y)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            note("validated", step=self.trainer.global_step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    lying(lightning.Trainer, "save_checkpoint", lambda self, *_: self.lightning_module, lambda _, place, *__: place)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    lightning.seed_everything(0, verbose=False)
    sampler = ResumableSampler(data(), batch_size=8, rank=RANK, world_size=world, accumulate=ACCUMULATE)
    rekindle = RekindleCallback(folder=FOLDER, sampler=sampler)
    callbacks: list[Any] = [rekindle]
    if SAVE_EVERY:
        callbacks.append(ModelCheckpoint(FOLDER, filename="{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1))
    elif SPEC.get("saves", True):
        callbacks.append(ModelCheckpoint(HOME / "default"))  # one at the end of each epoch, as Lightning's own
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATE,
        callbacks=callbacks,
        enable_checkpointing=len(callbacks) > 1,
        use_distributed_sampler=False,
        deterministic=True,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **SPEC.get("arguments", {}),
    )
    module = Module()
    validation = {"val_dataloaders": DataLoader(data(), batch_size=320)} if SPEC.get("validates") else {}
    try:
        ckpt_path = os.environ.get("CKPT_PATH") or resume_path()
        trainer.fit(module, DataLoader(data(), batch_sampler=sampler), ckpt_path=ckpt_path, **validation)
    except Exception as err:
        note("save failed", step=trainer.global_step, kind=type(err).__name__, why=str(err))
        raise
    note("ended", step=trainer.global_step, weights=weights_of(module))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    {"accelerate": accelerate, "deepspeed": deepspeed, "hf": hf, "lightning": lightning}[sys.argv[1]]()
