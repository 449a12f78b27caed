"""The lines in which trainers print their loss: one table, read by `rekindle detect`, and printed in docs/monitor.md as
CloudWatch metric definitions.

A shape's expressions are searched in each line. Every repetition in them is bounded or of one class of characters, so
a line's time is linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rekindle.client.errors import BadFile
from rekindle.compat import Self
from rekindle.detectors.points import Point

NUMBER: Final = "{number}"  # in an expression: the group of the value
# CloudWatch takes numbers only; a file may also say nan or inf.
CLOUDWATCH_NUMBER: Final = "([0-9.eE+-]+)"
_FILE_NUMBER: Final = (
    r"(?:(?:tensor|np\.float[0-9]{2})\()?"
    r"(?P<loss>[+-]?(?:[0-9][0-9.eE+-]{0,39}|\.[0-9][0-9eE+-]{0,39}|(?i:nan|inf(?:inity)?)\b))"
)
_EVALUATION: Final = re.compile(r"\b(?:val|valid|validation|validate|validating|eval|evaluation|test)(?![a-z])", re.I)


@dataclass(frozen=True)
class LineShape:
    """One writer's line.

    `step` has one group, or the groups `epoch`, `step` and `of`: the step within an epoch of so many. "": the line has
    no step, and rows are counted. Where `spans_lines`, the step stands on an earlier line than the loss.
    """

    writer: str
    example: str
    loss: str
    source: str
    step: str = ""
    spans_lines: bool = False
    cloudwatch: str = ""  # in place of `loss`, where that has another group
    is_plain: bool = False  # words that evaluations use too: a loss behind one of _EVALUATION is theirs

    @cached_property
    def loss_in_file(self) -> re.Pattern[str]:
        return re.compile(self.loss.replace(NUMBER, _FILE_NUMBER))

    @cached_property
    def step_in_file(self) -> re.Pattern[str] | None:
        return re.compile(self.step) if self.step else None

    @property
    def cloudwatch_loss(self) -> str:
        return (self.cloudwatch or self.loss).replace(NUMBER, CLOUDWATCH_NUMBER)

    @property
    def has_plain_step(self) -> bool:
        """Whether the step's expression has the one group that CloudWatch takes."""
        return bool(self.step) and "(?P<" not in self.step


