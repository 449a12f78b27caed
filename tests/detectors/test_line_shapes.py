"""`rekindle detect` on logs: every shape of the table, what stands between its lines, and text that is made to hurt."""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.site.reference_lines import page_text
from rekindle.cli.main import main
from rekindle.cli.tools.curves import parse
from rekindle.cli.tools.line_shapes import SHAPES
from rekindle.client.errors import BadFile

LOSS = [3.0 + number / 64 for number in range(24)]
RANK_OF_RAY = "\x1b[36m(TaskRunner pid=4112)\x1b[0m "
# What a run of each writer prints at a step, and what it prints that is no training loss.
LINES: dict[str, tuple[Callable[[int, float], str], str]] = {
    "Megatron-LM": (
        lambda step, loss: (
            f" [2026-11-01 10:00:01] iteration {step:8d}/    5000 | consumed samples: {step * 8:12d} | elapsed time "
            f"per iteration (ms): 512.3 | lm loss: {loss:.6E} | loss scale: 1.0 | number of nan iterations:   0 |"
        ),
        " validation loss at iteration 10 | lm loss value: 9.000000E+00 | lm loss PPL: 8.1E+03 | ",
    ),
    "NeMo": (
        lambda step, loss: (
            f"0: Training epoch {step // 10}, iteration {step % 10}/9 | lr: 1e-06 | global_step: {step} | "
            f"reduced_train_loss: {loss:.6f} | train_step_timing in s: 0.2 | val_loss: 9.0"
        ),
        "Validation: iteration 3/10",
    ),
    "NeMo without global_step": (
        lambda step, loss: f"Training epoch 0, iteration {step}/999 | lr: 3e-06 | reduced_train_loss: {loss:.6f} ",
        "[NeMo I 2026-05-22 20:09:41 model_checkpoint:522] Async checkpoint save for step 19 finalized",
    ),
    "OLMo": (
        lambda step, loss: (
            f"[2026-04-17 09:42:26] INFO     [olmo.train:816, rank=0] [step={step}/739328]\n"
            f"    optim/total_grad_norm=0.91\n    train/CrossEntropyLoss={loss:.6f}\n    train/Perplexity=76,631"
        ),
        "    eval/c4_val/CrossEntropyLoss=9.0",
    ),
    "Composer": (
        lambda step, loss: f"[batch={step}/500]:\n\t Train time/batch: {step}\n\t Train loss/train/total: {loss:.6f}",
        "[Eval batch=3/10] Eval on eval data",
    ),
    "verl": (
        lambda step, loss: (
            f"{RANK_OF_RAY}step:{step} - global_seqlen/min:11 - actor/entropy:0.4 - "
            f"actor/pg_loss:np.float64({loss:.6f}) - actor/kl_loss:0.001 - critic/score/mean:0.5"
        ),
        f"{RANK_OF_RAY}step:7 - val-core/openai/gsm8k/reward/mean@1:0.75",
    ),
    "DeepSpeed": (
        lambda step, loss: f"steps: {step} loss: {loss:.6f} iter time (s): 0.512 samples/sec: 31.250",
        "[2026-01-01 10:00:00] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0001]",
    ),
    "nanoGPT": (
        lambda step, loss: f"iter {step}: loss {loss:.6f}, time 312.41ms, mfu 38.11%",
        "step 8: train loss 9.0136, val loss 9.1860",
    ),
    "LitGPT": (
        lambda step, loss: f"Epoch 1 | iter {step} step {step} | loss train: {loss:.6f}, val: n/a | iter time: 1.00 ms",
        "iter 3: val loss 9.0000, val time: 3000.00 ms",
    ),
    "JSON or a dict in a line": (
        lambda step, loss: f"2026-11-01 INFO train {json.dumps({'step': step, 'lr': 1e-4, 'loss': round(loss, 6)})}",
        '2026-11-01 INFO eval {"step": 3, "eval_loss": 9.0}',
    ),
    "Hugging Face": (
        lambda step, loss: f"{{'loss': '{loss:.6f}', 'grad_norm': '1.2', 'epoch': '{step / 100}'}}",
        "{'eval_loss': 9.0, 'eval_runtime': 1.0, 'epoch': 1.0}\n{'train_runtime': 9.0, 'train_loss': 9.0, 'epoch': 3}",
    ),
    "Lightning's or tqdm's bar, by epoch": (
        lambda step, loss: (
            f"\rEpoch {step // 10}:  12%|█▏        | {step % 10}/10 [00:03<00:28, v_num=0, train_loss_step={loss:.6f}]"
            * 2
        ),
        "\rValidation DataLoader 0:  50%|█████     | 5/10 [00:01<00:01,  9.1it/s]",
    ),
    "tqdm's bar": (
        lambda step, loss: f"\r  1%|▏ | {step}/1000 [00:38<04:43,  3.1it/s, lr=1e-5, loss={loss:.6f}]",
        "\rMap: 100%|██████████| 5000/5000 [00:01<00:00, 4000 examples/s]",
    ),
    "epochs and batches": (
        lambda step, loss: f"Epoch [{step // 10}/5], Step [{step % 10}/10], Loss: {loss:.6f}",
        "Test set: Average loss: 9.0000, Accuracy: 9800/10000 (98%)",
    ),
    "MMEngine": (
        lambda step, loss: (
            f"11/01 10:00:01 - mmengine - INFO - Epoch(train)  [{step // 10}][{step % 10:4}/10]  "
            f"lr: 1.0e-03  time: 0.51  loss: {loss:.6f}"
        ),
        "11/01 10:00:01 - mmengine - INFO - Epoch(val)  [1][ 10/10]  loss: 9.0000",
    ),
    "Keras": (
        lambda step, loss: (
            f"Epoch {step}/40\n\r\x1b[1m   1/1563\x1b[0m \x1b[37m━━━━\x1b[0m \x1b[1m12s\x1b[0m 8ms/step - loss: 9.0"
            f"\r\x1b[1m1563/1563\x1b[0m \x1b[32m━━━━\x1b[0m 12s 8ms/step - loss: {loss:.6f} - val_loss: 9.0"
        ),
        "40/40 [==============================] - 1s 8ms/step",
    ),
    "CLU": (
        lambda step, loss: f"I1101 10:00:01.123 140 logging_writer.py:48] [{step}] accuracy=0.4, train_loss={loss:.6f}",
        "I1101 10:00:01.123 140 logging_writer.py:48] [3] eval/accuracy=0.4, eval/loss=9.0",
    ),
    "torchtitan": (
        lambda step, loss: (
            f"[rank0]:[titan] 2026-11-01 10:00:01,123 - root - INFO - \x1b[31mstep: {step:2}  "
            f"\x1b[32mloss: {loss:9.6f}  \x1b[38;2;180;60;0mgrad_norm:  0.9100  \x1b[34mtps: 7,123\x1b[39m"
        ),
        "[rank0]:[titan] 2026-11-01 10:00:01,123 - root - INFO - \x1b[32mvalidate step: 10  \x1b[32mloss:  9.0000  ",
    ),
    "any script": (
        lambda step, loss: f"step {step:5d}/18865 | loss {loss:.6f} (+nanz)| norm 15.3 (+nanz)| lr 1.0e-4",
        "val loss 9.0\nstep 3 | eval loss 9.0",
    ),
    "a line for an epoch": (
        lambda step, loss: f"epoch: {step}, lr: 1.0e-03 - train loss: {loss:.6f} - valid loss: 9.0, valid WER: 12.5",
        "Epoch loaded: 3 - test loss: 9.0",
    ),
}


