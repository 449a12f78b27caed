"""Every format, whole and damaged; the file lists are the frameworks' own."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from rekindle.checkpoints.discover import discover, judge_one
from rekindle.checkpoints.found import MAX_PROBLEMS, Format, Found
from tests.checkpoints.made import LAYOUTS, Shelf, dcp_metadata, layout, npz, safetensors, torch_archive, trainer_state


def found_in(files: dict[str, bytes]) -> tuple[Found, ...]:
    shelf = Shelf(files)
    return discover(shelf.listing, shelf.read)


def steps_of(name: str) -> list[tuple[Format, int | None, str, tuple[str, ...]]]:
    return [(item.format, item.step, item.root, item.problems) for item in found_in(layout(name))]


F = Format

WHOLE: list[tuple[str, Format, list[tuple[int | None, str]]]] = [
    (
        "one_file",
        F.ONE_FILE,
        [
            (70000, "ckpt-70000.pt"),
            (123, "step_000123.pt"),
            (123, "model_123.safetensors"),
            (100, "step-000000000100.npz"),
            (50, "weights-50.pt"),
            (5, "iter_0000005.pth"),
            (None, "model_3.pth"),  # its content says that 3 is the epoch
        ],
    ),
    ("torch_dcp", F.TORCH_DCP, [(7, "step-7")]),
    ("hf_trainer", F.HF_TRAINER, [(6, "checkpoint-6"), (4, "checkpoint-4"), (2, "checkpoint-2")]),
    ("hf_trainer_weights_only", F.HF_TRAINER, [(6, "checkpoint-6"), (4, "checkpoint-4"), (2, "checkpoint-2")]),
    ("hf_trainer_ddp", F.HF_TRAINER, [(6, "checkpoint-6"), (4, "checkpoint-4"), (2, "checkpoint-2")]),
    (
        "lightning",
        F.LIGHTNING,
        [
            (30, "lightning_logs/version_0/checkpoints/last.ckpt"),
            (30, "lightning_logs/version_0/checkpoints/epoch=1-step=30.ckpt"),
            (20, "lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt"),
            (10, "lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt"),
        ],
    ),
    (
        "lightning_sharded",
        F.LIGHTNING,
        [
            (10, "checkpoints/last.ckpt"),
            (10, "checkpoints/epoch=0-step=10.ckpt"),
            (5, "checkpoints/epoch=0-step=5.ckpt"),
        ],
    ),
    # checkpoint_<n> counts saves, not steps
    ("accelerate", F.ACCELERATE, [(None, f"checkpoints/checkpoint_{n}") for n in (2, 1, 0)]),
    ("accelerate_ddp", F.ACCELERATE, [(None, f"checkpoints/checkpoint_{n}") for n in (2, 1, 0)]),
    ("deepspeed_stage0", F.DEEPSPEED, [(4, "global_step4"), (2, "global_step2")]),
    ("deepspeed_stage2", F.DEEPSPEED, [(4, "global_step4"), (2, "global_step2")]),
    ("deepspeed_stage1_bf16", F.DEEPSPEED, [(4, "global_step4"), (2, "global_step2")]),
    ("deepspeed_stage3", F.DEEPSPEED, [(4, "global_step4"), (2, "global_step2")]),
]


@pytest.mark.parametrize(("name", "format_", "expected"), WHOLE, ids=[row[0] for row in WHOLE])
def test_what_the_frameworks_wrote_is_found_and_whole(
    name: str, format_: Format, expected: list[tuple[int | None, str]]
) -> None:
    assert steps_of(name) == [(format_, step, root, ()) for step, root in expected]


def test_every_recorded_layout_has_a_row_and_says_where_it_comes_from() -> None:
    assert [row[0] for row in WHOLE] == list(LAYOUTS)
    assert all(LAYOUTS[name]["source"] for name in LAYOUTS)


@dataclass(frozen=True)
class Damage:
    """Something done to one checkpoint of a layout, and what is said of it then."""

    layout: str
    root: str
    text: str
    do: Callable[[dict[str, bytes], str], Any]


def lose(file: str) -> Callable[[dict[str, bytes], str], Any]:
    return lambda files, root: files.pop(f"{root}/{file}")


def cut(file: str = "", keep: float = 0.5) -> Callable[[dict[str, bytes], str], Any]:
    def do(files: dict[str, bytes], root: str) -> None:
        path = f"{root}/{file}" if file else root
        files[path] = files[path][: int(len(files[path]) * keep)]

    return do


def put(file: str, body: bytes) -> Callable[[dict[str, bytes], str], Any]:
    return lambda files, root: files.__setitem__(f"{root}/{file}" if file else root, body)


OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\0" * 99
RANDOM_0 = "random_states_0.pkl"
MODEL_0 = "mp_rank_00_model_states.pt"
LAST_CKPT = "lightning_logs/version_0/checkpoints/last.ckpt"
EPOCH_CKPT = "lightning_logs/version_0/checkpoints/epoch=1-step=30.ckpt"
SHARDED = "checkpoints/epoch=0-step=10.ckpt"
INDEX = "model.safetensors.index.json"
OPTIMIZER_1 = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
DAMAGES = [
    Damage("one_file", "step_000123.pt", "step_000123.pt is cut short", cut(keep=0.9)),
    Damage("one_file", "step_000123.pt", "step_000123.pt is empty", cut(keep=0)),
    Damage("one_file", "step_000123.pt", "is no archive", put("", b"<html>not found</html>")),
    Damage("one_file", "step_000123.pt", "old format", put("", OLD_TORCH)),
    Damage("one_file", "step-000000000100.npz", "is cut short", cut(keep=0.7)),
    Damage("one_file", "model_123.safetensors", "its header says", cut(keep=0.9)),
    Damage("one_file", "model_123.safetensors", "is cut short", cut(keep=0.2)),
    Damage("one_file", "model_123.safetensors", "no safetensors file", put("", b"{" * 100)),
    Damage("torch_dcp", "step-7", ".metadata is missing: the save did not finish", lose(".metadata")),
    Damage("torch_dcp", "step-7", "__1_0.distcp is missing", lose("__1_0.distcp")),
    Damage("torch_dcp", "step-7", "__1_0.distcp is empty", put("__1_0.distcp", b"")),
    Damage("torch_dcp", "step-7", ".metadata needs 69721", cut("__1_0.distcp")),
    Damage("torch_dcp", "step-7", "names no shard", put(".metadata", pickle.dumps({"step": 7}))),
    Damage("torch_dcp", "step-7", "or no DCP metadata", put(".metadata", b"garbage.")),
    Damage("torch_dcp", "step-7", ".metadata is cut short", cut(".metadata", 0.9)),
    Damage("torch_dcp", "step-7", ".metadata is empty", put(".metadata", b"")),
    Damage("hf_trainer", "checkpoint-6", "trainer_state.json is missing", lose("trainer_state.json")),
    Damage("hf_trainer", "checkpoint-6", "trainer_state.json is cut short", cut("trainer_state.json")),
    Damage("hf_trainer", "checkpoint-6", "says step 5", put("trainer_state.json", trainer_state(5))),
    Damage("hf_trainer", "checkpoint-6", "optimizer.pt is missing", lose("optimizer.pt")),
    Damage("hf_trainer", "checkpoint-6", "optimizer.pt is cut short", cut("optimizer.pt")),
    Damage("hf_trainer", "checkpoint-6", "optimizer.pt is empty", put("optimizer.pt", b"")),
    Damage("hf_trainer", "checkpoint-6", "model's weights are missing", lose("model.safetensors")),
    Damage("hf_trainer", "checkpoint-6", "its header says", cut("model.safetensors", 0.8)),
    Damage("hf_trainer_ddp", "checkpoint-6", "rng_state_0.pth is missing", lose("rng_state_0.pth")),
    Damage("lightning", EPOCH_CKPT, "is cut short", cut()),
    Damage("lightning", LAST_CKPT, "is cut short", cut()),
    Damage("lightning_sharded", SHARDED, "meta.pt is missing", lose("meta.pt")),
    Damage("lightning_sharded", SHARDED, ".metadata is missing", lose(".metadata")),
    Damage("lightning_sharded", SHARDED, "__0_0.distcp is missing", lose("__0_0.distcp")),
    Damage("accelerate", "checkpoints/checkpoint_2", "optimizer.bin is missing", lose("optimizer.bin")),
    Damage("accelerate", "checkpoints/checkpoint_2", f"{RANDOM_0} is missing", lose(RANDOM_0)),
    Damage("accelerate", "checkpoints/checkpoint_2", "weights are missing", lose("model.safetensors")),
    Damage("accelerate_ddp", "checkpoints/checkpoint_2", f"{RANDOM_0} is missing", lose(RANDOM_0)),
    Damage("deepspeed_stage0", "global_step4", f"{MODEL_0} is cut short", cut(MODEL_0)),
    Damage("deepspeed_stage2", "global_step4", f"{MODEL_0} is missing", lose(MODEL_0)),
    # the highest rank: only the model states tell that there was one
    Damage("deepspeed_stage2", "global_step4", f"{OPTIMIZER_1} is missing", lose(OPTIMIZER_1)),
    Damage("deepspeed_stage1_bf16", "global_step4", f"bf16_{OPTIMIZER_1} is missing", lose(f"bf16_{OPTIMIZER_1}")),
    Damage("deepspeed_stage3", "global_step4", f"{OPTIMIZER_1} is missing", lose(OPTIMIZER_1)),
    Damage(
        "deepspeed_stage3",
        "global_step4",
        "zero_pp_rank_1_mp_rank_00_model_states.pt is missing",
        lose("zero_pp_rank_1_mp_rank_00_model_states.pt"),
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=[f"{item.layout}-{item.text[:40]}" for item in DAMAGES])
def test_a_damaged_one_is_told_with_the_reason_and_the_others_stay_whole(damage: Damage) -> None:
    files = layout(damage.layout)
    damage.do(files, damage.root)
    by_root = {item.root: item for item in found_in(files)}
    assert any(damage.text in problem for problem in by_root[damage.root].problems), by_root[damage.root].problems
    assert all(item.is_complete for root, item in by_root.items() if root != damage.root)


def test_a_latest_that_names_what_is_not_there_is_told_and_the_older_tag_decides_for_itself() -> None:
    files = {path: body for path, body in layout("deepspeed_stage2").items() if not path.startswith("global_step4/")}
    assert [(item.step, item.root, item.problems) for item in found_in(files)] == [
        (4, "global_step4", ("the file `latest` names global_step4, which is not there",)),
        (2, "global_step2", ()),
    ]


def test_a_latest_that_lags_behind_does_not_hide_a_whole_newer_tag() -> None:
    files = layout("deepspeed_stage2") | {"latest": b"global_step2"}
    assert [(item.step, item.is_complete) for item in found_in(files)] == [(4, True), (2, True)]


def test_a_latest_with_rubbish_in_it_is_told() -> None:
    files = layout("deepspeed_stage2") | {"latest": b"\xff\x00 ../../etc"}
    assert "names no tag" in found_in(files)[-1].problems[0]
    assert found_in({"latest": b"\xff\x00"}) == ()


def sharded_weights(*, shards: int = 3, total: int | None = None) -> dict[str, bytes]:
    """A Hugging Face checkpoint whose weights lie in several files."""
    base = {path: body for path, body in layout("hf_trainer").items() if path.startswith("checkpoint-6/")}
    del base["checkpoint-6/model.safetensors"]
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    for name in names:
        base[f"checkpoint-6/{name}"] = safetensors(1000)
    size = 300 * shards if total is None else total
    index = {"metadata": {"total_size": size}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
    base[f"checkpoint-6/{INDEX}"] = json.dumps(index).encode()
    return base


def test_weights_in_several_files_are_whole_when_their_index_says_so() -> None:
    assert [(item.step, item.problems) for item in found_in(sharded_weights())] == [(6, ())]


@pytest.mark.parametrize(
    ("file", "body", "said"),
    [
        ("model-00002-of-00003.safetensors", None, "model-00002-of-00003.safetensors is missing"),
        ("model-00002-of-00003.safetensors", b"", "model-00002-of-00003.safetensors is empty"),
        (INDEX, None, "the index of its model shards"),
        (INDEX, b'{"weight_map"', "is cut short, or no index"),
        (INDEX, b"[]", "is cut short, or no index"),
    ],
)
def test_a_missing_shard_or_index_is_told(file: str, body: bytes | None, said: str) -> None:
    files = sharded_weights()
    files.pop(f"checkpoint-6/{file}")
    if body is not None:
        files[f"checkpoint-6/{file}"] = body
    (found,) = found_in(files)
    assert any(said in problem for problem in found.problems), found.problems


def test_shards_smaller_than_their_index_says_are_told() -> None:
    (found,) = found_in(sharded_weights(total=10**6))
    assert "its model shards have" in found.problems[0]


def fsdp(root: str) -> dict[str, bytes]:
    """accelerate.utils.fsdp_utils: a DCP folder each for model and optimizer."""
    files = {}
    for folder in ("pytorch_model_fsdp_0", "optimizer_0"):
        shards = {f"__{rank}_0.distcp": 500 + rank for rank in range(2)}
        files |= {f"{root}/{folder}/{name}": b"d" * size for name, size in shards.items()}
        files[f"{root}/{folder}/.metadata"] = dcp_metadata(shards)
    return files


def test_the_folders_of_accelerate_and_hugging_face_under_fsdp_are_judged_as_dcp() -> None:
    state = {"random_states_0.pkl": {}, "random_states_1.pkl": {}, "scheduler.bin": {}}
    files = fsdp("checkpoint_3") | {f"checkpoint_3/{name}": torch_archive(body) for name, body in state.items()}
    (found,) = found_in(files)
    assert (found.format, found.problems) == (Format.ACCELERATE, ())
    del files["checkpoint_3/optimizer_0/__1_0.distcp"]
    assert "optimizer_0/__1_0.distcp is missing" in found_in(files)[0].problems
    trainer = fsdp("checkpoint-9") | {"checkpoint-9/trainer_state.json": trainer_state(9)}
    trainer |= {f"checkpoint-9/rng_state_{rank}.pth": torch_archive({}) for rank in range(2)}
    (found,) = found_in(trainer)
    assert (found.format, found.step, found.problems) == (Format.HF_TRAINER, 9, ())
    del trainer["checkpoint-9/pytorch_model_fsdp_0/.metadata"]
    assert any("pytorch_model_fsdp_0/.metadata is missing" in item for item in found_in(trainer)[0].problems)


def deepspeed_in(root: str, tag: str, step: int) -> dict[str, bytes]:
    inner = {path: body for path, body in layout("deepspeed_stage2").items() if path.startswith("global_step4/")}
    files = {path.replace("global_step4", f"{root}/{tag}"): body for path, body in inner.items()}
    states = {"global_steps": step, "dp_world_size": 2, "mp_world_size": 1}
    files[f"{root}/{tag}/mp_rank_00_model_states.pt"] = torch_archive(states)
    return files | {f"{root}/latest": tag.encode()}


def test_a_deepspeed_tag_within_another_format_is_one_checkpoint() -> None:
    hugging_face = deepspeed_in("checkpoint-8", "global_step8", 8) | {
        "checkpoint-8/trainer_state.json": trainer_state(8),
        "checkpoint-8/scheduler.pt": torch_archive({}),
    }
    lightning = deepspeed_in("last.ckpt", "checkpoint", 12)
    accelerate = deepspeed_in("checkpoint_1", "pytorch_model", 5) | {
        "checkpoint_1/random_states_0.pkl": torch_archive({}),
    }
    rows = [
        (hugging_face, Format.HF_TRAINER, 8),
        (lightning, Format.LIGHTNING, 12),
        (accelerate, Format.ACCELERATE, None),
    ]
    for files, format_, step in rows:
        (found,) = found_in(files)
        assert (found.format, found.step, found.problems) == (format_, step, ())
        lost = next(path for path in files if path.endswith(OPTIMIZER_1))
        assert found_in({path: body for path, body in files.items() if path != lost})[0].problems


@pytest.mark.parametrize(
    "path", ["step_12.pt.tmp", "ckpt-12.pt.partial", "tmp-step_12.pt", "step_12.pt.incomplete", "step_12.pt~"]
)
def test_a_temporary_name_is_never_whole(path: str) -> None:
    (found,) = found_in({path: torch_archive({"step": 12})})
    assert "temporary name" in found.problems[0]


def test_a_folder_with_a_temporary_name_is_never_whole() -> None:
    files = {path.replace("checkpoint-6/", "tmp-checkpoint-6/"): body for path, body in layout("hf_trainer").items()}
    found = {item.root: item for item in found_in(files)}
    assert "temporary name" in found["tmp-checkpoint-6"].problems[0]
    assert found["checkpoint-4"].is_complete


def test_left_over_temporary_files_beside_a_whole_save_do_no_harm() -> None:
    files = layout("torch_dcp") | {"step-7/.metadata.tmp": b"half", "step-7/__2_0.distcp.tmp": b""}
    assert found_in(files)[0].is_complete
    del files["step-7/.metadata"]
    assert "temporary file is there" in found_in(files)[0].problems[0]


def test_a_metadata_with_a_trap_in_it_is_walked_and_never_run() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("unpickled",))

    files = layout("torch_dcp")
    files["step-7/.metadata"] = pickle.dumps(
        {"relative_path": "__0_0.distcp", "offset": 0, "length": len(files["step-7/__0_0.distcp"]), "trap": Trap()}
    )
    assert found_in(files)[0].is_complete
    files = {
        "step_5.pt": torch_archive({"global_step": 5}),
        "last.ckpt": torch_archive({"global_step": 6, "t": Trap()}),
    }
    assert [item.step for item in found_in(files)] == [6, 5]


FOREIGN = [
    "README.md",
    "notes.txt",
    "config.json",
    "model.safetensors",  # an export, no training state
    "pytorch_model-00001-of-00002.bin",
    "model-7b.safetensors",
    "rank_3.pt",
    "shard-000012.npz",
    "dataset_42.npz",
    "12.pt",
    "events.out.tfevents.1700000000.host",
    "tensorboard/step_12.pt",
    "rekindle/manifests/step-000000000100-lm.json",
    ".hidden/step_12.pt",
    "checkpoint-final/whatever.xyz",
]


def test_foreign_files_are_passed_over() -> None:
    assert found_in({path: b"x" * 10 for path in FOREIGN}) == ()


def test_a_numbered_folder_of_nobody_s_layout_is_told_and_not_vouched_for() -> None:
    (found,) = found_in({"step-12/rank-0.dat": b"x", "step-12/rank-1.dat": b"y"})
    assert (found.format, found.step) == (Format.UNKNOWN, 12)
    assert "no layout that is known here" in found.problems[0]


def test_the_result_that_a_trainer_leaves_beside_its_checkpoints_is_none() -> None:
    files = layout("hf_trainer") | {"trainer_state.json": trainer_state(6), "model.safetensors": safetensors()}
    assert [item.root for item in found_in(files)] == ["checkpoint-6", "checkpoint-4", "checkpoint-2"]
    alone = {"out/trainer_state.json": trainer_state(6), "out/model.safetensors": safetensors()}
    assert found_in(alone) == ()


def test_one_folder_for_each_step_with_one_file_in_it() -> None:
    files = {f"step-{step}/model.pt": torch_archive({"step": step}) for step in (1, 2)}
    assert all(item.format is Format.UNKNOWN for item in found_in(files))
    named = {f"step-{step}/checkpoint.pt": torch_archive({"step": step}) for step in (1, 2)}
    assert [(item.step, item.is_complete) for item in found_in(named)] == [(2, True), (1, True)]


def test_the_listing_itself_can_be_a_checkpoint() -> None:
    files = {path.removeprefix("step-7/"): body for path, body in layout("torch_dcp").items()}
    (found,) = found_in(files)
    assert (found.root, found.format, found.is_complete, found.step) == ("", Format.TORCH_DCP, True, None)


def test_one_checkpoint_can_be_judged_by_itself() -> None:
    shelf = Shelf(layout("hf_trainer"))
    files = {path: size for path, size in shelf.listing.items() if path.startswith("checkpoint-4/")}
    found = judge_one("checkpoint-4", files, shelf.read)
    assert found == next(item for item in discover(shelf.listing, shelf.read) if item.root == "checkpoint-4")
    assert judge_one("a/step_3.npz", {"a/step_3.npz": 5}, lambda *_: b"") is not None


def test_many_problems_are_counted_and_not_all_told() -> None:
    shards = {f"__{rank}_0.distcp": 10 for rank in range(50)}
    (found,) = found_in({"step-1/.metadata": dcp_metadata(shards), "step-1/__0_0.distcp": b"x" * 10})
    assert len(found.problems) == MAX_PROBLEMS + 1
    assert found.problems[-1] == "and 39 more"


def test_an_archive_closed_after_a_long_pickle_is_read_further() -> None:
    state = {"model": {f"layer.{n}.weight": "x" * 40 for n in range(9000)}, "global_step": 77}
    (found,) = found_in({"last.ckpt": torch_archive(state)})
    assert (found.step, found.is_complete) == (77, True)


def test_an_npz_is_judged_by_its_name_and_its_end() -> None:
    assert [(item.step, item.is_complete) for item in found_in({"ckpt_8.npz": npz()})] == [(8, True)]


def test_a_file_that_cannot_be_read_is_not_vouched_for() -> None:
    shelf = Shelf(layout("hf_trainer"))
    found = discover(shelf.listing, lambda *_: None)
    assert found
    assert not any(item.is_complete for item in found)


@pytest.mark.parametrize(
    "names",
    [
        lambda n: ("checkpoint-1/trainer_state.json", *(f"checkpoint-1/d{i}/x" for i in range(n))),
        lambda n: ("checkpoint-1/trainer_state.json", *(f"checkpoint-1/optimizer_{i}/x" for i in range(n))),
        lambda n: [f"out/{i}/{name}" for i in range(n) for name in ("latest", "notes.txt")],
        lambda n: [f"step-1/__{i}{end}" for i in range(n) for end in (".metadata", "_0.distcp")],
    ],
    ids=["folders", "parts", "latest", "ranks"],
)
def test_judging_takes_as_long_as_there_are_entries(names: Callable[[int], Iterable[str]]) -> None:
    """Eight times the entries: 64 times as long where each is compared with each."""

    def took_s(n: int) -> float:
        listing = dict.fromkeys(names(n), 20)
        began = time.process_time()
        discover(listing, lambda _path, _start, size: b'{"global_step": 1}'[:size])
        return time.process_time() - began

    few, many = (min(took_s(n) for _ in range(3)) for n in (500, 4000))
    assert many / max(few, 1e-3) < 30
