"""Lightning with a strategy that shards, and that writes its checkpoints itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rekindle.protocol.manifests import SaveKind
from tests.sealed import check_files
from tests.train.integrations.test_integration_parts import env_of, manifests

pytestmark = pytest.mark.process
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from rekindle.integrations.lightning import RekindleCallback

home = Path(sys.argv[1])

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

    def configure_model(self):
        if not hasattr(self.net, "unshard"):
            for part in (*self.net, self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        if index == 5 and self.global_rank == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

data = TensorDataset(torch.rand(128, 8), torch.rand(128, 1))
periodic = ModelCheckpoint(home / "periodic", filename="{step}", every_n_train_steps=8, save_top_k=-1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=ModelParallelStrategy(), max_steps=32, logger=False,
    callbacks=[RekindleCallback(folder=home / "emergency"), periodic], enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(data, batch_size=2))
"""


def test_what_a_sharding_strategy_writes_gets_its_manifests(tmp_path: Path) -> None:
    script = tmp_path / "train.py"  # a file, which Lightning starts again for the second rank
    script.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ
        | env_of(tmp_path)
        | {"PYTHONPATH": str(Path(__file__).parents[3]), "REKINDLE_AGREE_S": "0.1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = manifests(tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    [emergency] = [step for step, manifest in found.items() if manifest.kind is SaveKind.EMERGENCY]
    assert set(found) - {emergency} == {8, 16, 24, 32} - {emergency}, run.stderr[-3000:]
    for manifest in found.values():
        assert {".metadata", "__0_0.distcp", "__1_0.distcp", "meta.pt"} <= {item.path for item in manifest.files}
        check_files(tmp_path, manifest)
