"""What the name of a file or folder says: a step, an epoch, a checkpoint at all, or something not finished."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rekindle.protocol.mailbox import MAX_STEP

# Words whose number is a count of optimizer steps. Sources: torchtitan (step-1000), DeepSpeed (global_step1000),
# Megatron (iter_0001000), Lightning (epoch=0-step=100), Composer (ep0-ba100), our own examples (step-000000000100).
_STEP: Final = re.compile(
    r"(?:^|[^a-z])(?:global[_-]?step|steps?|iter(?:ation)?s?|(?<=-)ba)[=_-]?(\d{1,12})(?![\da-z])", re.IGNORECASE
)
# Words whose number is a step by habit only: the content may know better. Hugging Face's checkpoint-N counts steps;
# Accelerate's checkpoint_N counts saves.
_LOOSE: Final = re.compile(
    r"(?:^|[^a-z])(?:checkpoint|chkpt|ckpt|snapshot|model|state|weights|params)[=_-]?(\d{1,12})(?![\da-z])",
    re.IGNORECASE,
)
_EPOCH: Final = re.compile(r"(?:^|[^a-z])ep(?:och)?[=_-]?(\d{1,12})(?![\da-z])", re.IGNORECASE)
_BARE: Final = re.compile(r"\d{1,12}")
# Also with words before them: gpt_snapshot, checkpoint_last.
_NO_NUMBER: Final = re.compile(
    r"(?:[a-z]{1,20}[_-]){0,3}(?:last|latest|checkpoint|ckpt|snapshot)(?:[_-]best)?(?:-v\d+)?", re.IGNORECASE
)
_RANK_ZERO: Final = re.compile(r"[_-]rank[=_-]?0+$")  # Composer's only file, where it does not shard
# One of many, never a checkpoint by itself.
_PART: Final = re.compile(r"-\d+-of-\d+|(?:^|[^a-z])(?:rank|shard|part|chunk|fold)[=_-]?\d", re.IGNORECASE)
_TEMPORARY: Final = re.compile(
    r"(?:\.(?:tmp|temp|partial|part|incomplete|inprogress|writing|crdownload)(?:[._-][\w.-]*)?"
    r"|[._-]tmp|\.orbax-checkpoint-tmp.*|~)$|^\.?(?:tmp|temp)[._-]",
    re.IGNORECASE,
)
# Empty or irrelevant by intent: no part of the state. SageMaker's own are of its checkpoint folder's upload.
_MARKER: Final = re.compile(r"(?:_SUCCESS|\.complete|\.lock|\.gitkeep|\.keep|\.sagemaker-upload\w*)$")

ONE_FILE_ENDS: Final = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".safetensors", ".pth.tar", ".pkl")
STATE_ENDS: Final = (*ONE_FILE_ENDS, ".distcp", ".json", ".metadata", ".index")
# Folders that hold no checkpoints: not worth a listing. `rekindle` is the mailbox itself.
PASSED_OVER: Final = frozenset({"rekindle", "tensorboard", "wandb", "mlruns", "__pycache__", "profiler"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name as read. `step` is certain, `loose` is a number that may be a step, `epoch` is none."""

    step: int | None = None
    loose: int | None = None
    epoch: int | None = None
    is_temporary: bool = False

    @property
    def number(self) -> int | None:
        """For putting candidates in an order before anything is opened."""
        for value in (self.step, self.loose, self.epoch):
            if value is not None:
                return value
        return None


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.findall(text)
    return min(int(found[-1]), MAX_STEP) if found else None


def read_name(name: str) -> Name:
    """Whatever the name says."""
    epoch = _last(_EPOCH, name)
    step = _last(_STEP, name)
    loose = _last(_LOOSE, name)
    if _BARE.fullmatch(name):
        loose = int(name)
    return Name(step=step, loose=None if step is not None else loose, epoch=epoch, is_temporary=is_temporary(name))


def is_temporary(name: str) -> bool:
    """A name that its writer would have changed at the end."""
    return _TEMPORARY.search(name) is not None


def is_marker(name: str) -> bool:
    return _MARKER.search(name) is not None


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
    return not _BARE.fullmatch(stem) and stated.number is not None


def is_numbered(name: str) -> bool:
    """A folder's name with a step's number in it."""
    return name.endswith(".ckpt") or read_name(name).number is not None
