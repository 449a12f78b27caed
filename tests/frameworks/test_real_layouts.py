"""What the frameworks write today is found, whole, and of the right step: the rules of rekindle/checkpoints still hold.

The main suite has these layouts as recorded lists; here the installed versions write them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rekindle.checkpoints.discover import discover
from rekindle.checkpoints.folders import discover_in, listing_of, reader_of
from rekindle.checkpoints.found import Format

PRELUDE = """
import sys, torch
out = sys.argv[1]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
model(torch.ones(8)).sum().backward()
optimizer.step()
"""
ONE_FILE = (
    PRELUDE
    + """
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 123}, f"{out}/ckpt_123.pt")
torch.save({"model": model.state_dict(), "global_step": 124}, f"{out}/last.pt")
torch.save({"model": model.state_dict(), "epoch": 3}, f"{out}/model_3.pth")
"""
)
DCP = (
    PRELUDE
    + """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
parts = get_state_dict(model, optimizer)
for step in (5, 7):
    dcp.save({"model": parts[0], "optimizer": parts[1]}, checkpoint_id=f"{out}/step-{step}", no_dist=True)
"""
)
TRAINER = """
import sys, torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
class Config(PretrainedConfig):
    model_type = "tiny"
class Model(PreTrainedModel):
    config_class = Config
    def __init__(self, config):
        super().__init__(config)
        self.inner = torch.nn.Linear(8, 8)
        self.post_init()
    def _init_weights(self, module):
        pass
    def forward(self, x=None, labels=None):
        return {"loss": ((self.inner(x) - labels) ** 2).mean()}
data = [{"x": torch.randn(8), "labels": torch.randn(8)} for _ in range(32)]
asked = dict(max_steps=4, save_steps=2, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True)
Trainer(Model(Config()), TrainingArguments(sys.argv[1], **asked), train_dataset=data).train()
"""
LIGHTNING = """
import sys, torch, lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 2)
    def training_step(self, batch, index):
        return self.inner(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
out = sys.argv[1]
saver = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=out, every_n_train_steps=2, save_last=True, save_top_k=-1)
trainer = lightning.Trainer(
    max_steps=4, accelerator="cpu", callbacks=[saver], logger=False, default_root_dir=out,
    enable_progress_bar=False, enable_model_summary=False,
)
data = torch.utils.data.TensorDataset(torch.randn(32, 8))
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
"""
ACCELERATE = (
    PRELUDE
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
for step in (1, 2):
    accelerator.save_state(f"{out}/step_{step}")
"""
)
DEEPSPEED = """
import sys, torch, deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
model = torch.nn.Linear(8, 8)
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(2):
    engine.backward(engine(torch.randn(2, 8)).sum())
    engine.step()
    engine.save_checkpoint(sys.argv[1])
"""
TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

ROWS: list[tuple[str, str, Format, set[int | None]]] = [
    ("one_file", ONE_FILE, Format.ONE_FILE, {123, 124, None}),
    ("torch_dcp", DCP, Format.TORCH_DCP, {5, 7}),
    ("hf_trainer", TRAINER, Format.HF_TRAINER, {2, 4}),
    ("lightning", LIGHTNING, Format.LIGHTNING, {2, 4}),
    ("accelerate", ACCELERATE, Format.ACCELERATE, {1, 2}),
    ("deepspeed", DEEPSPEED, Format.DEEPSPEED, {1, 2}),
]


@pytest.mark.parametrize(("name", "script", "format_", "steps"), ROWS, ids=[row[0] for row in ROWS])
def test_what_the_installed_framework_writes_is_found_and_whole(
    tmp_path: Path, name: str, script: str, format_: Format, steps: set[int | None]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    path = tmp_path / "save.py"
    path.write_text(script, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if key not in TOLD} | {"CUDA_VISIBLE_DEVICES": ""}
    env |= {"DS_ACCELERATOR": "cpu", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"] if name == "deepspeed" else []
    command = [sys.executable, "-W", "ignore", *launch, str(path), str(out)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = discover(listing_of(out), reader_of(out))
    assert {item.format for item in found} == {format_}
    assert {item.step for item in found} == steps
    assert all(item.is_complete for item in found), [item.problems for item in found]
    for item in found:  # and one byte less of its largest file is told
        largest = max(
            (path for path in item.files if not path.endswith((".json", ".py"))), key=lambda path: item.files[path]
        )
        body = (out / largest).read_bytes()
        (out / largest).write_bytes(body[:-1])
        again = next(checkpoint for checkpoint in discover_in(out) if checkpoint.root == item.root)
        assert again.problems, largest
        (out / largest).write_bytes(body)
