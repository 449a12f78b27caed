"""Which column of a training curve is the step and which the loss: by the names that trainers and their tools write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rekindle.cli.terminal.parsing import did_you_mean
from rekindle.client.errors import BadFile
from rekindle.client.table import clean, cut

SHOWN_CHARS: Final = 120

# A row: the name, and who writes it. The first one that a file has is taken.
EPOCH: Final = "epoch"  # parts of one, or many rows of one: its rows are counted
STEPS: Final = (
    ("step", "Rekindle's own; Hugging Face trainer_state.json"),
    ("global_step", "PyTorch Lightning's older loggers, DeepSpeed"),
    ("iteration", "Megatron-LM, NeMo"),
    ("iter", "nanoGPT"),
    ("Step", "TensorBoard's CSV export; a chart exported from Weights & Biases"),
    ("_step", "the history of a Weights & Biases run"),
    ("trainer/global_step", "PyTorch Lightning in Weights & Biases"),
    ("train/global_step", "Hugging Face in Weights & Biases"),
    ("time/total_timesteps", "Stable-Baselines3's progress.csv"),
    (EPOCH, "Keras' CSVLogger"),
)
LOSSES: Final = (
    ("loss", "Rekindle's own; Hugging Face trainer_state.json"),
    ("train_loss_step", "PyTorch Lightning, of a loss that is logged by step and by epoch"),
    ("train_loss", "PyTorch Lightning's usual name"),
    ("train/loss", "Hugging Face in Weights & Biases and TensorBoard"),
    ("training_loss", "many scripts"),
    ("Training Loss", "Hugging Face's table in a notebook"),
    ("lm loss", "Megatron-LM"),
    ("lm_loss", "Megatron-LM in CSV"),
    ("reduced_train_loss", "NeMo"),
    ("loss/out", "Meta Lingua"),
    ("loss/train/total", "Composer"),
    ("train/CrossEntropyLoss", "OLMo in Weights & Biases"),
    ("train/CE loss", "OLMo-core in Weights & Biases"),
    ("actor/pg_loss", "verl"),
    ("Value", "TensorBoard's CSV export"),
    ("value", "a metric's file in MLflow's file store"),
)
_OWN: Final = ("seconds", "iter_seconds", "eval_since_prev")
# A chart exported from Weights & Biases has `RUN - METRIC`, and beside it the smallest and largest of each bin.
_RUN_AND_METRIC: Final = " - "
_UNIT: Final = re.compile(
    r" ?[(\[](?:nats|bits)(?:/\w{1,8})?[)\]]\Z| ?[(\[](?:s|sec|seconds|steps?|iterations?)[)\]]\Z"
)
_BESIDE: Final = ("__MIN", "__MAX")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenColumns:
    """What the command line names; None: found by the tables above."""

    step: str | None = None
    loss: str | None = None

    @property
    def any_named(self) -> bool:
        return self.step is not None or self.loss is not None


def is_counted(step_title: str) -> bool:
    """Whether the column tells no steps, so that rows are counted."""
    return step_title.strip() == EPOCH


def found_columns(header: Sequence[str], name: str, chosen: ChosenColumns) -> dict[str, int]:
    """Where `step`, `loss`, and what else the detectors read, stand in a header.

    Raises:
        BadFile: one is missing, or several may be meant; names the file, the column and the option that chooses.
    """
    titles = [_UNIT.sub("", cell.strip().removeprefix("\ufeff")) for cell in header]
    columns = {
        "step": _one(titles, name, "step", STEPS, chosen.step),
        "loss": _one(titles, name, "loss", LOSSES, chosen.loss),
    }
    for own in _OWN:
        if own in titles:
            columns[own] = _only(titles, own, name)
    return columns


def _one(titles: list[str], name: str, role: str, known: Sequence[tuple[str, str]], chosen: str | None) -> int:
    option = f"--{role}-column"
    if chosen is not None:
        if chosen not in titles:
            raise BadFile(
                f"{name}: {option}: there is no column {clean(chosen)!r}"
                f"{did_you_mean(chosen, titles) or f'; the header has: {_shown(titles)}'}"
            )
        return _only(titles, chosen, name)
    for alias, _ in known:
        if alias in titles:
            return _only(titles, alias, name)
    aliases = {alias for alias, _ in known}
    of_runs = [
        title
        for title in titles
        if title.rpartition(_RUN_AND_METRIC)[2] in aliases and _RUN_AND_METRIC in title and not title.endswith(_BESIDE)
    ]
    if len(of_runs) > 1:
        raise BadFile(f"{name}: {len(of_runs)} columns may be the {role} ({_shown(of_runs)}): choose with {option}")
    if of_runs:
        return _only(titles, of_runs[0], name)
    raise BadFile(f"{name}: the column {role!r} is missing; the header has: {_shown(titles)}; choose with {option}")


def _only(titles: list[str], title: str, name: str) -> int:
    if titles.count(title) > 1:
        raise BadFile(f"{name}: the column {clean(title)!r} is there twice")
    return titles.index(title)


def _shown(titles: Sequence[str]) -> str:
    return cut(clean(", ".join(titles)), SHOWN_CHARS)
