"""Scripts as their owners wrote them, and the same with Rekindle's lines: under signals, bad losses and plans."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rekindle.protocol.mailbox import Manifest, SaveKind, manifest_prefix
from tests.train.integration_stage import descendants

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "before_and_after"
SCRIPTS = ("plain", "ddp", "trainer", "lightning_fit")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STEPS, PACE_S = 45, 0.1
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

    def __init__(self, script: Path, home: Path, **env: str) -> None:
        self.is_launched = script.name.startswith("ddp")
        launcher = TORCHRUN if self.is_launched else (sys.executable,)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "REKINDLE", "AWS"))}
        (home / "out").mkdir(exist_ok=True)
        self.losses: dict[int, float] = {}
        self._output: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*launcher, str(script), str(home / "out"), str(STEPS), str(PACE_S)],
            env=kept
            | {
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "REKINDLE_JOB_ID": "lm",
                "REKINDLE_MAILBOX": str(home),
                "REKINDLE_HEARTBEAT_S": "0.2",
                "REKINDLE_AGREE_S": "0.1",
            }
            | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
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
        self.process.wait()

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_S)
        with self._changed:
            self._changed.wait(0.5)
        return code


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(name: str, home: Path = tmp_path, **env: str) -> Run:
        home.mkdir(exist_ok=True)
        runs.append(Run(FOLDER / f"{name}.py", home, **env))
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
    run = start(f"{name}_with_rekindle")
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
    run = start(f"{name}_with_rekindle")
    run.trained(27)
    run.kill()
    again = start(f"{name}_with_rekindle")
    assert again.ended() == 0, again.output
    assert (min(again.losses), max(again.losses)) == (21, STEPS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_is_asked_by_a_signal_saves_and_trains_on(name: str, start: Start, tmp_path: Path) -> None:
    run = start(f"{name}_with_rekindle")
    run.trained(5)
    run.signal(signal.SIGUSR1)
    assert run.ended() == 0, run.output
    assert max(run.losses) == STEPS
    assert len(emergencies(tmp_path)) == 1


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
    run = Run(script, tmp_path)
    assert run.ended() == 0, run.output
    assert run.output.count("The loss is not finite since step 5") == 1, run.output
    assert run.output.count("The loss of step 9 is finite") == 1, run.output


@pytest.mark.parametrize("is_in_s3", [False, True], ids=["a path", "S3"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_plan_is_resumed_from_and_its_bad_batches_are_read_and_dropped(
    name: str, is_in_s3: bool, start: Start, tmp_path: Path
) -> None:
    """In S3: the folder of checkpoints is the local copy of one there, as on SageMaker."""
    out, copied = tmp_path / "out", {}
    if is_in_s3:
        copied = {"REKINDLE_CHECKPOINT_DIR": str(out), "REKINDLE_CHECKPOINT_URI": "s3://bucket/run"}
    first = start(f"{name}_with_rekindle", **copied)
    assert first.ended() == 0, first.output
    [place] = (path for path in out.iterdir() if re.search("[^0-9]20([^0-9]|$)", path.name))
    uri = f"s3://bucket/run/{place.name}" if is_in_s3 else str(place)
    plan = {"REKINDLE_RESUME_STEP": "20", "REKINDLE_RESUME_URI": uri, "REKINDLE_SKIP": "[[22,24]]"}
    again = start(f"{name}_with_rekindle", REKINDLE_ATTEMPT="2", **plan, **copied)
    assert again.ended() == 0, again.output
    counted = [21, *range(24, STEPS + 1)]
    # Lightning counts the updates that it makes, and goes on until it has made them all.
    assert sorted(again.losses) == (list(range(21, STEPS + 1)) if name == "lightning_fit" else counted)
    assert again.losses[21] == pytest.approx(first.losses[21])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_plan_whose_checkpoint_is_not_on_this_machine_is_an_error_and_no_fresh_run(name: str, start: Start) -> None:
    plan = {"REKINDLE_RESUME_STEP": "20", "REKINDLE_RESUME_URI": "s3://bucket/run/step-20"}
    run = start(f"{name}_with_rekindle", **plan)
    assert run.ended() != 0
    assert run.losses == {}
    assert "s3://bucket/run/step-20 is no local path" in run.output
