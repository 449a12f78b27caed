"""A run of the Hugging Face Trainer under Rekindle's care: one callback.

    torchrun --standalone --nproc-per-node 2 examples/hf_trainer/train.py

The lines marked >>> are Rekindle's. The environment is that of examples/pytorch_ddp/train.py.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from rekindle.integrations.hf import RekindleCallback  # >>>

STEPS = int(os.environ.get("REKINDLE_EXAMPLE_STEPS", "60"))
SAVE_EVERY = int(os.environ.get("REKINDLE_EXAMPLE_SAVE_EVERY", "20"))
PACE_S = float(os.environ.get("REKINDLE_EXAMPLE_PACE_S", "0"))
FOLDER = os.environ.get("REKINDLE_EXAMPLE_DIR", "checkpoints")
VOCABULARY, LENGTH = 64, 16


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """320 sequences that count up in steps of one to four: something a small model can learn."""

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) * (index % 4 + 1) + index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


class Pace(TrainerCallback):
    """Slows the run down, so that it can be watched."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(PACE_S)


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=FOLDER,
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        logging_steps=10,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        use_cpu=True,
        seed=0,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    callback = RekindleCallback()  # >>>
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Sequences(), callbacks=[callback, Pace()]
    )  # >>> callback
    callback.attach(trainer)  # >>>
    trainer.train(resume_from_checkpoint=callback.resume_path)  # >>> resume_from_checkpoint
    if trainer.is_world_process_zero():
        step = trainer.state.global_step
        print(f"{'finished' if step >= STEPS else 'stopped'} at step {step}")
        print(f"weights {weights_hash(model)}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if callback.should_stop:  # >>> what follows is for a run that has come to its end
        return 0  # >>>
    if trainer.is_world_process_zero():
        model.save_pretrained(os.path.join(FOLDER, "final"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