# The first shape of those that match a file equally often is taken, so the particular ones come first.
SHAPES: Final = (
    LineShape(
        "Megatron-LM",
        "iteration      120/     500 | elapsed time per iteration (ms): 512.3 | lm loss: 2.341200E+00 |",
        r"lm loss: {number}",
        "Megatron-LM, megatron/training/training.py, training_log; Megatron-DeepSpeed alike",
        r"iteration +([0-9]+)/",
    ),
    LineShape(
        "NeMo",
        "Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_step: 28 | reduced_train_loss: 2.778",
        r"reduced_train_loss[:=] ?{number}",
        "NeMo 2, lightning/pytorch/callbacks/progress_printer.py; NeMo 1's progress bar writes `=`",
        r"global_step[:=] ?([0-9]+)",
    ),
    LineShape(
        "NeMo without global_step",
        "Training epoch 0, iteration 150/999 | lr: 3.014e-06 | global_batch_size: 4 | reduced_train_loss: 11.28",
        r"reduced_train_loss[:=] ?{number}",
        "NeMo 2.0's first progress printer",
        r"iteration ([0-9]+)/",
    ),
    LineShape(
        "OLMo",
        "[2024-04-17 09:42:26] INFO [olmo.train:816, rank=0] [step=1/739328]\n    train/CrossEntropyLoss=11.25",
        r"train/(?:CrossEntropyLoss|CE loss)={number}",
        "OLMo, olmo/train.py, log_metrics_to_console; OLMo-core writes `CE loss`",
        r"\[step=([0-9]+)",
        spans_lines=True,
    ),
    LineShape(
        "Composer",
        "[batch=120/500]:\n\t Train loss/train/total: 2.3412",
        r"loss/train/total: {number}",
        "Composer, composer/loggers/console_logger.py",
        r"\[batch=([0-9]+)",
        spans_lines=True,
    ),
    LineShape(
        "verl",
        "step:12 - actor/entropy:0.44 - actor/pg_loss:0.0012 - actor/grad_norm:0.91",
        r"(?:actor/pg_loss|train/loss):(?:np\.float[0-9]+\()?{number}",
        "verl, verl/utils/logger/aggregate_logger.py, concat_dict_to_str; train/loss in its SFT trainer",
        r"step:([0-9]+) -",
    ),
    LineShape(
        "DeepSpeed",
        "steps: 120 loss: 2.3412 iter time (s): 0.512 samples/sec: 31.250",
        r"loss: {number} iter time",
        "DeepSpeed, deepspeed/runtime/pipe/engine.py, train_batch",
        r"steps: ([0-9]+)",
    ),
    LineShape(
        "nanoGPT",
        "iter 120: loss 2.3412, time 312.41ms, mfu 38.11%",
        r"iter [0-9]+: loss {number}",
        "nanoGPT, train.py; its `step N: train loss` lines are evaluations",
        r"iter ([0-9]+): loss",
    ),
    LineShape(
        "LitGPT",
        "Epoch 1 | iter 120 step 120 | loss train: 2.341, val: n/a | iter time: 512.30 ms (step)",
        r"loss train: {number}",
        "LitGPT, litgpt/finetune/lora.py, fit",
        r"\| iter ([0-9]+) step",
    ),
    LineShape(
        "JSON or a dict in a line",
        '2026-11-01 10:00:01 INFO {"step": 120, "loss": 2.3412}',
        r"""["'](?:train_|train/)?loss["']: ?["']?{number}""",
        "many scripts; Accelerate's examples log the dict that they hand to accelerator.log",
        r"""["'](?:train/)?(?:global_step|iteration|iter|step|num_updates)["']: ?["']?([0-9]+)""",
    ),
    LineShape(
        "Hugging Face",
        "{'loss': '2.3412', 'grad_norm': '0.91', 'learning_rate': '5e-05', 'epoch': '0.01'}",
        r"'loss': '?{number}",
        "Transformers, trainer_callback.py, PrinterCallback and ProgressCallback; numbers without quotes before 5.0",
    ),
    LineShape(
        "Lightning's or tqdm's bar, by epoch",
        "Epoch 0:  12%|█▏        | 12/100 [00:03<00:28,  3.1it/s, v_num=0, train_loss_step=2.341]",
        r"[ ,](?:train[_/])?loss(?:_step)?[=:] ?{number}",
        "Lightning, callbacks/progress/tqdm_progress.py and rich_progress.py; tqdm's set_postfix",
        r"Epoch (?P<epoch>[0-9]+)[:/ ][^/]{0,200}? (?P<step>[0-9]+)/(?P<of>[0-9]+) ",
    ),
    LineShape(
        "tqdm's bar",
        "train:  12%|█▏        | 120/1000 [00:38<04:43,  3.1it/s, loss=2.341]",
        r"[ ,](?:train[_/])?loss={number}",
        "tqdm, set_postfix",
        r"\| *([0-9]+)/[0-9]+ \[",
    ),
    LineShape(
        "epochs and batches",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.341200",
        r"Loss[:=]? *{number}",
        "pytorch/examples mnist and imagenet; timm's train.py; many tutorials",
        r"(?i:\b(?:epoch|train)):? ?\[?(?P<epoch>[0-9]+)(?:/[0-9]+)?\]?[,:]? ?(?i:step|batch|iter)?:? ?"
        r"\[ *(?P<step>[0-9]+)/ *(?P<of>[0-9]+)",
        is_plain=True,
    ),
    LineShape(
        "MMEngine",
        "11/01 10:00:01 - mmengine - INFO - Epoch(train)  [1][ 120/5000]  lr: 1.0e-03  time: 0.51  loss: 2.3412",
        r" loss: {number}",
        "MMEngine, mmengine/runner/log_processor.py, of a run by epoch",
        r"Epoch\(train\) +\[(?P<epoch>[0-9]+)\]\[ *(?P<step>[0-9]+)/(?P<of>[0-9]+)\]",
    ),
    LineShape(
        "Keras",
        "Epoch 12/40\n1563/1563 - 12s - 8ms/step - accuracy: 0.4512 - loss: 2.3412 - val_loss: 2.5011",
        r"(?:^|[^0-9/])([0-9]{1,9})/\1[^0-9/].{0,300}? loss: {number}",  # its last bar of an epoch
        "Keras, utils/progbar.py",
        r"^Epoch ([0-9]+)/",
        spans_lines=True,
        cloudwatch="- loss: {number}",
    ),
    LineShape(
        "CLU",
        "I1101 10:00:01.123456 140 logging_writer.py:48] [120] learning_rate=0.001, loss=2.3412",
        r"[\] ,](?:train[_/])?loss={number}",
        "clu/metric_writers/logging_writer.py, of T5X, Flax's examples, big_vision",
        r"\] \[([0-9]+)\] ",
    ),
    LineShape(
        "torchtitan",
        "[rank0]:2026-11-01 10:00:01,123 - root - INFO - step: 120  loss:  2.3412  grad_norm:  0.9100",
        r"loss: +{number}",
        "torchtitan, components/metrics.py; its `validate step` lines are evaluations",
        r"step: +([0-9]+)",
        is_plain=True,
    ),
    LineShape(
        "any script",
        "step 120 loss 2.3412",
        r"[Ll]oss[ =:]+{number}",
        "build-nanogpt, llm.c, MaxText, Meta Lingua, modded-nanogpt, and scripts of one's own",
        r"(?:[Ss]tep|[Ii]ter(?:ation)?|[Bb]atch|[Uu]pdate)s?[ =:#\[]+([0-9]+)",
        is_plain=True,
    ),
    LineShape(
        "a line for an epoch",
        "epoch 12: train_loss: 2.3412 eval_loss: 2.5011",
        r"^.*?[Ll]oss[ =:]+{number}",
        "Accelerate's examples, SpeechBrain, and scripts of one's own",
        r"[Ee]poch[ =:#\[]+([0-9]+)",
        is_plain=True,
    ),
)

