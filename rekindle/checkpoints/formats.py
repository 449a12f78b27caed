"""What makes a checkpoint of each format complete. docs/checkpoints.md holds the same as a table, with the sources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Final

from rekindle.checkpoints.containers import STEP_KEYS, contents, numbers_in, problem_of, step_of
from rekindle.checkpoints.found import MAX_NAMED, Folder, Format
from rekindle.checkpoints.megatron import is_megatron, megatron
from rekindle.checkpoints.names import ONE_FILE_ENDS, STATE_ENDS, is_marker, is_temporary, read_name
from rekindle.checkpoints.shapes import is_part
from rekindle.checkpoints.sharded import (
    dcp_contents,
    dcp_problems,
    deepspeed_problems,
    deepspeed_tag,
    is_dcp,
    is_deepspeed,
)

MAX_LOOKS: Final = 16  # files of one checkpoint that are opened to see whether they are whole
MAX_INDEX_BYTES: Final = 16 * 1024 * 1024
_STATE_HEAD_BYTES: Final = 64 * 1024
_GLOBAL_STEP: Final = re.compile(rb'"global_step"\s*:\s*(\d{1,12})\s*[,}\n]')
_RANDOM: Final = re.compile(r"random_states_(\d{1,6})\.pkl")
_CUSTOM: Final = re.compile(r"custom_checkpoint_\d{1,6}\.pkl")  # of what is registered for checkpointing
_RNG: Final = re.compile(r"rng_state_(\d{1,6})\.pth")
_MODEL_SHARD: Final = re.compile(r"(.+)-\d{5}-of-(\d{5})\.(?:safetensors|bin)")
_OPTIMIZERS: Final = re.compile(r"(?:optimizer(?:_\d+)?\.(?:pt|bin)|optimizer\.pt_\d+.*|rank\d+-of-\d+-optimizer\.pt)")
_WEIGHTS: Final = re.compile(
    r"(?:model|pytorch_model|adapter_model|diffusion_pytorch_model)(?:_\d+)?\.(?:safetensors|bin)"
)
_FSDP_FILE: Final = re.compile(r"pytorch_model_fsdp(?:_\d+)?(?:_rank\d+)?\.bin")
_FSDP_FOLDER: Final = re.compile(r"pytorch_model_fsdp(?:_\d+)?|optimizer_\d+")
_OPTIMIZER_PATH: Final = re.compile(
    r"(?<![a-z])opt(?:im\w*)?(?![a-z])", re.IGNORECASE
)  # in what a script writes itself
NEMO_WEIGHTS: Final = "weights"  # NeMo 2: a folder of DCP's, beside `context` with the run's configuration
OWN_STATE: Final = "trainer_state.pt"  # beside the shards of `rekindle.integrations.snapshots.save_dcp`
NO_WEIGHTS: Final = "the model's weights are missing"
_HF_OWN: Final = frozenset({"training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"})


def format_of(name: str, folder: Folder) -> Format | None:
    """Whose layout this folder has; None where it matches none."""
    here = folder.here
    marked = marked_format(name, folder)
    if marked is not None:
        return marked
    if name.endswith(".ckpt"):
        return Format.LIGHTNING
    is_hf = "training_args.bin" in here or re.fullmatch(r"checkpoint-\d+", name) is not None
    if is_hf and (_HF_OWN & here.keys() or any(_RNG.fullmatch(path) for path in here)):
        return Format.HF_TRAINER
    if {"optimizer.bin", "scheduler.bin"} & here.keys() or any(_FSDP_FOLDER.fullmatch(path) for path in folder.folders):
        return Format.ACCELERATE
    if re.fullmatch(r"checkpoint[-_]\d+", name) and _has_weights(folder):
        return Format.HF_TRAINER if "-" in name else Format.ACCELERATE
    return None


def marked_format(name: str, folder: Folder) -> Format | None:
    """The same, only by files that no other program writes: also where a script says what it saved, this holds.

    Scripts of people's own have a `meta.pt` and a `trainer_state.json`, too: what lies beside it, and in it, decides.
    """
    here = folder.here
    if "trainer_state.json" in here and ("training_args.bin" in here or step_of_trainer_state(folder) is not None):
        return Format.HF_TRAINER
    if "meta.pt" in here and (is_dcp(folder) or deepspeed_tag(folder) is not None):
        return Format.LIGHTNING
    if any(_RANDOM.fullmatch(path) or _CUSTOM.fullmatch(path) for path in here):
        return Format.ACCELERATE
    if is_deepspeed(folder):
        return Format.DEEPSPEED
    if is_megatron(folder):
        return Format.MEGATRON
    if {"weights", "context"} <= set(folder.folders) and is_dcp(folder.below(NEMO_WEIGHTS)):
        return Format.NEMO
    if is_dcp(folder):
        has_own = any(path.endswith(ONE_FILE_ENDS) for path in here)  # a script's own state beside the shards
        return Format.LIGHTNING if name.endswith(".ckpt") and not has_own else Format.TORCH_DCP
    return None


def judge(format_: Format, name: str, folder: Folder) -> tuple[int | None, list[str]]:
    """(step, problems) of a folder by its layout: what is missing, or contradicts. See `damage` for the files."""
    match format_:
        case Format.HF_TRAINER:
            return _hugging_face(name, folder)
        case Format.LIGHTNING:
            return _lightning(name, folder)
        case Format.ACCELERATE:
            return _accelerate(name, folder)
        case Format.DEEPSPEED:
            return _deepspeed(name, folder)
        case Format.TORCH_DCP:
            return _dcp(name, folder)
        case Format.MEGATRON:
            return megatron(name, folder)
        case Format.NEMO:
            return read_name(name).step, parts_problems(folder)
        case _:
            return read_name(name).stated, parts_problems(folder)


def parts_problems(folder: Folder) -> list[str]:
    """What is wrong with the folders in it that torch DCP or DeepSpeed wrote, whatever the whole is."""
    problems: list[str] = []
    for prefix, inside in folder.each_folder().items():
        start = f"{prefix}/" if prefix else ""
        if is_deepspeed(inside):
            problems += [start + problem for problem in deepspeed_problems(inside)]
        elif is_dcp(inside):
            problems += [start + problem for problem in dcp_problems(inside)]
    return problems


def one_file(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    """(step, problems) of a snapshot that is one file. The content's own step wins over a loose one of the name."""
    stated = read_name(name)
    if is_temporary(name):
        return stated.stated, [f"{name} has a temporary name: its save or upload did not finish"]
    if stated.step is not None and stated.unit == 1:
        return stated.step, []
    numbers = numbers_in(folder, name, (*STEP_KEYS, "epoch"))
    inside = step_of(numbers)
    if inside is not None or stated.step is not None:
        return stated.settled(inside), []
    epochs = {near for epoch in numbers.get("epoch", ()) for near in (epoch - 1, epoch, epoch + 1)}
    return (None if stated.loose in epochs else stated.loose), []


