"""Scripts as their owners wrote them, and the same with Rekindle's lines: under signals, bad losses and plans.

A run that is to be stopped is started as its owner starts it, all others from a process that has imported its
framework.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.manifests import Manifest, SaveKind
from tests.train.integration_stage import descendants
from tests.train.launcher import Forked, Nurseries

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "before_and_after"
SCRIPTS = {"plain": "torch", "ddp": "torch", "trainer": "hf", "lightning_fit": "lightning"}  # and what each imports
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STEPS, PACE_S = 45, 0.1
SLOW_S = 0.4  # where something has to happen between two steps of a run: seconds, also for a busy machine
PATIENCE_S = 240.0
LOSS = re.compile(r"^(\d+) (\S+)$")


def added(name: str) -> list[str]:
    """What has to be added or changed, as lines of a diff."""
    before, after = (
        (FOLDER / file).read_text("utf-8").splitlines() for file in (f"{name}.py", f"{name}_with_rekindle.py")
    )
    changes = difflib.unified_diff(before, after, lineterm="", n=0)
    return [line for line in changes if re.match(r"[+-](?![+-])", line) and line[1:].strip()]


class Run:
    """One start of a script. `losses` is what it has printed so far."""

    def __init__(
        self,
        script: Path,
        home: Path,
        nurseries: Nurseries,
        *,
        pace_s: float = PACE_S,
        by_command: bool = False,
        **env: str,
    ) -> None:
        name = next(name for name in SCRIPTS if script.name.startswith(name))
        self.is_launched = name == "ddp"
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "REKINDLE", "AWS"))}
        (home / "out").mkdir(exist_ok=True)
        self.losses: dict[int, float] = {}
        self._output: list[str] = []
        self._changed = threading.Condition()
        self._pipe = Path(tempfile.mkdtemp(dir=home)) / "output"
        os.mkfifo(self._pipe)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        argv = [str(script), str(home / "out"), str(STEPS), str(pace_s)]
        environ = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "REKINDLE_JOB_ID": "lm",
            "REKINDLE_MAILBOX": str(home),
            "REKINDLE_HEARTBEAT_S": "0.2",
            "REKINDLE_AGREE_S": "0.1",
            **env,
        }
        if not by_command:
            nursery = nurseries.of(SCRIPTS[name])
            pid = nursery.start(argv, environ, ROOT, self._pipe, ranks=2 if self.is_launched else 0)
            self.process: Forked | subprocess.Popen[bytes] = Forked(nursery, pid)
            return
        launcher = TORCHRUN if self.is_launched else (sys.executable,)
        with self._pipe.open("ab") as pipe:
            self.process = subprocess.Popen([*launcher, *argv], env=environ, stdout=pipe, stderr=pipe)

    def _read(self) -> None:
        with self._pipe.open(errors="replace") as lines:
            for line in lines:
                with self._changed:
                    self._output.append(line)
                    if found := LOSS.match(line.strip()):
                        self.losses[int(found[1])] = float(found[2])
                    self._changed.notify_all()

    def trained(self, step: int) -> None:
        """Wait until this step is done."""
        with self._changed:
            assert self._changed.wait_for(lambda: step in self.losses, PATIENCE_S), self.output

    @property
    def output(self) -> str:
        return "".join(self._output)

    def signal(self, number: int) -> None:
        """As a scheduler does: SIGTERM to a launcher, which passes it on; any other to what it has started."""
        ranks = descendants(self.process.pid) if self.is_launched and number != signal.SIGTERM else []
        for process in ranks or [self.process.pid]:
            os.kill(process, number)

    def kill(self) -> None:
        for process in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path, nurseries: Nurseries) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(name: str, home: Path = tmp_path, folder: Path = FOLDER, **more: Any) -> Run:
        home.mkdir(exist_ok=True)
        runs.append(Run(folder / f"{name}.py", home, nurseries, **more))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


def emergencies(home: Path) -> list[int]:
    found = [Manifest.from_json(path.read_bytes()) for path in (home / manifest_prefix()).glob("*.json")]
    return sorted(checkpoint.step for checkpoint in found if checkpoint.kind is SaveKind.EMERGENCY)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gets_at_most_eight_lines_and_the_page_shows_them(name: str) -> None:
    lines = added(name)
    assert sum(line.startswith("+") for line in lines) <= 8
    page = (ROOT / "docs" / "integrations.md").read_text("utf-8")
    assert "\n".join(lines) in page


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_stopped_script_saves_and_goes_on_where_it_was_with_the_losses_it_would_have_had(
    name: str, start: Start, tmp_path: Path
) -> None:
    # Lightning's own loader draws the order of its samples anew after a resume, so there the sampler is the same.
    before = f"{name}_with_rekindle" if name == "lightning_fit" else name
    undisturbed = start(before, tmp_path / "undisturbed", REKINDLE_MONITOR="off")
    run = start(f"{name}_with_rekindle", pace_s=SLOW_S, by_command=True)
    run.trained(25)
    run.signal(signal.SIGTERM)
    assert run.ended() in (0, 1, -signal.SIGTERM), run.output
    [saved] = emergencies(tmp_path)
    assert 25 <= saved <= max(run.losses) + 1 < STEPS
    assert not (tmp_path / "out" / "final").exists(), "what follows the training was run"
    again = start(f"{name}_with_rekindle", REKINDLE_ATTEMPT="2")
    assert again.ended() == 0, again.output
    assert (min(again.losses), max(again.losses)) == (saved + 1, STEPS)
    assert undisturbed.ended() == 0, undisturbed.output
    if name != "trainer":  # its order of data and dropout are the Trainer's own affair
        assert run.losses | again.losses == pytest.approx(undisturbed.losses)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_is_killed_and_started_again_goes_on_from_its_newest_checkpoint(name: str, start: Start) -> None:
    run = start(f"{name}_with_rekindle", pace_s=SLOW_S)
    run.trained(27)
    run.kill()
    again = start(f"{name}_with_rekindle")
    assert again.ended() == 0, again.output
    assert (min(again.losses), max(again.losses)) == (21, STEPS)


BAD = {  # what a script hands over is not finite in steps 5 to 8, by a change of its text; its weights stay as they are
    "plain": ("= train(batch)\n", '= train(batch) * (float("nan") if step in range(5, 9) else 1)\n'),
    "ddp": ("= train(batch)\n", '= train(batch) * (float("nan") if step in range(5, 9) else 1)\n'),
    "trainer": (
        "model = GPT2LMHeadModel(\n",
        "class Bad(Trainer):\n"
        "    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:\n"
        "        loss = super().training_step(*args, **kwargs)\n"
        '        return loss * (float("nan") if self.state.global_step in range(4, 8) else 1)\n\n\n'
        "model = GPT2LMHeadModel(\n",
    ),
    "lightning_fit": (
        "saves = ModelCheckpoint",
        "from lightning.pytorch.callbacks import Callback\n\n\n"
        "class Bad(Callback):\n"
        "    def on_train_batch_end(self, trainer: Any, _module: Any, outputs: Any, *_: Any) -> None:\n"
        "        if trainer.global_step in range(5, 9):\n"
        '            outputs["loss"] *= float("nan")\n\n\n'
        "saves = ModelCheckpoint",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_loss_that_stays_bad_is_said_where_the_run_logs(name: str, start: Start, tmp_path: Path) -> None:
    text = (FOLDER / f"{name}_with_rekindle.py").read_text("utf-8")
    before, after = BAD[name]
    assert before in text
    text = text.replace(before, after).replace("trainer = Trainer(model,", "trainer = Bad(model,")
    text = text.replace("callbacks=[saves, rekindle]", "callbacks=[saves, Bad(), rekindle]")
    script = tmp_path / f"{name}.py"
    script.write_text(text)
    run = start(name, folder=tmp_path)
    assert run.ended() == 0, run.output
    assert run.output.count("The loss is not finite since step 5") == 1, run.output
    assert run.output.count("The loss of step 9 is finite") == 1, run.output


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_asked_by_a_signal_trains_on_and_a_plan_is_resumed_from_and_its_bad_batches_are_read_and_dropped(
    name: str, start: Start, tmp_path: Path
) -> None:
    """A checkpoint by its path, and in S3: the folder is the local copy of one there, as on SageMaker."""
    first = start(f"{name}_with_rekindle")
    first.trained(5)
    first.signal(signal.SIGUSR1)
    assert first.ended() == 0, first.output
    assert max(first.losses) == STEPS
    assert len(emergencies(tmp_path)) == 1
    for is_in_s3 in (False, True):
        home = tmp_path / ("S3" if is_in_s3 else "path")
        out = shutil.copytree(tmp_path / "out", home / "out")
        [place] = (path for path in out.iterdir() if re.search("[^0-9]20([^0-9]|$)", path.name))
        uri = f"s3://bucket/run/{place.name}" if is_in_s3 else str(place)
        env = {"REKINDLE_RESUME_STEP": "20", "REKINDLE_RESUME_URI": uri, "REKINDLE_SKIP": "[[22,24]]"}
        if is_in_s3:
            env |= {"REKINDLE_CHECKPOINT_DIR": str(out), "REKINDLE_CHECKPOINT_URI": "s3://bucket/run"}
        again = start(f"{name}_with_rekindle", home, REKINDLE_ATTEMPT="2", **env)
        assert again.ended() == 0, again.output
        # Lightning counts the updates that it makes, and goes on until it has made them all.
        left_out = set() if name == "lightning_fit" else {22, 23}
        assert sorted(again.losses) == sorted(set(range(21, STEPS + 1)) - left_out), again.output
        assert again.losses[21] == pytest.approx(first.losses[21])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_plan_whose_checkpoint_is_not_on_this_machine_is_an_error_and_no_fresh_run(name: str, start: Start) -> None:
    plan = {"REKINDLE_RESUME_STEP": "20", "REKINDLE_RESUME_URI": "s3://bucket/run/step-20"}
    run = start(f"{name}_with_rekindle", **plan)
    assert run.ended() != 0
    assert run.losses == {}
    assert "s3://bucket/run/step-20 is no local path" in run.output
