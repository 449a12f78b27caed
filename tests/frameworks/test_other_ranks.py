"""A real Trainer that goes on with another number of ranks: what it loads, what it is told, which samples it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.launch_orders import AttemptOrder, ResumePlan
from rekindle.protocol.manifests import Manifest
from tests.train.launcher import PATIENCE_S, Forked, Nurseries, environment

SAMPLES, BATCH, SAVED, LAST = 160, 4, 6, 14

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from rekindle.integrations.hf import RekindleCallback
from rekindle.integrations.sampler import ResumableSampler

home, last, by_sampler = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "sampler"
rank = int(os.environ.get("RANK", "0"))

def note(**what):
    with (home / f"{os.environ['TRAINING_JOB_NAME']}-rank-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\\n")

class Numbered(Dataset):
    def __len__(self):
        return int(sys.argv[4])
    def __getitem__(self, number):
        x = torch.linspace(-1, 1, 16) * (number % 7 + 1)
        return {"x": x, "y": x.sin().sum().reshape(1), "number": number}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 1)
    def forward(self, x, y):
        return {"loss": nn.functional.mse_loss(self.net(x), y)}

class Tell(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **more):
        moments = optimizer.state_dict()["state"]
        note(began=state.global_step, weight=model.state_dict()["net.weight"].sum().item(),
             updates=int(moments[0]["step"]) if moments else 0, scheduled=lr_scheduler.last_epoch)

class Own(Trainer):
    def compute_loss(self, model, inputs, *args, **more):
        note(step=self.state.global_step + 1, numbers=inputs.pop("number").tolist())
        return super().compute_loss(model, inputs, *args, **more)
    def get_train_dataloader(self):
        return DataLoader(data, batch_sampler=sampler) if by_sampler else super().get_train_dataloader()

torch.manual_seed(0)
data = Numbered()
arguments = TrainingArguments(output_dir=str(home / "out"), max_steps=last, save_steps=6,
    per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True, seed=0, report_to="none", disable_tqdm=True,
    remove_unused_columns=False, ignore_data_skip=by_sampler)
callback = RekindleCallback()
path = callback.resume_path
sampler = ResumableSampler(data, batch_size=4, resume=callback.monitor.resume)
trainer = Own(model=Model(), args=arguments, train_dataset=data, callbacks=[callback, Tell()])
callback.attach(trainer)
trainer.train(resume_from_checkpoint=path)
note(ended=trainer.state.global_step)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


class Run:
    """Attempts of one Job in one home."""

    def __init__(self, home: Path, data: str, nurseries: Nurseries) -> None:
        self.home, self._data, self._nursery = home, data, nurseries.of("hf")
        (home / "run.py").write_text(SCRIPT)

    def attempt(self, number: int, ranks: int, last: int, resume: ResumePlan | None = None) -> tuple[list[Any], str]:
        """The notes of all ranks, and what it said."""
        order = AttemptOrder(job_id="job", attempt_number=number, mailbox=str(self.home), resume=resume or ResumePlan())
        env = order.apply(environment()) | {"TRAINING_JOB_NAME": f"run-{number}"}
        argv = [str(self.home / "run.py"), str(self.home), str(last), self._data, str(SAMPLES)]
        log = self.home / f"run-{number}.log"
        pid = self._nursery.start(argv, env, self.home, log, ranks=ranks if ranks > 1 else 0)
        assert Forked(self._nursery, pid).wait(PATIENCE_S) == 0, log.read_text()[-4000:]
        files = sorted(self.home.glob(f"run-{number}-rank-*.jsonl"))
        notes = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert len(files) == ranks
        assert [note["ended"] for note in notes if "ended" in note] == [last] * ranks
        return notes, log.read_text()

    def plan(self, step: int, **more: Any) -> ResumePlan:
        """As the service makes it, of the manifest."""
        [key] = (self.home / manifest_prefix()).glob(f"*{step:012d}*.json")
        manifest = Manifest.from_json(key.read_bytes())
        return ResumePlan(step=step, uri=manifest.root, manifest_uri=f"file://{key}", **more)


def numbers(notes: list[Any]) -> list[int]:
    return [number for note in notes if "numbers" in note for number in note["numbers"]]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("data", ["sampler", "own"])
def test_a_trainer_goes_on_with_another_number_of_ranks(
    data: str, before: int, after: int, tmp_path: Path, nurseries: Nurseries
) -> None:
    run = Run(tmp_path, data, nurseries)
    first, _ = run.attempt(1, before, SAVED)
    second, said = run.attempt(2, after, LAST, run.plan(SAVED))

    saved = tmp_path / "out" / f"checkpoint-{SAVED}"
    weight = load_file(saved / "model.safetensors")["net.weight"].sum().item()
    scheduled = torch.load(saved / "scheduler.pt")["last_epoch"]
    began = [note for note in second if "began" in note]
    assert began == [{"began": SAVED, "weight": weight, "updates": SAVED, "scheduled": scheduled}] * after

    words = f"the checkpoint of step {SAVED} was saved by {before} ranks, and {after} go on from it"
    assert words in said
    used, later = numbers(first), numbers(second)
    assert len(used) == SAVED * BATCH * before
    assert len(later) == (LAST - SAVED) * BATCH * after
    if data == "sampler":
        assert len(set(used + later)) == len(used + later), "none is read twice in the epoch"
        return
    # The Trainer counts its own data in steps: what the warning says.
    twice = len(used) + len(later) - len(set(used + later))
    assert twice == max(SAVED * BATCH * (before - after), 0)