def _log(writer: str) -> str:
    line, other = LINES[writer]
    rows = [line(step, loss) for step, loss in enumerate(LOSS)]
    return "\n".join(["starting 2 processes, 491,520 tokens each", *rows[:12], other, *rows[12:], "done", ""])


def test_every_shape_has_a_log_here() -> None:
    assert list(LINES) == [shape.writer for shape in SHAPES]


@pytest.mark.parametrize("writer", LINES)
def test_every_row_of_a_log_is_read_and_nothing_else(writer: str) -> None:
    found = list(parse(io.StringIO(_log(writer)), "a log"))
    assert [point.loss for point in found] == pytest.approx(LOSS, abs=1e-5)
    assert [point.step for point in found] == list(range(len(LOSS)))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.writer)
def test_the_example_of_a_shape_is_one_row(shape: object) -> None:
    assert len(list(parse(io.StringIO(shape.example), "a line"))) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", ["nan", "NaN", "NAN", "inf", "-inf"])
@pytest.mark.parametrize("writer", LINES)
def test_a_loss_that_is_no_number_is_a_row(writer: str, bad: str) -> None:
    text = _log(writer)
    for spelling in (f"{LOSS[20]:.6E}", f"{LOSS[20]:.6f}", str(LOSS[20])):
        text = text.replace(spelling, bad)
    found = list(parse(io.StringIO(text), "a log"))
    assert str(found[20].loss) == bad.lower()


