"""A run of the Hugging Face Trainer.

python trainer.py FOLDER STEPS SECONDS_PER_STEP
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from rekindle.integrations.hf import RekindleCallback

folder, steps, pace_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


class Sequences(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) * (index % 4 + 1) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


class Log(TrainerCallback):
    def on_step_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(pace_s)

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            print(state.global_step, logs["loss"], flush=True)


model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
)
arguments = TrainingArguments(
    folder, max_steps=steps, save_steps=20, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
)
callback = RekindleCallback()
trainer = Trainer(model, arguments, train_dataset=Sequences(), callbacks=[Log(), callback])
callback.attach(trainer)
found = get_last_checkpoint(folder) if Path(folder).exists() else None
trainer.train(resume_from_checkpoint=callback.resume_path or found)
if callback.should_stop:
    sys.exit()
trainer.save_model(f"{folder}/final")
