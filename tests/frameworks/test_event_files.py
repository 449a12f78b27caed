"""`rekindle detect` on event files that torch's SummaryWriter wrote, read by TensorBoard's own reader."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="make test-frameworks installs it")

from torch.utils.tensorboard import SummaryWriter

from rekindle.cli.main import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with SummaryWriter(str(folder)) as writer:
        for row in range(400):
            writer.add_scalar("train/loss", 2 + 6 * math.exp(-row / 50) + (6 if 300 <= row < 340 else 0), row * 10)
            writer.add_scalar("train/learning_rate", 1e-4, row * 10)
    return folder


def test_the_loss_of_a_run_is_found_among_its_scalars(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (events,) = run.iterdir()
    for place in (run, events):
        assert main(["detect", str(place), "--json"]) == 0
        (alarm,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert alarm["evidence"]["onset_step"] == 3000


def test_a_file_that_was_cut_is_read_as_far_as_it_goes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (events,) = run.iterdir()
    events.write_bytes(events.read_bytes()[:9000])
    assert main(["detect", str(events)]) == 0
    assert capsys.readouterr().out.startswith("0 alarms in ")


def test_bytes_that_are_no_events_and_a_run_without_a_loss_get_one_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.tfevents").write_bytes(b"\xff" * 5000)
    assert main(["detect", str(tmp_path / "a.tfevents")]) == 2
    assert main(["detect", str(run), "--loss-column", "ce"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert ["holds no loss" in line for line in said] == [True, True]
    assert "train/loss" in said[1]
