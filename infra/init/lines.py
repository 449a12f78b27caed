"""The lines of a training script per integration, and the settings of a job, as the docs state them.

Each script is a block of its page word for word (tests/infra/test_init.py holds it there), so that what `rekindle init`
writes and what a reader finds is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from infra.init.answers import Answers, Integration
from rekindle.slurm_agent.reading import comment as comments

# Integration -> (the page, the block).
SCRIPTS: Final[Mapping[Integration, tuple[str, str]]] = {
    Integration.PLAIN: (
        "README.md",
        """\
import rekindle.monitor as rekindle

mon = rekindle.start(save=save, signals=("TERM",))  # save(step, kind) writes a checkpoint and returns its path
path = mon.resume_path  # None for a fresh run; an error that names the URI where the checkpoint is not on this machine
step, model = load(path) if path else (0, fresh())
for step in range(step + 1, steps + 1):
    if mon.should_skip(step):
        continue
    mon.step(step, loss=train(model, step))  # an emergency save happens inside this call
    if step % 1000 == 0:
        mon.saved(save(step, "periodic"), step)
    if mon.should_stop:  # SIGTERM, or another attempt has taken over
        break
mon.finish()
""",
    ),
    Integration.DDP: (
        "docs/integrations.md",
        """\
from rekindle.integrations import torch as rekindle


def save(step, kind):  # every rank calls it, rank 0 writes
    return rekindle.save_file(
        f"{folder}/step-{step}.pt", step=step, model=model, optimizer=optimizer, scheduler=scheduler
    )


mon = rekindle.start(save=save)  # after init_process_group
watch = rekindle.LocalWatch(mon)
watch.gradients(model)  # whose NaN, and who is slow
if mon.resume_path is not None:
    rekindle.load_file(mon.resume_path, model=model, optimizer=optimizer, scheduler=scheduler)
sampler = rekindle.ResumableSampler(data, batch_size=8, resume=mon.resume)
for step, (x, y) in sampler.steps(DataLoader(data, batch_sampler=sampler), last_step):
    ...
    mon.step(step, loss=loss, work_s=watch.stepped(step))
    if mon.should_stop:
        break
rekindle.finish(mon)
""",
    ),
    Integration.FSDP2: (
        "docs/integrations.md",
        """\
def save(step, kind):
    return rekindle.save_dcp(f"{folder}/step-{step}", step=step, model=model, optimizer=optimizer)


watch.gradients(model)  # once, after fully_shard: who is slow
...
watch.loss(loss)  # FSDP hides local gradients: whose NaN is told by the local loss
mon.step(step, loss=loss, work_s=watch.stepped(step))
rekindle.save_dcp(f"{folder}/step-{step}", step=step, model=model, optimizer=optimizer, on_done=mon.saved)
""",
    ),
    Integration.HUGGING_FACE: (
        "docs/integrations.md",
        """\
from rekindle.integrations.hf import RekindleCallback

callback = RekindleCallback()
trainer = Trainer(..., callbacks=[callback])
callback.attach(trainer)
trainer.train(resume_from_checkpoint=callback.resume_path)
if callback.should_stop:
    sys.exit()
""",
    ),
    Integration.LIGHTNING: (
        "docs/integrations.md",
        """\
# or from …integrations.pytorch_lightning
from rekindle.integrations.lightning import RekindleCallback, ResumableSampler, resume_path

sampler = ResumableSampler(data, batch_size=8, rank=rank, world_size=world_size)
rekindle = RekindleCallback(folder="checkpoints", sampler=sampler)
trainer = Trainer(callbacks=[rekindle, ...], use_distributed_sampler=False)
trainer.fit(model, DataLoader(data, batch_sampler=sampler), ckpt_path=resume_path())
if rekindle.should_stop:
    sys.exit()
""",
    ),
    Integration.ACCELERATE: (
        "docs/integrations.md",
        """\
from rekindle.integrations.accelerate import Rekindle

run = Rekindle(accelerator, "checkpoints", optimizer=optimizer)  # after accelerator.prepare
run.resume()
for step, batch in run.steps(loader, last_step):
    ...
    run.step(step, loss=loss)
    if step % 100 == 0:
        run.save(step)
    if run.should_stop:
        break
run.finish()
""",
    ),
    Integration.DEEPSPEED: (
        "docs/integrations.md",
        """\
from rekindle.integrations.deepspeed import Rekindle

engine, _, _, _ = deepspeed.initialize(...)
run = Rekindle(engine, "checkpoints")
sampler = ResumableSampler(data, batch_size=8, resume=run.monitor.resume)
sampler.go_on_after(run.resume())
for step, batch in sampler.steps(DataLoader(data, batch_sampler=sampler), last_step):
    loss = engine(batch)
    engine.backward(loss)
    engine.step()
    run.step(step, loss=loss)
    if step % 100 == 0:
        run.save(step)
    if run.should_stop:
        break
run.finish()
""",
    ),
}
SCRIPT: Final = "train-lines.py"
SETTINGS: Final = "training-job.json"
HEADER: Final = "batch-header.sh"


def script(answers: Answers) -> str:
    """The lines for the training script."""
    page, block = SCRIPTS[answers.integration]
    return f"# Lines for the training script; what stands around them is yours. All of it: {page}\n\n{block}"


def settings(answers: Answers, *, stage: str, bus: str) -> dict[str, Any]:
    """What CreateTrainingJob needs beside the job's own: Environment and Tags."""
    environment = {"REKINDLE_MAILBOX": answers.mailbox, "REKINDLE_JOB_ID": answers.job, "REKINDLE_BUS": bus}
    if answers.checkpoints:
        environment["REKINDLE_CHECKPOINT_URI"] = answers.checkpoints
    tags = {"rekindle:policy": answers.policy}
    if stage != "prod":
        tags["rekindle:stage"] = stage
    return {"Environment": environment, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def header(answers: Answers) -> str:
    """What goes to the top of a batch script, before its first command."""
    keys = {
        "job": None,
        "mailbox": answers.mailbox,
        "checkpoints": answers.checkpoints or None,
        "signal": "USR1",
    }
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={answers.job}",
            f"#SBATCH --comment={comments.render(answers.policy, keys)}",
            "#SBATCH --open-mode=append",
            "#SBATCH --requeue",
            "#SBATCH --exclusive",
            f"export REKINDLE_MAILBOX={answers.mailbox}",
            "trap '' USR1  # else the signal that asks for a checkpoint ends the launcher; docs/hyperpod-slurm.md",
            "",
        ]
    )


def as_text(document: Mapping[str, Any]) -> str:
    """JSON as files have it here."""
    return json.dumps(document, indent=2) + "\n"