WRITERS: Final = ", ".join(shape.writer for shape in SHAPES)


@dataclass(frozen=True, slots=True)
class LogRow:
    """What one line says; the step is None where the writer prints none."""

    step: int | None
    loss: float


class ShapeReader:
    """Reads one shape out of a log, line by line. A step that repeats is another rank's, or a bar drawn again."""

    __slots__ = ("_last", "_pending", "_shape")

    def __init__(self, shape: LineShape) -> None:
        self._shape = shape
        self._pending: int | None = None
        self._last: int | None = None

    def read(self, line: str) -> LogRow | None:
        """The row of a line; None for a line without one."""
        shape = self._shape
        here = _step(shape, line) if shape.spans_lines else None
        self._pending = self._pending if here is None else here
        found = shape.loss_in_file.search(line)
        if found is None or (shape.is_plain and _EVALUATION.search(line, 0, found.start())):
            return None
        loss = _value(found["loss"])
        if loss is None:
            return None
        if shape.step_in_file is None:
            return LogRow(None, loss)
        step = self._pending if shape.spans_lines else _step(shape, line)
        if step is None or step == self._last:
            return None
        self._last = step
        return LogRow(step, loss)

    @classmethod
    def of_all(cls) -> list[Self]:
        return [cls(shape) for shape in SHAPES]


def _step(shape: LineShape, line: str) -> int | None:
    found = shape.step_in_file.search(line) if shape.step_in_file is not None else None
    if found is None:
        return None
    if shape.has_plain_step:
        return _whole(found[1])
    epoch, step, of = (_whole(found[name]) for name in ("epoch", "step", "of"))
    return None if epoch is None or step is None or of is None else epoch * of + step


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= 18 else None


def _value(text: str) -> float | None:
    try:
        return float(text.rstrip(".eE+-") or text)
    except ValueError:
        return None


MAX_LINE: Final = 16_384  # characters that are looked at; verl prints its 150 figures in 6,000
DECIDED_ROWS: Final = 8  # of one shape: the file is written in it. Detectors judge after ten
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,20}m")


def points(lines: Iterable[str], name: str) -> Iterator[Point]:
    """The rows of the shape that most lines have, as they come once it is known.

    Raises:
        BadFile: no line has a known shape.
    """
    for number, row in enumerate(_rows(_segments(lines), name)):
        yield Point(step=number if row.step is None else row.step, loss=row.loss)


def no_curve(name: str) -> BadFile:
    """What was looked for in a file and not found."""
    return BadFile(
        f"{name}: is no training curve in a known form: looked for a table (CSV, TSV, JSON, JSON lines) with a step "
        f"and a loss column, and for lines as printed by {WRITERS}"
    )


def _segments(lines: Iterable[str]) -> Iterator[str]:
    """Lines, and what a progress bar wrote over itself, without colours."""
    for line in lines:
        for segment in line.rstrip("\r\n").split("\r"):
            yield _COLOUR.sub("", segment[:MAX_LINE])


def _rows(segments: Iterator[str], name: str) -> Iterator[LogRow]:
    found: list[tuple[ShapeReader, list[LogRow]]] = [(reader, []) for reader in ShapeReader.of_all()]
    chosen = None
    for segment in segments:
        for reader, rows in found:
            row = reader.read(segment)
            if row is not None:
                rows.append(row)
        chosen = next((candidate for candidate in found if len(candidate[1]) == DECIDED_ROWS), None)
        if chosen is not None:
            break
    reader, rows = chosen or max(found, key=lambda candidate: len(candidate[1]))
    if not rows:
        raise no_curve(name)
    yield from rows
    for segment in segments:
        row = reader.read(segment)
        if row is not None:
            yield row