@pytest.mark.parametrize(
    "line",
    [
        lambda step, loss: str({"loss": round(loss, 6), "step": step}),
        lambda step, loss: f"11/29/2026 20:00:00 - INFO - __main__ - {{'train_loss': {loss:.6f}, 'step': {step}}}",
        lambda step, loss: f"step {step}: {{'train/loss': {loss:.6f}, 'train/step': {step}}}",
        lambda step, loss: f"{{'step': {step}, 'loss': tensor({loss:.6f}, device='cuda:0')}}",
        lambda step, loss: f"step {step}: loss tensor({loss:.6f}, grad_fn=<NllLossBackward0>)",
        lambda step, loss: f"{{'step': {step}, 'loss': np.float32({loss:.6f})}}",
        lambda step, loss: (
            f"Epoch {step}/40\n1563/1563 - 12s - loss: {loss:.6f} - val_loss: 9.0 - 12s/epoch - 8ms/step"
        ),
        lambda step, loss: (
            f"Epoch {step}/40\n\r9/10 [==>.] - ETA: 1:02 - loss: 9.0\r10/10 [===] - 1s 8ms/step - loss: {loss}"
        ),
    ],
)
def test_other_forms_of_a_writer_are_read(line: Callable[[int, float], str]) -> None:
    found = list(parse(io.StringIO("\n".join(line(step, loss) for step, loss in enumerate(LOSS))), "a log"))
    assert [(point.step, point.loss) for point in found] == [
        (step, pytest.approx(loss, abs=1e-5)) for step, loss in enumerate(LOSS)
    ]


def test_ranks_that_print_the_same_step_are_one_row() -> None:
    text = "".join(f"[rank{rank}] step {step} loss {2 + rank}\n" for step in range(20) for rank in range(8))
    assert [(point.step, point.loss) for point in parse(io.StringIO(text), "a log")] == [(n, 2.0) for n in range(20)]


def test_rows_come_while_the_run_goes_on() -> None:
    lines = (f"step {step} loss 2.5\n" for step in itertools.count())
    assert [point.step for point in itertools.islice(parse(lines, "a pipe"), 50)] == list(range(50))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"hello\n", b"{\n", b"[1\n", b"{'a': 1}\n", b"\0\xff\xfe" * 99, b"loss\n"]
)
@pytest.mark.parametrize("name", ["a.log", "a", "a.json", "a.out"])
def test_a_file_in_no_known_shape_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, name: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["detect", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "is empty" in err or "looked for" in err
    assert "Expecting" not in err


@pytest.mark.parametrize(
    "piece",
    [
        "Epoch 1 ",
        "Epoch 0: ",
        "step ",
        "step: 1 ",
        "loss ",
        "loss=1",
        "Train Epoch: [",
        "Epoch [0][ 1",
        '"step": 1',
        "| 1/1 [",
        "1/1 loss",
        "1",
        "epoch 1 ",
    ],
)
def test_lines_made_to_hurt_cost_little(piece: str) -> None:
    hostile = [piece * (2**20 // len(piece)), "\r".join([piece] * 10_000), "[" * 2**20, "\x1b[" * 2**19]
    began = time.process_time()
    with pytest.raises(BadFile):
        list(parse(iter(["a log\n", *(f"{line}\n" for line in hostile)]), "a log"))
    assert time.process_time() - began < 5


def test_a_metric_of_mlflows_file_store_and_the_folder_of_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metric = tmp_path / "run" / "metrics" / "train" / "loss"
    metric.parent.mkdir(parents=True)
    metric.write_text("".join(f"{1_700_000_000_000 + step} {loss} {step}\n" for step, loss in enumerate(LOSS)))
    for place in (metric, tmp_path / "run"):
        assert main(["detect", str(place)]) == 0
        assert capsys.readouterr().out == "0 alarms in 24 rows\n"


def test_a_folder_without_a_curve_says_what_was_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(tmp_path)]) == 2
    assert "looked for TensorBoard's event files" in capsys.readouterr().err


def test_the_monitors_page_prints_the_table() -> None:
    text = page_text()
    assert (Path(__file__).parents[2] / "docs" / "monitor.md").read_text(encoding="utf-8") == text
    assert all(shape.cloudwatch_loss.replace("|", "\\|") in text for shape in SHAPES)


@pytest.mark.parametrize(
    "line",
    [
        lambda step, loss: f"{step};{loss:.6f}",
        lambda step, loss: f"{step};{loss:.6f}".replace(".", ","),
        lambda step, loss: json.dumps({"step": step, "metrics": {"train": {"loss": loss}, "lr": 1e-4}}),
        lambda step, loss: json.dumps({"_step": step, "metrics": {"loss": loss}, "system": {"gpu": {"power": 1.5}}}),
        lambda step, loss: json.dumps({"step": step, "loss": loss, "logs": {"loss": 9.0}}),
        lambda step, loss: f"{step},{loss:.6f},{step * 1.5}",
    ],
)
def test_tables_of_spreadsheets_and_nested_metrics_are_read(line: Callable[[int, float], str]) -> None:
    rows = [line(step, loss) for step, loss in enumerate(LOSS)]
    header = {";": ["step;loss"], ",": ["step,loss (nats),time (s)"]}.get(rows[0][1], [])
    found = list(parse(io.StringIO("\n".join([*header, *rows])), "a table"))
    assert [point.loss for point in found] == pytest.approx(LOSS, abs=1e-5)
    assert [point.step for point in found] == list(range(len(LOSS)))
