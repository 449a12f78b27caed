"""What the name of a file or folder says: a step, an epoch, a checkpoint at all, or something not finished."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from rekindle.protocol.wire import MAX_STEP

# A number in full, in groups of three (`2_000`), in thousands or millions (`10k`, `1.5M`); not `1.5`, a version.
COUNT: Final = (
    r"(?P<count>\d{1,3}(?:[_,]\d{3})+(?![\d_])|\d{1,12})(?P<part>\.\d{1,3}(?=[km]))?(?P<unit>[km])?"
    r"(?![\da-z]|\.\d*[1-9])"
)
# Words whose number is a count of optimizer steps. Sources: torchtitan (step-1000), DeepSpeed (global_step1000),
# Megatron (iter_0001000), Lightning (epoch=0-step=100), Composer (ep0-ba100), our own examples (step-000000000100).
_STEP: Final = re.compile(
    rf"(?:^|[^a-z])(?:global[_-]?step|steps?|iter(?:ation)?s?|(?<=-)ba)(?P<mark>[=_-]?){COUNT}", re.IGNORECASE
)
# Words whose number is a step by habit only: the content may know better. Hugging Face's checkpoint-N counts steps;
# Accelerate's checkpoint_N counts saves.
_LOOSE: Final = re.compile(
    rf"(?:^|[^a-z])(?P<word>checkpoint|chkpt|ckpt|snapshot|state|model|weights|params)(?P<mark>[=_-]?){COUNT}",
    re.IGNORECASE,
)
_SIZED: Final = ("model", "weights", "params")  # in thousands and millions that is a size: `model-125m`
# Two numbers at the end, of an epoch and a step. Source: fairseq (checkpoint_2_1500.pt)
_TWO: Final = re.compile(r"\d_(?!20\d{6})(\d{3,12})\Z")
_EPOCH: Final = re.compile(r"(?:^|[^a-z])ep(?:och)?[=_-]?(\d{1,12})(?![\da-z])", re.IGNORECASE)
_BARE: Final = re.compile(r"\d{1,12}")
# `10k.pt`. A folder of that name may as well be called after a model's size.
_BARE_UNIT: Final = re.compile(r"\d{1,6}(?:\.\d{1,3})?[km]", re.IGNORECASE)
_UNITS: Final = {"k": 1000, "m": 1_000_000}
# Also with words before them: gpt_snapshot, checkpoint_last.
_NO_NUMBER: Final = re.compile(
    r"(?:[a-z]{1,20}[_-]){0,3}(?:last|latest|checkpoint|ckpt|snapshot)(?:[_-]best)?(?:-v\d+)?", re.IGNORECASE
)
_RANK_ZERO: Final = re.compile(r"[_-](?:rank|shard)[=_-]?0+$")  # Composer's only file, where it does not shard
# One of many, never a checkpoint by itself.
_PART: Final = re.compile(r"-\d+-of-\d+|(?:^|[^a-z])(?:rank|shard|part|chunk|fold)[=_-]?\d", re.IGNORECASE)
_TEMPORARY: Final = re.compile(
    r"(?:\.(?:tmp|temp|partial|part|incomplete|inprogress|writing|crdownload)(?:[._-][\w.-]*)?"
    r"|[._-]tmp|\.orbax-checkpoint-tmp.*|~)$|^\.?(?:tmp|temp)[._-]",
    re.IGNORECASE,
)
# Empty or irrelevant by intent: no part of the state. SageMaker's own are of its checkpoint folder's upload.
_MARKER: Final = re.compile(r"(?:_SUCCESS|\.complete|\.lock|\.gitkeep|\.keep|\.sagemaker-upload\w*)$")

# Files that say something without a content, and those that are written to now and then. By their names alone.
_MAY_BE_EMPTY: Final = re.compile(
    r"(?:^|/)(?:\.(?!metadata)[^/]*|(?:done|ok|ready|success|finished|completed?|commit(?:ted)?)|[^/]*tfevents[^/]*"
    r"|[^/]*\.(?:txt|log|out|err|md|csv|tsv|jsonl|py|sh|ya?ml|toml|cfg|ini|done|success))\Z",
    re.IGNORECASE,
)

ONE_FILE_ENDS: Final = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".safetensors", ".pth.tar", ".pkl")
STATE_ENDS: Final = (*ONE_FILE_ENDS, ".distcp", ".json", ".metadata", ".index")
# Folders that hold no checkpoints: not worth a listing. `rekindle` is the mailbox itself.
PASSED_OVER: Final = frozenset({"rekindle", "tensorboard", "wandb", "mlruns", "__pycache__", "profiler"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name as read. `step` is certain, `loose` is a number that may be a step, `epoch` is none.

    unit: what `step` is rounded to (`10k`), as far as the content does not say more. unsure: what may be a step, but
    only where the content says so: `ckpt_10k` may be any of a thousand, `checkpoint_2_1500` an epoch and a step.
    """

    step: int | None = None
    loose: int | None = None
    epoch: int | None = None
    unsure: int | None = None
    unit: int = 1
    is_temporary: bool = False

    @property
    def stated(self) -> int | None:
        """The step by the name alone."""
        return self.loose if self.step is None else self.step

    @property
    def number(self) -> int | None:
        """For putting candidates in an order before anything is opened."""
        for value in (self.step, self.loose, self.unsure, self.epoch):
            if value is not None:
                return value
        return None

    def settled(self, inside: int | None) -> int | None:
        """The step, given what the content says: that wins over a number that is rounded, loose or unsure."""
        if self.step is None:
            return self.loose if inside is None else inside
        is_rounded = inside is not None and self.unit > 1 and abs(inside - self.step) < self.unit
        return inside if is_rounded else self.step


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(reversed(list(pattern.finditer(text)))), None)