def damage(folder: Folder) -> tuple[list[str], list[str]]:
    """(certain, unsure): empty and broken files among those that hold state; at most MAX_LOOKS are opened, the largest
    first. Unsure: files that may be whole, in a format that does not show it.
    """
    state = {
        path: size
        for path, size in folder.files.items()
        if path.endswith(STATE_ENDS) and not is_marker(path) and not is_temporary(path)
    }
    # A rank of torch DCP that has nothing to write leaves an empty shard; those that `.metadata` names are looked at.
    certain = [f"{path} is empty" for path, size in state.items() if size == 0 and not path.endswith(".distcp")]
    looked = sorted(
        (path for path, size in state.items() if size and path not in folder.elsewhere),
        key=lambda path: (-state[path], path),
    )[:MAX_LOOKS]
    found = [problem for path in looked if (problem := problem_of(folder, path)) is not None]
    certain += [problem.text for problem in found if not problem.is_unsure]
    return certain, [problem.text for problem in found if problem.is_unsure]


# ---- Hugging Face Trainer ------------------------------------------------------------------------------------------


def _hugging_face(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    here = folder.here
    problems: list[str] = []
    named = read_name(name)
    step, wrong = _trainer_state(folder)
    problems += wrong
    if step is not None and named.loose is not None and named.loose != step:
        problems.append(f"trainer_state.json says step {step}, the folder's name {named.loose}")
    problems += _weights(folder)
    trained = "scheduler.pt" in here or any(_RNG.fullmatch(path) or path == "rng_state.pth" for path in here)
    if trained and not _has_optimizer(folder):  # without any of them: save_only_model, which can be resumed as it is
        problems.append("optimizer.pt is missing")
    problems += _ranks_without(here, _RNG, "rng_state_{}.pth", least=2)  # a process that is alone writes no number
    return (named.loose if step is None else step), problems


def _trainer_state(folder: Folder) -> tuple[int | None, list[str]]:
    """The Trainer writes it last, its keys sorted; the log in it may be long, so only its two ends are read."""
    size = folder.files.get("trainer_state.json")
    if size is None:
        return None, ["trainer_state.json is missing: the save did not finish"]
    if size == 0:
        return None, []  # said with the other empty ones
    head = folder.read("trainer_state.json", 0, _STATE_HEAD_BYTES)
    tail = folder.read("trainer_state.json", max(size - 64, 0), 64)
    if head is None or tail is None:
        return None, ["trainer_state.json cannot be read"]
    if not tail.rstrip().endswith(b"}"):
        return None, ["trainer_state.json is cut short"]
    found = _GLOBAL_STEP.search(head)
    return (None, ["trainer_state.json names no global_step"]) if found is None else (int(found[1]), [])


def step_of_trainer_state(folder: Folder) -> int | None:
    """The step that a trainer_state.json names."""
    found = _GLOBAL_STEP.search(folder.read("trainer_state.json", 0, _STATE_HEAD_BYTES) or b"")
    return None if found is None else int(found[1])


# ---- Lightning -----------------------------------------------------------------------------------------------------


def _lightning(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    tag = deepspeed_tag(folder)
    problems: list[str] = []
    step = read_name(name).step
    if tag is not None:
        inner = folder.below(tag)
        problems += deepspeed_problems(inner)
        step = _deepspeed_step(inner) if step is None else step
    else:
        problems += dcp_problems(folder)
        if "meta.pt" not in folder.here:
            problems.append("meta.pt is missing: the save did not finish")
        elif step is None:
            step = step_of(numbers_in(folder, "meta.pt", ("global_step",)))
    return step, problems


# ---- Accelerate ----------------------------------------------------------------------------------------------------


def _accelerate(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    """`checkpoint_<n>` counts saves, not steps: its step stays unknown. A name of the user's own may say it."""
    here = folder.here
    problems = _weights(folder)
    if not _has_optimizer(folder):
        problems.append("optimizer.bin is missing")
    if not any(_RANDOM.fullmatch(path) for path in here):
        problems.append("random_states_0.pkl is missing: the save did not finish")
    problems += _ranks_without(here, _RANDOM, "random_states_{}.pkl")
    return read_name(name).step, problems


# ---- DeepSpeed -----------------------------------------------------------------------------------------------------


def _deepspeed(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    stated = read_name(name)
    step = _deepspeed_step(folder) if stated.step is None else stated.step
    return step, deepspeed_problems(folder)


def _deepspeed_step(folder: Folder) -> int | None:
    states = sorted(path for path in folder.here if path.endswith("_model_states.pt"))
    return step_of(numbers_in(folder, states[0], ("global_steps",))) if states else None


# ---- torch DCP -----------------------------------------------------------------------------------------------------


def _dcp(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    stated = read_name(name)
    step = stated.stated
    if step is None and OWN_STATE in folder.here:
        step = step_of(numbers_in(folder, OWN_STATE, ("step",)))
    return step, dcp_problems(folder)


# ---- what several share --------------------------------------------------------------------------------------------


def _is_fsdp(inner: str) -> bool:
    return re.fullmatch(r"(?:pytorch_model_fsdp|optimizer)(?:_\d+)?", inner) is not None


def contents_of(format_: Format, folder: Folder) -> tuple[bool | None, bool | None]:
    """(has weights, has an optimizer's state) of a folder in that format; None where that is unknown."""
    match format_:
        case Format.HF_TRAINER | Format.ACCELERATE:
            return _has_weights(folder) or None, _has_optimizer(folder)
        case Format.DEEPSPEED:
            return _deepspeed_contents(folder)
        case Format.LIGHTNING:
            tag = deepspeed_tag(folder)
            return dcp_contents(folder) if tag is None else _deepspeed_contents(folder.below(tag))
        case Format.TORCH_DCP:
            return dcp_contents(folder)
        case Format.NEMO:
            return dcp_contents(folder.below(NEMO_WEIGHTS))
        case _:
            return None, _script_has_optimizer(folder)


def _script_has_optimizer(folder: Folder) -> bool | None:
    """By the names in a folder of a script's own, or by its largest file."""
    if any(_OPTIMIZER_PATH.search(path) for path in folder.files):
        return True
    files = sorted((path for path in folder.files if path.endswith(ONE_FILE_ENDS)), key=lambda path: folder.files[path])
    return contents(folder, files[-1])[1] if files else None


def _deepspeed_contents(folder: Folder) -> tuple[bool | None, bool | None]:
    models = sorted(path for path in folder.here if path.endswith("_model_states.pt"))
    if any(path.endswith("_optim_states.pt") for path in folder.here):
        return bool(models) or None, True
    return contents(folder, models[0]) if models else (None, None)


def _has_weights(folder: Folder) -> bool:
    return any(
        _WEIGHTS.fullmatch(path)
        or _FSDP_FILE.fullmatch(path)
        or _MODEL_SHARD.fullmatch(path)
        or path.endswith(".index.json")
        for path in folder.here
    )


def _may_have_weights(folder: Folder) -> bool:
    """Where a script's own save puts them, under whatever name: `unet/diffusion_pytorch_model.bin`, `projector.bin`."""
    return any(
        path.endswith(ONE_FILE_ENDS) and not is_part(path) and path != "training_args.bin" for path in folder.files
    )


def _has_optimizer(folder: Folder) -> bool:
    if any(_OPTIMIZERS.fullmatch(path) for path in folder.here) or deepspeed_tag(folder) is not None:
        return True
    return any(re.fullmatch(r"optimizer(?:_\d+)?", inner) for inner in folder.folders)


def _weights(folder: Folder) -> list[str]:
    """The model's weights: one file, shards with their index, FSDP's DCP folders, or a DeepSpeed tag."""
    problems: list[str] = []
    tag = deepspeed_tag(folder)
    if tag is not None:
        problems += [f"{tag}/{problem}" for problem in deepspeed_problems(folder.below(tag))]
    if any(_is_fsdp(inner) for inner in folder.folders):
        for inner, part in folder.each_below().items():
            problems += [f"{inner}/{problem}" for problem in dcp_problems(part)] if _is_fsdp(inner) else []
    indexes = [path for path in folder.here if path.endswith(".index.json")]
    for index in indexes:
        problems += _index(folder, index)
    if not indexes and any(_MODEL_SHARD.fullmatch(path) for path in folder.here):
        problems.append("the index of its model shards (*.index.json) is missing")
    fsdp = any(inner.startswith("pytorch_model_fsdp") for inner in folder.folders)
    if tag is None and not fsdp and not _has_weights(folder) and not _may_have_weights(folder):
        problems.append(NO_WEIGHTS)
    return problems


def _index(folder: Folder, path: str) -> list[str]:
    """Every shard that the weight map names, and together as many bytes as it says."""
    raw = folder.whole(path, MAX_INDEX_BYTES)
    if folder.files.get(path) == 0:
        return []  # said with the other empty ones
    try:
        index = json.loads(raw or b"")
        shards = sorted(set(index["weight_map"].values()))
        stated = index.get("metadata") or {}
        total = stated.get("total_size") if isinstance(stated, Mapping) else None
        problems = [f"{shard} is missing" for shard in shards if shard not in folder.files]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return [f"{path} is cut short, or no index of shards"]
    there = sum(folder.files.get(shard, 0) for shard in shards)
    if not problems and isinstance(total, int | float) and not isinstance(total, bool) and there < total:
        problems.append(f"its model shards have {there} bytes, {path} says {total}")
    return problems


def _ranks_without(here: Mapping[str, int], pattern: re.Pattern[str], name: str, *, least: int = 1) -> list[str]:
    """Ranks below the highest one seen, or of the least that there are where any was, that have no file."""
    ranks = {int(found[1]) for path in here if (found := pattern.fullmatch(path))}
    absent = (rank for rank in range(max(least, *(rank + 1 for rank in ranks)) if ranks else 0) if rank not in ranks)
    return [f"{name.format(rank)} is missing" for rank in islice(absent, MAX_NAMED)]