def _number_of(match: re.Match[str]) -> tuple[int, int]:
    """(the number, what it is rounded to)."""
    unit = _UNITS.get((match["unit"] or "").lower(), 1)
    digits = re.sub("[_,]", "", match["count"])
    whole = round(float(digits + (match["part"] or "")) * unit)
    return min(whole, MAX_STEP), unit // 10 ** max(len(match["part"] or "") - 1, 0)


def read_name(name: str) -> Name:
    """Whatever the name says."""
    stem = _RANK_ZERO.sub("", re.sub(r"(?<=[\da-z])\.[a-z][\w.]*\Z", "", name))
    epoch = _last(_EPOCH, name)
    read = Name(epoch=None if epoch is None else min(int(epoch[1]), MAX_STEP), is_temporary=is_temporary(name))
    if (found := _last(_STEP, name)) is not None:
        number, unit = _number_of(found)
        is_unsure = "_" in found["count"] and found["mark"] == "_"  # the step 1000, or a part of the step 1
        return replace(read, unsure=number) if is_unsure else replace(read, step=number, unit=unit)
    if _BARE.fullmatch(name):
        return replace(read, loose=int(name))
    if (found := _last(_LOOSE, name)) is not None:
        number, unit = _number_of(found)
        two = _TWO.search(stem) if found["mark"] == "_" else None
        if two is not None:
            return replace(read, unsure=int(two[1]))
        if unit == 1 and not (found["mark"] == "_" and "_" in found["count"]):
            return replace(read, loose=number)
        return read if found["word"].lower() in _SIZED else replace(read, unsure=number)
    return read


def is_temporary(name: str) -> bool:
    """A name that its writer would have changed at the end."""
    return _TEMPORARY.search(name) is not None


def is_marker(name: str) -> bool:
    return _MARKER.search(name) is not None


def may_be_empty(path: str) -> bool:
    """An empty file of that name is no damage: a mark, a log, a module, something hidden."""
    return is_marker(path) or _MAY_BE_EMPTY.search(path) is not None


def plain(name: str) -> str:
    """The name that a temporary one would have got."""
    return re.sub(_TEMPORARY, "", name) if is_temporary(name) else name


def is_one_file(name: str) -> bool:
    """A file that may be a whole checkpoint alone, by its name (a temporary one: by its later name)."""
    final = plain(name)
    end = next((end for end in sorted(ONE_FILE_ENDS, key=len, reverse=True) if final.endswith(end)), None)
    if end is None or _PART.search(_RANK_ZERO.sub("", final[: -len(end)])):
        return False
    stem = _RANK_ZERO.sub("", final[: -len(end)])
    if _NO_NUMBER.fullmatch(stem):
        return True
    stated = read_name(stem)
    return _BARE_UNIT.fullmatch(stem) is not None or (not _BARE.fullmatch(stem) and stated.number is not None)


def is_numbered(name: str) -> bool:
    """A folder's name with a step's number in it."""
    return name.endswith(".ckpt") or read_name(name).number is not None
